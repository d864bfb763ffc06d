"""One measured point with everything needed to judge and reproduce it. Layer: above workload, pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypedDict

FOREIGN_CORES = 0.3
"""From this load of other programs on, throughput and p99 of a small host are visibly disturbed."""
ENOUGH_FOR_P99 = 2_000
"""From so many requests on a p99 is steady: twenty are slower."""

Status = Literal[
    "ok",  # a result that can be compared
    "saturated",  # the server cannot keep the asked rate: latencies only tell how long the run was
    "unstable",  # windows differed more than the asked stability
    "over_limit",  # the latency limit was passed
    "no_samples",  # a window had no finished request
    "request_failed",  # the server refused or failed a request
    "bad_input",  # perf_analyzer refused the options or the input data
    "unreachable",  # no server of this protocol at the address
    "model_unknown",  # the server does not serve the model
    "crashed",  # perf_analyzer died
    "hung",  # no end before the deadline
    "interrupted",  # perf_analyzer was stopped from outside
    "missing",  # perf_analyzer could not be started
]


class Load(TypedDict):
    """What was asked: `value` clients, or `value` requests a second."""

    mode: Literal["concurrency", "request_rate"]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A point as perf_analyzer measured it. Latencies and server times are mean or percentile microseconds of a
    request; figures are None when the run gave none.

    `planned_…` count from the time a request was to leave (open loop), `ttft_…` to its first response, `itl_…` between
    its responses, of which `tokens_per_s` came in all (streams). `requests` counts finished requests, each of `rows`
    rows, of the three pooled windows, `inference_count`/`execution_count` the server's rows and executions in them.
    `batch_histogram` counts its executions by rows, `server_us` is its own time for a request, `failed` the requests
    it failed, `rejected` those of them that a queue policy refused, each over the whole run. `failures` are the texts
    of failed requests, with the number of perf_analyzer's threads that got each. `energy_j` is what the
    server's GPUs took for each request of the run. `windows_*` are the three windows by
    themselves. `foreign_cores` is how many cores other processes used meanwhile. `message` (with the cause) and `hint`
    explain a status other than ok.
    """

    status: Status
    load: Load
    message: str | None = None
    hint: str | None = None
    throughput_rps: float | None = None
    avg_us: float | None = None
    p50_us: float | None = None
    p90_us: float | None = None
    p95_us: float | None = None
    p99_us: float | None = None
    planned_avg_us: float | None = None
    planned_p50_us: float | None = None
    planned_p90_us: float | None = None
    planned_p95_us: float | None = None
    planned_p99_us: float | None = None
    ttft_avg_us: float | None = None
    ttft_p50_us: float | None = None
    ttft_p90_us: float | None = None
    ttft_p95_us: float | None = None
    ttft_p99_us: float | None = None
    itl_avg_us: float | None = None
    itl_p50_us: float | None = None
    itl_p90_us: float | None = None
    itl_p95_us: float | None = None
    itl_p99_us: float | None = None
    tokens_per_s: float | None = None
    requests: int | None = None
    inference_count: int | None = None
    execution_count: int | None = None
    batch_histogram: Mapping[int, int] = field(default_factory=dict)
    failed: int | None = None
    rejected: int | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    server_us: float | None = None
    energy_j: float | None = None
    queue_us: float | None = None
    compute_input_us: float | None = None
    compute_infer_us: float | None = None
    compute_output_us: float | None = None
    rows: int = 1
    responses_per_request: float | None = None
    windows_rps: tuple[float, ...] = ()
    windows_us: tuple[float, ...] = ()
    delayed_percent: float | None = None
    send_rate_rps: float | None = None
    client_overhead_percent: float | None = None
    foreign_cores: float | None = None
    warnings: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    raw_dir: str = ""
    started: str = ""
    wall_s: float = 0.0
    perf_analyzer: str = ""

    @property
    def ok(self) -> bool:
        """Whether the figures can be compared with those of another run."""
        return self.status == "ok"

    @property
    def disturbed(self) -> bool:
        """Whether other programs used so many cores meanwhile that they visibly shaped the figures."""
        return (self.foreign_cores or 0) >= FOREIGN_CORES

    @property
    def mean_batch(self) -> float | None:
        """Mean number of elements the server put into one model execution."""
        return self.inference_count / self.execution_count if self.inference_count and self.execution_count else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; `from_dict` gives the same measurement back."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Measurement:
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known}
        values["batch_histogram"] = {int(rows): count for rows, count in data.get("batch_histogram", {}).items()}
        return cls(**values)
