"""`tritune runtime`: install and show the embedded server's own environment. Layer: cli."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tooling.cli.app import Group, console_of

if TYPE_CHECKING:
    from tooling.runtime import Runtime

app = typer.Typer(cls=Group, help="The embedded server's own environment.", no_args_is_help=True)


def _described(runtime: Runtime) -> tuple[dict[str, str | None], str]:
    from tooling.runtime import has_llm

    facts = {
        "root": str(runtime.root),
        "python": str(runtime.python),
        "tritonserver": str(runtime.tritonserver),
        "backends": str(runtime.backends),
        "perf_analyzer": None if runtime.perf_analyzer is None else str(runtime.perf_analyzer),
        "llm": str(runtime.llm) if has_llm(runtime) else None,
    }
    absent = {"perf_analyzer": "does not run on this system", "llm": "not installed (`tritune runtime install --llm`)"}
    return facts, "\n".join(f"{name:<14} {value or absent[name]}" for name, value in facts.items())


@app.command("install")
def install(
    context: typer.Context,
    force: bool = typer.Option(False, "--force", help="Make it anew even if a valid one is there."),
    llm: bool = typer.Option(False, "--llm", help="Add vLLM for CPUs, in an environment of its own beside it."),
) -> None:
    """Make the embedded server's environment in the user's cache (or in $TRITUNE_RUNTIME); nothing if it is there.

    With --llm, --force makes only the environment of vLLM anew.
    """
    from tooling.runtime import install_llm, install_runtime

    console = console_of(context)
    console.result(*_described(install_llm(console, force) if llm else install_runtime(console, force)))


@app.command("show")
def show(context: typer.Context) -> None:
    """Print where the installed environment is, after validating it."""
    from tooling.runtime import find_runtime

    console_of(context).result(*_described(find_runtime()))
