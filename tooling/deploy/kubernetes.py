"""Renders a kustomize base, overlays for the model repository's place, and KServe objects. Layer: deploy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tooling.deploy.image import dockerfile, image_of
from tooling.deploy.inputs import check_image, quantity
from tooling.deploy.monitoring import MonitoringOptions, alerts, dashboard
from tooling.deploy.needs import Needs
from tooling.deploy.objects import (
    CONFINED,
    QUEUE_METRIC,
    USER,
    WINDOW_S,
    KubernetesOptions,
    Object,
    autoscaler,
    check_name,
    control_key,
    deployment,
    metadata,
    mounts,
    network_policy,
    placement,
    pod_monitor,
    probes,
    resources,
    service,
    variables,
    volumes,
)
from tooling.deploy.output import yaml_text
from tooling.deploy.runbook import render_runbook
from tooling.deploy.store import HTTPS, KEY_FILE, check_bucket, is_s3, port_of, without_address
from tooling.errors import UsageError
from tooling.releases import Release
from tooling.server.flags import CONTROL_KEY, ServerFlags, require_release

_Overlay = tuple[Mapping[str, Object], list[Object]]
_KEY: Final = f"$({CONTROL_KEY})"


def render_kubernetes(
    needs: Needs, flags: ServerFlags, release: Release, options: KubernetesOptions
) -> Mapping[str, str]:
    """The files by their path in the output directory: `base/`, `overlays/<place>/`, `kserve/`.

    Raises UsageError for names and counts that Kubernetes would refuse.
    """
    _check(options)
    image = _server_image(needs, release, options)
    if flags.control == "explicit":  # whoever loads models runs code, and the namespace reaches the port
        flags = replace(flags, control_key=_KEY)
    require_release(flags, release)
    given = _variables(flags, options)
    asked = probes(needs.models, options.load_timeout_s, changing=flags.control != "none")
    base = {
        "deployment.yaml": deployment(_arguments(flags, "/models"), image, options, given, asked),
        "service.yaml": service(options.name),
        "disruption-budget.yaml": _disruption_budget(options.name),
        "autoscaler.yaml": autoscaler(options),
        "network-policy.yaml": network_policy(options.name),
        "pod-monitor.yaml": pod_monitor(options.name),
        "alerts.yaml": _alerts(options),
        "dashboard.yaml": _dashboard(options, cache=flags.cache_bytes is not None),
    }
    files = {f"base/{name}": _yaml(body) for name, body in base.items()}
    files["base/kustomization.yaml"] = _yaml(_kustomization(resources=sorted(base)))
    files["prometheus-adapter.yaml"] = _yaml(_adapter_rules(options.name))
    for place, (extra, patch) in _overlays(flags, options).items():
        names = sorted(extra)
        files |= {f"overlays/{place}/{name}": _yaml(body) for name, body in extra.items()}
        files[f"overlays/{place}/kustomization.yaml"] = _yaml(_kustomization(["../../base", *names], patch))
    files["kserve/serving.yaml"] = _yaml(*_kserve(flags, image, options))
    pages = render_runbook(_watch(options), "kubernetes", options.name)
    files |= {f"base/{page}": text for page, text in pages.items()}
    if needs.packages:
        files["Dockerfile"] = dockerfile(needs.packages)
    return files


def _server_image(needs: Needs, release: Release, options: KubernetesOptions) -> str:
    """NVIDIA's, unless models ask for packages: these are in an image that is still to be built."""
    if options.server_image is not None:
        return options.server_image
    return "REPLACE-REGISTRY/triton:REPLACE-TAG" if needs.packages else image_of(release, needs.variant)


def _arguments(flags: ServerFlags, repository: str) -> list[str]:
    """tritonserver's, as Kubernetes is to hand them on: it fills in `$(NAME)`, which here is the key alone."""
    words = flags.arguments(repository)
    return [word if word.endswith(f"={_KEY}") else word.replace("$", "$$") for word in words]


def _variables(flags: ServerFlags, options: KubernetesOptions) -> list[Object]:
    return [control_key(options.name)] if flags.control_key is not None else []


