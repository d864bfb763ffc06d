"""Rules about how a repository is served: its directory, compose file, manifests, Dockerfile. Layer: check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tooling.check.files import read_limited
from tooling.check.finding import Evidence, Finding, Place, Stage
from tooling.check.manifests import probes
from tooling.check.rules.kinds import advice, load, note, request

_LARGEST: Final = 2**17
_OLD_HEALTH: Final = re.compile(r"/api/health/(\w+)")

IS_A_MODEL = load(
    "repository-is-a-model",
    "The path is a model directory, not a model repository.",
    "Triton is given the directory that holds the models. Started on a model directory it takes its versions for "
    "models: the "
    "server runs, and lists a model called `1`.",
    "max_batch_size: 8\n--- checked\n.",
    "ModelRepositoryManager (core)",
)
EMPTY = advice(
    "repository-empty",
    "The repository has no models.",
    "Every directory of a repository is a model; files beside them are passed over.",
    "--- checked\nempty",
    "ModelRepositoryManager (core)",
)
EXIT_ON_ERROR = note(
    "exit-on-error",
    "One model that does not load keeps the whole server from starting.",
    "`--exit-on-error` is true by default; with false the other models serve, and readiness stays off.",
    "max_batch_size: -1\n--- ../good/1/model.onnx\nx: FP32 [batch, 8] -> y: FP32 [batch, 8]",
    "tritonserver",
    evidence=Evidence.RUN,
)
NO_BINARY = load(
    "image-without-server",
    "The image has no tritonserver in it.",
    "`tritonclient` is the client; the server comes in NVIDIA's images.",
    "max_batch_size: 8\n--- ../Dockerfile\nFROM nvidia/cuda:12.4.1-runtime-ubuntu22.04\nRUN pip install tritonclient\n"
    'CMD ["tritonserver", "--model-repository=/models"]',
    "contents of the packages",
    evidence=Evidence.DOCUMENTED,
)
OLD_HEALTH = request(
    "health-url-old",
    "A health check asks for a URL of the first server generation.",
    "/api/health/* belongs to version 1; today it is /v2/health/live and /v2/health/ready.",
    "max_batch_size: 8\n--- ../compose.yaml\nservices:\n  triton:\n    image: nvcr.io/nvidia/tritonserver:24.10-py3\n"
    '    healthcheck: {test: [CMD, curl, -f, "http://localhost:8000/api/health/live"]}',
    "KServe v2 protocol",
    evidence=Evidence.DOCUMENTED,
)
LIVENESS = request(
    "liveness-by-readiness",
    "A liveness probe asks whether the models are ready.",
    "/v2/health/ready is true only once every model is ready, so that Kubernetes kills the pod while it loads them, "
    "again and again. /v2/health/live says that the server runs; a startupProbe on /v2/health/ready gives loading its "
    "time.",
    "max_batch_size: 8\n--- ../deployment.yaml\nlivenessProbe:\n  httpGet: {path: /v2/health/ready, port: 8000}",
    "KServe v2 protocol",
    evidence=Evidence.DOCUMENTED,
)
UNREADABLE = advice(
    "compose-unreadable",
    "The compose file cannot be read.",
    "It is judged for the server's image, options and GPUs only when it is YAML with services.",
    "max_batch_size: 8\n--- ../compose.yaml\nservices: [",
    "YAML",
    stage=Stage.POLL,
)
CONFIG_NAME = advice(
    "config-name-unknown",
    "No model has a config of the name that is asked for.",
    "Triton falls back to config.pbtxt in silence, for each model without `configs/NAME.pbtxt`.",
    "max_batch_size: 8\n--- options\n--config-name gpu-h100-x1",
    "GetModelConfigFullPath (core)",
)
SEVERAL_CACHES = load(
    "several-caches",
    "The server is started with two caches.",
    "It does not start: one cache is supported, the local one or Redis.",
    "max_batch_size: 8\n--- options\n--server-args --cache-config=local,size=1048576 --cache-config=redis,host=h",
    "tritonserver's start",
    evidence=Evidence.READ,
)
RULES = (CONFIG_NAME, SEVERAL_CACHES, IS_A_MODEL, EMPTY, EXIT_ON_ERROR, NO_BINARY, OLD_HEALTH, LIVENESS, UNREADABLE)


def compose_health(shown: str, services: Mapping[str, Any]) -> Iterator[Finding]:
    """Health checks of the services that run Triton."""
    for name, service in services.items():
        check = service.get("healthcheck") if isinstance(service, dict) else None
        test = check.get("test") if isinstance(check, dict) else None
        words = [word for word in (test if isinstance(test, list) else [test]) if isinstance(word, str)]
        match = _OLD_HEALTH.search(" ".join(words))
        if match:
            yield Finding(
                OLD_HEALTH,
                Place(shown),
                f"service {name}: /api/health/{match[1]} does not exist; use /v2/health/{match[1]}",
                hint=f"curl -f http://localhost:8000/v2/health/{match[1]}",
            )


def manifest_health(path: Path, shown: str) -> Iterator[Finding]:
    """Probes of a Kubernetes manifest."""
    for kind, url, starts in probes(path):
        if match := _OLD_HEALTH.search(url):
            yield Finding(
                OLD_HEALTH,
                Place(shown),
                f"{kind}: /api/health/{match[1]} does not exist; use /v2/health/{match[1]}",
                hint=f"path: /v2/health/{match[1]}",
            )
        elif kind == "livenessProbe" and url.rstrip("/") == "/v2/health/ready":
            yield Finding(
                LIVENESS,
                Place(shown),
                "the liveness probe asks /v2/health/ready, and the pod is killed while models load",
                hint="liveness must use /v2/health/live"
                + ("" if starts else "; add a startupProbe for slow model loading"),
            )


def dockerfile(path: Path, shown: str) -> Iterator[Finding]:
    """A Dockerfile that starts a server it does not have."""
    try:
        lines = (read_limited(path, _LARGEST) or b"").decode().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    images = [line.split()[1] for line in lines if line.upper().startswith("FROM ") and len(line.split()) > 1]
    starts = next(
        (n for n, line in enumerate(lines, 1) if re.match(r"(CMD|ENTRYPOINT)\b.*\btritonserver\b", line)), None
    )
    installs = any(re.search(r"nvidia-pytriton|COPY --from=\S*tritonserver", line) for line in lines)
    if starts is not None and images and "tritonserver" not in images[-1] and not installs:
        yield Finding(
            NO_BINARY,
            Place(shown, starts, 1),
            f"image has no tritonserver binary: {images[-1]}",
            hint="FROM nvcr.io/nvidia/tritonserver:<tag>-py3",
        )
