"""The commands of the command line, for tests that look at all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def every_command() -> Iterator[tuple[list[str], Any, Any]]:
    """Each by its words, with a context of its own; those of groups too, in the order of the help."""
    from typer.main import get_command

    from tooling.cli.app import app
    from tooling.cli.commands import register

    register(app)
    root = get_command(app)
    yield from _below(root, [], root.make_context("tritune", [], resilient_parsing=True))


def _below(command: Any, words: list[str], context: Any) -> Iterator[tuple[list[str], Any, Any]]:
    if not hasattr(command, "commands"):
        yield words, command, context
        return
    for name, one in command.commands.items():
        yield from _below(one, [*words, name], one.make_context(name, [], parent=context, resilient_parsing=True))
