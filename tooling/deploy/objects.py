"""The Kubernetes objects of one server: what runs, how it is reached, watched and scaled. Layer: deploy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tooling.deploy.store import HTTPS
from tooling.errors import UsageError
from tooling.server.flags import CONTROL_KEY

Object = dict[str, Any]
QUEUE_METRIC: Final = "triton_queue_us_per_request"
WINDOW_S: Final = 120
"""Over which it is averaged."""
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")  # of a Service; leaves room for suffixes below 63
_LONGEST: Final = 52
_IN_URL: Final = re.compile(r"[A-Za-z0-9_.-]+")  # Triton compares the names of models in URLs as they come
_PORTS: Final = (("http", 8000), ("grpc", 8001), ("metrics", 8002))
GPU: Final = "nvidia.com/gpu"
USER: Final = 1000  # `triton-server` of NVIDIA's images
CONFINED: Final = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""What every container may not do."""
_DRAIN_S: Final = 10  # until every load balancer has seen that the pod ends
_EXIT_S: Final = 30  # Triton's own wait for the requests it has
_PULL_S: Final = 900  # an image of many GB, on a node that has none of it


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """`queue_target_us` is the mean queue time of a request at which the autoscaler adds a replica, `batch` the mean
    batch under the tuned config.

    `bucket` is an s3:// or gs:// URL of the repository, `image` a registry name of an image that holds it under
    /models; without them those overlays carry a name to be replaced. `server_image` runs in place of NVIDIA's. `cpu`
    and `memory` are Kubernetes quantities, `storage_gib` what the volume claim asks for, `copy_gib` what a pod asks of
    its node's disk where it copies the repository there.
    """

    name: str
    replicas: int = 1
    max_replicas: int = 4
    queue_target_us: int = 10_000
    cpu: str = "4"
    memory: str = "8Gi"
    gpus: int = 1
    shm_bytes: int = 2**30
    load_timeout_s: int = 600
    bucket: str | None = None
    image: str | None = None
    server_image: str | None = None
    storage_gib: int = 10
    copy_gib: int = 2
    owner: str = "unowned"
    p99_us: int = 100_000
    batch: float | None = None


