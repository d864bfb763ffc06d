"""`tritune tune` of a vLLM model: its scheduler's settings in place of Triton's batcher. Layer: cli."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.cli.options import CLIENTS
from tooling.console import Console, table
from tooling.errors import TrituneError, UsageError
from tooling.units import format_duration_us

if TYPE_CHECKING:
    from perf.llm_tune import LlmTuned, Tried

_PROMPTS, _OUTPUTS = (16, 64, 256), (16, 64, 128)


def is_vllm(model: Path) -> bool:
    """Whether the directory's config names the vLLM backend."""
    from tooling.repository import read_config

    try:
        return bool(read_config(model).backend == "vllm")
    except TrituneError:
        return False


def tune_vllm(
    model: Path,
    console: Console,
    *,
    concurrency: int | None,
    request_rate: float | None,
    lengths: tuple[int, ...],
    outputs: tuple[int, ...],
    slo: str,
    seed: int,
    apply: bool,
    owner: str,
    speculate: str,
    others: Sequence[str],
) -> bool:
    """Tune, write where asked, and print; whether the limits are met. `others` were given, and mean nothing here."""
    from perf.llm_record import write_record
    from perf.llm_setting import apply_setting, settings_file
    from perf.llm_speculation import speculative_config
    from perf.llm_traffic import LlmTraffic
    from perf.llm_tune import tune_llm
    from perf.slo import STREAMS, Slo
    from tooling.cli.llm_source import speculation
    from tooling.llm.model_facts import read_facts
    from tooling.repository import cpu_name, require_writable
    from tooling.runtime import find_llm, find_runtime

    if others:
        raise UsageError(
            f"{', '.join(others)}: not for a vLLM model",
            where=model,
            expected="--concurrency or --request-rate, --lengths, --output-lengths, --speculate, --slo, --seed, "
            "--owner, --apply",
            hint="its engine batches by itself; see docs/llm.md",
        )
    if concurrency and request_rate:
        raise UsageError("--concurrency and --request-rate exclude each other", hint="give one of them")
    clients = concurrency or (None if request_rate else CLIENTS)
    traffic = LlmTraffic(lengths or _PROMPTS, outputs or _OUTPUTS, clients, request_rate, seed=seed)
    wanted = Slo.parse(slo, "--slo", STREAMS)
    if apply:
        require_writable(settings_file(model))
    tried = speculation(speculate) if speculate else None
    if tried and tried.draft:
        read_facts(tried.draft)  # no engine starts for a draft that is none
    speculative = speculative_config(tried.tokens, str(tried.draft) if tried.draft else None) if tried else None
    runtime = find_runtime()
    find_llm(runtime)
    result = tune_llm(model, traffic, wanted, runtime=runtime, console=console, speculative=speculative)
    changed = result.chosen is not result.current
    written = apply_setting(model, result.chosen.arguments) if apply and changed and result.met else None
    record = write_record(result, cpu_name(), owner)
    data = {**result.to_dict(), "written": str(written.absolute()) if written else None}
    console.result({**data, "decision": str(record.absolute())}, f"{_text(result, written)}\ndecision {record}")
    return result.met


def _text(result: LlmTuned, written: Path | None) -> str:
    rows = [_row("current", result.current), *(_row("candidate", one) for one in result.tried)]
    shown = table(["", "setting", "tokens/s", "predicted", "TTFT p95", "ITL p95"], rows)
    same = result.chosen is result.current
    verdict = "no other setting is surely better" if same else f"{result.chosen} is surely better"
    lines = [shown, "", f"{result.traffic}; medians of {len(result.current.measured)} runs; {result.points} points."]
    lines.append(f"Chosen: {verdict}.")
    lines += [f"{judgement}" for judgement in result.slo.judge(result.chosen.figures)]
    lines += [f"Speculation: {result.speculation}."] if result.speculation else []
    lines += [f"Capacity: {result.capacity}."] if result.capacity else []
    return "\n".join([*lines, *([f"written {written}"] if written else [])])


def _row(name: str, one: Tried) -> list[str]:
    seen = one.figures
    times = (format_duration_us(round(seen.get(figure, 0))) for figure in ("ttft_p95_us", "itl_p95_us"))
    return [name, str(one), f"{seen['tokens_per_s']:.0f}", f"{one.predicted['tokens_per_s']:.0f}", *times]
