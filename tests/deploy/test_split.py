"""The share of a second version on a cluster: as weights of routes and as KServe's canary percentage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.mark.parametrize("percent", [0, 5, 100])
def test_weights_and_canary_have_the_same_share(tmp_path: Path, run_cli: Any, percent: int) -> None:
    done = run_cli("deploy", "split", "--name", "encoder", "--percent", percent, "-o", tmp_path / "k8s")
    assert done.code == 0, done.err
    routes = list(yaml.safe_load_all((tmp_path / "k8s" / "routes.yaml").read_text()))
    assert [route["kind"] for route in routes] == ["HTTPRoute", "GRPCRoute"]
    assert [route["metadata"]["name"] for route in routes] == ["encoder-http", "encoder-grpc"]
    for route, port in zip(routes, (8000, 8001), strict=True):
        assert route["apiVersion"] == "gateway.networking.k8s.io/v1"
        assert route["spec"]["parentRefs"] == [{"name": "encoder"}]
        ((rule),) = route["spec"]["rules"]
        assert rule["backendRefs"] == [
            {"name": "encoder", "port": port, "weight": 100 - percent},
            {"name": "encoder-next", "port": port, "weight": percent},
        ]
    canary = yaml.safe_load((tmp_path / "k8s" / "kserve-canary.yaml").read_text())
    assert (canary["kind"], canary["metadata"]["name"]) == ("InferenceService", "encoder")
    assert canary["spec"]["predictor"] == {"canaryTrafficPercent": percent}


def test_another_share_replaces_the_files_only_when_asked(tmp_path: Path, run_cli: Any) -> None:
    argv = ["deploy", "split", "--name", "encoder", "-o", tmp_path]
    assert run_cli(*argv, "--percent", 5).code == 0
    assert run_cli(*argv, "--percent", 5).code == 0
    kept = run_cli(*argv, "--percent", 25)
    assert (kept.code, "is there with another content" in kept.err) == (2, True)
    assert run_cli(*argv, "--percent", 25, "--force").code == 0
    wrong = run_cli("deploy", "split", "--name", "An_Encoder", "--percent", 5, "-o", tmp_path / "other")
    assert (wrong.code, "no name for Kubernetes (got `An_Encoder`; expected" in wrong.err) == (2, True)
    long = run_cli("deploy", "split", "--name", 48 * "a", "--percent", 5, "-o", tmp_path / "other")
    assert (long.code, "at most 47, from a letter" in long.err) == (2, True)
    assert not (tmp_path / "other").exists()