def check_name(name: str, suffix: int = 0) -> None:
    """Raise UsageError for a name that Kubernetes would refuse, with a suffix of so many letters."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST - suffix:
        expected = f"lower-case letters, digits and -, at most {_LONGEST - suffix}, from a letter to a letter or digit"
        raise UsageError(
            "no name for Kubernetes", where="--name", got=f"`{name}`", expected=expected, hint="name it with --name"
        )


def metadata(name: str) -> Object:
    return {"name": name, "labels": {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "tritune"}}


def control_key(name: str) -> Object:
    """The variable with what a caller of the load API must know; the Secret NAME-control is not part of these files."""
    return {"name": CONTROL_KEY, "valueFrom": {"secretKeyRef": {"name": f"{name}-control", "key": "key"}}}


def probes(models: Sequence[str], load_timeout_s: int, *, changing: bool) -> Object:
    """What says that a server lives, has its models, and may get requests; `changing` where they may change meanwhile.

    Liveness asks /v2/health/live: /ready is false while models load and would have the pod killed. The start-up probe
    waits as long as loading may take; before it has passed, the other two do not run. It asks for a model, as a server
    whose volume is still empty is ready too. So does readiness where models change: /v2/health/ready is false while any
    version loads, though the one before still answers.
    """
    model = next((name for name in models if _IN_URL.fullmatch(name)), None)
    loaded = f"models/{model}/ready" if model else "health/ready"
    least = max(1, load_timeout_s // 5)
    return {
        "startupProbe": {**_probe(loaded), "periodSeconds": 5, "failureThreshold": least},
        "readinessProbe": {
            **_probe(loaded if changing else "health/ready"),
            "periodSeconds": 5,
            "failureThreshold": 3,
        },
        "livenessProbe": {**_probe("health/live"), "periodSeconds": 10, "failureThreshold": 6},
    }


def deployment(
    arguments: Sequence[str],
    image: str,
    options: KubernetesOptions,
    given: Sequence[Object],
    asked: Object,
) -> Object:
    """One server a pod, with the probes that are `asked`. Its volume `models` comes with an overlay. The autoscaler
    alone says how many there are: a number here would take back at each update what that has added.
    """
    name = options.name
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(name),
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
            "progressDeadlineSeconds": options.load_timeout_s + _PULL_S,  # else ten minutes, and an update has failed
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": metadata(name),
                "spec": _pod(_container(arguments, image, options, given) | asked, options),
            },
        },
    }


def volumes(options: KubernetesOptions) -> list[Object]:
    """What a server writes to, its root being read-only: shared memory and /tmp."""
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(options.shm_bytes)}}
    return [shm, {"name": "tmp", "emptyDir": {}}]


def mounts() -> list[Object]:
    """Where these are."""
    return [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "tmp", "mountPath": "/tmp"}]


def variables(given: Sequence[Object] = ()) -> list[Object]:
    """Of a server: a home that it can write to, and those `given`."""
    return [{"name": "HOME", "value": "/tmp"}, *given]


def placement(options: KubernetesOptions) -> Object:
    """Where a server may run: clusters keep others off the nodes with GPUs by this taint."""
    if not options.gpus:
        return {}
    return {"tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]}


def _pod(container: Object, options: KubernetesOptions) -> Object:
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": _DRAIN_S + _EXIT_S + 5,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app.kubernetes.io/name": options.name}},
            }
        ],
        **placement(options),
        "containers": [container],
        "volumes": volumes(options),
    }


def _container(arguments: Sequence[str], image: str, options: KubernetesOptions, given: Sequence[Object]) -> Object:
    return {
        "name": "triton",
        "image": image,
        "command": ["tritonserver"],
        "args": list(arguments),
        "env": variables(given),
        "ports": [{"name": name, "containerPort": port} for name, port in _PORTS],
        "resources": resources(options),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_DRAIN_S)]}}},
        "securityContext": dict(CONFINED),
        "volumeMounts": [
            {"name": "models", "mountPath": "/models", "readOnly": True},
            *mounts(),
        ],
    }


def resources(options: KubernetesOptions) -> Object:
    """What a server asks for and is held to; its CPU is not limited."""
    gpus = {GPU: options.gpus} if options.gpus else {}
    held = {"memory": options.memory, **gpus}
    return {"requests": {"cpu": options.cpu, **held}, "limits": held}


def _probe(what: str) -> Object:
    return {"httpGet": {"path": f"/v2/{what}", "port": "http"}, "timeoutSeconds": 5}


def service(name: str) -> Object:
    ports = [{"name": port_name, "port": port, "targetPort": port_name} for port_name, port in _PORTS[:2]]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(name),
        "spec": {"selector": {"app.kubernetes.io/name": name}, "ports": ports},
    }


def autoscaler(options: KubernetesOptions) -> Object:
    """By the queue time of a request: it rises before latency breaks and, unlike CPU load, means the same on a GPU."""
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(options.name),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": options.name},
            "minReplicas": options.replicas,
            "maxReplicas": options.max_replicas,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": QUEUE_METRIC},
                        "target": {"type": "AverageValue", "averageValue": str(options.queue_target_us)},
                    },
                }
            ],
            "behavior": {
                "scaleUp": {  # what was added shows after the window: a queue grows far above what one more would mend
                    "policies": [
                        {"type": "Pods", "value": 1, "periodSeconds": WINDOW_S},
                        {"type": "Percent", "value": 50, "periodSeconds": WINDOW_S},
                    ]
                },
                "scaleDown": {"stabilizationWindowSeconds": 300},  # a loaded model is dear to load again
            },
        },
    }


def network_policy(name: str) -> Object:
    """Requests from the same namespace, metrics from one that is labelled as monitoring; out only to DNS and HTTPS."""
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(name),
        "spec": {
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": name}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": [{"podSelector": {}}], "ports": [{"port": "http"}, {"port": "grpc"}]},
                {"from": [monitoring], "ports": [{"port": "metrics"}]},
            ],
            "egress": [{"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}, {"port": HTTPS}]}],
        },
    }


def pod_monitor(name: str) -> Object:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata(name),
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
            "jobLabel": "app.kubernetes.io/name",  # the job that alerts and dashboard ask for
            "podMetricsEndpoints": [{"port": "metrics", "interval": "15s"}],
        },
    }
