"""The root command: global options, error boundary, exit codes. Layer: cli."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from typer.exceptions import TyperException

from tooling.cli.usage import named, require_values, usage_error
from tooling.console import Console, StdoutFailed
from tooling.errors import Terminated, TrituneError, UsageError

_GLOBAL_FLAGS = {
    "--json": "json",
    "-q": "quiet",
    "--quiet": "quiet",
    "-v": "verbose",
    "--verbose": "verbose",
    "--no-progress": "no_progress",
}
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class Group(typer.core.TyperGroup):
    """A group of commands whose help shows the whole first sentence of each; Click's own cuts it off."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=1_000)) for name, command in named if command])


app = typer.Typer(
    name="tritune",
    cls=Group,
    help="From a transformer to a right and tuned Triton deployment.",
    epilog="Global options may stand before or after the command: --json, -v/--verbose, -q/--quiet, --no-progress.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root(
    show_version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    """From a transformer to a right and tuned Triton deployment."""


def console_of(context: typer.Context) -> Console:
    """The console that `main` made for this run."""
    console = context.find_root().obj
    assert isinstance(console, Console)
    console.command = context.command_path.removeprefix("tritune ")
    return console


def _split_globals(argv: Sequence[str]) -> tuple[list[str], dict[str, bool]]:
    """Take the global flags out of `argv` wherever they stand before a `--`."""
    rest: list[str] = []
    flags = dict.fromkeys(_GLOBAL_FLAGS.values(), False)
    for index, word in enumerate(argv):
        if word == "--":
            rest += argv[index:]
            break
        if word in _GLOBAL_FLAGS:
            flags[_GLOBAL_FLAGS[word]] = True
        else:
            rest.append(word)
    return rest, flags


def _refuse_empty(args: Sequence[str]) -> None:
    """No value may be empty: it comes from a variable that is not set, and as a path it would be the directory here.

    Raises UsageError.
    """
    for index, word in enumerate(args):
        option, sign, value = word.partition("=")
        if word and not (sign and not value and option.startswith("--")):
            continue
        before = args[index - 1] if index and args[index - 1].startswith("-") else "a word of the command line"
        raise UsageError("empty", where=option or before, expected="a value", hint="leave it out, or set its variable")


def _command_of(args: Sequence[str]) -> str:
    """The command, or the group of it, meant by a command line that is not parsed."""
    return args[0] if args and not args[0].startswith("-") else ""


def _unusable(error: OSError) -> UsageError | None:
    """What is wrong with a path that a call has met; or with the disk, where only a write to it failed."""
    if error.filename is not None:
        return UsageError("cannot be used", where=os.fsdecode(error.filename), got=error.strerror)
    no_place = (error.strerror or "").startswith("No usable temporary directory")
    if no_place or error.errno in _NO_ROOM:
        hint = "make room, or name a directory with room in the variable TMPDIR"
        return UsageError("a temporary file cannot be written", got=error.strerror, hint=hint)
    return None


def _run(command: Any, args: list[str], console: Console) -> tuple[int, TrituneError | None]:
    """Parse and run one command line. Typer's own `main` is left out: it turns interrupts and closed pipes into 1."""
    words, meant = named(command, args)
    console.command = " ".join(words) or _command_of(args)
    try:
        _refuse_empty(args)
        require_values(words, meant, args[len(words) :])
        try:
            context = command.make_context("tritune", args, obj=console)
        except OSError as error:  # nothing but the help is written while parsing
            raise StdoutFailed from error
        with context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code, None
    except TrituneError as error:
        console.error(error)
        return error.exit_code, error
    except OSError as error:
        unusable = _unusable(error)
        if unusable is None:
            raise
        console.error(unusable)
        return unusable.exit_code, unusable
    except TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            console.info(str(error))
            return UsageError.exit_code, None
        usage = usage_error(error, words, meant)
        console.error(usage)
        return usage.exit_code, usage
    return 0, None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool in this process and return its exit code (see the table in docs/cli.md)."""
    _prepare_streams()
    args, flags = _split_globals(sys.argv[1:] if argv is None else argv)
    console = Console(
        json=flags["json"], quiet=flags["quiet"], verbose=flags["verbose"], show_progress=not flags["no_progress"]
    )
    try:
        code, error = _outcome(args, console)
        console.close(code, error)
        return code
    except StdoutFailed as failure:
        cause = failure.__cause__
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered goes nowhere at exit
        if isinstance(cause, BrokenPipeError):
            return 0
        got = cause.strerror if isinstance(cause, OSError) else None
        console.error(UsageError("the result cannot be written", where="stdout", got=got))
        return UsageError.exit_code


def _prepare_streams() -> None:
    """Make stdout and stderr take any text: closed ones swallow it, characters they cannot encode are escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - lives as long as we do
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _outcome(args: list[str], console: Console) -> tuple[int, TrituneError | None]:
    """Exit code and error of a command line, whatever ends it but a stdout that fails."""
    if args[:1] == ["--version"]:
        from importlib.metadata import version

        console.command = "version"
        console.result({"version": version("tritune")}, f"tritune {version('tritune')}")
        return 0, None
    try:
        from tooling.cli import commands, completion

        completing = completion.VARIABLE in os.environ
        commands.register(app, _command_of(args) if not completing else None)
        root = typer.main.get_command(app)
        if completing:
            return completion.answer(root), None
        return _run(root, args, console)
    except KeyboardInterrupt:
        console.info("interrupted")
        return 130, None
    except Terminated:
        return 143, None
    except StdoutFailed:
        raise
    except Exception as error:
        if _was_interrupted(error):
            console.info("interrupted")
            return 130, None
        return _bug(console)


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether a Ctrl-C is behind an error: up to Python 3.11 a class in the making wraps what is raised in it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _bug(console: Console) -> tuple[int, TrituneError]:
    console.warning(traceback.format_exc())
    error = TrituneError("internal error of tritune: please report it with the lines above")
    console.error(error)
    return error.exit_code, error
