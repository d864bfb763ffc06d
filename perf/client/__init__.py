"""Clients of a running Triton: over HTTP to measure with, and `Client` on asyncio for applications. Layer: bottom of
perf."""

from __future__ import annotations

from perf.client.aio import Answer, Client
from perf.client.http import Connection, Exchange, Integers, closed_loop, decode, encode, open_loop
from perf.client.split import Split

__all__ = [
    "Answer",
    "Client",
    "Connection",
    "Exchange",
    "Integers",
    "Split",
    "closed_loop",
    "decode",
    "encode",
    "open_loop",
]
