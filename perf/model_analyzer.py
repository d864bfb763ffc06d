"""What a Model Analyzer YAML asks for, in the terms of a tuning. Layer: above slo and grid.

Its keys are those of Model Analyzer's documentation of `model-analyzer profile`; what has no counterpart is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.grid import Grid
from perf.slo import Slo
from perf.workload import Workload
from tooling.config.yaml_file import read_yaml
from tooling.errors import UsageError

_LATENCIES = {f"perf_latency_{name}": name for name in ("avg", "p90", "p95", "p99")} | {"perf_latency": "avg"}
_READ = {"concurrency", "request_rate", "latency_budget", "min_throughput", "constraints", "objectives"}
_SEARCH = {
    f"run_config_search_{end}_{what}"
    for end in ("min", "max")
    for what in ("instance_count", "model_batch_size", "concurrency", "request_rate")
}
_OURS = {"profile_models", "parameters", "model_config_parameters", "model_repository"}


@dataclass(frozen=True, slots=True)
class Asked:
    """Settings to try, traffic (None where the file leaves it out), demands in words (none where the file leaves them
    out), and what of the file is not used."""

    grid: Grid
    workload: Workload | None
    words: tuple[str, ...]
    unused: tuple[str, ...]


def read_model_analyzer(path: Path, model: str) -> Asked:
    """What the file asks for `model`; a value of the model wins over one for all models.

    Of several concurrencies or rates the largest counts: tuning is for one load. Raises UsageError for a file that is
    no such YAML, does not name the model, or asks for what cannot be.
    """
    content = read_yaml(path)
    own = _model(content, model, path)
    merged = {**content, **own, **_mapping(content.get("parameters"), path), **_mapping(own.get("parameters"), path)}
    knobs = _mapping(own.get("model_config_parameters"), path)
    batching = _mapping(knobs.get("dynamic_batching"), path)
    groups = knobs.get("instance_group") or []
    counts = groups[0].get("count") if groups and isinstance(groups[0], dict) else None
    grid = Grid(
        instances=_numbers(counts, path) or _range(merged, "instance_count", path),
        delays_us=_numbers(batching.get("max_queue_delay_microseconds"), path, least=0),
        max_batch_sizes=_numbers(knobs.get("max_batch_size"), path) or _doubled(merged, path),
    )
    known = _READ | _SEARCH | _OURS | {"batch_sizes"}
    known_knobs = {"dynamic_batching", "instance_group", "max_batch_size"}
    unused = [key for key in merged if key not in known]
    unused += [f"model_config_parameters.{key}" for key in knobs if key not in known_knobs]
    return Asked(grid, _workload(merged, path), _words(merged, path), tuple(unused))


def _model(content: dict[str, Any], model: str, path: Path) -> dict[str, Any]:
    named = content.get("profile_models")
    if isinstance(named, str):
        named = [word.strip() for word in named.split(",")]
    names: dict[Any, Any] = {}
    for entry in named if isinstance(named, list) else [named] if named is not None else []:
        names |= entry if isinstance(entry, dict) else {entry: {}}
    if model not in names:
        raise UsageError(
            "the file does not name this model",
            where=f"{path}: profile_models",
            got=", ".join(map(str, names)) or "none",
            expected=model,
        )
    return _mapping(names[model], path)


def _mapping(value: Any, path: Path) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError("not a mapping", where=path, got=value, expected="`name: value` lines")
    return {str(key): one for key, one in value.items()}


def _numbers(value: Any, path: Path, least: float = 1) -> tuple[int, ...]:
    """A number, a list of them, or {start, stop, step}."""
    if value is None:
        return ()
    if isinstance(value, dict) and {"start", "stop"} <= value.keys():
        start, stop, step = (_number(value.get(key, 1), path, 1) for key in ("start", "stop", "step"))
        value = list(range(start, min(stop, start + 10_000) + 1, step))
    found = [_number(one, path, least) for one in (value if isinstance(value, list) else [value])]
    return tuple(dict.fromkeys(found))


def _number(value: Any, path: Path, least: float) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)) or not str(value).isdecimal() or int(value) < least:
        raise UsageError("not a usable number", where=path, got=value, expected=f"a whole number from {least:g}")
    return int(value)


def _range(merged: dict[str, Any], what: str, path: Path) -> tuple[int, ...]:
    """The counts between a stated lowest and highest; none where nothing is stated."""
    most = merged.get(f"run_config_search_max_{what}")
    if most is None:
        return ()
    least = _number(merged.get(f"run_config_search_min_{what}", 1), path, 1)
    return tuple(range(least, min(_number(most, path, 1), least + 64) + 1))


def _doubled(merged: dict[str, Any], path: Path) -> tuple[int, ...]:
    """Powers of two between the stated sizes, as Model Analyzer tries them."""
    most = merged.get("run_config_search_max_model_batch_size")
    if most is None:
        return ()
    least = _number(merged.get("run_config_search_min_model_batch_size", 1), path, 1)
    return tuple(2**n for n in range(20) if least <= 2**n <= _number(most, path, 1))


def _workload(merged: dict[str, Any], path: Path) -> Workload | None:
    clients = _numbers(merged.get("concurrency"), path)
    rates = _numbers(merged.get("request_rate"), path)
    if clients and rates:
        raise UsageError("clients and a rate exclude each other", where=path, hint="keep concurrency or request_rate")
    if rates:
        return Workload(request_rate=max(rates))
    return Workload(concurrency=max(clients)) if clients else None


def _words(merged: dict[str, Any], path: Path) -> tuple[str, ...]:
    """Demands as perf.slo takes them. Latency limits are in milliseconds there. Raises UsageError for a wrong one."""
    objectives = merged.get("objectives") or []
    names = list(objectives) if isinstance(objectives, (list, dict)) else [objectives]
    if isinstance(objectives, dict):
        names.sort(key=lambda name: -_number(objectives[name], path, 0))
    words = (*_limits(merged, path), *(_LATENCIES.get(str(name), "throughput") for name in names[:1]))
    Slo.parse(words, f"{path}: constraints")
    return words


def _limits(merged: dict[str, Any], path: Path) -> Iterator[str]:
    limits = _mapping(merged.get("constraints"), path)
    if "latency_budget" in merged:
        limits.setdefault("perf_latency_p99", {"max": merged["latency_budget"]})
    if "min_throughput" in merged:
        limits.setdefault("perf_throughput", {"min": merged["min_throughput"]})
    for name, bound in limits.items():
        bounds = _mapping(bound, path)
        if name in _LATENCIES and "max" in bounds:
            yield f"{_LATENCIES[name]}<={bounds['max']}ms"
        elif name == "perf_throughput" and "min" in bounds:
            yield f"throughput>={bounds['min']}"