def _check(options: KubernetesOptions) -> None:
    check_name(options.name)
    if not 1 <= options.replicas <= options.max_replicas:
        got = f"{options.replicas} replicas of at most {options.max_replicas}"
        expected = "1 or more, and not above the most"
        raise UsageError("no such number of replicas", where="--max-replicas", got=got, expected=expected)
    quantity("--cpu", options.cpu)
    if quantity("--memory", options.memory) <= options.shm_bytes:  # what lies in shared memory counts to it
        got = f"{options.memory}, {options.shm_bytes} bytes of it shared"
        raise UsageError("no memory is left for Triton", where="--memory", got=got, expected="more than --shm-size")
    if options.bucket is not None:
        check_bucket(options.bucket)
    for option, named in (("--image", options.image), ("--server-image", options.server_image)):
        if named is not None:
            check_image(option, named)


def _yaml(*objects: Object) -> str:
    return yaml_text("deploy kubernetes", objects)


def _kustomization(resources: Sequence[str], patches: Sequence[Object] = ()) -> Object:
    body: Object = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(resources),
    }
    return body | ({"patches": list(patches)} if patches else {})


def _disruption_budget(name: str) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(name),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app.kubernetes.io/name": name}}},
    }


def _watch(options: KubernetesOptions) -> MonitoringOptions:
    """What to watch for: the same as beside compose."""
    gpu, queue_us = options.gpus > 0, options.queue_target_us
    return MonitoringOptions(
        "", options.owner, options.p99_us, queue_us, gpu=gpu, batch=options.batch, job=options.name
    )


def _dashboard(options: KubernetesOptions, *, cache: bool) -> Object:
    """For the sidecar of Grafana's chart, which takes config maps with this label."""
    about = metadata(f"{options.name}-dashboard")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**about, "labels": {**about["labels"], "grafana_dashboard": "1"}},
        "data": {f"{options.name}.json": dashboard(_watch(options), cache=cache)},
    }


