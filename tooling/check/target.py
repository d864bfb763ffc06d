"""The server a repository is judged for: its release, its GPUs, and the options it is started with. Layer: check."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tooling.releases import Release

DEFAULT_MAX_BATCH_SIZE: Final = 4
_YES: Final = ("true", "1", "on", "yes", "")


@dataclass(frozen=True, slots=True)
class Target:
    """A server; None stands for what is not known, and rules that would need it keep silent.

    `release_named` tells a release that was asked for from a default one, `strict` is `--disable-auto-complete-config`,
    `config_name` is `--model-config-name`, `resources` are those of `--rate-limit-resource`, `caches` the kinds of
    `--cache-config`, `image` is the container image it runs from. With `engine`, an ONNX file is to become a TensorRT
    engine. `vllm` is the package directory of a vLLM that is installed on this machine. `version_compatible` says that
    version-compatible plans may run.
    """

    release: Release
    release_named: bool = False
    strict: bool = False
    gpus: int | None = None
    cache: bool | None = None
    rate_limit: bool | None = None
    resources: Mapping[str, int] = field(default_factory=dict)
    config_name: str | None = None
    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE
    image: str | None = None
    engine: bool = False
    caches: tuple[str, ...] = ()
    vllm: Path | None = None
    version_compatible: bool | None = None


def with_options(target: Target, words: Iterable[str]) -> Target:
    """The target with the options of a tritonserver command line; options that change no verdict are passed over."""
    options = _options(words)
    strict = _flag(options, "disable-auto-complete-config") or _flag(options, "strict-model-config")
    resources = dict(target.resources)
    for text in options.get("rate-limit-resource", []):
        name, _, count = text.partition(":")
        resources[name] = _number(count.partition(":")[0], 0)
    default = target.default_max_batch_size
    compatible = False
    for text in options.get("backend-config", []):
        backend, _, setting = text.rpartition(",")
        key, _, value = setting.partition("=")
        if (backend, key) == ("tensorrt", "version-compatible"):
            compatible = value.lower() in _YES
        if key == "default-max-batch-size":
            default = _number(value, default)
    cache = any(_number(size.strip(), 0) for size in options.get("response-cache-byte-size", []))
    return replace(
        target,
        strict=target.strict or strict,
        cache=bool(options.get("cache-config")) or cache,
        caches=tuple(sorted({text.partition(",")[0] for text in options.get("cache-config", [])})),
        rate_limit="execution_count" in options.get("rate-limit", []),
        resources=resources,
        config_name=target.config_name or next(iter(options.get("model-config-name", [])), None),
        default_max_batch_size=default,
        version_compatible=compatible,
    )


def split_words(text: str) -> list[str]:
    """The words of a command line; a text with an open quote is split at blanks."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _options(words: Iterable[str]) -> dict[str, list[str]]:
    """Values by long option: `--name=value` and `--name value`."""
    found: dict[str, list[str]] = {}
    last: str | None = None
    for word in words:
        if word.startswith("--"):
            last, equals, value = word[2:].partition("=")
            found.setdefault(last, []).extend([value] if equals else [])
        elif last is not None and not found[last]:
            found[last].append(word)
    return found


def _flag(options: Mapping[str, list[str]], name: str) -> bool:
    return name in options and all(value.lower() in _YES for value in options[name])


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.strip().isdecimal() else otherwise
