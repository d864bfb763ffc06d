"""What is asked of a profile, and everything settled before a server starts. Layer: above curve and target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from perf.curve import Setting
from perf.footprint import Room, packed
from perf.grid import Grid, split_in_effect, splits
from perf.lengths import fit_to_model, traffic_lengths
from perf.profile_plan import Points, three
from perf.target import RunningTarget, Variant
from tooling.config.knobs import apply, read
from tooling.errors import UsageError
from tooling.repository import locate_model, read_config, usable_cores
from tooling.signature.onnx_file import read_onnx

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig
    from tooling.signature.spec import ModelSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """What to measure. Empty: the instances and threads that `tritune tune` would try (the rest of `grid` plays no
    part), rows up to the largest batch, and the shortest, middle and longest of `traffic`, which is itself by default
    that of `texts` or of real sentences. On a running server `model_dir` is only where a tokenizer may be."""

    model_dir: Path
    grid: Grid = field(default_factory=Grid)
    rows: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    traffic: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    tokenizer_dir: Path | None = None
    vocab_size: int | None = None
    budget_s: float = 90
    """Of all settings, without the start of the server."""
    strict: bool = False
    """Raise UsageError where `budget_s` is too small for the least that makes a curve; else that is measured all the
    same."""
    brief: bool = False
    """A round is enough, and then only wide points again; nothing is told of a budget that is too small."""
    config: ModelConfig | None = None
    """In place of the one on disk."""
    settings: tuple[Setting, ...] = ()
    """In place of those of `grid`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A request with all it stands on: `name` is for messages, `model_dir` and `file` are None for a model that runs
    elsewhere. `as_it_is` leaves the config alone, whatever the setting."""

    name: str
    model_dir: Path | None
    file: Path | None
    config: ModelConfig
    settings: tuple[Setting, ...]
    points: Points
    traffic: tuple[int, ...]
    signature: ModelSignature
    as_it_is: bool = False

    def variant(self, setting: Setting) -> Variant:
        """A setting as it is loaded."""
        knobs = replace(read(self.config), instance_count=setting.instances, intra_op_threads=setting.threads or None)
        config = self.config if self.as_it_is else apply(knobs, self.config)
        return Variant(str(setting), config, self.model_dir)

    def at_once(self, *, side_by_side: bool) -> list[list[Setting]]:
        """The settings in their order, those together that may be loaded at the same time: it is quicker so."""
        room = Room.here(self.file, gpu=False) if self.file and side_by_side else None
        if room is None:
            return [[setting] for setting in self.settings]
        free_bytes = room.free_bytes // 2  # loading takes more for a moment
        return packed(self.settings, lambda setting: setting.instances * room.instance_bytes, free_bytes)


def directory(request: ProfileRequest) -> Path:
    """Where the model is. Raises UsageError where there is none."""
    found = locate_model(request.model_dir).model_dir
    if found is None:
        raise UsageError("not a model directory", where=request.model_dir, expected="REPO/NAME with 1/model.onnx in it")
    return found


def tokenizer_of(request: ProfileRequest) -> Path:
    """The directory of the tokenizer."""
    if request.tokenizer_dir:
        return request.tokenizer_dir
    return (directory(request) if request.model_dir.exists() else request.model_dir) / "tokenizer"


def plan_of(request: ProfileRequest) -> Plan:
    """Of a model that is here. Raises UsageError for one that cannot be profiled."""
    model_dir, file = directory(request), _onnx_file(request.model_dir)
    config, signature = request.config or read_config(model_dir), read_onnx(file)
    settings = request.settings or splits(request.grid, split_in_effect(read(config)), usable_cores())
    points, traffic = _points(request, config, signature, model_dir)
    return Plan(model_dir.name, model_dir, file, _plain(config), _sorted(settings), points, traffic, signature)


def _onnx_file(model_dir: Path) -> Path:
    """The file of an ONNX model. Raises UsageError for a model of another backend."""
    found = locate_model(model_dir)
    if found.format.backend == "onnxruntime":
        return found.file
    raise UsageError(
        "only ONNX models have a service curve",
        where=model_dir,
        got=f"`{found.file.name}` of backend {found.format.backend}",
        expected="REPO/NAME with 1/model.onnx in it",
        hint="`tritune tune` measures the steps of a vLLM model by itself" if found.format.backend == "vllm" else None,
    )


def plan_remote(request: ProfileRequest, running: RunningTarget) -> Plan:
    """The present setting only where the server may not be reconfigured, with its batcher as it is."""
    config, signature, fixed = running.config(), running.signature(), not running.reconfigure
    here = split_in_effect(read(config))
    settings = [here] if fixed else splits(request.grid, here, usable_cores())
    points, traffic = _points(request, config, signature, request.model_dir)
    kept = config if fixed else _plain(config)
    return Plan(running.model, None, None, kept, _sorted(settings), points, traffic, signature, as_it_is=fixed)


def _sorted(settings: Iterable[tuple[int, int]]) -> tuple[Setting, ...]:
    return tuple(Setting(*setting) for setting in sorted(set(settings)))


def _points(
    request: ProfileRequest, config: ModelConfig, signature: ModelSignature, model_dir: Path
) -> tuple[Points, tuple[int, ...]]:
    """Rows and lengths to measure, and the lengths of the traffic, that the model takes. What was asked for is left
    out by no budget."""
    most = config.max_batch_size
    rows = request.rows or three(range(1, max(most, 1) + 1))
    if max(rows) > max(most, 1):
        raise UsageError(
            "more rows than the model takes",
            where=model_dir,
            got=max(rows),
            expected=f"at most its max_batch_size of {most}",
        )
    traffic = traffic_lengths(request.traffic, signature, tokenizer_of(request), batching=most > 0, texts=request.texts)
    traffic = fit_to_model(traffic, model_dir, asked=bool(request.traffic))
    lengths = fit_to_model(request.lengths, model_dir, asked=True) or three(sorted(traffic) or (1,))
    least = (values if asked else _ends(values) for values, asked in ((rows, request.rows), (lengths, request.lengths)))
    return Points(*map(_ascending, (rows, lengths, *least))), traffic


def _plain(config: ModelConfig) -> ModelConfig:
    """`config` with nothing in its batcher that makes a request wait: no delay, preferred sizes or queue policy; and
    without the response cache, which executes nothing."""
    knobs = read(config)
    none = apply(replace(knobs, dynamic_batching=False, preferred_batch_size=(), max_queue_delay_us=0), config)
    none.ClearField("response_cache")
    if config.max_batch_size == 0:
        return none
    return apply(replace(read(none), dynamic_batching=True), none)


def _ends(values: Sequence[int]) -> tuple[int, ...]:
    return values[0], values[-1]


def _ascending(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(values)))
