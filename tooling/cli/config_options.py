"""What single options of gen-config stand for, as assignments to fields of the config. Layer: cli."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tooling.cli.options import duration_us, repeated
from tooling.errors import UsageError
from tooling.units import MOST

if TYPE_CHECKING:
    from tooling.config.fed import Fed, Strategy

_QUEUE = "dynamic_batching.default_queue_policy"
_ACCELERATORS = "optimization.execution_accelerators"
_GPU, _CPU = ("tensorrt", "cuda"), ("openvino",)


def pairs(option: str, metavar: str, help: str) -> Any:
    """An option that takes a key and its value, and may be given several times."""
    return repeated(option, metavar, lambda words: pairs_of(option, words), help)


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
            "the queue is one of dynamic batching", got=f"`{found[0]}` without it", hint="leave one of the two out"
        )
    return found


def of_instances(gpus: Sequence[str], profiles: Sequence[str], resources: Sequence[str]) -> list[str]:
    """GPUs, TensorRT profiles and rate limiter of the first instance group."""
    found = []
    if gpus:
        found.append(f"instance_group[0].gpus={list(gpu_numbers(gpus))}")
    if profiles:
        names = [str(number) for number in profile_numbers(profiles)]
        found.append(f"instance_group[0].profile={names}")
    if resources:
        entries = [f"{{ name: {quoted(name)} count: {count} }}" for name, count in pairs_of("--resource", resources)]
        found.append(f"instance_group[0].rate_limiter.resources=[{', '.join(entries)}]")
    return found


def batch_sizes(words: Sequence[str]) -> tuple[int, ...]:
    """The sizes at which a batch is closed early."""
    return numbers("--preferred-batch-size", words, "batch sizes, like 4,8")


def gpu_numbers(words: Sequence[str]) -> tuple[int, ...]:
    """The GPUs that get instances."""
    return numbers("--gpus", words, "GPUs, like 0,1", least=0)


def profile_numbers(words: Sequence[str]) -> tuple[int, ...]:
    """The profiles of a plan that are asked for."""
    return numbers("--profile", words, "profiles, like 0,1", least=0)


def read_samples(words: Sequence[str]) -> object:
    """The warmup samples asked for."""
    from tooling.config.warmup import parse_samples

    return parse_samples(words)


def read_inputs(words: Sequence[str]) -> object:
    """The inputs written down by hand."""
    from tooling.signature.declared import declare

    return declare(words, ())


def read_outputs(words: Sequence[str]) -> object:
    """The outputs, likewise."""
    from tooling.signature.declared import declare

    return declare((), words)


def of_fed(
    strategy: Strategy | None,
    iterative: bool | None,
    controls: Sequence[str],
    states: Sequence[str],
    batch_inputs: Sequence[str],
    ragged: Sequence[str],
) -> Fed:
    """What sequences and batches feed to the model."""
    from tooling.config.fed import Fed

    sources = ((name, value.partition(":")) for name, value in pairs_of("--batch-input", batch_inputs))
    return Fed(
        strategy,
        iterative,
        dict(pairs_of("--control", controls)),
        dict(pairs_of("--state", states)),
        {name: (kind, source) for name, (kind, _, source) in sources},
        tuple(ragged),
    )


def of_model(
    parameters: Sequence[str],
    accelerators: Sequence[str],
    versions: str | None,
    cache: bool | None,
    decoupled: bool | None,
) -> list[str]:
    """What the model and its backend are told."""
    found = [f"parameters[{quoted(key)}]={quoted(value)}" for key, value in pairs_of("--parameter", parameters)]
    if accelerators:
        found += accelerator_blocks(accelerators)
    if versions is not None:
        found.append(f"version_policy={version_policy(versions)}")
    for path, on in (("response_cache.enable", cache), ("model_transaction_policy.decoupled", decoupled)):
        if on is not None:
            found.append(f"{path}={str(on).lower()}")
    return found


def pairs_of(option: str, words: Sequence[str]) -> list[tuple[str, str]]:
    """Key and value of each word. Raises UsageError for a word of another form, or a value that cannot be."""
    return list(_pairs(option, words, *_form(option))) if words else []


def _form(option: str) -> tuple[str, str]:
    """How the words of an option are told to be, and the pattern of their values."""
    from tooling.config.fed import CONTROLS, batch_kinds

    if option == "--control":
        kinds = "|".join(CONTROLS)
        return f"NAME={kinds}", kinds
    if option == "--batch-input":
        batches = "|".join(batch_kinds())
        return f"NAME=KIND:SOURCE with one of {batches}", rf"({batches}):.+"
    return {
        "--resource": ("NAME=COUNT, such as R1=2", r"[1-9]\d{0,8}"),
        "--state": ("INPUT=OUTPUT, such as h_in=h_out", ".+"),
    }.get(option, ("KEY=VALUE", ".*"))


def _pairs(option: str, words: Sequence[str], expected: str, pattern: str) -> Iterator[tuple[str, str]]:
    for word in words:
        key, sign, value = word.partition("=")
        if not key or not sign or not re.fullmatch(pattern, value, re.DOTALL):
            raise UsageError("not understood", where=option, got=f"`{word}`", expected=expected)
        yield key, value


def accelerator_blocks(words: Sequence[str]) -> list[str]:
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
        settings = pairs_of("--accelerator", re.split(r",(?=[A-Za-z_]\w*=)", text) if text else [])
        inner = "".join(f" parameters {{ key: {quoted(key)} value: {quoted(value)} }}" for key, value in settings)
        blocks["gpu" if name in _GPU else "cpu"].append(f"{{ name: {quoted(name)}{inner} }}")
    return [
        f"{_ACCELERATORS}.{device}_execution_accelerator=[{', '.join(found)}]"
        for device, found in blocks.items()
        if found
    ]


def version_policy(text: str) -> str:
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
        if not re.fullmatch(r"\d{1,400}", word.strip(), re.ASCII):
            raise UsageError("not a whole number", where=option, got=f"`{word}`", expected=example)
        if not least <= int(word) <= MOST:
            raise UsageError(
                "out of range", where=option, got=f"`{word}`", expected=f"{example}, each {least} to {MOST}"
            )
        found.add(int(word))
    return tuple(sorted(found))
