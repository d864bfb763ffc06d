"""docs/commands.md is what the command line itself says; `--update-golden` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..every_command import every_command

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
HEAD = """# Commands

Generated from the command line itself (`pytest tests/docs/test_commands.py --update-golden`); `tritune COMMAND --help`
says the same. Options of every command, exit codes and streams: [the command line](cli.md).
"""


def test_the_page_is_current(update_golden: bool) -> None:
    page = "\n".join([HEAD, *_page()])
    if update_golden:
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page


def test_every_option_says_by_itself_what_it_is() -> None:
    """`--max-batch-size  Of an engine` is only half a sentence."""
    for words, command, context in every_command():
        assert command.help[0].isupper() and " " in command.help, words
        for param in command.get_params(context):
            told = (param.get_help_record(context) or ("", ""))[1]
            if param.param_type_name == "option":
                assert told and not told.startswith(("Of ", "[")), f"{words} {param.opts}: {told}"


def _page() -> Iterator[str]:
    commands = [(" ".join(words), command, context) for words, command, context in every_command()]
    yield "| command | what it does |"
    yield "|---|---|"
    for name, command, _ in commands:
        anchor = f"tritune {name}".replace(" ", "-")
        yield f"| [`tritune {name}`](#{anchor}) | {_cell(command.help.splitlines()[0])} |"
    yield ""
    for name, command, context in commands:
        yield from _section(name, command, context)


def _section(name: str, command: Any, context: Any) -> Iterator[str]:
    records = [
        (param.param_type_name, *record)
        for param in command.get_params(context)
        if (record := param.get_help_record(context)) and "--help" not in param.opts
    ]
    pieces = [piece for param in command.get_params(context) for piece in param.get_usage_pieces(context)]
    yield from (f"## tritune {name}", "", *_paragraphs(command.help), "")
    yield from ("```", " ".join(["tritune", name, "[OPTIONS]", *pieces]), "```", "")
    if records:
        yield from ("| | |", "|---|---|")
        for kind in ("argument", "option"):
            yield from (f"| `{_code(names)}` | {_cell(told)} |" for one, names, told in records if one == kind)
        yield ""


def _paragraphs(text: str) -> list[str]:
    return "\n\n".join(_cell(part) for part in text.split("\n\n")).split("\n")


def _cell(text: str) -> str:
    """Text of a table: what stands between backticks is code already."""
    parts = _code(text).split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


def _code(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
