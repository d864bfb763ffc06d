"""What a step's JSON answer means to a build: the files it made, what to remember and show, why it said no.
Layer: project."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tooling.errors import Problem
from tooling.project.steps import Step, Tree


def outputs_of(step: Step, data: Mapping[str, Any]) -> tuple[Tree, ...]:
    """The files that a step made, as far as they are its own."""
    if step.action in ("export", "export model"):
        dirs = [Path(data["model_dir"]) if "model_dir" in data else Path(data["plan"]).parents[1]]
        if step.action == "export":
            dirs += map(Path, data.get("pipeline", {}).get("models", ()))
        inner = dirs[0]
        return tuple(
            Tree(str(path), step.leaves if path == inner else tuple(n for n in step.leaves if n != "config.pbtxt"))
            for path in dict.fromkeys(dirs)
        )
    if step.action == "profile":
        return (Tree(data["curve"]),)
    if step.action == "config":
        alone = not any(word in ("--llm", "--ensemble") for word in step.words)
        return (Tree(data["path"]) if alone else Tree(str(Path(data["path"]).parent), step.leaves),)
    if step.action == "tune":
        written = data.get("config") or data.get("written")
        return (Tree(written),) if written else ()
    if step.action == "deploy":
        return (Tree(_option(step, "--output"), hidden=True),)  # there is a .env
    return ()


def result_of(step: Step, data: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """What the lock keeps of an answer."""
    if step.action in ("export", "export model") and "manifest" in data:
        manifest = data["manifest"]
        found = {key: manifest["verification"][key] for key in ("max_abs_error", "relative_error", "cosine", "top1")}
        return {"exporter": manifest["exporter"], **{key: value for key, value in found.items() if value is not None}}
    if step.action == "check":
        return dict(data["counts"])
    if step.action == "tune":
        kept = {key: data[key] for key in ("chosen", "conclusion", "objective") if data.get(key) is not None}
        if data.get("study"):
            kept["study"] = _within(data["study"], root)
            kept["capacity_rps"] = ((data.get("findings") or {}).get("capacity") or {}).get("requests_per_s")
        return kept
    return {}


def said(step: Step, result: Mapping[str, Any], seconds: float) -> str:
    """A line that tells how a step ended."""
    told = {
        "config": step.words[1],
        "profile": step.words[1],
        "deploy": _option(step, "--output") if step.action == "deploy" else "",
        "export": ", ".join(f"{key} {_short(value)}" for key, value in result.items()),
        "check": ", ".join(f"{n} {kind}{'s' * (n > 1)}" for kind, n in result.items() if isinstance(n, int) and n)
        or "nothing to complain about",
        "tune": str(result.get("conclusion", "")).splitlines()[0] if result.get("conclusion") else "",
    }.get(step.action.split()[0], "")
    return f"{step.name}: {told + ' ' if told else ''}({seconds:.1f} s)"


def refusals(step: Step, data: Mapping[str, Any] | None) -> Iterator[Problem]:
    """Why a step that has no error to tell ended with exit code 1."""
    if step.action == "check" and data:
        for finding in data["findings"]:
            if finding["severity"] != "info":
                yield Problem(
                    f"[{finding['rule']}] {finding['message']}", finding.get("place"), hint=finding.get("hint")
                )
        return
    why = (data or {}).get("conclusion") or "the answer is no"
    yield Problem(str(why).splitlines()[0], hint=f"run `tritune {shlex.join(step.words)}` to see all of it")


def _option(step: Step, name: str) -> str:
    return next(word.partition("=")[2] for word in step.words if word.startswith(f"{name}="))


def _within(path: str, root: Path) -> str:
    """The path from the project's directory, where it is under it."""
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
