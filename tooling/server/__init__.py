"""Servers that tritune starts and talks to: the embedded tritonserver. Layer: server."""

from __future__ import annotations

from tooling.server.embedded import EmbeddedServer
from tooling.server.flags import ServerFlags
from tooling.server.options import ServerOptions

__all__ = ["EmbeddedServer", "ServerFlags", "ServerOptions"]
