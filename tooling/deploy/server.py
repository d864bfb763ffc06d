"""How the server is started, the same in every deployment: tritonserver's options and image. Layer: deploy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from tooling.deploy.needs import Needs
from tooling.errors import Problem, UsageError
from tooling.releases import Release

IMAGE: Final = "nvcr.io/nvidia/tritonserver"
_SMALLEST_CACHE: Final = 2**20
_DEFAULT_CACHE: Final = 100 * 2**20
Control = Literal["none", "poll", "explicit"]


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """tritonserver's options as far as a deployment sets them; sizes are in bytes.

    `control` none loads everything once and refuses the load API. `config_name` picks the configs of one kind of
    hardware. Pools of None are left to Triton (256 MiB pinned, 64 MiB on each GPU).
    """

    control: Control = "none"
    load: tuple[str, ...] = ()
    config_name: str | None = None
    cache_bytes: int | None = None
    rate_limit: bool = False
    resources: Mapping[str, int] = field(default_factory=dict)
    version_compatible: bool = False
    pinned_pool_bytes: int | None = None
    cuda_pool_bytes: int | None = None

    def arguments(self, repository: str) -> tuple[str, ...]:
        """The command line after `tritonserver`. `repository` is a path in the container, or an s3:// or gs:// URL."""
        words = [f"--model-repository={repository}", "--metrics-config=summary_latencies=true"]
        if self.control != "none":
            words.append(f"--model-control-mode={self.control}")
        words += [f"--load-model={name}" for name in self.load]
        if self.config_name is not None:
            words.append(f"--model-config-name={self.config_name}")
        if self.cache_bytes is not None:
            words.append(f"--cache-config=local,size={self.cache_bytes}")
        if self.rate_limit:
            words.append("--rate-limit=execution_count")
            words += [f"--rate-limit-resource={name}:{count}" for name, count in sorted(self.resources.items())]
        if self.version_compatible:
            words.append("--backend-config=tensorrt,version-compatible=true")
        if self.pinned_pool_bytes is not None:
            words.append(f"--pinned-memory-pool-byte-size={self.pinned_pool_bytes}")
        if self.cuda_pool_bytes is not None:
            words.append(f"--cuda-memory-pool-byte-size=0:{self.cuda_pool_bytes}")
        return tuple(words)


def flags_for(needs: Needs, *, control: Control, config_name: str | None, cache_bytes: int | None) -> ServerFlags:
    """The options that these models need. Raises UsageError for a cache that nothing uses, or that is too small."""
    problems = []
    if cache_bytes is not None and not needs.cache:
        problems.append(
            Problem(
                "no model would use the cache",
                got=f"a cache of {cache_bytes} bytes",
                expected="a model with `response_cache { enable: true }`",
                hint="leave --cache-size out",
            )
        )
    if cache_bytes is not None and cache_bytes < _SMALLEST_CACHE:
        problems.append(
            Problem("a cache of this size holds nothing", got=f"{cache_bytes} bytes", expected="1MiB or more")
        )
    if problems:
        raise UsageError(problems=problems)
    return ServerFlags(
        control=control,
        load=needs.models if control == "explicit" else (),
        config_name=config_name,
        cache_bytes=(cache_bytes or _DEFAULT_CACHE) if needs.cache else None,
        rate_limit=needs.rate_limit,
        resources=needs.resources,
        version_compatible=needs.version_compatible,
    )


def image_of(release: Release, variant: str) -> str:
    """The container image of a release: `py3`, or the variant that holds vLLM or TensorRT-LLM."""
    return f"{IMAGE}:{release.tag}-{variant}"
