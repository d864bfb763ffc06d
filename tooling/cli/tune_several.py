"""`tritune tune A B…`: several models of one repository under the traffic of all. Layer: cli."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tooling.cli.tuned_answer import next_steps
from tooling.console import Console
from tooling.errors import UsageError, suggest

if TYPE_CHECKING:
    from perf.tune_request import TuneRequest


def several(
    request: TuneRequest,
    models: Sequence[Path],
    weights: Sequence[str],
    console: Console,
    *,
    apply: bool,
    hardware: str = "",
) -> None:
    """Tune, write the configs where asked, and show the answer; exit 1 when a limit is missed."""
    from perf.analyzer import find_perf_analyzer
    from perf.several import tune_several
    from perf.study import study_dir
    from perf.target import embedded_facts
    from perf.together import Part
    from perf.tune_request import plan_of, within_memory
    from perf.tuned import require_ours, write_settings
    from tooling.repository import config_path, cpu_name
    from tooling.runtime import find_runtime

    runtime = find_runtime()
    analyzer, hardware = find_perf_analyzer(runtime), hardware or cpu_name()
    if apply:
        for model in models:
            require_ours(config_path(model.absolute(), hardware))
    by_name = _weights(weights, [model.absolute().name for model in models])
    parts = []
    for model in models:
        one = replace(request, model_dir=model, direct=True)
        plan = within_memory(plan_of(one, analyzer, Console(quiet=True), embedded_facts()), gpu=False)
        if plan.front:
            raise UsageError("an ensemble is tuned by itself", where=model, hint="leave it out")
        parts.append(Part(one, plan, by_name.get(plan.model_dir.name, 1.0)))
        for note in plan.notes:
            console.warning(f"{plan.model_dir.name}: {note}")
    name = "+".join(part.name for part in parts)
    question: dict[str, Any] = {part.name: {"grid": part.plan.header["grid"], "weight": part.weight} for part in parts}
    question |= {"slo": list(request.slo.words), "workload": request.workload.model_dump(mode="json")}
    header = {**question, **{f"config of {part.name}": part.plan.header["model"] for part in parts}}
    place = request.study_dir or study_dir(request.studies, name, question, header, console)
    result = tune_several(parts, place, runtime=runtime, analyzer=analyzer, console=console)
    written = []
    if apply and result.taken:
        evidence = [result.conclusion, f"Tuned together with the others of {name}; goal: {result.objective}."]
        chosen = {one.name: one.setting for one in result.models}
        written = [
            write_settings(chosen[part.name], part.plan.model_dir, hardware, evidence)
            for part in parts
            if chosen[part.name].changed
        ]
    files = {"study": str(result.study), "configs": [str(path) for path in written]}
    lines = [*(f"config  {path}" for path in written), f"study   {result.study}"]
    if result.taken:
        lines += ["", next_steps(written[0] if written else None)]
    console.result({**result.to_dict(), **files}, "\n".join([result.text(), "", *lines]))
    if not result.met:
        raise typer.Exit(1)


def _weights(words: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """`NAME=W` for each. Raises UsageError for other names and for what is no positive number."""
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in names:
            raise UsageError(
                "no model of this name is tuned",
                where="--weight",
                got=f"`{name}`",
                expected=", ".join(names),
                hint=suggest(name, names),
            )
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = 0.0
        if not 0 < found[name] < 1e6:
            raise UsageError("not a weight", where="--weight", got=f"`{word}`", expected="a number above 0, as in m=2")
    return found
