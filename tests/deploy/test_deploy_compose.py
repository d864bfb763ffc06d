"""`tritune deploy compose`: what the real Compose makes of it, for every profile."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..compose import read
from .conftest import PYTHON, write_study

Run = Callable[..., Any]
Read = Callable[..., dict[str, Any]]


def test_gpu_service_by_default(run_cli: Run, repository: Any, services: Read, tmp_path: Path) -> None:
    models = repository(m=PYTHON)
    done = run_cli("deploy", "compose", models, "--output", tmp_path / "out")
    assert done.code == 0, done.err
    (name,) = found = services(tmp_path / "out")
    assert name == "triton"
    triton = found["triton"]
    assert triton["image"] == "nvcr.io/nvidia/tritonserver:24.10-py3"
    assert [(p["host_ip"], p["published"], p["target"]) for p in triton["ports"]] == [
        ("127.0.0.1", str(port), port) for port in (8000, 8001, 8002)
    ]
    (mount,) = triton["volumes"]
    assert (mount["source"], mount["target"], mount["read_only"]) == (str(models.resolve()), "/models", True)
    (device,) = triton["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", -1, ["gpu"])
    everything = services(tmp_path / "out", "cpu", "tune", "build", "monitoring")
    assert set(everything) == {"triton", "triton-cpu", "build", "prometheus", "grafana"}
    for service in everything.values():
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", ()))
        for mounted in (one for one in service["volumes"] if one["type"] == "bind"):
            assert Path(mounted["source"]).exists()


def test_what_prometheus_measured_is_kept_for_the_yearly_review(
    run_cli: Run, repository: Any, services: Read, tmp_path: Path
) -> None:
    """In a rendered project and in a checkout: beyond `docker compose down`, and for longer than its 15 days."""
    assert run_cli("deploy", "compose", repository(m=PYTHON), "-o", tmp_path / "out").code == 0
    for project in (tmp_path / "out", Path(__file__).parents[2]):
        prometheus = services(project, "monitoring")["prometheus"]
        (kept,) = (mount for mount in prometheus["volumes"] if mount["type"] == "volume")
        assert f"--storage.tsdb.path={kept['target']}" in prometheus["command"]
        assert "--storage.tsdb.retention.time=400d" in prometheus["command"]
        (config,) = (mount["target"] for mount in prometheus["volumes"] if mount["type"] == "bind")
        assert f"--config.file={config}/prometheus.yml" in prometheus["command"]


def test_a_config_for_other_hardware_is_told_and_one_that_is_left_aside(
    run_cli: Run, repository: Any, tmp_path: Path
) -> None:
    models = repository(m=PYTHON)
    (models / "m" / "configs").mkdir()
    for name in ("cpu-2", "gpu-h200-x1"):
        (models / "m" / "configs" / f"{name}.pbtxt").write_text(PYTHON)
    for number, (options, said) in enumerate(
        (
            (("--config-name", "cpu-2"), "configs/cpu-2.pbtxt was made for a CPU and is served on GPUs"),
            (("--config-name", "cpu-2", "--gpus", "none"), None),
            (("--config-name", "gpu-h200-x1"), None),
            (("--config-name", "gpu-h200-x1", "--gpus", "none"), "was made for GPUs and is served on CPUs"),
            ((), "--config-name takes what was made for one kind of hardware: cpu-2, gpu-h200-x1"),
        )
    ):
        done = run_cli("deploy", "compose", models, "-o", tmp_path / f"out{number}", *options)
        assert done.code == 0, done.err
        told = "made for" in done.out + done.err
        assert told == (said is not None) and (said or "") in done.out + done.err, options


def test_flags_follow_the_models(run_cli: Run, repository: Any, services: Read, tmp_path: Path) -> None:
    cached = PYTHON + "response_cache { enable: true }\n"
    limited = PYTHON + (
        'instance_group { kind: KIND_CPU count: 2 rate_limiter { resources { name: "R" count: 3 } priority: 1 } }\n'
    )
    models = repository(a=cached, b=limited)
    assert (
        run_cli("deploy", "compose", models, "-o", tmp_path / "out", "--control", "explicit", "--gpus", "none").code
        == 0
    )
    triton = services(tmp_path / "out")["triton"]
    assert triton["command"] == [
        *("tritonserver", "--model-repository=/models", "--metrics-config=summary_latencies=true"),
        *("--model-control-mode=explicit", "--load-model=a", "--load-model=b"),
        *("--cache-config=local,size=104857600", "--rate-limit=execution_count", "--rate-limit-resource=R:3"),
    ]
    assert "devices" not in triton["deploy"]["resources"].get("reservations", {})
    assert "triton-cpu" not in (tmp_path / "out" / "docker-compose.yml").read_text()


def test_what_was_tuned_is_drawn_beside_what_is(run_cli: Run, repository: Any, tmp_path: Path) -> None:
    write_study(tmp_path / "study", {"requests_per_s": 114.5, "queue_us": 3214.6}, mean_batch=2.5)
    argv = ("deploy", "compose", repository(m=PYTHON), "-o", tmp_path / "out", "--study", tmp_path / "study")
    done = run_cli(*argv)
    assert done.code == 0, done.err
    assert "tritonserver:24.10 needs NVIDIA driver 525 or newer" in done.out
    board = json.loads((tmp_path / "out/monitoring/grafana/dashboards/triton.json").read_text())
    lines = {target["legendFormat"]: target["expr"] for panel in board["panels"] for target in panel["targets"]}
    assert (lines["queue as tuned"], lines["as tuned"]) == ("vector(3215)", "vector(2.5)")
    assert "> 3215" in (tmp_path / "out/monitoring/alerts.yml").read_text()


def test_a_host_whose_driver_is_too_old_is_told(
    run_cli: Run, repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 470.199\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    done = run_cli("deploy", "compose", repository(m=PYTHON), "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert "tritonserver:24.10 needs a newer driver than 470: 525 (CUDA 12.6.2)" in done.out


def test_pools_of_memory(run_cli: Run, repository: Any, services: Read, tmp_path: Path) -> None:
    argv = ("deploy", "compose", repository(m=PYTHON), "-o", tmp_path / "out")
    pools = ("--pinned-pool", "512MiB", "--cuda-pool", "128MiB")
    refused = run_cli(*argv, *pools)
    assert (refused.code, "there is a pool for each GPU (got all GPUs" in refused.err) == (2, True)
    assert run_cli(*argv, *pools, "--gpus", "2,3").code == 0
    triton = services(tmp_path / "out")["triton"]
    assert triton["command"][3:] == [  # counted as the server sees them
        "--pinned-memory-pool-byte-size=536870912",
        "--cuda-memory-pool-byte-size=0:134217728",
        "--cuda-memory-pool-byte-size=1:134217728",
    ]


def test_a_repository_in_an_object_store(
    run_cli: Run, repository: Any, services: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton reads it there; credentials come from the environment and stand in no file."""
    models = repository(m=PYTHON)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    assert run_cli("deploy", "compose", models, "-o", tmp_path / "s3", "--bucket", "s3://b/models").code == 0
    triton = services(tmp_path / "s3")["triton"]
    assert "--model-repository=s3://b/models" in triton["command"]
    assert triton["environment"]["AWS_SECRET_ACCESS_KEY"] == "s3cret" and "volumes" not in triton
    assert not [path for path in (tmp_path / "s3").rglob("*.*") if "s3cret" in path.read_text()]
    (tmp_path / "key.json").write_text("{}")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    assert run_cli("deploy", "compose", models, "-o", tmp_path / "gs", "--bucket", "gs://b/models").code == 0
    triton = services(tmp_path / "gs")["triton"]
    assert triton["secrets"] == [{"source": "object-store-key", "target": "/run/secrets/object-store-key"}]
    assert triton["environment"]["GOOGLE_APPLICATION_CREDENTIALS"] == "/run/secrets/object-store-key"


