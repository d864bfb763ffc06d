"""What `tritune deploy` tells beside the files that it writes. Layer: cli."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.errors import UsageError
from tooling.units import format_duration_us

if TYPE_CHECKING:
    from perf.studies import Tuned
    from tooling.deploy.needs import Needs
    from tooling.deploy.objects import KubernetesOptions
    from tooling.releases import Release


_MENDED = "25.07"
"""The first release without the holes of NVIDIA's bulletin of August 2025."""


def other_setting(needs: Needs, tuning: Tuned | None) -> tuple[str, ...]:
    """What is deployed otherwise than the tuning chose, so that its figures do not hold."""
    from perf.rollout.as_tuned import other_than

    if tuning is None:
        return ()
    config = next(model.config for model in needs.served if model.name == tuning.model)
    try:
        found = other_than(tuning.setting, config)
    except UsageError as error:
        found = [str(error.problems[0].what)]
    if not found:
        return ()
    told = f"the figures of the study do not hold: {tuning.model} is not deployed as tuned ({', '.join(found)})"
    return (f"{told}; `tritune tune --apply` writes configs/NAME.pbtxt, and --config-name serves it",)


def other_hardware(needs: Needs, tuning: Tuned | None, config_name: str | None, *, on_gpu: bool) -> tuple[str, ...]:
    """Where what is served was made for the other kind of hardware, or what was made for one is left aside, unless
    `other_setting` tells that by the tuning."""
    if config_name is not None:
        made, served = ("a CPU", "GPUs") if on_gpu else ("GPUs", "CPUs")
        if not config_name.startswith("cpu-" if on_gpu else "gpu-"):
            return ()
        return (f"configs/{config_name}.pbtxt was made for {made} and is served on {served}: tune there (`--url`)",)
    names = sorted({file.stem for model in needs.served for file in (model.directory / "configs").glob("*.pbtxt")})
    if tuning is not None or not names:
        return ()
    return (f"config.pbtxt is served; --config-name takes what was made for one kind of hardware: {', '.join(names)}",)


def sizing(options: KubernetesOptions, tuning: Tuned | None, rate: float | None, *, asked: bool) -> tuple[str, ...]:
    """What was taken from a tuning, which gave the number of replicas for `rate` where none was `asked`."""
    if tuning is None:
        return ()
    by = ""
    if rate and asked:
        by = f", as asked ({rate:g} requests/s take {math.ceil(rate / tuning.carries_rps)})"
    elif rate:
        by = f", as {rate:g} requests/s come to {tuning.carries_rps:.1f} each"
    more = f"more are added above {format_duration_us(options.queue_target_us)} of queue time a request"
    return (f"{options.replicas} replicas at the least{by}, {options.max_replicas} at the most; {more}",)


def to_build(
    needs: Needs, release: Release, repository: Path, output: Path, server_image: str | None
) -> tuple[str, ...]:
    """How the image comes about that holds the packages of Python models."""
    from tooling.deploy.image import image_of

    if not needs.packages:
        return ()
    base, name = f"TRITON_IMAGE={image_of(release, needs.variant)}", server_image or "REGISTRY/triton:TAG"
    command = ["docker", "build", "--file", str(output / "Dockerfile"), "--build-arg", base, "--tag", name]
    asking = ", ".join(path.parent.name for path in needs.packages)
    said = f"`{shlex.join([*command, str(repository)])}` makes the image with the packages of {asking}"
    return (said if server_image else f"{said}; --server-image names it",)


def models_outside(needs: Needs) -> tuple[str, ...]:
    """Where the servers must find the models of engines, which no repository holds."""
    if not needs.outside:
        return ()
    listed = ", ".join(needs.outside)
    return (f"engines read models from {listed}: the pods must have them there, by a volume or in the image",)


def secrets(options: KubernetesOptions, *, guarded: bool) -> tuple[str, ...]:
    """How the Secrets come about that the objects name: they stand in no file."""
    from tooling.deploy.store import KEY_FILE, S3_VARIABLES, is_s3

    told = []
    if guarded:
        made = f'kubectl create secret generic {options.name}-control --from-literal=key="$(openssl rand -hex 16)"'
        told.append(f"`{made}` makes the key that callers of the load API send")
    if options.bucket is not None:
        s3 = is_s3(options.bucket)
        source = "--from-env-file=FILE" if s3 else f"--from-file={KEY_FILE}=FILE"
        held = f"FILE holds {', '.join(S3_VARIABLES)} as NAME=VALUE" if s3 else "FILE is the key of a service account"
        made = f"kubectl create secret generic {options.name}-object-store {source}"
        told.append(f"`{made}` makes the credentials of the bucket; {held}")
    return tuple(told)


def holes(release: Release, *, reached: bool) -> tuple[str, ...]:
    """What others could do who reach the ports of an old release."""
    if not reached or release.tag >= _MENDED:
        return ()
    could = f"whoever reaches the ports of tritonserver:{release.tag} may crash it or run code in it"
    return (f"{could} (CVE-2025-23310, -23319): take --release {_MENDED} or newer where not all of them are trusted",)


def driver(release: Release) -> tuple[str, ...]:
    """What a host with GPUs must have for the image, as far as it is known; of this machine, what it has not."""
    from tooling.cli.capabilities import driver_too_old
    from tooling.releases import least_driver

    if wrong := driver_too_old(release):
        return (wrong,)
    least = least_driver(release)
    return () if least is None else (f"tritonserver:{release.tag} needs NVIDIA driver {least} or newer",)
