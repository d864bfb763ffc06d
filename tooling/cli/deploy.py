"""`tritune deploy compose`, `kubernetes` and `split`: the files that put a repository into service. Layer: cli."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from tooling.cli.app import Group, console_of
from tooling.cli.deploy_notes import (
    driver,
    holes,
    models_outside,
    other_hardware,
    other_setting,
    secrets,
    sizing,
    to_build,
)
from tooling.cli.options import MOST, duration_us, heeding, size_bytes, sized, timed
from tooling.console import Console
from tooling.deploy.inputs import check_host, check_image, gpu_ids, is_loopback, quantity
from tooling.deploy.store import check_bucket
from tooling.errors import UsageError, suggest

if TYPE_CHECKING:
    from perf.studies import Tuned
    from tooling.deploy.needs import Needs
    from tooling.releases import Release
    from tooling.server.flags import ServerFlags

app = typer.Typer(cls=Group, help="Write the files that put a model repository into service.", no_args_is_help=True)

_LEAST_TIME, _LEAST_LOAD, _LEAST_SHARED = "1us", "5s", "1MiB"


def _read_name(name: str) -> None:
    from tooling.deploy.objects import check_name

    check_name(name)


_REPOSITORY = typer.Argument(..., metavar="REPO", help="Model repository that `tritune check` has nothing against.")
_OUTPUT = typer.Option(..., "--output", "-o", metavar="DIR", help="Where the files go.")
_RELEASE = typer.Option(None, "--release", metavar="YY.MM", help="Triton's release. Default: the tested one.")
_CONFIG_NAME = typer.Option(None, metavar="NAME", help="Serve configs/NAME.pbtxt where there is one.")
_CONTROL = typer.Option("none", help="none loads all models once; explicit and poll allow changes while serving.")
_CACHE = sized("--cache-size", "Size of the response cache, when a model wants one. Default: 100MiB.")
_OWNER = typer.Option("unowned", metavar="NAME", help="Who is called: a label of every alert.")
_P99 = timed("--p99", "The p99 to keep: an alert above it.", "100ms", _LEAST_TIME)
_QUEUE = timed(
    "--queue-target",
    "Queue time that is still as tuned: an alert above. Default: by --study, else 10ms.",
    least=_LEAST_TIME,
)
_STUDY = typer.Option(None, metavar="DIR", help="Take from this tuning what a server does: capacity, queue, batch.")
_PINNED = sized("--pinned-pool", "Pinned host memory. Default: Triton's, 256MiB.")
_CUDA = sized("--cuda-pool", "CUDA memory on each GPU. Default: Triton's, 64MiB.")
_BUCKET = typer.Option(
    None,
    metavar="URL",
    callback=heeding(check_bucket),
    help="s3:// or gs:// URL that holds the repository for the server.",
)
_FORCE = typer.Option(False, "--force", help="Replace files that have another content.")
_Control = Literal["none", "poll", "explicit"]
_QUEUE_US = 10_000
_LEAST_QUEUE_US = 100
_LEAST_STORAGE_GIB = 10


@app.command()
def compose(
    context: typer.Context,
    repository: Path = _REPOSITORY,
    output: Path = _OUTPUT,
    release: str | None = _RELEASE,
    config_name: str | None = _CONFIG_NAME,
    control: _Control = _CONTROL,
    cache_size: str | None = _CACHE,
    pinned_pool: str | None = _PINNED,
    cuda_pool: str | None = _CUDA,
    bucket: str | None = _BUCKET,
    gpus: str = typer.Option(
        "all",
        metavar="all|none|IDS",
        callback=heeding(gpu_ids),
        help="GPUs to reserve: all, none, or ids such as 0,1.",
    ),
    host: str = typer.Option(
        "127.0.0.1",
        callback=heeding(check_host),
        help="Address the ports listen on; 0.0.0.0 opens them to the network.",
    ),
    http_port: int = typer.Option(8000, min=1, max=65535, help="Port of HTTP on this host."),
    grpc_port: int = typer.Option(8001, min=1, max=65535, help="Port of gRPC on this host."),
    metrics_port: int = typer.Option(8002, min=1, max=65535, help="Port of the metrics on this host."),
    shm_size: str = sized("--shm-size", "Shared memory for Python models.", "1GiB", _LEAST_SHARED),
    owner: str = _OWNER,
    p99: str = _P99,
    study: Path | None = _STUDY,
    queue_target: str | None = _QUEUE,
    sweep: str | None = typer.Option(None, metavar="MODEL", help="What `tune` measures. Default: the first."),
    force: bool = _FORCE,
) -> None:
    """Write a compose project: Triton on GPUs or without, a perf_analyzer sweep, monitoring, and a TensorRT builder."""
    from tooling.deploy.compose import ComposeOptions, render_compose
    from tooling.deploy.monitoring import MonitoringOptions

    console, ids = console_of(context), gpu_ids(gpus)
    found, flags, image = _plan(repository, output, release, config_name, control, cache_size)
    flags = _with_pools(flags, pinned_pool, cuda_pool, None if ids is None else len(ids))
    _require_gpus(repository, found, None if ids is None else len(ids), f"--gpus {gpus}")
    requests, without = _requests(repository, found, sweep)
    tuning = _tuned(study, found)
    watch = MonitoringOptions(
        "triton:8002",
        owner,
        duration_us("--p99", p99, _LEAST_TIME),
        _queue_us(queue_target, tuning),
        batch=tuning.mean_batch if tuning else None,
    )
    shared = size_bytes("--shm-size", shm_size, _LEAST_SHARED)
    options = ComposeOptions(
        host, http_port, grpc_port, metrics_port, ids, shared, next(iter(requests), None), watch, bucket
    )
    files = render_compose(repository, output, found, flags, image, options)
    files = {**files, **{f"requests/{name}.json": text for name, text in requests.items()}}
    notes = (
        *(*without, *other_setting(found, tuning), *other_hardware(found, tuning, config_name, on_gpu=options.on_gpu)),
        *(driver(image) if options.on_gpu else ()),
        *holes(image, reached=not is_loopback(host)),
    )
    following = shlex.join(["docker", "compose", "--project-directory", str(output), "up"])
    _write(console, output, files, following, notes, force=force)


@app.command()
def kubernetes(
    context: typer.Context,
    repository: Path = _REPOSITORY,
    output: Path = _OUTPUT,
    release: str | None = _RELEASE,
    config_name: str | None = _CONFIG_NAME,
    control: _Control = _CONTROL,
    cache_size: str | None = _CACHE,
    pinned_pool: str | None = _PINNED,
    cuda_pool: str | None = _CUDA,
    name: str | None = typer.Option(
        None, callback=heeding(_read_name), help="Name of the objects. Default: the repository's name."
    ),
    study: Path | None = _STUDY,
    rate: float | None = typer.Option(
        None, min=0.001, max=MOST, metavar="REQUESTS/S", help="With --study: requests to be answered."
    ),
    replicas: int | None = typer.Option(
        None, min=1, max=MOST, help="Servers at the least. Default: by --rate, else 1."
    ),
    max_replicas: int | None = typer.Option(
        None, min=1, max=MOST, help="Servers at the most. Default: twice the least, from 4."
    ),
    owner: str = _OWNER,
    p99: str = _P99,
    queue_target: str | None = timed(
        "--queue-target",
        "Queue time of a request that adds a server. Default: by --study, else 10ms.",
        least=_LEAST_TIME,
    ),
    cpu: str = typer.Option(
        "4", metavar="QUANTITY", callback=heeding(quantity, "--cpu"), help="CPU that a server asks for."
    ),
    memory: str = typer.Option(
        "8Gi", metavar="QUANTITY", callback=heeding(quantity, "--memory"), help="Memory that a server gets."
    ),
    gpus: int = typer.Option(1, min=0, max=MOST, help="GPUs of a server; 0 for models that run on the CPU."),
    shm_size: str = sized("--shm-size", "Shared memory for Python models.", "1GiB", _LEAST_SHARED),
    load_timeout: str = timed("--load-timeout", "How long loading all models may take.", "10m", _LEAST_LOAD),
    bucket: str | None = _BUCKET,
    image: str | None = typer.Option(
        None, callback=heeding(check_image, "--image"), help="Image that holds the repository under /models."
    ),
    server_image: str | None = typer.Option(
        None,
        callback=heeding(check_image, "--server-image"),
        help="Image of Triton to run, such as one with the packages that models ask for. Default: NVIDIA's.",
    ),
    force: bool = _FORCE,
) -> None:
    """Write a kustomize base with overlays (volume claim, object store, image) and KServe objects."""
    from tooling.deploy.kubernetes import render_kubernetes
    from tooling.deploy.objects import KubernetesOptions

    console = console_of(context)
    found, flags, served = _plan(repository, output, release, config_name, control, cache_size)
    _require_gpus(repository, found, gpus, f"--gpus {gpus}")
    flags = _with_pools(flags, pinned_pool, cuda_pool, gpus)
    tuning = _tuned(study, found, rate)
    least = replicas or (math.ceil(rate / tuning.carries_rps) if rate and tuning else 1)
    size = _size(repository)
    options = KubernetesOptions(
        name=name or repository.resolve().name.lower().replace("_", "-"),
        replicas=least,
        max_replicas=max(4, 2 * least) if max_replicas is None else max_replicas,
        queue_target_us=_queue_us(queue_target, tuning),
        cpu=cpu,
        memory=memory,
        gpus=gpus,
        shm_bytes=size_bytes("--shm-size", shm_size, _LEAST_SHARED),
        load_timeout_s=duration_us("--load-timeout", load_timeout, _LEAST_LOAD) // 1_000_000,
        bucket=bucket,
        image=image,
        server_image=server_image,
        storage_gib=max(_LEAST_STORAGE_GIB, math.ceil(2 * size / 2**30)),  # and once more for what takes its place
        copy_gib=1 + math.ceil(size / 2**30),
        owner=owner,
        p99_us=duration_us("--p99", p99, _LEAST_TIME),
        batch=tuning.mean_batch if tuning else None,
    )
    files = render_kubernetes(found, flags, served, options)
    told = (*sizing(options, tuning, rate, asked=replicas is not None), *other_setting(found, tuning))
    told = (*told, *other_hardware(found, tuning, config_name, on_gpu=gpus > 0))
    notes = (
        *(*told, *models_outside(found), *to_build(found, served, repository, output, server_image)),
        *(*secrets(options, guarded=control == "explicit"), *(driver(served) if gpus else ())),
        *holes(served, reached=True),
    )
    place = "object-store" if bucket else "image" if image else "pvc"
    following = shlex.join(["kubectl", "apply", "-k", str(output / "overlays" / place)])
    _write(console, output, files, following, notes, force=force)


@app.command()
def split(
    context: typer.Context,
    name: str = typer.Option(..., help="Name of the objects that serve now; the new version's are NAME-next."),
    percent: int = typer.Option(..., min=0, max=100, help="The share of the new version."),
    output: Path = _OUTPUT,
    force: bool = _FORCE,
) -> None:
    """Write weighted routes to two versions on Kubernetes, and the same share as KServe's canary."""
    from tooling.deploy.split import render_split

    following = shlex.join(["kubectl", "apply", "-f", str(output / "routes.yaml")])
    _write(console_of(context), output, render_split(name, percent), following, force=force)


