"""How an embedded server is to run: tritonserver's options, addresses, deadlines. Layer: server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.check.completion import leaves_out
from tooling.config.proto import backend_of
from tooling.server.flags import ServerFlags

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig


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


def loading_only(*configs: ModelConfig) -> ServerOptions:
    """Options of a server on which only these are loaded, and what differs from them in other fields than tensors.

    Where they leave nothing to complete, the embedded backend is not asked to: it takes a process for that, and three
    quarters of the time of a load.
    """
    complete = all(backend_of(config) == "onnxruntime" and not leaves_out(config) for config in configs)
    return ServerOptions(strict_config=complete)
