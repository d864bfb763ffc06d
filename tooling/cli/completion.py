"""`tritune completion`: the script that lets a shell complete command lines, and its answers. Layer: cli."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from typing import Any, Literal

import typer

from tooling.cli.app import console_of

VARIABLE = "_TRITUNE_COMPLETE"
"""Set by the script: the run then prints what may follow the words that the shell has so far."""
_WHOLE_WORDS = ("complete_zsh", "complete_fish")
"""Of shells that replace the whole word `--precision=f`, where bash has three."""
_ZSH_FILES = "compset -P '*='; _files\n"
"""Files for what stands behind the first `=`."""
_Shell = Literal["bash", "zsh", "fish"]


def attach(app: typer.Typer) -> None:
    app.command()(completion)


def completion(context: typer.Context, shell: _Shell = typer.Argument(help="The shell to complete in.")) -> None:
    """Print the script that completes commands, options and values in a shell.

    Write it into a file, and let the shell read that at its start: `source FILE` in ~/.bashrc, for one.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name="tritune", complete_var=VARIABLE, shell=shell)
    console_of(context).result({"shell": shell, "script": script}, script)


def answer(root: Any) -> int:
    """Print the completions that the environment asks for. The global options are known to every command."""
    from typer.completion import get_completion_inspect_parameters, shell_complete

    get_completion_inspect_parameters()  # this makes the shells known
    options = typer.Typer(add_completion=False)
    options.command()(_global_options)
    for command in _below(root):
        command.params += typer.main.get_command(options).params
    asked = os.environ[VARIABLE]
    if asked == "complete_bash":
        words, at = _joined(os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"]))
        os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(at)}
    before = _before_value(os.environ.get("_TYPER_COMPLETE_ARGS", "")) if asked in _WHOLE_WORDS else ""
    if not before:
        return shell_complete(root, {}, "tritune", VARIABLE, asked)
    for command in _below(root):
        for param in command.params:
            param.shell_complete = partial(_whole, param.shell_complete, before)
    with redirect_stdout(StringIO()) as said:
        code = shell_complete(root, {}, "tritune", VARIABLE, asked)
    text = said.getvalue()
    typer.echo(_ZSH_FILES if text.strip() == "_files" else text, nl=False)
    return code


def _before_value(line: str) -> str:
    """`--precision=` where the word to complete is `--precision=f`, else ""."""
    option, sign, _ = line.rpartition(" ")[2].partition("=")
    return option + sign if sign and option.startswith("-") else ""


def _whole(complete: Callable[[Any, str], list[Any]], before: str, context: Any, incomplete: str) -> list[Any]:
    """The completions of a value as words that begin with its option."""
    found = complete(context, incomplete)
    for one in found:
        one.value = before + one.value
    return found


def _joined(words: Sequence[str], at: int) -> tuple[list[str], int]:
    """The words of a command line as they were typed, and which of them is the one to complete: bash takes an `=` for a
    word of its own, and `--precision=f` for three."""
    joined: list[str] = []
    place: list[int] = []
    for word in words:
        if joined and (word == "=" or joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
        place.append(len(joined) - 1)
    return joined, place[at] if at < len(place) else len(joined)


def _below(command: Any) -> Iterator[Any]:
    yield command
    for one in getattr(command, "commands", {}).values():
        yield from _below(one)


def _global_options(
    json: bool = typer.Option(False, "--json", help="Exactly one JSON object on stdout."),
    quiet: bool = typer.Option(False, "-q", "--quiet", help="Only results, warnings and errors."),
    verbose: bool = typer.Option(False, "-v", "--verbose", help="More detail on stderr."),
    no_progress: bool = typer.Option(False, "--no-progress", help="No progress lines."),
) -> None:
    """What `tooling.cli.app` takes out of a command line before it is parsed."""
