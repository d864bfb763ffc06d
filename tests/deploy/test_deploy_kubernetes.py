"""`tritune deploy kubernetes`: every object is one that Kubernetes knows, field by field, in its oldest and newest."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tooling.deploy.monitoring import MonitoringOptions, dashboard

from .conftest import PYTHON, write_study

Run = Callable[..., Any]
SUPPORTED = ("1.34", "1.37")


def _patched(base: Any, kustomization: Any) -> Any:
    """The object with the JSON patches of an overlay for its kind: add, replace and remove are all they use."""
    body = json.loads(json.dumps(base))
    for patch in kustomization["patches"]:
        assert patch["target"]["name"] == "enc"
        if patch["target"]["kind"] != base["kind"]:
            continue
        for change in yaml.safe_load(patch["patch"]):
            *parents, last = change["path"].strip("/").split("/")
            place = body
            for key in parents:
                place = place[int(key)] if isinstance(place, list) else place[key]
            if isinstance(place, list):
                if change["op"] == "add":
                    place.append(change["value"]) if last == "-" else place.insert(int(last), change["value"])
                else:
                    del place[int(last)]
            else:
                assert change["op"] != "replace" or last in place
                place[last] = change["value"]
    return body


def _core(files: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    deployment = files["base/deployment.yaml"][0]
    for name, (body, *_) in files.items():
        if name.startswith("base/") and body["kind"] not in ("Kustomization", "PodMonitor", "PrometheusRule"):
            yield name, body
        if name.startswith("overlays/") and body["kind"] == "Kustomization":
            yield name, _patched(deployment, body)
        elif name.startswith("overlays/"):
            yield name, body


@pytest.mark.parametrize("version", SUPPORTED)
@pytest.mark.parametrize("bucket", [(), ("--bucket", "s3://b/models"), ("--bucket", "gs://b/models")])
def test_objects_are_valid(rendered: Any, version: str, bucket: tuple[str, ...]) -> None:
    kinds = set()
    for name, body in _core(rendered(*bucket)):
        kubernetes_validate.validate(body, version, strict=True)
        kinds.add(body["kind"])
        if body["kind"] == "Deployment" and name.startswith("overlays/"):
            pod = body["spec"]["template"]["spec"]
            volumes = {volume["name"] for volume in pod["volumes"]}
            for container in (*pod["containers"], *pod.get("initContainers", ())):
                assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, name
    assert kinds == {
        *("Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy"),
        "PersistentVolumeClaim",
        "ConfigMap",
    }


def test_the_scale_is_the_one_asked_for(rendered: Any) -> None:
    argv = ("--replicas", "3", "--max-replicas", "9", "--queue-target", "5ms", "--gpus", "2")
    files = rendered(*argv)
    (scaler,) = files["base/autoscaler.yaml"]
    (metric,) = scaler["spec"]["metrics"]
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (3, 9)
    assert "replicas" not in files["base/deployment.yaml"][0]["spec"]  # an update would set the number back to it
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "5000"}
    added = [policy["type"] for policy in scaler["spec"]["behavior"]["scaleUp"]["policies"]]
    assert added == ["Pods", "Percent"]  # without policies a burst would buy them all
    (rules,) = files["prometheus-adapter.yaml"]
    (rule,) = rules["rules"]["custom"]
    assert rule["name"]["as"] == metric["pods"]["metric"]["name"]
    (container,) = files["base/deployment.yaml"][0]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2


@pytest.mark.parametrize(("gpus", "taints"), [("0", []), ("1", ["nvidia.com/gpu"])])
def test_nodes_with_gpus_take_the_servers_that_ask_for_them(rendered: Any, gpus: str, taints: list[str]) -> None:
    """Clusters taint such nodes, so that nothing else is put there."""
    files = rendered("--gpus", gpus)
    for pod in (files["base/deployment.yaml"][0]["spec"]["template"]["spec"], files["kserve/serving.yaml"][0]["spec"]):
        assert [one["key"] for one in pod.get("tolerations", [])] == taints
        (container,) = pod["containers"]
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) == bool(taints)


def test_replicas_and_queue_target_come_from_a_tuning(rendered: Any, run_cli: Run, tmp_path: Path) -> None:
    """A study whose chosen setting carries 114.5 requests a second and then waits 3.2 ms in the queue."""
    study = tmp_path / "study"
    write_study(study, {"requests_per_s": 114.5, "queue_us": 3214.6})
    (scaler,) = rendered("--study", str(study), "--rate", "400")["base/autoscaler.yaml"]
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (4, 8)
    assert scaler["spec"]["metrics"][0]["pods"]["target"]["averageValue"] == "3215"
    argv = ("deploy", "kubernetes", tmp_path / "models", "-o", tmp_path / "b", "--name", "enc")
    refused = run_cli(*argv, "--rate", "400")
    assert (refused.code, "the capacity of a server is not known" in refused.err) == (2, True)
    write_study(tmp_path / "others", {"requests_per_s": 114.5, "queue_us": 3214.6}, model="n")
    refused = run_cli(*argv, "--study", tmp_path / "others")
    told = "the study is of another model (got n; expected a model of the repository: m)"
    assert (refused.code, told in refused.err) == (2, True)
    write_study(study, {"requests_per_s": 0.0, "queue_us": None})
    refused = run_cli(*argv, "--study", study, "--rate", "400")
    assert (refused.code, "says nothing of what a server carries" in refused.err) == (2, True)


def test_what_comes_from_a_tuning_is_told(run_cli: Run, repository: Any, tmp_path: Path) -> None:
    write_study(tmp_path / "study", {"requests_per_s": 114.5, "queue_us": 3214.6})
    models = repository(m=PYTHON)
    (models / "m" / "configs").mkdir()
    other = PYTHON + "dynamic_batching { max_queue_delay_microseconds: 9 }"
    (models / "m" / "configs" / "cpu-2.pbtxt").write_text(other)

    def told(*argv: str, kind: str = "kubernetes") -> list[str]:
        out = tmp_path / "-".join(("out", kind, *argv))
        command = ("deploy", kind, models, "-o", out, "--study", tmp_path / "study", *argv, "--json")
        return [note for note in run_cli(*command).json["data"]["notes"] if "CVE" not in note]

    more = "8 at the most; more are added above 3.21ms of queue time a request"
    asked, *_ = told("--rate", "400", "--gpus", "0")
    assert asked == f"4 replicas at the least, as 400 requests/s come to 114.5 each, {more}"
    assert told("--replicas", "4", "--gpus", "0") == [f"4 replicas at the least, {more}"]
    both, *_ = told("--replicas", "3", "--rate", "400", "--gpus", "0")
    assert both == f"3 replicas at the least, as asked (400 requests/s take 4), {more.replace('8', '6')}"
    otherwise = "dynamic_batching True, not False, max_queue_delay_us 9, not 0"
    for kind in ("kubernetes", "compose"):
        notes = told("--config-name", "cpu-2", kind=kind)
        assert f"the figures of the study do not hold: m is not deployed as tuned ({otherwise})" in "\n".join(notes)


def test_loading_models_takes_a_key_that_a_secret_holds(rendered: Any) -> None:
    """In explicit mode whoever loads a model runs code, and the whole namespace reaches the port."""
    files = rendered("--control", "explicit")
    pods = [body["spec"]["template"]["spec"] for _, body in _core(files) if body["kind"] == "Deployment"]
    for container in (
        *(pod["containers"][0] for pod in pods),
        files["kserve/serving.yaml"][0]["spec"]["containers"][0],
    ):
        guard = "model-repository:triton-control-key=$(TRITON_CONTROL_KEY)"
        assert {f"--http-restricted-api={guard}", f"--grpc-restricted-protocol={guard}"} <= set(container["args"])
        reference = {"secretKeyRef": {"name": "enc-control", "key": "key"}}
        assert {"name": "TRITON_CONTROL_KEY", "valueFrom": reference} in container["env"]
    kubernetes_validate.validate(files["base/deployment.yaml"][0], SUPPORTED[-1], strict=True)


@pytest.mark.parametrize(
    ("bucket", "more", "stored"),
    [
        ("s3://b/m", [], "s3://b/m"),
        ("s3://https://minio.store:9000/b/m", [{"port": 9000}], "s3://b/m"),
        ("s3://10.0.0.7:9000/b", [{"port": 9000}], "s3://b"),
    ],
)
def test_a_store_of_your_own_is_reached(rendered: Any, bucket: str, more: list[Any], stored: str) -> None:
    """Triton asks for it at the port of its URL; KServe takes the address from the credentials."""
    files = rendered("--bucket", bucket)
    (overlay,) = files["overlays/object-store/kustomization.yaml"]
    policy = _patched(files["base/network-policy.yaml"][0], overlay)
    kubernetes_validate.validate(policy, SUPPORTED[-1], strict=True)
    open_ports = [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}, {"port": 443}]
    assert policy["spec"]["egress"] == [{"ports": [*open_ports, *more]}]
    pod = _patched(files["base/deployment.yaml"][0], overlay)["spec"]["template"]["spec"]
    assert f"--model-repository={bucket}" in pod["containers"][0]["args"]
    assert files["kserve/serving.yaml"][1]["spec"]["predictor"]["model"]["storageUri"] == stored


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ((), []),
        (
            ("--bucket", "s3://b/m"),
            [
                (
                    "`kubectl create secret generic enc-object-store --from-env-file=FILE` makes the credentials of "
                    "the bucket; FILE holds AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, "
                    "AWS_DEFAULT_REGION as NAME=VALUE"
                )
            ],
        ),
        (
            ("--bucket", "gs://b/m", "--control", "explicit"),
            [
                (
                    '`kubectl create secret generic enc-control --from-literal=key="$(openssl rand -hex 16)"` makes '
                    "the key that callers of the load API send"
                ),
                (
                    "`kubectl create secret generic enc-object-store --from-file=key.json=FILE` makes the credentials "
                    "of the bucket; FILE is the key of a service account"
                ),
            ],
        ),
    ],
)
def test_the_secrets_that_are_yours_to_make_are_told(
    argv: tuple[str, ...], told: list[str], run_cli: Run, repository: Any, tmp_path: Path
) -> None:
    """By the names under which the objects ask for them."""
    out = tmp_path / "out"
    release = ("--release", "25.07", "--gpus", "0", "--json")
    command = ("deploy", "kubernetes", repository(m=PYTHON), "-o", out, "--name", "enc", *argv, *release)
    assert run_cli(*command).json["data"]["notes"] == told
    written = "".join(path.read_text() for path in out.rglob("*.yaml"))
    assert ("enc-control" in written) == ("explicit" in argv)


def test_names_of_models_are_no_variables(run_cli: Run, minilm_repository: Path, tmp_path: Path) -> None:
    """Kubernetes fills in `$(NAME)` in arguments, and takes `$$` for a `$`."""
    model = Path(shutil.copytree(minilm_repository / "minilm", tmp_path / "models" / "$(HOME)"))
    (model / "config.pbtxt").write_text((model / "config.pbtxt").read_text().replace('name: "minilm"', ""))
    argv = ("deploy", "kubernetes", model.parent, "-o", tmp_path / "out", "--name", "enc")
    done = run_cli(*argv, "--control", "explicit")
    assert done.code == 0, done.err
    deployment = yaml.safe_load((tmp_path / "out/base/deployment.yaml").read_text())
    runtime, _ = yaml.safe_load_all((tmp_path / "out/kserve/serving.yaml").read_text())
    for container in (*deployment["spec"]["template"]["spec"]["containers"], *runtime["spec"]["containers"]):
        assert "--load-model=$$(HOME)" in container["args"]
        assert "--http-restricted-api=model-repository:triton-control-key=$(TRITON_CONTROL_KEY)" in container["args"]


def test_packages_are_in_an_image_of_your_own(run_cli: Run, repository: Any, tmp_path: Path) -> None:
    models, out = repository(m=PYTHON, n=PYTHON), tmp_path / "my out"
    (models / "m" / "requirements.txt").write_text("tokenizers==0.21.0\n")
    argv = ("deploy", "kubernetes", models, "-o", out, "--gpus", "0")
    build = f"docker build --file '{out}/Dockerfile' --build-arg TRITON_IMAGE=nvcr.io/nvidia/tritonserver:25.07-py3"
    told = run_cli(*argv, "--release", "25.07", "--json").json["data"]["notes"]
    assert told == [
        f"`{build} --tag REGISTRY/triton:TAG {models}` makes the image with the packages of m; --server-image names it"
    ]
    copied = 'COPY ["m/requirements.txt", "/tmp/requirements/m/requirements.txt"]'
    assert (out / "Dockerfile").read_text().splitlines()[2:4] == ["FROM ${TRITON_IMAGE}", copied]
    own = ("--server-image", "registry/triton:1", "--release", "25.07", "--force", "--json")
    named = run_cli(*argv, *own).json["data"]["notes"]
    assert named == [f"`{build} --tag registry/triton:1 {models}` makes the image with the packages of m"]
    for file in ("base/deployment.yaml", "kserve/serving.yaml"):
        body = next(yaml.safe_load_all((out / file).read_text()))
        pod = body["spec"].get("template", body)["spec"]
        assert pod["containers"][0]["image"] == "registry/triton:1"


def test_the_claim_has_room_for_the_repository(run_cli: Run, repository: Any, tmp_path: Path) -> None:
    models = repository(m=PYTHON)
    for size, asked, copied in ((1, "10Gi", "2Gi"), (7 * 2**30, "15Gi", "9Gi")):
        with (models / "m" / "1" / "weights.bin").open("wb") as file:
            file.truncate(size)  # takes no place on the disk
        assert run_cli("deploy", "kubernetes", models, "-o", tmp_path / str(size), "--name", "enc").code == 0
        claim = yaml.safe_load((tmp_path / str(size) / "overlays/pvc/claim.yaml").read_text())
        assert claim["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": asked}}}
        base = yaml.safe_load((tmp_path / str(size) / "base/deployment.yaml").read_text())
        for place, room in (("pvc", None), ("object-store", copied), ("image", copied)):
            overlay = yaml.safe_load((tmp_path / str(size) / f"overlays/{place}/kustomization.yaml").read_text())
            (container,) = _patched(base, overlay)["spec"]["template"]["spec"]["containers"]
            assert container["resources"]["requests"].get("ephemeral-storage") == room, place


def test_every_container_is_confined(rendered: Any) -> None:
    files = rendered("--image", "registry/models:1")
    pods = [body["spec"]["template"]["spec"] for _, body in _core(files) if body["kind"] == "Deployment"]
    containers = [one for pod in pods for one in (*pod["containers"], *pod.get("initContainers", ()))]
    kserve = files["kserve/serving.yaml"][0]["spec"]
    assert kserve["containers"][0]["securityContext"]["runAsNonRoot"]
    assert {"cp", "tritonserver"} == {one["command"][0] for one in containers}
    for one in (*containers, *kserve["containers"]):
        context = one["securityContext"]
        assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
        assert context["capabilities"] == {"drop": ["ALL"]}
    for pod in (*pods, kserve):  # what a Python model shares, and where anything else may write
        writable = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if not mount.get("readOnly")}
        assert writable == {"/dev/shm", "/tmp"}
        names = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} - names <= {"models"}


def test_kserve_and_pod_monitor_have_the_fields_of_their_definitions(rendered: Any) -> None:
    """Their schemas are not part of Kubernetes: the fields used here, by hand from their API references."""
    files = rendered("--bucket", "gs://b/m")
    runtime, inference = files["kserve/serving.yaml"]
    assert (runtime["apiVersion"], runtime["kind"]) == ("serving.kserve.io/v1alpha1", "ServingRuntime")
    fields = {"supportedModelFormats", "protocolVersions", "tolerations", "containers", "volumes"}
    assert set(runtime["spec"]) == fields
    assert (inference["apiVersion"], inference["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    model = inference["spec"]["predictor"]["model"]
    assert model["modelFormat"] == {"name": "triton", "version": "2"}
    assert (model["runtime"], model["storageUri"]) == ("enc", "gs://b/m")
    (port,) = runtime["spec"]["containers"][0]["ports"]  # KServe exposes one: what it is asked over must be that
    assert (port["name"], port["containerPort"]) == ("h2c", 8001)
    assert [model["protocolVersion"]] == runtime["spec"]["protocolVersions"] == ["grpc-v2"]
    assert model["modelFormat"]["name"] == runtime["spec"]["supportedModelFormats"][0]["name"]
    (monitor,) = files["base/pod-monitor.yaml"]
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    (rule,) = files["base/alerts.yaml"]
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    (group,) = rule["spec"]["groups"]
    assert all(set(entry) == {"alert", "expr", "for", "labels", "annotations"} for entry in group["rules"])
    ports = files["base/deployment.yaml"][0]["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in {port["name"] for port in ports}


def test_alerts_and_dashboard_ask_for_this_deployment_only(rendered: Any) -> None:
    """By the job that Prometheus gives the pods: their label with the name of the deployment."""
    files = rendered()
    label = files["base/pod-monitor.yaml"][0]["spec"]["jobLabel"]
    assert files["base/deployment.yaml"][0]["spec"]["template"]["metadata"]["labels"][label] == "enc"
    rules = files["base/alerts.yaml"][0]["spec"]["groups"][0]["rules"]
    board = json.loads(files["base/dashboard.yaml"][0]["data"]["enc.json"])
    asked = [rule["expr"] for rule in rules]
    shown = [line for panel in board["panels"] for line in panel["targets"]]
    asked += [line["expr"] for line in shown if "as tuned" not in line["legendFormat"]]
    for expression in asked:
        metrics = re.findall(r"\b(?:nv_\w+|up)\b", expression)
        assert expression.count('{job="enc"') == len(metrics) > 0, expression
    assert (board["uid"], board["title"]) == ("tritune-enc", "Triton: enc")
    assert len(json.loads(dashboard(MonitoringOptions("", job="e" * 52), cache=False))["uid"]) <= 40


@pytest.mark.parametrize(
    ("argv", "overlay"),
    [([], "pvc"), (["--bucket", "s3://b/m"], "object-store"), (["--image", "registry/models:1"], "image")],
)
def test_the_next_command_applies_the_overlay_that_fits(
    argv: list[str], overlay: str, run_cli: Run, repository: Any, tmp_path: Path
) -> None:
    done = run_cli("deploy", "kubernetes", repository(m=PYTHON), "-o", tmp_path / "out", *argv)
    assert done.out.splitlines()[-1] == f"next: kubectl apply -k {tmp_path}/out/overlays/{overlay}"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--name", "Enc_1"], "--name: no name for Kubernetes (got `Enc_1`; expected lower-case letters"),
        (["--bucket", "https://b/m"], "no object store"),
        (
            ["--name", "2024-models"],
            "no name for Kubernetes (got `2024-models`; expected lower-case letters",
        ),
        (["--load-timeout", "10"], "--load-timeout: not a duration"),
        (["--load-timeout", "500ms"], "--load-timeout: too small (got `500ms`; expected 5s or more)"),
        (["--replicas", "5", "--max-replicas", "2"], "--max-replicas: no such number of replicas (got 5 replicas"),
        (["--cpu", "many"], "--cpu: no quantity of Kubernetes (got `many`; expected a quantity above 0 such as 4,"),
        (["--cpu", "0"], "--cpu: no quantity of Kubernetes"),
        (["--memory", "8GiB"], "--memory: no quantity of Kubernetes"),
        (["--memory", "512Mi"], "--memory: no memory is left for Triton (got 512Mi, 1073741824 bytes of it shared"),
        (["--image", "a b"], "--image: no name of an image"),
        (["--image", "../m"], "--image: no name of an image"),
        (["--server-image", "../m"], "--server-image: no name of an image"),
        (["--rate", "0"], "--rate: out of range (got `0`; expected 0.001 to 1000000)"),
        (["--p99", "0s"], "--p99: too small"),
        (["--config-name", "../m"], "--config-name: not a usable hardware name (got `../m`; expected"),
    ],
)
def test_refused(argv: list[str], message: str, run_cli: Run, repository: Any, tmp_path: Path) -> None:
    done = run_cli("deploy", "kubernetes", repository(m=PYTHON), "-o", tmp_path / "out", *argv)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert not (tmp_path / "out").exists()
