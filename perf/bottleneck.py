"""Where the time of a request goes, what holds it back, and the knob that moves it. Layer: above measurement and waste,
pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from perf.waste import Padding
from tooling.console import table
from tooling.units import format_duration_us

Kind = Literal["cache", "padding", "oversubscribed cores", "queueing", "compute", "client", "network", "data"]

MUCH_PADDING = 0.5
_BUSY = 0.8
"""From this share of the time on that instances compute, they are what limits; waiting for them is the symptom."""
_LARGE = 0.3
_CLIENT_BUSY_PERCENT = 20
_SOME = 0.1
_MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class Split:
    """Mean microseconds of a request, from its sending to its answer, by where they are spent.

    `network` is everything outside of the client's own work and of the server's queue and model: the way there and
    back, and the server's front end.
    """

    client_us: float
    network_us: float
    queue_us: float
    compute_input_us: float
    compute_infer_us: float
    compute_output_us: float

    @property
    def total_us(self) -> float:
        return float(sum(asdict(self).values()))

    def share(self, part: str) -> float:
        """The share of one part, by its field's name without the unit."""
        value: float = getattr(self, f"{part}_us")
        return value / self.total_us if self.total_us else 0.0

    @classmethod
    def of(cls, total_us: float, client_us: float, queue_us: float, compute_us: tuple[float, float, float]) -> Split:
        """With what nobody accounts for as network."""
        rest = total_us - client_us - queue_us - sum(compute_us)
        return cls(client_us, max(rest, 0.0), queue_us, *compute_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What else is known of a measured load; None for what is not. `busy` is the share of the time that an instance
    computes, `threads` those of one instance, `lengths` how many different lengths the requests have, `executed` the
    share of them that the response cache did not answer."""

    split: Split
    throughput_rps: float
    mean_batch: float
    instances: int
    max_batch_size: int
    dynamic_batching: bool
    delay_us: int
    threads: int | None = None
    cores: int | None = None
    clients: int | None = None
    client_busy_percent: float | None = None
    lengths: int = 1
    padding: Padding | None = None
    executed: float = 1.0

    @property
    def busy(self) -> float:
        split = self.split
        compute_us = split.compute_input_us + split.compute_infer_us + split.compute_output_us
        return min(self.throughput_rps / max(self.mean_batch, 1) * compute_us / 1e6 / self.instances, 1.0)


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that holds requests back: the figure that shows it, and what to change."""

    kind: Kind
    figure: str
    knob: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.figure} → {self.knob}"


def causes(facts: Facts) -> list[Cause]:
    """What holds requests back, what matters most first; the first is the bottleneck. Never empty."""
    if facts.executed < _MOSTLY:  # the parts of a request are then those of hardly any
        return [_cache(facts)]
    found = [*_padding(facts), *_cores(facts), *_client(facts), *_queue(facts), *_compute(facts), *_data(facts)]
    return found or [_largest(facts)]


def _cache(facts: Facts) -> Cause:
    return Cause(
        "cache",
        f"{1 - facts.executed:.0%} of the requests were answered from the response cache, without the model",
        "varied inputs, or the cache turned off: nothing can be said of the model",
    )


def _padding(facts: Facts) -> Iterator[Cause]:
    padding = facts.padding
    if padding and padding.share > MUCH_PADDING:
        yield Cause("padding", f"{padding.share:.0%} of the computed tokens are padding", padding.mend)


