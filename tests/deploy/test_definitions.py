"""Objects of KServe, the Prometheus operator and the Gateway API have the fields of their definitions and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from .conftest import PYTHON

Run = Callable[..., Any]
KNOWN = yaml.safe_load(Path(__file__).with_name("definitions.yaml").read_text())
NEWEST = "1.37"


def problems(value: Any, fields: Any, where: str) -> Iterator[str]:
    """What is unknown in an object, and what it lacks."""
    if fields is None:
        return
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from problems(one, fields, f"{where}[{number}]")
        return
    if not isinstance(value, dict):
        yield f"{where} is no object"
        return
    if "*" in fields:
        return
    known = {name.rstrip("!"): below for name, below in fields.items()}
    yield from (f"{where}.{name} is unknown" for name in value if name not in known)
    yield from (f"{where}.{name[:-1]} is missing" for name in fields if name.endswith("!") and name[:-1] not in value)
    for name in known.keys() & value.keys():
        yield from problems(value[name], known[name], f"{where}.{name}")


def definition(body: dict[str, Any]) -> str:
    return f"{body.get('apiVersion')} {body.get('kind')}"


@pytest.mark.parametrize(
    "argv",
    [
        *((), ("--bucket", "s3://b/m"), ("--bucket", "gs://b/m", "--gpus", "0")),
        ("--control", "explicit", "--image", "registry/models:1", "--owner", "search"),
    ],
)
def test_objects_have_the_fields_of_their_definitions(
    argv: tuple[str, ...], run_cli: Run, repository: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run_cli("deploy", "kubernetes", repository(m=PYTHON), "-o", out, "--name", "enc", *argv).code == 0
    assert run_cli("deploy", "split", "--name", "enc", "--percent", "5", "-o", out / "split").code == 0
    bodies = [body for path in out.rglob("*.yaml") for body in yaml.safe_load_all(path.read_text())]
    found = [(definition(body), body) for body in bodies if definition(body) in KNOWN]
    assert {name for name, _ in found} == KNOWN.keys()
    for name, body in found:
        assert list(problems(body["spec"], KNOWN[name], name)) == []
        assert body.keys() == {"apiVersion", "kind", "metadata", "spec"}
    (runtime,) = (body for _, body in found if body["kind"] == "ServingRuntime")
    mounted = {"name": "models", "emptyDir": {}}  # KServe's own volume
    spec = {"containers": runtime["spec"]["containers"], "volumes": [*runtime["spec"]["volumes"], mounted]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": runtime["metadata"], "spec": spec}
    kubernetes_validate.validate(pod, NEWEST, strict=True)


def test_a_wrong_field_is_seen() -> None:
    """The definitions are read as they are meant."""
    monitor = {"selector": {"matchLabels": {"a": "b"}}, "podMetricsEndpoints": [{"port": "m"}, {"ports": "m"}]}
    name = "monitoring.coreos.com/v1 PodMonitor"
    assert list(problems(monitor, KNOWN[name], "spec")) == ["spec.podMetricsEndpoints[1].ports is unknown"]
    del monitor["selector"]
    assert "spec.selector is missing" in list(problems(monitor, KNOWN[name], "spec"))
    assert list(problems({"groups": "all"}, KNOWN["monitoring.coreos.com/v1 PrometheusRule"], "spec")) == [
        "spec.groups is no object"
    ]
