"""`tritune build`: what the project file describes, made step by step, and only what changed. Layer: cli."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tooling.cli.app import console_of
from tooling.console import Console
from tooling.errors import UsageError

if TYPE_CHECKING:
    from tooling.project.file import Project
    from tooling.project.plan import Planned
    from tooling.project.run import Builder, Report
    from tooling.project.steps import Step

FILE = typer.Option(Path("tritune.yaml"), "--file", "-f", metavar="FILE", help="The project file.")
_PROGRAM = (sys.executable, "-m", "tooling.cli.step")
_MARKS = {"new": "+", "changed": "~", "perhaps": "?", "unchanged": "="}


def attach(app: typer.Typer) -> None:
    app.command()(build)


def build(
    context: typer.Context,
    file: Path = FILE,
    dry_run: bool = typer.Option(False, "--dry-run", help="Show what would be done and why; do nothing."),
    frozen: bool = typer.Option(
        False, "--frozen", help="Do and measure nothing: check that what is committed fits together (for CI)."
    ),
    jobs: int = typer.Option(2, min=1, max=64, help="Steps at once; whatever measures runs alone."),
) -> None:
    """Make all that the project file describes: export, config, check, tune, deploy; only what changed.

    Exit 1 when a verification, the check or a Slo fails. Interrupted or failed, the same command goes on from there.
    """
    console = console_of(context)
    if dry_run and frozen:
        raise UsageError("--dry-run and --frozen exclude each other", hint="give one of them")
    if dry_run:
        _show(file, console)
    elif frozen:
        _verify(file, console)
    else:
        _say(console, make(file, console, jobs=jobs))


def make(file: Path, console: Console, *, jobs: int = 2) -> Report:
    """Do every step that must be done. Raises what failed, all of it, at the end."""
    from tooling.project.lock import only_build
    from tooling.project.steps import BUILD_DIR

    project = read(file)
    with only_build(_root(file) / BUILD_DIR):
        builder, steps = _opened(file, project, console)
        try:
            report = builder.run(steps, jobs)
        finally:
            builder.digests.save()
        builder.forget(steps)
    report.raise_failures()
    return report


def _show(file: Path, console: Console) -> None:
    from tooling.project.plan import plan, stale

    builder, steps = _opened(file, read(file), console)
    planned = plan(steps, builder.lock, builder.digests, builder.lock.hardware)
    gone = stale(builder.lock, steps)
    console.result(_data(planned, gone), "\n".join(_shown(planned, gone)))


def _verify(file: Path, console: Console) -> None:
    builder, steps = _opened(file, read(file), console, frozen=True)
    verified = builder.frozen(steps)
    console.result({"verified": verified}, f"{len(verified)} steps: what is committed fits together")


def _opened(
    file: Path, project: Project, console: Console, *, frozen: bool = False
) -> tuple[Builder, tuple[Step, ...]]:
    """What does the steps of a project, and the steps; of a frozen one they are those of the machine that built it."""
    from tooling.project.digests import Digests
    from tooling.project.lock import LOCK_NAME, read_lock
    from tooling.project.run import Builder
    from tooling.project.steps import BUILD_DIR, steps_of
    from tooling.repository import cpu_name

    root = _root(file)
    lock = read_lock(root / LOCK_NAME, cpu_name())
    if not frozen:
        lock.hardware = cpu_name()
    digests = Digests(root, root / BUILD_DIR / "stamps.json")
    builder = Builder(root, lock, digests, _PROGRAM, console, lambda: _install(console))
    return builder, steps_of(project, root, all_commands(), lock.hardware)


def _root(file: Path) -> Path:
    return file.absolute().parent


def read(file: Path, *, root: Path | None = None, files: bool = True) -> Project:
    """The project in a file. Raises UsageError with all its problems, or when there is none.

    What it names must be there, seen from `root`, by default its own directory; without `files` that is not asked.
    """
    from tooling.project.file import project_model, read_project

    if not file.exists():
        raise UsageError(
            "there is no project file",
            where=file,
            hint="write one with `tritune init`, or name another with --file",
        )
    return read_project(file, project_model(all_commands()), (root or _root(file)) if files else None)


def all_commands() -> dict[str, Callable[..., Any]]:
    """The function behind every command, by the command's whole name."""
    from tooling.cli.app import app
    from tooling.cli.commands import register

    register(app)
    found = dict(_functions(app, ""))
    for group in app.registered_groups:
        assert group.typer_instance is not None
        found |= _functions(group.typer_instance, f"{group.name} ")
    return found


def _functions(app: typer.Typer, prefix: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for command in app.registered_commands:
        assert command.callback is not None
        yield prefix + (command.name or command.callback.__name__.replace("_", "-")), command.callback


def _install(console: Console) -> None:
    """The embedded server, which measuring needs."""
    from tooling.errors import MissingError
    from tooling.runtime import find_runtime, install_runtime

    try:
        find_runtime()
    except MissingError:
        console.info("installing the embedded server's runtime (once)")
        install_runtime(console)


def _data(planned: tuple[Planned, ...], gone: list[str]) -> dict[str, Any]:
    steps = [
        {"name": p.step.name, "state": p.state, "why": list(p.why), "command": ["tritune", *p.step.words]}
        for p in planned
    ]
    return {"steps": steps, "gone": gone}


def _shown(planned: tuple[Planned, ...], gone: list[str]) -> Iterator[str]:
    import shlex

    for one in planned:
        yield f"{_MARKS[one.state]} {one.step.name}{': ' if one.why else ''}{'; '.join(one.why)}"
        if one.state != "unchanged":
            yield f"    tritune {shlex.join(one.step.words)}"
    yield from (f"- {name}: no longer in the project; what it made stays" for name in gone)
    count = sum(one.must_run for one in planned)
    perhaps = sum(one.state == "perhaps" for one in planned)
    yield ""
    yield f"{count} to do, {perhaps} perhaps after these, {len(planned) - count - perhaps} unchanged"


def _say(console: Console, report: Report) -> None:
    data = {"ran": report.ran, "unchanged": report.unchanged}
    if not report.ran:
        console.result(data, f"nothing to do: all {len(report.unchanged)} steps are unchanged")
        return
    text = f"{len(report.ran)} steps done, {len(report.unchanged)} unchanged\n\nnext\n  tritune serve"
    console.result(data, text)
