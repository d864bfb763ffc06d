"""Drive perf_analyzer for one point and report it as a Measurement. Layer: above discovery and measurement."""

from __future__ import annotations

import errno
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from perf.discovery import INSTALL, VARIABLE, candidates
from perf.load import STRETCH, WINDOWS, LoadPlan, plan_load
from perf.load import window_ms as planned_window_ms
from perf.measurement import Load, Measurement
from perf.outcome import Outcome, cross_checked, judge, rejections
from perf.pa_output import read_row, read_stdout
from perf.pooled import REQUESTS_FILE
from perf.process import ForeignLoad, Run, run_until
from perf.profile_export import (
    Requests,
    declared_kinds,
    from_schedule_ns,
    lateness_ns,
    percentiles_us,
    read_profile_export,
    strayed,
    stream_figures,
    write_requests,
)
from perf.server_stats import energy_j, failures_since, since
from perf.transport import Transport
from perf.workload import Workload
from tooling.errors import BUSY, MissingError, TrituneError
from tooling.repository import write_atomic, writing

if TYPE_CHECKING:
    from tooling.runtime import Runtime

_CSV, _STDOUT, _STDERR, _META = "result.csv", "stdout.txt", "stderr.txt", "meta.json"
_EXPORT = "export.json"
_ALWAYS = ("-s", "1000000", "-r", str(WINDOWS), "-f", _CSV, "-v", "--verbose-csv", "--profile-export-file", _EXPORT)
"""perf_analyzer never judges a run unstable itself, and writes everything it knows."""

_WINDOW_MS = 300
_MOST_TEXT = 1 << 20
_LATE_NS = 1_000_000
"""A request that leaves later than this was delayed; perf_analyzer's releases differ in what they count."""

