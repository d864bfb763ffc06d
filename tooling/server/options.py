"""How an embedded server is to run: addresses, deadlines, flags. Layer: server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of one embedded server; a port of 0 is chosen free. Deadlines are in seconds, each for one call.

    `summary_latencies` adds percentiles to the metrics, at some cost for each request.
    With `trace_file`, which Triton numbers (`FILE.0` …), tracing can be switched on.
    """

    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    host: str = "127.0.0.1"
    start_timeout_s: float = 60
    load_timeout_s: float = 120
    request_timeout_s: float = 10
    strict_config: bool = False
    config_name: str | None = None
    log_verbose: int = 0
    summary_latencies: bool = False
    trace_file: Path | None = None
