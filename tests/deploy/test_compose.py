"""The compose file as the real Compose reads it: image, devices, ports, mounts, profiles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tooling.releases import current_release

from ..compose import compose, read

ROOT = Path(__file__).parents[2]


def services(*argv: str, **variables: str) -> dict[str, Any]:
    return dict(read(ROOT, *argv, **variables)["services"])


def test_plain_up_is_the_gpu_service_alone():
    (name, service), *others = services().items()
    assert name == "triton" and not others
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", -1, ["gpu"])


def test_the_cpu_service_differs_only_in_its_profile_and_devices():
    both = services("--profile", "cpu")
    cpu, gpu = both["triton-cpu"], both["triton"]
    assert cpu.pop("profiles") == ["cpu"]
    assert cpu.pop("networks") == {"default": {"aliases": ["triton"]}}
    gpu["deploy"]["resources"].pop("reservations"), gpu.pop("networks")
    assert cpu == gpu


@pytest.mark.parametrize("name", ["triton", "triton-cpu"])
def test_both_serve_the_repository_on_loopback(name):
    service = services("--profile", "cpu")[name]
    assert [(p["host_ip"], p["published"], p["target"]) for p in service["ports"]] == [
        ("127.0.0.1", str(port), port) for port in (8000, 8001, 8002)
    ]
    mounts = {m["target"]: m for m in service["volumes"]}
    assert mounts["/models"]["source"] == str(ROOT / "model_repository")
    assert all(m["read_only"] and Path(m["source"]).exists() for m in mounts.values())
    assert service["command"][-1] in mounts
    assert "entrypoint" not in service or service["entrypoint"] is None
    assert int(service["shm_size"]) == 2**30
    assert service["healthcheck"]["test"][0] == "CMD"
    assert "http://127.0.0.1:8000/v2/health/ready" in service["healthcheck"]["test"][-1]


def test_the_image_is_the_current_release():
    assert services()["triton"]["image"] == f"nvcr.io/nvidia/tritonserver:{current_release().tag}-py3"


def test_settings_are_taken_from_the_environment():
    service = services(
        TRITON_RELEASE="24.12",
        TRITON_HTTP_PORT="9000",
        TRITON_HOST="0.0.0.0",
        TRITON_CONFIG_NAME="gpu-h200-x1",
        TRITON_MODEL_CONTROL="explicit",
        TRITON_CONTROL_KEY="k",
        TRITON_MEMORY_LIMIT="16gb",
        CUDA_VISIBLE_DEVICES="1",
    )["triton"]
    assert service["image"].endswith(":24.12-py3")
    assert (service["ports"][0]["host_ip"], service["ports"][0]["published"]) == ("0.0.0.0", "9000")
    assert service["environment"] == {
        "TRITON_HOST": "0.0.0.0",
        "TRITON_CONTROL_KEY": "k",
        "TRITON_CONFIG_NAME": "gpu-h200-x1",
        "TRITON_MODEL_CONTROL": "explicit",
        "TRITON_CACHE_SIZE": "",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    assert int(service["deploy"]["resources"]["limits"]["memory"]) == 16 * 2**30


def test_sweep_monitoring_and_builder_stand_beside_it(minilm_repository, run_cli, tmp_path, update_golden):
    """Their files are what `tritune deploy compose` writes for the example model."""
    assert run_cli("deploy", "compose", minilm_repository, "--output", tmp_path).code == 0
    kept = ROOT / "tooling" / "data" / "monitoring"
    written = (tmp_path / "monitoring").rglob("*.*")  # the pages are those of docs/
    pairs = {path: kept / path.relative_to(tmp_path / "monitoring") for path in written if path.suffix != ".md"}
    pairs[tmp_path / "requests" / "minilm.json"] = ROOT / "perf" / "data" / "minilm-requests.json"
    for written, ours in pairs.items():
        if update_golden:
            ours.parent.mkdir(parents=True, exist_ok=True)
            ours.write_bytes(written.read_bytes())
        assert written.read_bytes() == ours.read_bytes(), ours
    everything = services(*(f"--profile={name}" for name in ("tune", "monitoring", "build")))
    assert set(everything) == {"triton", "tune", "prometheus", "grafana", "build"}
    for service in everything.values():
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", ()))
        assert all(Path(mount["source"]).exists() for mount in service["volumes"] if mount["type"] == "bind")
    tag = current_release().tag
    assert everything["tune"]["image"] == f"nvcr.io/nvidia/tritonserver:{tag}-py3-sdk"
    assert everything["build"]["image"] == f"nvcr.io/nvidia/tensorrt:{tag}-py3"


def test_without_a_release_compose_says_where_it_stands():
    done = compose(ROOT, "--env-file", "/dev/null", "config")
    assert done.returncode != 0 and "TRITON_RELEASE" in done.stderr and ".env" in done.stderr


def test_every_setting_of_the_compose_file_stands_in_the_env_file():
    text = (ROOT / "docker-compose.yml").read_text()
    used = {*re.findall(r"\$\{(\w+)", text), *re.findall(r"^ +([A-Z_]+):(?: #.*)?$", text, re.MULTILINE)}
    stated = set(re.findall(r"^(?:# )?(\w+)=", (ROOT / ".env").read_text(), re.MULTILINE))
    assert used == stated


def test_the_current_release_is_what_the_runtime_installs():
    from tooling.runtime.location import PINS, RELEASE

    release = current_release()
    assert (release.tag, release.onnxruntime) == (RELEASE, PINS["onnxruntime"])
    assert release.tritonserver == PINS["tritonclient"]  # perf_analyzer of the server's own release
