"""tritonserver's own options, derived from the models: the same wherever a repository is served. Layer: server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from tooling.config.names import name_problem
from tooling.errors import Problem, UsageError
from tooling.repository import config_path

if TYPE_CHECKING:
    from tooling.check.model import Model
    from tooling.releases import Release

_SMALLEST_CACHE: Final = 2**20
_DEFAULT_CACHE: Final = 100 * 2**20
CONTROL_HEADER: Final = "triton-control-key"
CONTROL_KEY: Final = "TRITON_CONTROL_KEY"
"""The variable that holds what a server asks for in that header: of the deployment, and of those who call it."""
_SINCE: Final = {
    "--cache-config": ("23.03", "a model with a response cache needs", "turn the cache of the models off"),
    "--http-restricted-api": (
        *("23.11", "keeps the load API from strangers"),
        "leave --control at none, or let nobody else reach the ports (--host 127.0.0.1)",
    ),
}
"""Options that came later than the oldest known release: with it, what they are for, and the way without."""
Control = Literal["none", "poll", "explicit"]


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """tritonserver's options as far as they are set here; sizes are in bytes.

    `control` none loads everything once and refuses the load API; in explicit mode `load` names what is loaded at the
    start, and `control_key` what the header triton-control-key must hold to load more (of gRPC
    triton-grpc-protocol-triton-control-key). `config_name` picks the configs of one kind of hardware.
    `summary_latencies` adds percentiles to the metrics, at some cost for each request. Pools of None are left to
    Triton: 256 MiB pinned, 64 MiB on each GPU; the second is of GPU 0 to `gpus` - 1.
    """

    control: Control = "none"
    load: tuple[str, ...] = ()
    control_key: str | None = None
    config_name: str | None = None
    summary_latencies: bool = True
    cache_bytes: int | None = None
    rate_limit: bool = False
    resources: Mapping[str, int] = field(default_factory=dict)
    version_compatible: bool = False
    pinned_pool_bytes: int | None = None
    cuda_pool_bytes: int | None = None
    gpus: int = 1

    def arguments(self, repository: str) -> tuple[str, ...]:
        """The command line after `tritonserver`. `repository` is a path where it runs, or an s3:// or gs:// URL."""
        words = [f"--model-repository={repository}"]
        if self.summary_latencies:
            words.append("--metrics-config=summary_latencies=true")
        if self.control != "none":
            words.append(f"--model-control-mode={self.control}")
        words += [f"--load-model={name}" for name in self.load]
        if self.control_key is not None:
            guard = f"model-repository:{CONTROL_HEADER}={self.control_key}"
            words += [f"--http-restricted-api={guard}", f"--grpc-restricted-protocol={guard}"]
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
            words += [f"--cuda-memory-pool-byte-size={gpu}:{self.cuda_pool_bytes}" for gpu in range(self.gpus)]
        return tuple(words)


def flags_for(
    models: Iterable[Model], *, config_name: str | None = None, cache_bytes: int | None = None
) -> ServerFlags:
    """The options that these models need. Raises UsageError for a cache that nothing uses, or that is too small."""
    read = [model for model in models if model.readable]
    cached = any(model.config.response_cache.enable for model in read)
    problems = []
    if cache_bytes is not None and not cached:
        problems.append(
            Problem(
                "no model would use the cache",
                where="--cache-size",
                got=f"a cache of {cache_bytes} bytes",
                expected="a model with `response_cache { enable: true }`",
                hint="leave --cache-size out",
            )
        )
    if cache_bytes is not None and cache_bytes < _SMALLEST_CACHE:
        problems.append(
            Problem(
                "a cache of this size holds nothing",
                where="--cache-size",
                got=f"{cache_bytes} bytes",
                expected="1MiB or more",
            )
        )
    if problems:
        raise UsageError(problems=problems)
    return ServerFlags(
        config_name=config_name,
        cache_bytes=(cache_bytes or _DEFAULT_CACHE) if cached else None,
        rate_limit=any(group.HasField("rate_limiter") for model in read for group in model.config.instance_group),
        resources=_resources(read),
        version_compatible=any(map(_version_compatible, read)),
    )


def flags_of(repository: Path, config_name: str | None = None) -> ServerFlags:
    """The options that the models of a repository need; none where none is: that is for a server to say."""
    from tooling.check.repository import read_repository
    from tooling.check.target import Target
    from tooling.releases import current_release

    if not repository.is_dir():
        return ServerFlags(config_name=config_name)
    found = read_repository(repository, Target(current_release(), config_name=config_name))
    return flags_for(found.models.values(), config_name=config_name)


def measuring_flags(repository: Path) -> ServerFlags:
    """The same for a server that is measured: without percentiles in the metrics, which cost time, and without the
    response cache, from which the same requests would be answered again and again."""
    return replace(flags_of(repository), summary_latencies=False, cache_bytes=None)


def _resources(models: Iterable[Model]) -> dict[str, int]:
    """Instances wait for each other only up to what the server has: at least the largest single demand."""
    most: dict[str, int] = {}
    for model in models:
        for group in model.config.instance_group:
            for resource in group.rate_limiter.resources:
                most[resource.name] = max(most.get(resource.name, 0), int(resource.count))
    return most


def _version_compatible(model: Model) -> bool:
    """Whether a plan says that another TensorRT may run it, which the server must allow."""
    from tooling.signature.plan_manifest import read_manifest
    from tooling.signature.tensorrt_plan import manifest_path

    if model.config.backend != "tensorrt":
        return False
    plans = [
        manifest_path(model.version_dir(version) / model.config.default_model_filename) for version in model.served
    ]
    try:
        return any(read_manifest(path).version_compatible for path in plans if path.is_file())
    except UsageError:  # what is wrong in it is for `check` to tell
        return False


def require_config_name(repository: Path, name: str | None) -> None:
    """Raise UsageError for a name that no model of the repository has a config of, and for none."""
    if name is None:
        return
    if problem := name_problem(name, "hardware name"):
        raise UsageError(problems=[replace(problem, where="--config-name")])
    if not repository.is_dir():
        return
    if not any(config_path(model, name).is_file() for model in repository.iterdir()):
        raise UsageError(
            "no model has a config of this name",
            where="--config-name",
            got=f"`{name}`",
            expected=f"a file {repository}/NAME/configs/{name}.pbtxt",
            hint="write one with `tritune tune --apply` or `tritune gen-config --hardware`, or leave --config-name out",
        )


def require_release(flags: ServerFlags, release: Release) -> None:
    """Raise UsageError for an option that tritonserver of a release does not have: it would not start."""
    used = [word.partition("=")[0] for word in flags.arguments("")]
    problems = [
        Problem(
            f"tritonserver:{release.tag} has no {option}, which {needed}",
            where="--release",
            got=release.tag,
            expected=f"{since} or newer",
            hint=hint,
        )
        for option, (since, needed, hint) in _SINCE.items()
        if option in used and release.tag < since
    ]
    if problems:
        raise UsageError(problems=problems)
