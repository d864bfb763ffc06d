"""`tritune check`: what Triton would say to a repository, and what it would silently do wrong. Layer: cli."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tooling.cli.app import console_of
from tooling.cli.options import MOST, given
from tooling.errors import UsageError

if TYPE_CHECKING:
    from tooling.check.runner import Report
    from tooling.check.target import Target
    from tooling.console import Console


_OF_FILES = ("--fix", "--from-release", "--compose")
"""Options of a check of files alone."""


class Level(str, Enum):
    """Findings that make the answer no."""

    ERROR = "error"
    WARNING = "warning"


class Use(str, Enum):
    """What an ONNX file is judged for."""

    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"


class Format(str, Enum):
    """How findings are written."""

    TEXT = "text"
    SARIF = "sarif"
    GITHUB = "github"


def attach(app: typer.Typer) -> None:
    @app.command()
    def check(
        context: typer.Context,
        paths: list[Path] = typer.Argument(None, help="Model repositories; or config.pbtxt or ONNX files of them."),
        model: list[str] = typer.Option([], metavar="NAME", help="Only this model of the repository."),
        release: str | None = typer.Option(
            None, "--release", "--to-release", help="The Triton release that will serve. Default: the tested one."
        ),
        from_release: str | None = typer.Option(None, help="Show only what is new compared with this release."),
        strict: bool = typer.Option(False, "--strict", help="Judge for --disable-auto-complete-config."),
        gpus: int | None = typer.Option(None, min=0, max=MOST, help="GPUs the server sees. Default: not known."),
        server_args: str = typer.Option("", metavar="TEXT", help="The options tritonserver is started with."),
        compose: Path | None = typer.Option(None, help="The server's compose file. Default: one in the repository."),
        config_name: str | None = typer.Option(None, help="Triton's --model-config-name: judge configs/NAME.pbtxt."),
        use: Use = typer.Option(Use.ONNXRUNTIME, "--for", help="What a lone ONNX file is for."),
        fail_on: Level = typer.Option(Level.ERROR, help="Exit 1 for findings this bad, or worse."),
        output_format: Format = typer.Option(Format.TEXT, "--format", help="How findings are written."),
        request: Path | None = typer.Option(None, metavar="FILE", help="Judge the requests of a file for one model."),
        url: str | None = typer.Option(None, metavar="HOST:PORT", help="Compare with what this running server has."),
        vllm: Path | None = typer.Option(
            None, metavar="DIR", help="A vLLM to judge for too. Default: an installed one."
        ),
        fix: bool = typer.Option(False, "--fix", help="Apply the safe fixes to the configs first."),
        explain: str | None = typer.Option(None, metavar="RULE", help="Explain a rule; `all` lists them."),
    ) -> None:
        """Say offline what Triton would say to a model repository, and what it would silently do wrong."""
        console = console_of(context)
        if explain is not None:
            _refuse_beside_explain([*map(str, paths or ()), *given(context)])
            _explain(console, explain)
            return
        if not paths:
            raise UsageError("nothing to check", expected="a model repository", hint="run `tritune check REPOSITORY`")
        target = _target(release, server_args, strict=strict, gpus=gpus, config_name=config_name, use=use, vllm=vllm)
        if request is not None:
            from tooling.check.runner import check_request

            _require_alone("a request", paths, given(context), ("--url", *_OF_FILES))
            report = check_request(request, paths[0], target, model)
        elif url is not None:
            from tooling.check.served import compare
            from tooling.server.client import address
            from tooling.server.inventory import read_server

            _require_alone("a comparison", paths, given(context), _OF_FILES)
            report = compare(read_server(address(url)), paths[0], target, model)
        else:
            report = _report(console, paths, target, model, compose, from_release, fix=fix)
        _answer(console, report, output_format)
        _exit(report, fail_on)


def _refuse_beside_explain(said: list[str]) -> None:
    others = [word for word in said if word != "--explain"]
    if others:
        what, hint = "a rule is explained, and nothing checked", "run it without them"
        raise UsageError(what, where="--explain", got=", ".join(others), hint=hint)


def _require_alone(what: str, paths: list[Path], said: list[str], others: tuple[str, ...]) -> None:
    """Raise UsageError for several paths, and for options that have no meaning beside --request or --url."""
    if len(paths) > 1:
        raise UsageError(f"{what} is for one repository", got=f"{len(paths)} paths", expected="one")
    unread = [option for option in said if option in others]
    if unread:
        raise UsageError(f"{what} judges nothing else", got=", ".join(unread), hint="run it without them")


def _target(
    release: str | None,
    server_args: str,
    *,
    strict: bool,
    gpus: int | None,
    config_name: str | None,
    use: Use,
    vllm: Path | None,
) -> Target:
    """The server that the options describe."""
    from tooling.check.target import Target, split_words, with_options
    from tooling.releases import current_release, release_named

    target = Target(
        current_release() if release is None else release_named(release, "--release"),
        release_named=release is not None,
        strict=strict,
        gpus=gpus,
        config_name=config_name,
        engine=use is Use.TENSORRT,
        vllm=_vllm(vllm),
    )
    return with_options(target, split_words(server_args)) if server_args else target


def _vllm(asked: Path | None) -> Path | None:
    """The package directory that is asked for, else the embedded server's vLLM, else the one that Python would import;
    none is imported."""
    from importlib.util import find_spec

    from tooling.runtime import installed_vllm

    if asked is not None:
        from tooling.llm.argument_reader import read_arguments

        read_arguments(asked)  # or raises
        return asked
    if embedded := installed_vllm():
        return embedded
    found = find_spec("vllm")
    return Path(found.origin).parent if found and found.origin else None


def _report(
    console: Console,
    paths: list[Path],
    target: Target,
    names: list[str],
    compose: Path | None,
    from_release: str | None,
    *,
    fix: bool,
) -> Report:
    from dataclasses import replace

    from tooling.check import runner
    from tooling.check.fixing import fix as apply_fixes
    from tooling.releases import release_named

    def judge_for(server: Target) -> Report:
        return runner.merged([runner.check(path, server, names, compose_file=compose) for path in paths])

    def judge() -> Report:
        report = judge_for(target)
        if from_release is None:
            return report
        old = replace(target, release=release_named(from_release, "--from-release"), release_named=True)
        return runner.newer(report, judge_for(old))

    if not fix:
        return judge()
    done, report = apply_fixes(judge)
    for one in done:
        console.info(f"fixed {one.file}: [{one.finding.rule.id}] {one.finding.message}")
    return report


def _answer(console: Console, report: Report, output_format: Format) -> None:
    from tooling.check.report import as_annotations, as_dict, as_text

    if output_format is Format.SARIF:
        from tooling.check.sarif import as_sarif

        text = as_sarif(report)
    elif output_format is Format.GITHUB:
        text = as_annotations(report)
    else:
        text = as_text(report, details=not console.quiet)
    console.result(as_dict(report), text)


def _exit(report: Report, fail_on: Level) -> None:
    from tooling.check.finding import Severity

    if report.fails(Severity(fail_on.value)):
        raise typer.Exit(1)


def _explain(console: Console, name: str) -> None:
    from dataclasses import asdict

    from tooling.check.registry import rule_named, rules
    from tooling.check.report import explanation

    if name == "all":
        text = "\n".join(f"{rule.id:<40} {rule.severity.value:<8} {rule.about}" for rule in rules().values())
        console.result({"rules": [asdict(rule) for rule in rules().values()]}, text)
        return
    rule = rule_named(name)
    console.result({"rule": asdict(rule)}, explanation(rule))
