"""How an embedded server is to run: tritonserver's options, addresses, deadlines. Layer: server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tooling.server.flags import ServerFlags


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of one embedded server; a port of 0 is chosen free. Deadlines are in seconds, each for one call.

    `flags` are those that any server of the repository would get, by default as for measuring (`measuring_flags`); this
    one is in explicit control whatever they say.
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
    log_verbose: int = 0
    flags: ServerFlags | None = None
    trace_file: Path | None = None
