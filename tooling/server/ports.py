"""Chooses the ports of a server and says which one is taken. Layer: server."""

from __future__ import annotations

import contextlib
import socket
from typing import NamedTuple

from tooling.errors import UsageError
from tooling.server.options import ServerOptions


class Ports(NamedTuple):
    """The three ports of a server."""

    http: int
    grpc: int
    metrics: int


def choose_ports(options: ServerOptions) -> Ports:
    """The ports asked for, checked to be free, and a free one for each 0.

    Another process may still take one before the server binds it: the server's own refusal is the last word.
    Raises UsageError for a port that is taken, not permitted, out of range or asked for twice.
    """
    asked = Ports(options.http_port, options.grpc_port, options.metrics_port)
    chosen: list[int] = []
    with contextlib.ExitStack() as held:  # all are held until the last is chosen, so that no two are equal
        for name, port in asked._asdict().items():
            if port in chosen:
                raise UsageError(
                    f"--{name}-port is also the port of another endpoint", got=port, expected="three ports"
                )
            chosen.append(_bind(held, options.host, name, port))
    return Ports(*chosen)


def port_taken(host: str, name: str, port: int, reason: str = "already in use") -> UsageError:
    """The error for a port that cannot be bound; `name` is http, grpc or metrics."""
    return UsageError(
        f"port {port} is taken" if "in use" in reason else f"port {port} cannot be used",
        where=f"{host}:{port}",
        got=reason.lower(),
        expected=f"a free {name} port",
        hint=f"choose another with `--{name}-port PORT` (0 takes any free one) or stop the program that listens there",
    )


def _bind(held: contextlib.ExitStack, host: str, name: str, port: int) -> int:
    listener = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OverflowError:
        raise UsageError(f"--{name}-port is out of range", got=port, expected="0 to 65535") from None
    except OSError as error:
        raise port_taken(host, name, port, error.strerror or str(error)) from None
    return int(listener.getsockname()[1])