_PLAIN = Transport()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PerfAnalyzer:
    """A perf_analyzer that runs here: its command line, full environment, version, and where it was found."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    version: str
    source: str

    def measure(
        self,
        model: str,
        url: str,
        workload: Workload,
        input_file: Path,
        *,
        raw_dir: Path,
        window_ms: int | None = None,
        deadline_s: float | None = None,
        transport: Transport = _PLAIN,
        batching: bool = True,
        server_pid: int | None = None,
        statistics: Callable[[], Mapping[str, Any]] | None = None,
        metrics: Callable[[], str] | None = None,
    ) -> Measurement:
        """Measure one point in one process: three windows of 1.2 × `window_ms` each, pooled; without `window_ms` as
        long as the workload says, else as one pass of its trace takes, else 300 ms.

        `url` is `host:port` of the transport's protocol. `raw_dir` keeps what perf_analyzer wrote; give each point its
        own. With `server_pid` the load of other programs is told apart from the server's. `statistics` gives the
        answer of the model's statistics endpoint and `metrics` the text of the server's metrics, for its side of the
        run. `batching` says whether the model's max_batch_size is above 0: perf_analyzer then stacks the rows, else
        they are in the input file. A run that fails is a Measurement too, with its status. Only what cannot be asked,
        and an unwritable `raw_dir`, raise UsageError.
        """
        window_ms = window_ms or planned_window_ms(workload) or _WINDOW_MS
        span_s = WINDOWS * STRETCH * window_ms / 1000
        deadline_s = 30 + 2 * span_s if deadline_s is None else deadline_s
        raw_dir = _fresh(raw_dir)
        rows = workload.batch[0] if batching else 1
        load = plan_load(workload, span_s, raw_dir, rows=rows)
        where = ("-m", model, *transport.options(url), "--input-data", str(input_file.absolute()))
        argv = (*self.command, *where, *load.options, "-p", str(window_ms), *_ALWAYS)
        point = Measurement(
            status="missing",
            rows=rows,
            load=Load(mode=workload.mode, value=workload.level),
            argv=argv,
            raw_dir=str(raw_dir),
            started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            perf_analyzer=f"{self.version} ({self.source})",
        )
        foreign, before = ForeignLoad(server_pid), _Server.ask(statistics, metrics)
        files = {"stdout": raw_dir / _STDOUT, "stderr": raw_dir / _STDERR}
        try:
            run = run_until(argv, env=_environment(self.env, url), cwd=raw_dir, deadline_s=deadline_s, **files)
        except OSError as error:
            message = f"{self.command[0]} cannot be started: {error.strerror}"
            point = replace(point, message=message, hint=INSTALL)
        else:
            point = _filled(point, run, deadline_s, foreign.cores(run.cpu_s), load)
            point = _from_server(point, model, before, _Server.ask(statistics, metrics))
            point = _from_export(point, load, input_file, workload, transport)
            point = cross_checked(point, load.planned_ns(point.requests or 1) if load.uneven else None)
        return _kept(point, f"{model} at {url}")


def _kept(point: Measurement, what: str) -> Measurement:
    """The point with all it has to say of `what` was measured, which is also written beside what it came from."""
    command = shlex.join(point.argv)
    if point.message:
        point = replace(point, message=f"{what}: {point.message}")
    if point.status == "crashed":
        point = replace(point, hint="; ".join(filter(None, [point.hint, f"repeat it with: {command}"])))
    kept = {"command": command, **point.to_dict()}
    write_atomic(Path(point.raw_dir) / _META, json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    return point


def find_perf_analyzer(runtime: Runtime | None = None) -> PerfAnalyzer:
    """The first perf_analyzer that runs here: $TRITUNE_PERF_ANALYZER, an installed one, PATH, then the runtime's.

    Raises MissingError that says what is wrong with each. One named in $TRITUNE_PERF_ANALYZER is never passed over.
    """
    refused = []
    for candidate in candidates(runtime):
        if candidate.problem is None:
            return PerfAnalyzer(candidate.command, candidate.env, candidate.version or "unknown", candidate.source)
        if candidate.source == f"${VARIABLE}":
            raise MissingError(
                "this perf_analyzer does not run",
                where=candidate.source,
                got=candidate.problem,
                expected="a command line that starts perf_analyzer",
                hint=candidate.hint,
            )
        refused.append(candidate)
    raise MissingError(
        "no perf_analyzer runs on this machine",
        got="; ".join(f"{c.source}: {c.problem}" for c in refused),
        expected=f"one of these, or a command line in ${VARIABLE}",
        hint=refused[-1].hint,
    )


@dataclass(frozen=True, slots=True)
class _Server:
    """What the server says of itself at one time; None where nobody asks it, or it cannot answer (any more)."""

    statistics: Mapping[str, Any] | None
    metrics: str | None

    @classmethod
    def ask(cls, statistics: Callable[[], Mapping[str, Any]] | None, metrics: Callable[[], str] | None) -> _Server:
        return cls(_answer(statistics), _answer(metrics))


def _answer(ask: Callable[[], _T] | None) -> _T | None:
    try:
        return ask() if ask else None
    except TrituneError:
        return None


def _environment(env: Mapping[str, str], url: str) -> dict[str, str]:
    """`env`, without the proxies that would otherwise also catch the way to a server on this machine."""
    local = url.rpartition(":")[0].removeprefix("http://") in ("localhost", "127.0.0.1", "[::1]")
    return {name: value for name, value in env.items() if not (local and name.lower().endswith("_proxy"))}


def _fresh(raw_dir: Path) -> Path:
    """Make the directory; a result left from an earlier run must not be taken for this one's."""
    with writing(raw_dir):
        raw_dir.mkdir(parents=True, exist_ok=True)
        for name in (_CSV, _META, _EXPORT, REQUESTS_FILE):
            (raw_dir / name).unlink(missing_ok=True)
        for name in (_STDOUT, _STDERR):
            (raw_dir / name).write_bytes(b"")
    return raw_dir.absolute()


def _text(path: Path) -> str:
    """The text of an output file; of a very long one (FP16 tensors write a line each) its head and tail."""
    with path.open("rb") as file:
        head = file.read(_MOST_TEXT)
        rest = max(path.stat().st_size - len(head), 0)
        file.seek(-min(rest, _MOST_TEXT), os.SEEK_END)
        tail = file.read() if rest else b""
    return (head + tail).decode(errors="replace")


