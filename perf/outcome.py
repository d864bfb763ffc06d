"""Decide how a perf_analyzer run went from its exit code, its stderr and its result row. Layer: above measurement."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from perf.measurement import ENOUGH_FOR_P99, Measurement, Status

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

_MUCH_OVERHEAD_PERCENT = 20
_MANY_FOREIGN_CORES = 0.3


@dataclass(frozen=True, slots=True)
class Outcome:
    """A status with, unless ok, one message that carries the cause and a hint at the fix."""

    status: Status
    message: str | None = None
    hint: str | None = None
    failures: Mapping[str, int] = field(default_factory=dict)


class _Rule(NamedTuple):
    pattern: str
    status: Status
    message: str
    hint: str | None


_GONE = "see the server's log for why it went away"
_ADDRESS = "check that the server is up, and that the port is the one of the protocol (http or grpc)"
_WINDOW = "measure with longer windows, at least ten times the latency"
_REJECTED = (
    "the model's queue policy refused it: lower the load, or allow more with max_queue_size or a longer timeout; the "
    "server takes those it is working on and those that fit in its queue"
)
_SEGMENTS = "must be within the inclusive range [-2,1]"
_SWAPPED = "a range of 2 values means the segment table: inputs are swapped; give each by its own name"
_QUEUE_POLICY = r"Exceeds maximum queue size|Request timeout expired"
_INPUTS = "give each input of the model's configuration with its name and type, and its shape without the batch axis"

# The first rule whose pattern stands in stderr wins: texts of perf_analyzer 2.51 to 2.60. Rules for failed requests
# come first, because the server's own text in them may hold any words.
_REFUSED_REQUEST = r"^Thread \[\d+\] had error: (?P<cause>(?s:.+?))(?=^Thread \[|^\s*At:|\Z)"
_LOST = r"Send failed since rewinding|Socket closed|failed to connect|Connection re(?:set|fused)|Couldn't connect"
_RULES = (
    _Rule(rf"^Thread \[\d+\] had error: (?P<cause>.*(?:{_LOST}).*)", "unreachable", "the server went away", _GONE),
    _Rule(r"(?P<cause>unable to find data for input .*)", "bad_input", "perf_analyzer refused the input data", _INPUTS),
    _Rule(
        rf"^Thread \[\d+\] had error: (?P<cause>.*(?:{_QUEUE_POLICY}).*)",
        "request_failed",
        "a request was rejected",
        _REJECTED,
    ),
    _Rule(
        _REFUSED_REQUEST,
        "request_failed",
        "a request failed",
        "make every request of the input data valid: ids inside the vocabulary, lengths within the model's limit",
    ),
    _Rule(r"Received exit signal", "interrupted", "perf_analyzer was interrupted", None),
    _Rule(
        r"(?P<cause>Request for unknown model.*)",
        "model_unknown",
        "the server does not serve the model",
        "load the model first and check its name",
    ),
    _Rule(
        r"(?P<cause>HTTP client failed: (?:Unsupported protocol|Received HTTP/0\.9).*)",
        "unreachable",
        "this port does not speak HTTP",
        "it is the gRPC port: measure over gRPC, or name the HTTP port (Triton's defaults are 8000 and 8001)",
    ),
    _Rule(
        r"(?P<cause>.*(?:Socket closed|Trying to connect an http1\.x server).*)",
        "unreachable",
        "this port does not speak gRPC",
        "it is the HTTP port: measure over HTTP, or name the gRPC port (Triton's defaults are 8000 and 8001)",
    ),
    _Rule(
        r"(?P<cause>(?:.*SSL connect error|.*[Hh]andshake failed|.*certificate).*)",
        "unreachable",
        "no TLS connection",
        "check that this port speaks TLS, that the certificate is for this host, and the authority given for it",
    ),
    _Rule(
        r"(?P<cause>Couldn't (?:connect to server|resolve host.*)|failed to connect to all addresses.*"
        r"|DNS resolution failed.*|model metadata: Not Found"
        r"|.*(?:Failure when receiving data from the peer|Server returned nothing).*)",
        "unreachable",
        "no server answers",
        _ADDRESS,
    ),
    _Rule(
        r"No valid requests recorded|failed to find the requested model version|missing statistics for requested model",
        "no_samples",
        "no request finished within a measurement window",
        _WINDOW,
    ),
    _Rule(
        r"Measured latency went over the set limit of (?P<cause>.*?)\.?\s*$",
        "over_limit",
        "the latency is over the limit",
        None,
    ),
    _Rule(
        r"(?P<cause>Failed to obtain stable measurement.*)",
        "unstable",
        "the measurement does not settle",
        _WINDOW,
    ),
    _Rule(
        r"(?:Failed to init manager inputs|Unable to init infer data manager): (?P<cause>.*)",
        "bad_input",
        "perf_analyzer refused the input data",
        _INPUTS,
    ),
    _Rule(r"^(?:error: |Error: )(?P<cause>.*)", "bad_input", "perf_analyzer refused its options", None),
    _Rule(
        r"(?P<cause>Decoupled models must be run with.*)",
        "bad_input",
        "perf_analyzer cannot measure this model this way",
        "a decoupled model is measured over a stream: give the workload `streams: 1`, and gRPC",
    ),
    _Rule(
        r"(?P<cause>can not specify batch size.*|sequence id range specified.*)",
        "bad_input",
        "perf_analyzer cannot measure this model this way",
        None,
    ),
)
_NOT_LOADED = re.compile(r"error while loading shared libraries: (\S+):|version [`'](\S+)' not found")


def judge(rc: int, stderr: str, has_row: bool) -> Outcome:
    """The outcome of a run that ended by itself: exit code 0 alone does not mean that there is a result."""
    if rc == 0 and has_row and "Received exit signal" not in stderr:
        return Outcome("ok")
    if loader := _NOT_LOADED.search(stderr):
        return Outcome(
            "missing",
            f"perf_analyzer cannot start on this system: {loader[1] or loader[2]} is missing",
            "run `tritune runtime install`: it brings a perf_analyzer with its libraries",
        )
    if rc in (-signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGTERM):
        return Outcome("interrupted", "perf_analyzer was interrupted")
    if rc < 0 or rc >= 128:
        return _crash(rc, stderr)
    for rule in _RULES:
        if found := re.search(rule.pattern, stderr, re.MULTILINE):
            cause = " ".join(found.groupdict().get("cause", "").split())
            failures = _failures(stderr)
            message = f"{rule.message}: {cause}" if cause else rule.message
            if (threads := sum(failures.values())) > 1:
                message += f" (the first of {threads} threads that failed)"
            return Outcome(rule.status, message, _SWAPPED if _SEGMENTS in cause else rule.hint, failures)
    last = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "")
    return Outcome("crashed", f"perf_analyzer ended with exit code {rc} and no result" + (f": {last}" if last else ""))


def _failures(stderr: str) -> dict[str, int]:
    """Texts of failed requests, each with the number of threads that got it, the most frequent first."""
    causes = re.findall(_REFUSED_REQUEST, stderr, re.MULTILINE)
    return dict(Counter(" ".join(cause.split()) for cause in causes).most_common())


def rejections(failures: Mapping[str, int]) -> dict[str, int]:
    """Those of the failures that a queue policy is the cause of."""
    return {text: count for text, count in failures.items() if re.search(_QUEUE_POLICY, text)}


def _crash(rc: int, stderr: str) -> Outcome:
    number = -rc if rc < 0 else rc - 128
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    what = re.search(r"what\(\):\s*(.*)", stderr)
    last = what[1] if what else lines[-1] if lines else "it wrote no error"
    return Outcome("crashed", f"perf_analyzer died of {name}: {last}", "malformed input data can do this")


def cross_checked(measurement: Measurement, planned_ns: Integers | None = None) -> Measurement:
    """The measurement with what its figures show beyond perf_analyzer's own verdict: saturation, and warnings.

    `planned_ns` are the times at which an uneven open loop was to send, from its start.
    """
    if measurement.load["mode"] == "request_rate" and _fell_behind(measurement, planned_ns):
        asked, got = measurement.load["value"], measurement.throughput_rps or measurement.windows_rps[-1]
        measurement = replace(
            measurement,
            status="saturated",
            message=f"the server falls behind: {asked:g} requests/s asked, {got:.3g} answered",
            hint="its latencies only tell how long the run was: ask for a lower rate",
        )
    warnings = tuple(w for w in (_short(measurement), *_disturbed(measurement, planned_ns)) if w)
    return (
        replace(measurement, warnings=(*measurement.warnings, *warnings)) if measurement.throughput_rps else measurement
    )


def _sent(m: Measurement, planned_ns: Integers | None, *, last_us: float = 0.0) -> float:
    """How many requests were to leave in the time that was measured, or in its last `last_us`."""
    assert m.requests is not None and m.throughput_rps
    end_us = m.requests / m.throughput_rps * 1e6
    start_us = end_us - last_us if last_us else 0.0
    if planned_ns is None:
        return (end_us - start_us) * m.load["value"] / 1e6
    first, last = planned_ns.searchsorted([start_us * 1e3, end_us * 1e3])
    return float(last - first)


def _largest_burst(planned_ns: Integers | None) -> int:
    """How many requests leave together at most."""
    import numpy as np

    return 1 if planned_ns is None else int(np.unique(planned_ns, return_counts=True)[1].max())


def _fell_behind(m: Measurement, planned_ns: Integers | None) -> bool:
    """Whether the server lost ground against an open-loop load.

    Missing may be 2 % of the requests sent, and those under way at the end (sent in the lowest latency of a window, at
    most a tenth of the run or one burst; two more, as sending times jitter). perf_analyzer waits for its backlog, so a
    run cut at its deadline may have had more of it than the server could work off.
    """
    rate = m.load["value"]
    if m.status == "hung":
        return bool(m.windows_rps) and m.windows_rps[-1] < 0.5 * rate
    if m.status != "ok" or not m.throughput_rps or not m.requests:
        return False
    sent = _sent(m, planned_ns)
    late = _sent(m, planned_ns, last_us=min(m.windows_us, default=0.0)) if m.windows_us else 0.0
    under_way = min(late, max(0.1 * sent, _largest_burst(planned_ns)))
    return sent - m.requests > 0.02 * sent + under_way + 2


def _short(m: Measurement) -> str | None:
    if m.requests is not None and m.requests < ENOUGH_FOR_P99:
        return f"p99 stands on {m.requests} requests; {ENOUGH_FOR_P99} are needed for a steady one"
    return None


def _disturbed(m: Measurement, planned_ns: Integers | None) -> Iterator[str]:
    """Signs that something else than the model and its settings shaped the figures."""
    in_flight = (m.throughput_rps or 0) * (m.avg_us or 0) / 1e6
    if m.requests and m.load["mode"] == "concurrency":
        edge = in_flight / m.requests  # one latency, as a part of the run: its first and last requests
        if abs(in_flight / m.load["value"] - 1) > 0.05 + edge:
            yield (
                f"throughput × latency gives {in_flight:.2f} requests in flight instead of {m.load['value']:g}: "
                "the client was slowed down, or the run is too short"
            )
    worked_on = (m.inference_count or 0) // m.rows
    if m.requests and worked_on - m.requests > 0.05 * m.requests + 3 * in_flight:
        yield f"the server worked on {worked_on} requests, {m.requests} of them ours: it has other clients"
    if m.status == "ok" and m.load["mode"] == "request_rate" and m.requests and m.throughput_rps:
        sent = _sent(m, planned_ns)
        if m.requests < 0.9 * sent:
            yield f"{m.requests} requests were answered of {sent:.0f} that were to leave: the run is too short"
    if m.delayed_percent is not None and m.delayed_percent > 1:
        yield f"{m.delayed_percent:g} % of the requests left late"
    if m.client_overhead_percent is not None and m.client_overhead_percent > _MUCH_OVERHEAD_PERCENT:
        yield f"the client was busy itself {m.client_overhead_percent:g} % of the time"
    if m.foreign_cores is not None and m.foreign_cores > _MANY_FOREIGN_CORES:
        yield f"other programs used {m.foreign_cores:.1f} cores meanwhile"