def _alerts(options: KubernetesOptions) -> Object:
    """The same alerts as beside compose, for the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata(options.name),
        "spec": {"groups": [{"name": options.name, "rules": alerts(_watch(options))}]},
    }


def _adapter_rules(name: str) -> Object:
    """Values of the prometheus-adapter chart: queue time per request in the last two minutes, of the model whose
    requests wait longest; over all models those of an ensemble, which never wait themselves, would halve it."""
    queue, done = (f'nv_inference_{what}{{namespace!="",pod!=""}}' for what in ("queue_duration_us", "request_success"))
    rate = f"sum(rate(<<.Series>>{{<<.LabelMatchers>>}}[{WINDOW_S}s])) by (<<.GroupBy>>, model, version)"
    each = f"{rate} / clamp_min({rate.replace('<<.Series>>', done.partition('{')[0])}, 0.001)"
    return {
        "rules": {
            "custom": [
                {
                    "seriesQuery": queue,
                    "resources": {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}},
                    "name": {"matches": "^nv_inference_queue_duration_us$", "as": QUEUE_METRIC},
                    "metricsQuery": f"max({each}) by (<<.GroupBy>>)",
                }
            ]
        }
    }


def _overlays(flags: ServerFlags, options: KubernetesOptions) -> Mapping[str, _Overlay]:
    """By the place of the repository."""
    return {
        "pvc": _pvc(options.name, options.storage_gib),
        "object-store": _object_store(flags, options),
        "image": _image(options),
    }


def _pvc(name: str, storage_gib: int) -> _Overlay:
    claim: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(f"{name}-models"),
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": f"{storage_gib}Gi"}}},
    }
    volume = {"name": "models", "persistentVolumeClaim": {"claimName": f"{name}-models", "readOnly": True}}
    return {"claim.yaml": claim}, [_patch("Deployment", name, [_add("/spec/template/spec/volumes/-", volume)])]


def _object_store(flags: ServerFlags, options: KubernetesOptions) -> _Overlay:
    """Triton reads the bucket itself; credentials come from a Secret that is not part of these files."""
    bucket = options.bucket or "s3://REPLACE-BUCKET/models"
    secret = f"{options.name}-object-store"
    changes: list[Object] = [
        {"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": _arguments(flags, bucket)},
        {"op": "remove", "path": "/spec/template/spec/containers/0/volumeMounts/0"},
        _copied(options),  # to /tmp
    ]
    if is_s3(bucket):
        changes.append(_add("/spec/template/spec/containers/0/envFrom", [{"secretRef": {"name": secret}}]))
    else:
        mount = {"name": "credentials", "mountPath": "/credentials", "readOnly": True}
        key = {"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": f"/credentials/{KEY_FILE}"}
        changes += [
            _add("/spec/template/spec/volumes/-", {"name": "credentials", "secret": {"secretName": secret}}),
            _add("/spec/template/spec/containers/0/volumeMounts/-", mount),
            _add("/spec/template/spec/containers/0/env/-", key),
        ]
    patches = [_patch("Deployment", options.name, changes)]
    if (port := port_of(bucket)) != HTTPS:  # which is open
        patches.append(_patch("NetworkPolicy", options.name, [_add("/spec/egress/0/ports/-", {"port": port})]))
    return {}, patches


def _image(options: KubernetesOptions) -> _Overlay:
    """The repository travels in an image of its own, copied at start: a version of it is a tag."""
    copy: Object = {
        "name": "models",
        "image": options.image or "REPLACE-REGISTRY/models:REPLACE-TAG",
        "command": ["cp", "-r", "/models/.", "/target/"],
        "volumeMounts": [{"name": "models", "mountPath": "/target"}],
        "securityContext": dict(CONFINED),
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
    }
    return {}, [
        _patch(
            "Deployment",
            options.name,
            [
                _add("/spec/template/spec/volumes/-", {"name": "models", "emptyDir": {}}),
                _add("/spec/template/spec/initContainers", [copy]),
                _copied(options),
            ],
        )
    ]


def _copied(options: KubernetesOptions) -> Object:
    """Room on the node for a copy of the repository: a node without it would end the pod that fills its disk."""
    return _add("/spec/template/spec/containers/0/resources/requests/ephemeral-storage", f"{options.copy_gib}Gi")


def _add(path: str, value: Any) -> Object:
    return {"op": "add", "path": path, "value": value}


def _patch(kind: str, name: str, changes: list[Object]) -> Object:
    import yaml

    target = {"kind": kind, "name": name}
    return {"target": target, "patch": yaml.safe_dump(changes, sort_keys=False, width=120)}


_KSERVE_PROTOCOL = "grpc-v2"
"""Of a predictor KServe exposes one port, and that is the port of gRPC."""


def _kserve(flags: ServerFlags, image: str, options: KubernetesOptions) -> list[Object]:
    """An alternative to the base: a runtime that KServe starts for each InferenceService."""
    container: Object = {
        "name": "kserve-container",
        "image": image,
        "command": ["tritonserver"],
        "args": _arguments(flags, "/mnt/models"),
        "env": variables(_variables(flags, options)),
        "ports": [{"name": "h2c", "containerPort": 8001, "protocol": "TCP"}],
        "resources": resources(options),
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, **CONFINED},
        "volumeMounts": mounts(),
    }
    runtime: Object = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": metadata(options.name),
        "spec": {
            "supportedModelFormats": [{"name": "triton", "version": "2", "autoSelect": False}],
            "protocolVersions": [_KSERVE_PROTOCOL],
            **placement(options),
            "containers": [container],
            "volumes": volumes(options),
        },
    }
    inference: Object = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": metadata(options.name),
        "spec": {
            "predictor": {
                "minReplicas": options.replicas,
                "maxReplicas": options.max_replicas,
                "model": {
                    "modelFormat": {"name": "triton", "version": "2"},
                    "runtime": options.name,
                    "protocolVersion": _KSERVE_PROTOCOL,
                    "storageUri": without_address(options.bucket) if options.bucket else f"pvc://{options.name}-models",
                },
            }
        },
    }
    return [runtime, inference]
