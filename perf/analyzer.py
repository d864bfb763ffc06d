"""Drive perf_analyzer for one point and report it as a Measurement. Layer: above discovery and measurement."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from perf.discovery import INSTALL, VARIABLE, candidates
from perf.measurement import Load, Measurement
from perf.outcome import Outcome, cross_checked, judge
from perf.pa_output import read_row, read_stdout
from perf.process import ForeignLoad, Run, run_until
from perf.workload import Workload
from tooling.errors import MissingError
from tooling.repository import write_atomic, writing

if TYPE_CHECKING:
    from tooling.runtime import Runtime

Protocol = Literal["grpc", "http"]

_CSV, _STDOUT, _STDERR, _META = "result.csv", "stdout.txt", "stderr.txt", "meta.json"
_WINDOWS = 3
_STRETCH = 1.2
"""A window of perf_analyzer lasts this times the interval asked."""

_RATE_THREADS = 4


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
        window_ms: int = 300,
        deadline_s: float | None = None,
        protocol: Protocol = "grpc",
        server_pid: int | None = None,
    ) -> Measurement:
        """Measure one point in one process: three windows of 1.2 × `window_ms` each, pooled.

        `url` is `host:port` of `protocol`. `raw_dir` keeps everything perf_analyzer wrote; give each point its own.
        With `server_pid` the load of other programs is told apart from the server's. A run that fails is a Measurement
        too, with its status; only an unwritable `raw_dir` raises (UsageError).
        """
        span_s = _WINDOWS * _STRETCH * window_ms / 1000
        deadline_s = 30 + 2 * span_s if deadline_s is None else deadline_s
        argv = (*self.command, *_options(model, url, workload, input_file.absolute(), window_ms, protocol))
        raw_dir = _fresh(raw_dir)
        measurement = Measurement(
            status="missing",
            load=Load(mode=workload.mode, value=workload.level),
            argv=argv,
            raw_dir=str(raw_dir),
            started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            perf_analyzer=f"{self.version} ({self.source})",
        )
        foreign = ForeignLoad(server_pid)
        files = {"stdout": raw_dir / _STDOUT, "stderr": raw_dir / _STDERR}
        try:
            run = run_until(argv, env=_environment(self.env, url), cwd=raw_dir, deadline_s=deadline_s, **files)
        except OSError as error:
            message = f"{self.command[0]} cannot be started: {error.strerror}"
            measurement = replace(measurement, message=message, hint=INSTALL)
        else:
            measurement = _filled(measurement, run, deadline_s, foreign.cores(run.cpu_s))
            measurement = cross_checked(measurement, poisson=workload.distribution == "poisson")
        if measurement.message:
            measurement = replace(measurement, message=f"{model} at {url}: {measurement.message}")
        kept = {"command": shlex.join(argv), **measurement.to_dict()}
        write_atomic(raw_dir / _META, json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
        return measurement


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


def _options(
    model: str, url: str, workload: Workload, input_file: Path, window_ms: int, protocol: Protocol
) -> tuple[str, ...]:
    """One point of three windows that is never judged unstable by perf_analyzer itself: `-s 1000 -r 3`."""
    if workload.concurrency is not None:
        clients = str(workload.concurrency)
        load = ["--concurrency-range", clients, "--max-threads", clients]
    else:
        # Without --async a late answer delays the next request, and the latency of a busy server looks small.
        load = ["--request-rate-range", repr(workload.level), "--request-distribution", workload.distribution]
        load += ["--async", "--max-threads", str(_RATE_THREADS)]
    where = ["-m", model, "-u", url, "-i", protocol, "--input-data", str(input_file)]
    windows = ["-p", str(window_ms), "-s", "1000", "-r", str(_WINDOWS)]
    return (*where, *load, *windows, "-f", _CSV, "-v", "--verbose-csv")


def _environment(env: Mapping[str, str], url: str) -> dict[str, str]:
    """`env`, without the proxies that would otherwise also catch the way to a server on this machine."""
    local = url.rpartition(":")[0].removeprefix("http://") in ("localhost", "127.0.0.1", "[::1]")
    return {name: value for name, value in env.items() if not (local and name.lower().endswith("_proxy"))}


def _fresh(raw_dir: Path) -> Path:
    """Make the directory; a result left from an earlier run must not be taken for this one's."""
    with writing(raw_dir):
        raw_dir.mkdir(parents=True, exist_ok=True)
        for name in (_CSV, _META):
            (raw_dir / name).unlink(missing_ok=True)
        for name in (_STDOUT, _STDERR):
            (raw_dir / name).write_bytes(b"")
    return raw_dir.absolute()


def _filled(blank: Measurement, run: Run, deadline_s: float, foreign_cores: float | None) -> Measurement:
    """`blank` with the outcome of the run and every figure that its files hold."""
    raw_dir = Path(blank.raw_dir)
    stderr = (raw_dir / _STDERR).read_text(encoding="utf-8", errors="replace")
    report = read_stdout((raw_dir / _STDOUT).read_text(encoding="utf-8", errors="replace"))
    row = read_row(raw_dir / _CSV, blank.load)
    outcome = judge(run.rc, stderr, row is not None)
    if run.timed_out:
        outcome = Outcome(
            "hung",
            f"perf_analyzer did not end within {deadline_s:g} s",
            "the server stopped answering (its log tells more), or the model is too slow for this deadline",
        )
    figures: dict[str, Any] = asdict(report)
    if row is not None:
        figures |= row | {"foreign_cores": foreign_cores}
    return replace(blank, **asdict(outcome), **figures, wall_s=round(run.wall_s, 3))
