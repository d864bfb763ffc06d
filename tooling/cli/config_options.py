"""What single options of gen-config stand for, as assignments to fields of the config. Layer: cli."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tooling.cli.options import duration_us
from tooling.errors import UsageError

_QUEUE = "dynamic_batching.default_queue_policy"
_ACCELERATORS = "optimization.execution_accelerators"
_GPU, _CPU = ("tensorrt", "cuda"), ("openvino",)


def of_queue(
    preserve_ordering: bool | None, levels: int | None, timeout: str | None, size: int | None, *, batching: bool
) -> list[str]:
    """The queue of the dynamic batcher. A request that names no priority gets the last level."""
    found: list[str] = []
    if preserve_ordering is not None:
        found.append(f"dynamic_batching.preserve_ordering={str(preserve_ordering).lower()}")
    if levels is not None:
        found += [f"dynamic_batching.{field}={levels}" for field in ("priority_levels", "default_priority_level")]
    if timeout is not None:
        found.append(f"{_QUEUE}.default_timeout_microseconds={duration_us('--queue-timeout', timeout)}")
    if size is not None:
        found.append(f"{_QUEUE}.max_queue_size={size}")
    if found and not batching:
        raise UsageError(
            "--no-dynamic-batching excludes what is asked of its queue", got=found[0], hint="leave one of the two out"
        )
    return found


def of_instances(gpus: Sequence[str]) -> list[str]:
    """The GPUs of the first instance group."""
    return [f"instance_group[0].gpus={list(numbers('--gpus', gpus, 'GPUs, like 0,1', least=0))}"] if gpus else []


def of_model(
    parameters: Sequence[str],
    accelerators: Sequence[str],
    versions: str | None,
    cache: bool | None,
    decoupled: bool | None,
) -> list[str]:
    """What the model and its backend are told."""
    found = [f"parameters[{quoted(key)}]={quoted(value)}" for key, value in _pairs("--parameter", parameters)]
    if accelerators:
        found += _accelerators(accelerators)
    if versions is not None:
        found.append(f"version_policy={_policy(versions)}")
    for path, on in (("response_cache.enable", cache), ("model_transaction_policy.decoupled", decoupled)):
        if on is not None:
            found.append(f"{path}={str(on).lower()}")
    return found


def _pairs(option: str, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        key, sign, value = word.partition("=")
        if not key or not sign:
            raise UsageError("not a parameter", where=option, got=f"`{word}`", expected="KEY=VALUE")
        yield key, value


def _accelerators(words: Sequence[str]) -> Iterator[str]:
    """`tensorrt:precision_mode=FP16,trt_engine_cache_enable=1`: together the accelerators that there are to be."""
    blocks: dict[str, list[str]] = {"gpu": [], "cpu": []}
    for word in words:
        name, _, text = word.partition(":")
        if name not in (*_GPU, *_CPU):
            raise UsageError(
                "no accelerator of ONNX Runtime under Triton",
                where="--accelerator",
                got=f"`{name}`",
                expected=", ".join((*_GPU, *_CPU)),
            )
        # a comma also stands inside of profile shapes: only one before KEY= separates
        pairs = _pairs("--accelerator", re.split(r",(?=[A-Za-z_]\w*=)", text) if text else [])
        inner = "".join(f" parameters {{ key: {quoted(key)} value: {quoted(value)} }}" for key, value in pairs)
        blocks["gpu" if name in _GPU else "cpu"].append(f"{{ name: {quoted(name)}{inner} }}")
    for device, found in blocks.items():
        if found:
            yield f"{_ACCELERATORS}.{device}_execution_accelerator=[{', '.join(found)}]"


def _policy(text: str) -> str:
    """The version policy of `all`, `latest:2` or `1,3`."""
    if text == "all":
        return "{ all { } }"
    if match := re.fullmatch(r"latest:([1-9]\d*)", text):
        return f"{{ latest {{ num_versions: {match[1]} }} }}"
    if re.fullmatch(r"\d+(,\d+)*", text):
        return f"{{ specific {{ versions: [{text}] }} }}"
    raise UsageError("not a choice of versions", where="--versions", got=f"`{text}`", expected="all, latest:2 or 1,3")


def quoted(text: str) -> str:
    """A string as a config has it."""
    from tooling.pbtxt.printer import escape

    return f'"{escape(text)}"'


def numbers(option: str, words: Sequence[str], example: str, least: int = 1) -> tuple[int, ...]:
    """Whole numbers from `4,8` or repeated options, sorted; Triton takes them as a set."""
    found = set()
    for word in ",".join(words).split(",") if words else []:
        if not re.fullmatch(r"\d{1,9}", word.strip(), re.ASCII) or int(word) < least:
            raise UsageError("not a whole number", where=option, got=f"`{word}`", expected=example)
        found.add(int(word))
    return tuple(sorted(found))