def test_loading_models_takes_a_key_where_others_reach_the_port(
    run_cli: Run, repository: Any, services: Read, tmp_path: Path
) -> None:
    argv = ("deploy", "compose", repository(m=PYTHON), "--control", "explicit", "-o")
    assert run_cli(*argv, tmp_path / "here").code == 0
    triton = services(tmp_path / "here", TRITON_HOST="0.0.0.0")["triton"]
    assert not [word for word in triton["command"] if "restricted" in word]
    assert {port["host_ip"] for port in triton["ports"]} == {"127.0.0.1"}  # without the key, whatever .env says
    assert run_cli(*argv, tmp_path / "out", "--host", "0.0.0.0").code == 0
    with pytest.raises(AssertionError, match=r"\(1, 'error"):
        services(tmp_path / "out")
    command = services(tmp_path / "out", TRITON_CONTROL_KEY="k")["triton"]["command"]
    assert "--http-restricted-api=model-repository:triton-control-key=k" in command
    assert "--grpc-restricted-protocol=model-repository:triton-control-key=k" in command


def test_gpus_are_narrowed_by_the_environment(
    run_cli: Run, repository: Any, services: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_cli("deploy", "compose", repository(m=PYTHON), "-o", tmp_path / "out").code == 0
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert services(tmp_path / "out")["triton"]["environment"] == {"CUDA_VISIBLE_DEVICES": None}  # not set at all
    settings = tmp_path / "out" / ".env"
    settings.write_text(settings.read_text() + "CUDA_VISIBLE_DEVICES=0,1\n")
    assert services(tmp_path / "out")["triton"]["environment"] == {"CUDA_VISIBLE_DEVICES": "0,1"}


def test_packages_make_an_image(run_cli: Run, repository: Any, services: Read, tmp_path: Path) -> None:
    models = repository(m=PYTHON)
    (models / "m" / "requirements.txt").write_text("tokenizers==0.21.0\n")
    assert run_cli("deploy", "compose", models, "-o", tmp_path / "out").code == 0
    triton = services(tmp_path / "out")["triton"]
    build = triton["build"]
    assert triton["pull_policy"] == "build"
    assert Path(build["context"]) == models.resolve()
    assert (Path(build["context"]) / build["dockerfile"]).resolve() == tmp_path / "out" / "Dockerfile"
    assert build["args"] == {"TRITON_IMAGE": "nvcr.io/nvidia/tritonserver:24.10-py3"}
    lines = (tmp_path / "out" / "Dockerfile").read_text().splitlines()
    assert lines[2:4] == ["FROM ${TRITON_IMAGE}", 'COPY ["m/requirements.txt", "/tmp/requirements/m/requirements.txt"]']


@pytest.mark.live
def test_the_sweep_sends_valid_requests(run_cli: Run, minilm_repository: Path, services: Read, tmp_path: Path) -> None:
    assert run_cli("deploy", "compose", minilm_repository, "-o", tmp_path / "out").code == 0
    tune = services(tmp_path / "out", "tune")["tune"]
    assert tune["image"] == "nvcr.io/nvidia/tritonserver:24.10-py3-sdk"
    assert {"--model-name=minilm", "--input-data=/requests/minilm.json", "triton:8001"} <= set(tune["command"])
    requests = json.loads((tmp_path / "out" / "requests" / "minilm.json").read_text())["data"]
    assert len(requests) > 1
    assert all(0 <= token < 30522 for step in requests for token in step["input_ids"]["content"])


def test_odd_paths(run_cli: Run, repository: Any, services: Read, tmp_path: Path) -> None:
    models = repository(m=PYTHON).rename(tmp_path / "mödels $HOME #1")
    done = run_cli("deploy", "compose", models, "-o", tmp_path / "a b")
    assert done.out.splitlines()[-1] == f"next: docker compose --project-directory '{tmp_path}/a b' up"
    source = services(tmp_path / "a b")["triton"]["volumes"][0]["source"]
    assert source.replace("$$", "$") == str(models.resolve())  # Compose prints `$` as it must be written


@pytest.mark.parametrize(
    ("directory", "project"),
    [
        ("123", "123"),
        ("null", "null"),
        ("1e3", "1e3"),
        ("Mo_Dels.v2", "mo_dels-v2"),
        ('möd\'$(id) "q"', "m-d---id---q"),
    ],
)
def test_names_of_projects(directory: str, project: str, run_cli: Run, repository: Any, tmp_path: Path) -> None:
    """Compose takes a text and nothing else, and only some letters."""
    models = repository(m=PYTHON).rename(tmp_path / directory)
    assert run_cli("deploy", "compose", models, "-o", tmp_path / "out").code == 0
    assert read(tmp_path / "out")["name"] == project


def test_names_of_models(run_cli: Run, minilm_repository: Path, services: Read, tmp_path: Path) -> None:
    """Triton takes any letters: compose, its `$`, YAML, the shell and Docker must hand them on."""
    name = "a #b: $HOME \"q\" 'p'"
    model = Path(shutil.copytree(minilm_repository / "minilm", tmp_path / "models" / name))
    (model / "config.pbtxt").write_text((model / "config.pbtxt").read_text().replace('name: "minilm"', ""))
    (model / "requirements.txt").write_text("tokenizers==0.21.0\n")
    argv = ("deploy", "compose", model.parent, "-o", tmp_path / "out", "--control", "explicit")
    done = run_cli(*argv)
    assert done.code == 0, done.err
    found = services(tmp_path / "out", "tune")
    for service, word in (
        ("triton", f"--load-model={name}"),
        ("tune", f"--model-name={name}"),
        ("tune", f"--input-data=/requests/{name}.json"),
    ):
        assert word.replace("$", "$$") in found[service]["command"]  # as Compose prints it
    assert (tmp_path / "out" / "requests" / f"{name}.json").is_file()
    copy, run = (tmp_path / "out" / "Dockerfile").read_text().splitlines()[3:5]
    path = f"{name}/requirements.txt"
    assert json.loads(copy.removeprefix("COPY ")) == [
        place.replace("$", "\\$") for place in (path, f"/tmp/requirements/{path}")
    ]
    assert shlex.split(run)[4:6] == ["--requirement", f"/tmp/requirements/{path}"]


def test_what_is_there_is_kept(run_cli: Run, repository: Any, tmp_path: Path) -> None:
    models, out = repository(m=PYTHON), tmp_path / "out"
    assert run_cli("deploy", "compose", models, "-o", out).code == 0
    again = run_cli("deploy", "compose", models, "-o", out)
    assert (again.code, again.out.splitlines()[0]) == (0, "9 files are there unchanged")
    (out / ".env").write_text("TRITON_HTTP_PORT=9000\n")
    refused = run_cli("deploy", "compose", models, "-o", out, "--http-port", "8100")
    assert refused.code == 2
    assert f"{out / '.env'}: is there with another content" in refused.err
    assert (out / ".env").read_text() == "TRITON_HTTP_PORT=9000\n"
    assert run_cli("deploy", "compose", models, "-o", out, "--http-port", "8100", "--force").code == 0
    assert "TRITON_HTTP_PORT=8100" in (out / ".env").read_text()


@pytest.mark.parametrize("place", ["", "deployment", "m/deploy"])
def test_files_do_not_go_into_the_repository(place: str, run_cli: Run, repository: Any, tmp_path: Path) -> None:
    """Triton takes every directory there for a model, and ends when one is none."""
    models = repository(m=PYTHON)
    before = sorted(tmp_path.rglob("*"))
    for kind in ("compose", "kubernetes"):
        done = run_cli("deploy", kind, models, "-o", models / place)
        assert (done.code, done.out) == (2, "")
        assert "--output: the files would stand in the model repository" in done.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_that_no_requests_can_be_made_for_is_deployed_without_a_sweep(
    run_cli: Run, minilm_repository: Path, services: Read, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    shutil.copytree(minilm_repository, models)
    shutil.rmtree(models / "minilm" / "tokenizer")
    done = run_cli("deploy", "compose", models, "-o", tmp_path / "out", "--json").json["data"]
    assert done["notes"][0].startswith("no service `tune`, which sends requests to minilm: ")
    assert "the tokenizer is missing" in done["notes"][0]
    assert set(services(tmp_path / "out", "tune")) == {"triton"}
    asked = run_cli("deploy", "compose", models, "-o", tmp_path / "other", "--sweep", "minilm")
    assert (asked.code, "the tokenizer is missing" in asked.err) == (2, True)


def test_monitoring_gets_ports_that_the_server_leaves_free(
    run_cli: Run, repository: Any, services: Read, tmp_path: Path
) -> None:
    ports = ("--http-port", 3000, "--grpc-port", 9090, "--metrics-port", 9091)
    assert run_cli("deploy", "compose", repository(m=PYTHON), "-o", tmp_path / "out", *ports).code == 0
    found = services(tmp_path / "out", "monitoring")
    assert [found[name]["ports"][0]["published"] for name in ("prometheus", "grafana")] == ["9092", "3001"]


def test_an_address_of_the_sixth_version(run_cli: Run, repository: Any, services: Read, tmp_path: Path) -> None:
    assert run_cli("deploy", "compose", repository(m=PYTHON), "-o", tmp_path / "out", "--host", "::1").code == 0
    assert {port["host_ip"] for port in services(tmp_path / "out")["triton"]["ports"]} == {"::1"}


@pytest.mark.parametrize(
    ("kind", "argv", "told"),
    [
        ("compose", [], False),
        ("compose", ["--host", "0.0.0.0"], True),
        ("compose", ["--host", "0.0.0.0", "--release", "25.07"], False),
        ("kubernetes", [], True),
        ("kubernetes", ["--release", "25.09"], False),
    ],
)
def test_holes_of_old_releases_are_told_where_others_reach_the_ports(
    kind: str, argv: list[str], told: bool, run_cli: Run, repository: Any, tmp_path: Path
) -> None:
    done = run_cli("deploy", kind, repository(m=PYTHON), "-o", tmp_path / "out", *argv)
    assert done.code == 0, done.err
    assert ("may crash it or run code in it (CVE-2025-23310, -23319): take --release 25.07" in done.out) == told


def test_both_deployments_may_stand_in_one_directory(run_cli: Run, repository: Any, tmp_path: Path) -> None:
    models = repository(m=PYTHON)
    for kind in ("compose", "kubernetes", "compose"):
        assert run_cli("deploy", kind, models, "-o", tmp_path / "deploy").code == 0


def test_the_models_of_engines_are_mounted_where_their_arguments_look(
    run_cli: Run, repository: Any, services: Read, tmp_path: Path
) -> None:
    """Weights outside of the repository under their own names; those in it are there already."""
    models, weights = repository(llm='backend: "vllm"\n', own='backend: "vllm"\n'), tmp_path / "my llama"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    (models / "llm" / "1" / "model.json").write_text(json.dumps({"model": str(weights), "tokenizer": str(weights)}))
    (models / "own" / "1" / "model.json").write_text('{"model": "/models/own/1/weights"}')
    assert run_cli("deploy", "compose", models, "-o", tmp_path / "out").code == 0
    mounts = services(tmp_path / "out")["triton"]["volumes"]
    assert [(one["source"], one["target"], one["read_only"]) for one in mounts] == [
        (str(models.resolve()), "/models", True),
        (str(weights), str(weights), True),
    ]
    assert run_cli("deploy", "compose", models, "-o", tmp_path / "s3", "--bucket", "s3://b/models").code == 0
    (mount,) = services(tmp_path / "s3")["triton"]["volumes"]
    assert mount["target"] == str(weights)
    told = run_cli("deploy", "kubernetes", models, "-o", tmp_path / "k8s").out
    assert f"engines read models from {weights}: the pods must have them there" in told
