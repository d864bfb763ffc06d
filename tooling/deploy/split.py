"""Renders the objects that give a second version a share of a cluster's traffic. Layer: deploy."""

from __future__ import annotations

from collections.abc import Mapping

from tooling.deploy.objects import Object, check_name, metadata
from tooling.deploy.output import yaml_text


def render_split(name: str, percent: int) -> Mapping[str, str]:
    """The files by name: weighted routes to the services NAME and NAME-next, and the same share as KServe's canary.

    Raises UsageError for a name that Kubernetes would refuse.
    """
    check_name(name, len("-next"))
    routes = [_route(kind, name, percent, port) for kind, port in (("HTTPRoute", 8000), ("GRPCRoute", 8001))]
    canary: Object = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"predictor": {"canaryTrafficPercent": percent}},
    }
    return {
        "routes.yaml": yaml_text("deploy split", routes),
        "kserve-canary.yaml": yaml_text("deploy split", [canary]),
    }


def _route(kind: str, name: str, percent: int, port: int) -> Object:
    """A route of the Gateway API on the gateway NAME; the weights are shares in percent."""
    backends = [
        {"name": name, "port": port, "weight": 100 - percent},
        {"name": f"{name}-next", "port": port, "weight": percent},
    ]
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": kind,
        "metadata": metadata(f"{name}-{'http' if kind == 'HTTPRoute' else 'grpc'}"),
        "spec": {"parentRefs": [{"name": name}], "rules": [{"backendRefs": backends}]},
    }
