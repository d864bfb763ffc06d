"""The server that a compose file starts, as far as it changes verdicts: image, options, GPUs. Layer: check."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tooling.check.files import read_limited
from tooling.check.target import Target, split_words, with_options
from tooling.config.yaml_file import loader
from tooling.errors import UsageError
from tooling.releases import release_named

NAMES: Final = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_LARGEST: Final = 2**17
_TAG: Final = re.compile(r"(\d\d\.\d\d)-")


def services_of(path: Path) -> Mapping[str, Any]:
    """The services of a compose file. Raises UsageError when it has none that can be read."""
    import yaml

    try:
        source = read_limited(path, _LARGEST)
        if source is None:
            raise UsageError("too large for a compose file", where=path, expected=f"{_LARGEST} bytes at most")
        content = yaml.load(source, loader())
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror or str(error)) from error
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise UsageError("not a compose file", where=path, got=str(error).replace("\n", " ")) from error
    services = content.get("services") if isinstance(content, dict) else None
    if not isinstance(services, dict):
        raise UsageError("not a compose file", where=path, expected="`services` with a service that runs tritonserver")
    return {str(name): service for name, service in services.items() if isinstance(service, dict)}


def with_services(target: Target, services: Mapping[str, Any]) -> Target:
    """The target as the service that runs Triton has it; unchanged when there is none."""
    for service in services.values():
        image, command = _text(service.get("image")), _words(service.get("command"))
        if "tritonserver" not in image and not any("tritonserver" in word for word in command):
            continue
        target = replace(target, image=image or None, gpus=target.gpus if target.gpus is not None else _gpus(service))
        if not target.release_named and (match := _TAG.search(image)):
            target = _released(target, match[1])
        return with_options(target, command) if command else target
    return target


def _released(target: Target, tag: str) -> Target:
    try:
        return replace(target, release=release_named(tag), release_named=True)
    except UsageError:  # a release there are no facts of
        return target


def _text(value: Any) -> str:
    """A string as it is, anything else as none: aliases can nest a hostile file without end."""
    return value if isinstance(value, str) else ""


def _words(command: Any) -> list[str]:
    if isinstance(command, str):
        return split_words(command)
    return [word for part in command for word in split_words(_text(part))] if isinstance(command, list) else []


def _gpus(service: Mapping[str, Any]) -> int | None:
    """How many GPUs a service reserves; None when that depends on the machine."""
    if service.get("runtime") == "nvidia" or service.get("gpus") == "all":
        return None
    devices: Any = service
    for key in ("deploy", "resources", "reservations", "devices"):
        devices = devices.get(key) if isinstance(devices, dict) else None
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, dict) and "gpu" in (device.get("capabilities") or []):
            ids, count = device.get("device_ids"), device.get("count")
            if isinstance(ids, list):
                return len(ids)
            return count if isinstance(count, int) else None
    return 0
