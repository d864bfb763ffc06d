"""The record of a tuning decision, for those who have to stand by it later. Layer: above result, pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perf.result import TuneResult, figures
from perf.trial import Trial
from tooling.server.client import on_this_machine

_MANY_DISTURBED = 0.3


def decision(result: TuneResult, *, hardware: str | None, owner: str, facts: dict[str, Any]) -> dict[str, Any]:
    """What was decided and why, what it rests on, what was left out, who has to look, and the way back.

    `facts` are those the study was made under; `hardware` is None where nobody named that of a server elsewhere.
    """
    found = result.findings or {}
    return {
        "model": result.model,
        "decided": result.finished,
        "owner": owner,
        "what": _what(result),
        "why": [result.conclusion, *_figures(result)],
        "cost": [*_cost(result), *filter(None, [result.capacity])],
        "assumptions": list(_assumptions(result, hardware, facts)),
        "not_explored": [
            *(f"{t.candidate.label}: {t.reason}" for t in result.not_explored),
            *found.get("not_explored", []),
        ],
        "needs_a_person": list(_needs(result)),
        "evidence": [f"study {result.study}", result.method, result.effort, *result.notes],
        "way_back": _way_back(result, hardware),
        "result": result.to_dict(),
    }


def markdown(record: dict[str, Any]) -> str:
    """The record as a page."""
    titles = {
        "why": "Why",
        "cost": "What it costs",
        "assumptions": "It holds for",
        "not_explored": "Not explored",
        "needs_a_person": "Needs a person",
        "evidence": "Evidence",
        "way_back": "How to go back",
    }
    lines = [
        f"# {_plain(record['model'])}: {_plain(record['what'])}",
        "",
        f"{record['decided']} · owner: {_plain(record['owner'])}",
        "",
    ]
    for key, title in titles.items():
        if entries := record[key]:
            lines += [f"## {title}", "", *(f"- {_plain(entry)}" for entry in entries), ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    line = " ".join(str(text).split())
    return "".join(f"\\{c}" if c in "\\`*_[]<>#|" else c for c in line)


def _what(result: TuneResult) -> str:
    if result.chosen is None:
        return "no setting keeps the limits"
    if result.chosen == result.default:
        return "the current config stays"
    return f"take {result.chosen.candidate.label}"


def _figures(result: TuneResult) -> Iterator[str]:
    for name, trial in (("current config", result.default), ("chosen", result.chosen)):
        if trial and trial.figures and not (name == "chosen" and trial == result.default):
            rate, p50, p99 = figures(trial)
            yield f"{name}: {rate} requests/s, p50 {p50} ms, p99 {p99} ms"


def _cost(result: TuneResult) -> list[str]:
    """What the chosen setting takes in exchange: latency, and what clients have to do."""
    chosen = result.chosen
    if chosen is None or chosen == result.default or chosen.figures is None or result.default.figures is None:
        return []
    ours, theirs = chosen.figures.p99_us.middle, result.default.figures.p99_us.middle
    lines = [f"p99 {ours / 1e3:.1f} ms in place of {theirs / 1e3:.1f} ms"] if theirs else []
    if chosen.figures.energy_j and result.default.figures.energy_j:
        lines.append(f"{chosen.figures.energy_j:.3g} J a request in place of {result.default.figures.energy_j:.3g} J")
    knobs = chosen.candidate.knobs
    if knobs.max_queue_delay_us:
        lines.append(f"a lone request may wait {knobs.max_queue_delay_us / 1e3:g} ms for others")
    if chosen.candidate.form:
        lines.append(f"other answers: those of {chosen.candidate.form}")
    if chosen.candidate.edges:
        lines.append(
            f"requests must be padded to {', '.join(map(str, chosen.candidate.edges))} tokens before they are sent"
        )
    return lines


def _assumptions(result: TuneResult, hardware: str | None, facts: dict[str, Any]) -> Iterator[str]:
    yield f"traffic: {result.workload}"
    yield f"goal: {result.objective}"
    server = facts.get("server", {})
    here = "url" not in server or on_this_machine(server["url"])
    processor = facts.get("host", {}).get("cpu", "unknown processor")
    where = processor if here else f"the client on {processor}"
    yield f"hardware: {hardware or 'not named'}, {where}"
    yield ", ".join(f"{name} {value}" for name, value in server.items()) or "unknown server"
    yield f"model file {facts.get('model', {}).get('sha256', 'unknown')[:12]}"
    if "url" not in server:
        yield "the embedded server: for another Triton, such as NVIDIA's image, tune there once more (--url)"
    if here:
        yield "client and server on one machine: the load generator takes its share of the cores"
    else:
        yield "client and server on two machines: the network between them is part of every latency"


def _needs(result: TuneResult) -> Iterator[str]:
    """What no measurement here can answer."""
    yield "whether this traffic is that of production: compare it with real arrivals and lengths"
    if result.disturbed > _MANY_DISTURBED * result.runs:
        yield f"a calmer machine: other programs disturbed {result.disturbed} of {result.runs} runs"
    if result.chosen is None:
        yield "another limit, other hardware, or a smaller model: nothing measured keeps the limits"
    for trial in result.trials:
        if trial.verdict and trial.verdict.word.startswith("undecided"):
            yield f"{trial.candidate.label}: {trial.verdict.word}"
    found = result.findings or {}
    for check in found.get("checks", []):
        if not check["agrees"]:
            gains = f"predicted {check['predicted_gain']:.2f}×, measured {check['measured_gain']:.2f}×"
            yield f"why the simulator was wrong on {check['label']}: {gains}"
    for one in result.rechecks:
        if one["weaker"]:
            yield f"{one['name']}: the chosen setting is weaker there ({one['text']})"
    if _edges(result.chosen):
        yield "the clients, or the tokenizer model in front, have to pad"


def _edges(trial: Trial | None) -> tuple[int, ...]:
    return trial.candidate.edges if trial else ()


def _way_back(result: TuneResult, hardware: str | None) -> list[str]:
    if result.chosen is None or result.chosen == result.default:
        return []
    if form := result.chosen.candidate.form:
        return [f"serve {result.model} as it is, in place of {form}: its files are unchanged"]
    if hardware is None:
        return ["nothing was written: config.pbtxt is unchanged"]
    return [
        f"start Triton without --model-config-name={hardware}: config.pbtxt is unchanged",
        f"or remove {result.model}/configs/{hardware}.pbtxt and load the model again",
    ]