def _filled(
    blank: Measurement, run: Run, deadline_s: float, foreign_cores: float | None, load: LoadPlan
) -> Measurement:
    """`blank` with the outcome of the run and every figure that its files hold, rates in requests and not in rows."""
    raw_dir = Path(blank.raw_dir)
    report = asdict(read_stdout(_text(raw_dir / _STDOUT)))
    row = read_row(raw_dir / _CSV, blank.load, exact=not load.uneven)
    outcome = judge(run.rc, _text(raw_dir / _STDERR), row is not None)
    if run.timed_out:
        outcome = Outcome(
            "hung",
            f"perf_analyzer did not end within {deadline_s:g} s",
            f"the server stopped answering (its log tells more), or the model is too slow for this deadline; {BUSY}",
        )
    report["windows_rps"] = tuple(rps / blank.rows for rps in report["windows_rps"])
    if row is not None:
        report |= {**row, "throughput_rps": row["throughput_rps"] / blank.rows, "foreign_cores": foreign_cores}
    return replace(blank, **asdict(outcome), **report, wall_s=round(run.wall_s, 3))


def _from_server(point: Measurement, model: str, before: _Server, after: _Server) -> Measurement:
    """`point` with the server's side of the whole run; what perf_analyzer read at the edges of its windows stays.

    Triton 24.10 counts a request that finds the queue full nowhere, so those that perf_analyzer saw count too.
    """
    found: dict[str, Any] = {"answered": 0, "failed": 0, "rejected": 0}
    if before.statistics is not None and after.statistics is not None:
        found |= since(before.statistics, after.statistics)
    if before.metrics is not None and after.metrics is not None:
        found |= failures_since(before.metrics, after.metrics, model)
        spent_j = energy_j(before.metrics, after.metrics)
        found["energy_j"] = spent_j / found["answered"] if spent_j and found["answered"] else None
    answered = found.pop("answered")
    if found["failed"] and point.message:
        message = f"{point.message}; the server failed {found['failed']} of {found['failed'] + answered} requests"
        point = replace(point, message=message)
    for name, counted in (("failed", point.failures), ("rejected", rejections(point.failures))):
        found[name] = max(found[name], sum(counted.values()))
    return replace(point, **{name: value for name, value in found.items() if getattr(point, name) in (None, {})})


def _from_export(
    point: Measurement, load: LoadPlan, input_file: Path, workload: Workload, transport: Transport
) -> Measurement:
    """`point` with what only the raw export tells; the export itself gives way to the times of its requests."""
    path = Path(point.raw_dir) / _EXPORT
    if not path.is_file():
        return point
    if os.statvfs(path.parent).f_bavail == 0:  # then perf_analyzer has cut its files off without a word
        with writing(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    per_request = point.responses_per_request
    requests = read_profile_export(path)
    if per_request is not None and requests.responses.mean() > per_request + 0.5:
        requests = read_profile_export(path, empty_finals=True)
    with writing(path):
        path.unlink()
    write_requests(path.with_name(REQUESTS_FILE), requests)
    figures: dict[str, Any] = {}
    planned_ns = load.planned_ns(len(requests.sent_ns))
    if planned_ns is not None:
        found = percentiles_us(from_schedule_ns(requests, planned_ns))
        figures |= {f"planned_{name}": value for name, value in found.items()}
        late = lateness_ns(requests, planned_ns) > _LATE_NS
        figures["delayed_percent"] = round(100 * float(late.mean()), 2)
    if workload.streams is not None:
        figures |= stream_figures(requests)
    warnings = [] if transport.shared_memory else list(_strayed(requests, input_file, load))
    if (requests.latency_ns < 0).any():
        warnings.append("the system's clock was set during the run: its latencies are wrong")
    return replace(point, **figures, warnings=(*point.warnings, *warnings))


def _strayed(requests: Requests, input_file: Path, load: LoadPlan) -> Iterator[str]:
    """A warning when the requests sent are not those declared."""
    declared = declared_kinds(input_file.absolute(), input_file.stat().st_mtime_ns)
    if (found := strayed(requests.kinds, declared, load.workers)) is not None:
        kind, share, asked = found
        sizes = ", ".join(f"{name} {size}" for name, size in kind)
        yield f"requests of {sizes} elements were {share:.0%} of those sent instead of {asked:.0%}"