def _plan(
    repository: Path,
    output: Path,
    release: str | None,
    config_name: str | None,
    control: _Control,
    cache_size: str | None,
) -> tuple[Needs, ServerFlags, Release]:
    """What the models need, how the server is started, and its release."""
    from dataclasses import replace

    from tooling.deploy.inputs import check_place
    from tooling.deploy.needs import read_needs
    from tooling.releases import current_release, release_named
    from tooling.server.flags import flags_for

    check_place(output, repository)
    served = release_named(release, "--release") if release else current_release()
    found = read_needs(repository, served, config_name)
    cache_bytes = size_bytes("--cache-size", cache_size) if cache_size else None
    flags = flags_for(found.served, config_name=config_name, cache_bytes=cache_bytes)
    return found, replace(flags, control=control, load=found.models if control == "explicit" else ()), served


def _with_pools(flags: ServerFlags, pinned: str | None, cuda: str | None, gpus: int | None) -> ServerFlags:
    """The flags with these pools; `gpus` are those that the server sees, None when that depends on the machine."""
    from dataclasses import replace

    if cuda and not gpus:
        got = "no GPU" if gpus == 0 else "all GPUs, however many there are"
        expected, hint = "GPUs whose number is known", "name them with --gpus"
        raise UsageError("there is a pool for each GPU", where="--cuda-pool", got=got, expected=expected, hint=hint)
    return replace(
        flags,
        pinned_pool_bytes=size_bytes("--pinned-pool", pinned) if pinned else None,
        cuda_pool_bytes=size_bytes("--cuda-pool", cuda) if cuda else None,
        gpus=gpus or 0,
    )


