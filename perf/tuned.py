"""What a tuning leaves behind: the config for the hardware it was measured on, and the decision record. Layer: above
decision.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perf.decision import decision, markdown
from perf.forms import forms
from perf.grid import Candidate
from perf.operands import Base
from perf.pipeline import front_of
from perf.result import TuneResult, figures
from perf.study import FILE_NAME, read_study
from tooling.config.knobs import apply, one_group
from tooling.config.proto import pb
from tooling.config.render import origin, render
from tooling.errors import UsageError
from tooling.repository import (
    alone_in,
    config_path,
    cpu_name,
    hardware_name,
    read_config,
    read_text,
    require_writable,
    write_atomic,
)
from tooling.server.client import on_this_machine

if TYPE_CHECKING:
    from perf.target import RunningTarget
    from tooling.config.proto import ModelConfig

_STUDY = "Study: "


def hardware_of(running: RunningTarget | None) -> str | None:
    """The name of the hardware that computes what is measured: this machine's CPU, or its GPUs where an instance of the
    running server's model has one; None for a server on another machine."""
    if running is None:
        return cpu_name()
    if not on_this_machine(running.url):
        return None
    gpu = pb().ModelInstanceGroup.KIND_GPU
    return hardware_name() if any(group.kind == gpu for group in running.config().instance_group) else cpu_name()


def write_tuned_config(result: TuneResult, model_dir: Path, hardware: str, also: Sequence[str] = ()) -> Path:
    """Write the chosen setting to `configs/<hardware>.pbtxt` with its evidence as comments; returns the path.

    It goes to the directory of the form of the model that was chosen, if that is one of `also` (perf.forms), and of an
    ensemble to the model that was tuned.
    `config.pbtxt` stays as it is: tuned values hold only for the hardware they were measured on. Raises UsageError when
    nothing was chosen, or when the file holds edits.
    """
    if result.chosen is None:
        raise UsageError("there is no setting to write", where=model_dir, got=result.conclusion)
    model_dir = tuned_dir(model_dir)
    known = forms(also, Base(model_dir.name, read_config(model_dir), model_dir)) if also else ()
    form = next((form for form in known if form.text == result.chosen.candidate.form), None)
    place = (form and form.model_dir) or model_dir
    path = config_path(place, hardware)
    config = _tuned(result, form.config if form else read_config(model_dir))
    config.name = read_config(place).name
    _write(path, render(config, evidence=_evidence(result, path, hardware)))
    return path


def write_settings(one: Candidate, model_dir: Path, hardware: str, evidence: Sequence[str]) -> Path:
    """Write a setting to `configs/<hardware>.pbtxt` with what speaks for it; returns the path.

    Raises UsageError when the file holds edits.
    """
    path = config_path(model_dir, hardware)
    config = apply(one.knobs, one_group(read_config(model_dir)))
    _write(path, render(config, evidence=[f"Measured on {hardware}.", *evidence]))
    return path


def _write(path: Path, text: str) -> None:
    with alone_in(path.parent):
        require_ours(path)
        write_atomic(path, text)


def tuned_dir(model_dir: Path) -> Path:
    """The directory of the model that a tuning of `model_dir` changes: its own, or that of an ensemble's model."""
    front = front_of(model_dir)
    return front.part if front else model_dir.absolute()


def _tuned(result: TuneResult, config: ModelConfig) -> ModelConfig:
    """The config with the chosen setting; as it is where that is the current one."""
    chosen = result.chosen
    return config if chosen is None or chosen.state == "default" else apply(chosen.candidate.knobs, one_group(config))


def write_decision(result: TuneResult, hardware: str | None, owner: str) -> Path:
    """Write the decision record to the study's directory, as Markdown and JSON; returns the path of the Markdown.

    `hardware` is None where it is not known (`hardware_of`).
    """
    header, _ = read_study(result.study)
    record = decision(result, hardware=hardware, owner=owner, facts=header)
    write_atomic(result.study / "decision.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    path = result.study / "decision.md"
    write_atomic(path, markdown(record))
    return path


def require_ours(path: Path) -> None:
    """Raise UsageError when a tuned config would overwrite a file that a person wrote or edited, or may not be written:
    asked before the tuning."""
    if path.exists() and origin(read_text(path)) is None:
        raise UsageError(
            "the file is not as tritune wrote it",
            where=path,
            got="an edited or hand-written config",
            hint="move it away, or tune without --apply",
        )
    if path.parents[1].is_dir():
        require_writable(path)


def _evidence(result: TuneResult, path: Path, hardware: str) -> Sequence[str]:
    """What the values of a tuned config stand on."""
    assert result.chosen is not None
    lines = [f"Measured on {result.finished[:10]} on {hardware}; take it with --model-config-name={hardware}."]
    lines += [f"Traffic: {result.workload}; goal: {result.objective}; {result.runs} runs.", result.conclusion]
    for name, trial in (("config.pbtxt", result.default), ("this file", result.chosen)):
        rate, p50, p99 = figures(trial)
        lines.append(f"{name}: {rate} requests/s, p50 {p50} ms, p99 {p99} ms")
    return [*lines, f"{_STUDY}{os.path.relpath(result.study, path.absolute().parent)}"]


def study_named(path: Path) -> Path | None:
    """The study that a tuned config names in its evidence; None where it names none that is there, or is not there."""
    mark = f"# {_STUDY}"
    if not path.is_file():
        return None
    for line in read_text(path).splitlines():
        if line.startswith(mark):
            directory = path.absolute().parent / line.removeprefix(mark)
            return directory.resolve() if (directory / FILE_NAME).is_file() else None
    return None
