"""What people give to a deployment, judged before anything is rendered from it. Layer: deploy, its bottom."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from tooling.errors import UsageError

_IMAGE: Final = re.compile(
    r"[A-Za-z0-9]+([._-]+[A-Za-z0-9]+)*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_QUANTITY: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(m|k|Ki|[MGTPE]i?)?")
_SCALES: Final = {"": Decimal(1), "m": Decimal("0.001"), "k": Decimal(10**3), "Ki": Decimal(2**10)} | {
    f"{letter}{binary}": Decimal(1024 if binary else 1000) ** power
    for power, letter in enumerate("MGTPE", start=2)
    for binary in ("", "i")
}
_GPU: Final = re.compile(r"[0-9]{1,3}|(GPU|MIG)-[0-9A-Za-z/-]+")
_MONITORING_PORTS: Final = (9090, 3000)


def check_host(host: str) -> None:
    """Raise UsageError for what is no address: compose takes no names."""
    try:
        ip_address(host)
    except ValueError:
        raise UsageError(
            "no IP address",
            where="--host",
            got=f"`{host}`",
            expected="an address of this machine such as 127.0.0.1, or 0.0.0.0 for all of them",
        ) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    return ip_address(host).is_loopback


def check_ports(ports: Mapping[str, int]) -> None:
    """Raise UsageError for two endpoints, by their options, on one port."""
    seen: dict[int, str] = {}
    for option, port in ports.items():
        if port in seen:
            raise UsageError(f"the port of {seen[port]} too", where=option, got=port, expected="three ports")
        seen[port] = option


def monitoring_ports(taken: Mapping[str, int]) -> tuple[int, int]:
    """Of Prometheus and Grafana: the usual ones, or the next that the server leaves free."""
    used = set(taken.values())
    found = []
    for port in _MONITORING_PORTS:
        while port in used:
            port += 1
        used.add(port)
        found.append(port)
    return found[0], found[1]


def gpu_ids(text: str) -> tuple[str, ...] | None:
    """The ids of `0,1`, none for `none`, None for `all`. Raises UsageError for others and for one that comes twice."""
    if text in ("all", "none"):
        return None if text == "all" else ()
    ids = tuple(part.strip() for part in text.split(","))
    if not all(map(_GPU.fullmatch, ids)) or len(set(ids)) < len(ids):
        raise UsageError(
            "no GPUs", where="--gpus", got=f"`{text}`", expected="all, none, or ids such as 0,1, each once"
        )
    return ids


def quantity(option: str, text: str) -> Decimal:
    """What a Kubernetes quantity stands for. Raises UsageError for none, and for nothing."""
    match = _QUANTITY.fullmatch(text)
    value = Decimal(match[1]) * _SCALES[match[2] or ""] if match else Decimal(0)
    if value <= 0:
        expected = "a quantity above 0 such as 4, 500m or 8Gi"
        raise UsageError("no quantity of Kubernetes", where=option, got=f"`{text}`", expected=expected)
    return value


def check_image(option: str, text: str) -> None:
    """Raise UsageError for what is no name of an image."""
    if not _IMAGE.fullmatch(text):
        raise UsageError(
            "no name of an image", where=option, got=f"`{text}`", expected="REGISTRY/NAME:TAG, as docker takes it"
        )


def check_place(output: Path, repository: Path) -> None:
    """Raise UsageError for an output in the repository, where Triton would take its directories for models."""
    where, root = output.resolve(), repository.resolve()
    if where == root or root in where.parents:
        raise UsageError(
            "the files would stand in the model repository, where Triton takes every directory for a model",
            where="--output",
            got=output,
            expected=f"a directory beside {repository}",
        )