def _tuned(study: Path | None, needs: Needs, rate: float | None = None) -> Tuned | None:
    """What a tuning found of one server, where it is asked for."""
    from perf.studies import tuned

    if rate is not None and study is None:
        raise UsageError("the capacity of a server is not known", where="--rate", hint="give --study, or --replicas")
    result = tuned(study) if study else None
    if result and result.model not in needs.models:
        raise UsageError(
            "the study is of another model",
            where=study,
            got=result.model,
            expected=f"a model of the repository: {', '.join(needs.models)}",
        )
    return result


def _queue_us(asked: str | None, found: Tuned | None) -> int:
    """The queue time that is still as tuned, in microseconds: as asked, else as a server has it at its capacity."""
    if asked is not None:
        return duration_us("--queue-target", asked, _LEAST_TIME)
    waits_us = found.queue_us if found else None
    return _QUEUE_US if waits_us is None else max(_LEAST_QUEUE_US, round(waits_us))


def _require_gpus(repository: Path, needs: Needs, gpus: int | None, got: str) -> None:
    """Raise UsageError where models that run on GPUs only get none; None is all there are."""
    if needs.on_gpu and gpus == 0:
        expected = f"GPUs for {', '.join(needs.on_gpu)}"
        raise UsageError("a model runs on GPUs only", where=repository, got=got, expected=expected)


