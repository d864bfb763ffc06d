"""The outcome of a tuning as one value, and as the table that people read. Layer: above trial, pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.measurement import ENOUGH_FOR_P99, FOREIGN_CORES
from perf.trial import Figures, Spread, Trial
from tooling.console import table

DIRECT = "Direct search: every setting of the grid was measured in short pairs."
_BY_ITSELF = "Default instances: Triton's own number, two of an ONNX model on the CPU and one on each GPU."
_PLAIN = (
    "model",
    "workload",
    "objective",
    "runs",
    "disturbed",
    "spent_s",
    "method",
    "points",
    "findings",
    "config_diff",
)


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What was asked and found. `chosen` is the setting taken, None when no setting keeps the limits; `runs` counts the
    measurements, `points` the settings under one load that they are of, `disturbed` those during which other programs
    used the host; `finished` is an ISO time. `method` says how it was searched, `findings` what a guided search found
    (perf.findings), `config_diff` the change of the config as a unified diff, `rechecks` how the chosen setting does
    under other traffic and when it starts (perf.search), `ties` what was not told apart from it (perf.trial.ties)."""

    model: str
    workload: str
    objective: str
    default: Trial
    trials: tuple[Trial, ...]
    chosen: Trial | None
    runs: int
    disturbed: int
    spent_s: float
    finished: str
    study: Path
    method: str = DIRECT
    points: int = 0
    findings: dict[str, Any] | None = None
    config_diff: str = ""
    rechecks: tuple[dict[str, Any], ...] = ()
    ties: tuple[dict[str, Any], ...] = ()

    @property
    def met(self) -> bool:
        """Whether a setting keeps the limits; always so without one."""
        return self.chosen is not None

    @property
    def not_explored(self) -> tuple[Trial, ...]:
        return tuple(t for t in self.trials if t.state == "not explored")

    @property
    def conclusion(self) -> str:
        """The answer in one sentence."""
        if self.chosen is None:
            left = len(self.not_explored)
            more = f" Left out for want of time: {left}; give a larger --budget." if left else ""
            return f"No setting measured keeps the limits; nothing is chosen.{more}"
        if self.chosen == self.default and not any(t.verdict for t in self.trials):
            return "The current config stays: no setting was compared with it; give a larger --budget."
        if self.chosen == self.default:
            return "The current config stays: no setting measured is surely better."
        verdict = self.chosen.verdict
        assert verdict is not None
        return f"Chosen: {self.chosen.candidate.label}: {verdict} against the current config in {verdict.pairs} pairs."

    @property
    def capacity(self) -> str | None:
        """What servers with the chosen setting carry and cost, in a sentence; None where nothing was simulated."""
        found = (self.findings or {}).get("capacity")
        if self.chosen is None or not found:
            return None
        limits, rate = ", ".join(found.get("limits", ())), found.get("requests_per_s")
        within = f"within {limits}" if limits else "at 80 % of its highest rate"
        if not rate:
            return f"Predicted: a server carries no traffic at random times {within}."
        said = [f"a server carries {rate:.1f} requests/s at random times {within}"]
        if servers := found.get("replicas"):
            said.append(f"{found['wanted_requests_per_s']:g} requests/s take {servers}")
        if price := found.get("cost_per_million"):
            said.append(f"a million requests cost {price:.2f}")
        return f"Predicted: {'; '.join(said)}."

    @property
    def notes(self) -> tuple[str, ...]:
        """What limits the answer."""
        notes = [f"Failed: {t.candidate.label}: {t.reason}." for t in self.trials if t.state == "failed"]
        if self.not_explored:
            names = "; ".join(
                f"{t.candidate.label} ({t.gain})" if t.gain else t.candidate.label for t in self.not_explored
            )
            notes.append(f"Not measured within the budget: {names}.")
        if self.ties:
            alike = (f"{t['label']} ({t['ratio']:.2f}× [{t['low']:.2f}–{t['high']:.2f}])" for t in self.ties)
            notes.append(f"Not told apart from the chosen one: {'; '.join(alike)}.")
        if self.disturbed:
            notes.append(
                f"Other programs used {FOREIGN_CORES:g} cores or more during {self.disturbed} of {self.runs} runs: "
                "compare settings by their ratios, which are of paired runs, not by their figures."
            )
        figures = self.chosen and self.chosen.figures
        if "p99" in self.objective and figures and figures.requests < ENOUGH_FOR_P99:
            notes.append(f"p99 stands on {figures.requests} requests; {ENOUGH_FOR_P99} are needed for a steady one.")
        for one in self.rechecks:
            notes.append(f"Also measured, {one['name']}: {one['text']}{'; weaker there' if one['weaker'] else ''}.")
        return tuple(notes)

    @property
    def legend(self) -> tuple[str, ...]:
        """How to read the table of all settings."""
        said = ["Figures: median [lowest–highest] of the runs; p50 and p99 of all their requests."]
        if any(t.state == "screened out" for t in self.trials):
            said.append("Screened out: clearly slower, or not among the best few, by a rough ratio (≈) of two pairs.")
        if any(t.candidate.knobs.instance_count is None for t in (self.default, *self.trials)):
            said.append(_BY_ITSELF)
        return tuple(said)

    def text(self) -> str:
        """The table of all settings with its conclusion, for a terminal."""
        header = ("setting", "requests/s", "p50 ms", "p99 ms", "against current", "verdict")
        rows = [(self._name(t), *figures(t), t.gain, t.outcome) for t in (self.default, *self.trials)]
        head = f"{self.model} · {self.workload} · {self.objective} · {self.effort}"
        said = [self.conclusion, *filter(None, [self.capacity])]
        return "\n".join([head, self.method, "", table(header, rows), "", *self.legend, *self.notes, "", *said])

    @property
    def effort(self) -> str:
        return f"{self.points} points in {self.runs} runs, {self.spent_s:.0f} s"

    def summary(self) -> str:
        """The config before the tuning and the chosen setting only, with the conclusion."""
        rows = [("default config", *figures(self.default))]
        legend = [f"{self.workload}; median [lowest–highest] of the runs, p50 and p99 of all their requests."]
        if self.chosen and self.chosen != self.default:
            rows.append(("chosen", *figures(self.chosen)))
            legend += [_BY_ITSELF] if self.chosen.candidate.knobs.instance_count is None else []
        shown = table((self.model, "requests/s", "p50 ms", "p99 ms"), rows)
        return "\n".join([shown, "", *legend, *self.notes, "", self.conclusion])

    def _name(self, trial: Trial) -> str:
        return f"{'→ ' if trial == self.chosen else '  '}{trial.candidate.label}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "workload": self.workload,
            "objective": self.objective,
            "default": self.default.to_dict(),
            "trials": [t.to_dict() for t in self.trials],
            "chosen": self.chosen.candidate.id if self.chosen else None,
            "conclusion": self.conclusion,
            "notes": list(self.notes),
            "method": self.method,
            "points": self.points,
            "findings": self.findings,
            "config_diff": self.config_diff,
            "rechecks": list(self.rechecks),
            "ties": list(self.ties),
            "runs": self.runs,
            "disturbed": self.disturbed,
            "spent_s": self.spent_s,
            "finished": self.finished,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], study: Path) -> TuneResult:
        default, trials = Trial.from_dict(data["default"]), tuple(Trial.from_dict(t) for t in data["trials"])
        chosen = next((t for t in (default, *trials) if t.candidate.id == data["chosen"]), None)
        plain = {name: data[name] for name in _PLAIN if name in data}
        plain |= {name: tuple(data.get(name, ())) for name in ("rechecks", "ties")}
        return cls(**plain, default=default, trials=trials, chosen=chosen, finished=data["finished"], study=study)


def figures(trial: Trial) -> tuple[str, str, str]:
    """Requests a second, p50 and p99 in milliseconds as people read them; empty where it was not measured."""
    return figures_of(trial.figures)


def figures_of(found: Figures | None) -> tuple[str, str, str]:
    """The same of figures."""
    if found is None:
        return "", "", ""
    return _spread(found.throughput_rps), _spread(found.p50_us, 1e3), _spread(found.p99_us, 1e3)


def _spread(found: Spread, scale: float = 1) -> str:
    """`24.1 [22.0–26.3]`, with decimals as far as they tell something."""
    digits = 0 if found.middle >= 100 * scale else 1
    middle, low, high = (f"{value / scale:.{digits}f}" for value in (found.middle, found.low, found.high))
    return f"{middle} [{low}–{high}]"
