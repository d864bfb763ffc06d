"""The probes of `tritune deploy kubernetes`, and what the real server answers to them."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tooling.deploy.objects import probes
from tooling.server import EmbeddedServer

from .conftest import PYTHON

SLOW = """import time


class TritonPythonModel:
    def initialize(self, args):
        time.sleep(2)

    def execute(self, requests):
        return []
"""
"""A model that takes two seconds to load."""


def status(address: str, path: str) -> int:
    """What a server answers to a probe."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_probes_know_the_traps(rendered: Any) -> None:
    (deployment,) = rendered("--load-timeout", "20m")["base/deployment.yaml"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    assert container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    startup = container["startupProbe"]
    assert startup["httpGet"]["path"] == "/v2/models/m/ready"
    assert startup["periodSeconds"] * startup["failureThreshold"] == 1200
    assert deployment["spec"]["progressDeadlineSeconds"] >= 1200 + 600  # by default an update would fail before that
    assert int(container["lifecycle"]["preStop"]["exec"]["command"][1]) + 30 < pod["terminationGracePeriodSeconds"]
    assert pod["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]


@pytest.mark.live
def test_what_the_probes_ask_is_so_on_the_real_server(rendered: Any, tmp_path: Path, runtime: Any) -> None:
    """A pod gets no requests before its model is there, as on an empty volume, and keeps them while a version loads."""
    (deployment,) = rendered("--control", "explicit", config=PYTHON)["base/deployment.yaml"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    asked = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    models = tmp_path / "served"
    (models / "m" / "1").mkdir(parents=True)
    (models / "m" / "config.pbtxt").write_text(PYTHON)
    (models / "m" / "1" / "model.py").write_text(SLOW)
    with EmbeddedServer(models, runtime) as server:

        def answers() -> dict[str, int]:
            return {kind: status(server.http_url, path) for kind, path in asked.items()}

        assert answers() == {"startup": 400, "readiness": 400, "liveness": 200}
        assert status(server.http_url, "/v2/health/ready") == 200  # of a server without a model
        server.load("m")
        assert set(answers().values()) == {200}
        (models / "m" / "2").mkdir()
        shutil.copy(models / "m" / "1" / "model.py", models / "m" / "2")
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(server.load, "m")
            while status(server.http_url, "/v2/health/ready") == 200:
                assert not loading.done()
            assert set(answers().values()) == {200}
            loading.result()


@pytest.mark.parametrize(
    ("control", "ready"), [("none", "health/ready"), ("explicit", "models/m/ready"), ("poll", "models/m/ready")]
)
def test_readiness_asks_for_a_model_where_models_change(rendered: Any, control: str, ready: str) -> None:
    (deployment,) = rendered("--control", control)["base/deployment.yaml"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    asked = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")]
    assert asked == ["/v2/models/m/ready", f"/v2/{ready}", "/v2/health/live"]


def test_a_name_that_a_url_does_not_hold_is_not_asked_for() -> None:
    found = probes(["$(HOME)", "two words", "plain-1.0"], 60, changing=False)
    assert found["startupProbe"]["httpGet"]["path"] == "/v2/models/plain-1.0/ready"
    odd = probes(["$(HOME)"], 60, changing=True)
    assert {odd[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness")} == {"/v2/health/ready"}