def _requests(repository: Path, needs: Needs, sweep: str | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """Valid requests for the model that is swept: the one asked for, else the first that they can be made for; or what
    keeps them from being made, which is an error only for the one asked for."""
    if sweep is not None and sweep not in needs.models:
        expected = f"a model of {repository}: {', '.join(needs.models)}"
        raise UsageError(
            "no such model", where="--sweep", got=f"`{sweep}`", expected=expected, hint=suggest(sweep, needs.models)
        )
    without = []
    for name in (sweep,) if sweep else needs.models:
        try:
            return {name: _requests_of(repository / name)}, ()
        except UsageError as error:
            if sweep:
                raise
            without.append(f"no service `tune`, which sends requests to {name}: {error.problems[0]}")
    return {}, tuple(without[:1])


def _requests_of(model_dir: Path) -> str:
    import tempfile

    from perf.input_data import write_input_data
    from perf.lengths import fit_to_model, traffic_lengths
    from perf.workload import Workload
    from tooling.repository import locate_model
    from tooling.signature.onnx_file import read_onnx

    signature = read_onnx(locate_model(model_dir, "onnxruntime").file)
    tokenizer = model_dir / "tokenizer"
    lengths = fit_to_model(traffic_lengths((), signature, tokenizer, batching=True), model_dir, asked=False)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "requests.json"
        write_input_data(
            path, signature, Workload(concurrency=1, lengths=lengths), tokenizer if tokenizer.is_dir() else None
        )
        return path.read_text(encoding="utf-8")


def _size(repository: Path) -> int:
    """Of all its files, in bytes."""
    return sum(path.stat().st_size for path in repository.rglob("*") if path.is_file())


def _write(
    console: Console,
    output: Path,
    files: Mapping[str, str],
    following: str,
    notes: tuple[str, ...] = (),
    *,
    force: bool,
) -> None:
    from tooling.deploy.output import write_files

    changed = write_files(output, files, force=force)
    same = len(files) - len(changed)
    lines = [*map(str, changed), *([f"{same} files are there unchanged"] if same else []), "", *notes]
    data = {"written": [str(path) for path in changed], "unchanged": same, "notes": list(notes), "next": following}
    console.result(data, "\n".join([*lines, f"next: {following}"]))