def _cores(facts: Facts) -> Iterator[Cause]:
    if facts.cores is None or facts.threads is None or facts.instances < 2:
        return
    wanted = facts.instances * facts.threads
    if wanted > facts.cores and facts.split.share("compute_infer") >= _SOME:
        fitting = max(1, facts.cores // facts.instances)
        yield Cause(
            "oversubscribed cores",
            f"{facts.instances} instances × {facts.threads} threads want {wanted} cores, there are {facts.cores}",
            f"threads={fitting}, or fewer instances with more threads: `tritune compare` tells which",
        )


def _client(facts: Facts) -> Iterator[Cause]:
    percent = facts.client_busy_percent
    if percent is not None and percent > _CLIENT_BUSY_PERCENT:
        yield Cause(
            "client",
            f"the client itself was busy {percent:.0f} % of the time, so the server waited for it",
            "send from another machine or from more processes; smaller inputs, binary tensors, shared memory",
        )
    elif facts.split.share("client") >= _LARGE:
        yield Cause(
            "client",
            f"{facts.split.share('client'):.0%} of a request is the client's own packing and unpacking",
            "binary tensors instead of JSON, gRPC, shared memory on the same machine, fewer outputs",
        )
    if facts.split.share("network") >= _LARGE:
        yield Cause(
            "network",
            f"{format_duration_us(facts.split.network_us)}, {facts.split.share('network'):.0%} of a request, "
            "are the way there and back and the server's front end",
            "a client nearer to the server, gRPC, shared memory; several texts in one request",
        )


def _queue(facts: Facts) -> Iterator[Cause]:
    share, waited_us = facts.split.share("queue"), facts.split.queue_us
    if share < _LARGE or facts.busy >= _BUSY:
        return
    figure = f"{format_duration_us(waited_us)}, {share:.0%} of a request, are waiting"
    if facts.delay_us and facts.dynamic_batching and waited_us >= facts.delay_us / 2:
        yield Cause(
            "queueing",
            f"{figure}, while instances compute only {facts.busy:.0%} of the time: a delay of "
            f"{format_duration_us(facts.delay_us)} waits for batches that become {facts.mean_batch:.1f} rows",
            "delay=0, or less of it",
        )
    elif facts.lengths > 1 and facts.dynamic_batching and facts.mean_batch < 1.5:
        yield Cause(
            "queueing",
            f"{figure}; requests of {facts.lengths} lengths are merged into {facts.mean_batch:.1f} rows on average",
            "length buckets, so that more requests have one shape (`tritune simulate --buckets`)",
        )
    else:
        yield Cause(
            "queueing",
            f"{figure}, while instances compute {facts.busy:.0%} of the time: requests come in bursts",
            "more instances, or an arrival that is more even",
        )


def _compute(facts: Facts) -> Iterator[Cause]:
    share = facts.split.share("compute_infer")
    if facts.busy < _BUSY and share < 0.5:
        return
    figure = (
        f"instances compute {facts.busy:.0%} of the time, {format_duration_us(facts.split.compute_infer_us)} a batch"
    )
    waiting = facts.split.share("queue")
    if waiting >= _LARGE:
        figure += f"; the queue, {waiting:.0%} of a request, is waiting for them"
    if not facts.dynamic_batching and facts.max_batch_size > 1:
        knob = "batching=on, so that waiting requests are merged"
    elif facts.cores is not None and facts.threads is not None and facts.instances * facts.threads < facts.cores:
        knob = f"more instances or threads: {facts.instances} × {facts.threads} leave cores unused (`tritune tune`)"
    elif waiting < _LARGE:
        knob = "a faster execution: threads, precision, a smaller model, a GPU"
    else:
        knob = "`tritune tune` finds the best split; beyond it only precision, a smaller model, a GPU, more hosts"
    yield Cause("compute", figure, knob)


def _data(facts: Facts) -> Iterator[Cause]:
    share = facts.split.share("compute_input") + facts.split.share("compute_output")
    if share >= _LARGE:
        yield Cause(
            "data",
            f"{share:.0%} of a request is copying its tensors into and out of the model",
            "fewer or smaller outputs (pooling inside the model), shared memory",
        )


def _largest(facts: Facts) -> Cause:
    """Where nothing stands out: what a request mostly does."""
    parts = {name.removesuffix("_us"): value for name, value in asdict(facts.split).items()}
    part = max(parts, key=lambda name: parts[name])
    kinds: dict[str, Kind] = {"client": "client", "network": "network", "queue": "queueing"}
    figure = f"nothing stands out; {facts.split.share(part):.0%} of a request is {part.replace('_', ' ')}"
    return Cause(kinds.get(part, "compute"), figure, "more load shows more: --concurrency, --request-rate")


_NAMES = {
    "client": "client: packing, sending",
    "network": "network, server front end",
    "queue": "queue",
    "compute_input": "compute: input",
    "compute_infer": "compute: inference",
    "compute_output": "compute: output",
}


def as_table(split: Split) -> str:
    """The parts with their times and shares, for a terminal."""
    rows = [
        (name, f"{getattr(split, f'{part}_us') / 1e3:.2f}", f"{split.share(part):.0%}") for part, name in _NAMES.items()
    ]
    return table(("a request", "ms", "share"), [*rows, ("in all", f"{split.total_us / 1e3:.2f}", "")])


def to_dict(facts: Facts) -> dict[str, Any]:
    """The facts as JSON values."""
    shares = {part: facts.split.share(part) for part in _NAMES}
    return {**asdict(facts), "busy": facts.busy, "total_us": facts.split.total_us, "shares": shares}
