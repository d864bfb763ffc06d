"""The command lines that build engines, for TensorRT 10 and 11."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from export.engine.request import EngineRequest, check_request, check_source
from export.engine.trtexec import container_command, trtexec_arguments
from tooling.errors import UsageError

Make = Callable[..., EngineRequest]
# Flags that TensorRT 11 dropped; each makes trtexec print its help and fail.
GONE_IN_11 = ("--fp16", "--bf16", "--fp8", "--int4", "--best", "--stronglyTyped", "--calib", "--precisionConstraints")


def test_the_container_of_a_release_with_tensorrt_10(request_for: Make, tmp_path: Path) -> None:
    request = request_for("24.10", fp16=True, workspace_bytes=4 << 30, timing_cache=tmp_path / "cache" / "timing")
    assert container_command(request) == (
        *("docker", "run", "--rm", "--gpus", "device=0", "--network", "none"),
        *("--user", f"{os.getuid()}:{os.getgid()}"),
        *("--mount", f"type=bind,source={tmp_path},target=/onnx,readonly"),
        *("--mount", f"type=bind,source={tmp_path}/repository/enc/1,target=/plan"),
        *("--mount", f"type=bind,source={tmp_path}/cache,target=/cache"),
        *("nvcr.io/nvidia/tensorrt:24.10-py3", "trtexec", "--onnx=/onnx/model.onnx", "--saveEngine=/plan/model.plan"),
        "--fp16",
        "--minShapes=input_ids:1x1,attention_mask:1x1",
        "--optShapes=input_ids:4x128,attention_mask:4x128",
        "--maxShapes=input_ids:8x128,attention_mask:8x128",
        *("--memPoolSize=workspace:4096", "--timingCacheFile=/cache/timing", "--skipInference"),
    )


def test_buckets_are_profiles_in_order(request_for: Make, tmp_path: Path) -> None:
    request = request_for("24.10", edges=(64, 128), version_compatible=True, hardware_compatibility="ampere+")
    assert trtexec_arguments(request) == (
        f"--onnx={tmp_path}/model.onnx",
        f"--saveEngine={tmp_path}/repository/enc/1/model.plan",
        "--stronglyTyped",
        "--profile=0",
        "--minShapes=input_ids:1x1,attention_mask:1x1",
        "--optShapes=input_ids:4x64,attention_mask:4x64",
        "--maxShapes=input_ids:8x64,attention_mask:8x64",
        "--profile=1",
        "--minShapes=input_ids:1x65,attention_mask:1x65",
        "--optShapes=input_ids:4x128,attention_mask:4x128",
        "--maxShapes=input_ids:8x128,attention_mask:8x128",
        *("--versionCompatible", "--hardwareCompatibilityLevel=ampere+", "--skipInference"),
    )


@pytest.mark.parametrize("fp16", [False, True])
def test_tensorrt_11_has_no_precision_flags(request_for: Make, fp16: bool) -> None:
    request = request_for("26.08", weights="FLOAT16", fp16=fp16)
    check_request(request)
    arguments = trtexec_arguments(request)
    assert not [flag for flag in arguments if flag.startswith(GONE_IN_11)]
    assert container_command(request)[container_command(request).index("trtexec") - 1].endswith("tensorrt:26.08-py3")


def test_the_container_of_a_release_with_tensorrt_11(request_for: Make, tmp_path: Path) -> None:
    fields = {"workspace_bytes": 4 << 30, "version_compatible": True, "weight_streaming": True, "gpu": 1}
    request = request_for(
        "26.08", weights="FLOAT16", fp16=True, hardware_compatibility="same-compute-capability", **fields
    )
    check_request(request)
    assert container_command(request) == (
        *("docker", "run", "--rm", "--gpus", "device=1", "--network", "none"),
        *("--user", f"{os.getuid()}:{os.getgid()}"),
        *("--mount", f"type=bind,source={tmp_path},target=/onnx,readonly"),
        *("--mount", f"type=bind,source={tmp_path}/repository/enc/1,target=/plan"),
        *("nvcr.io/nvidia/tensorrt:26.08-py3", "trtexec", "--onnx=/onnx/model.onnx", "--saveEngine=/plan/model.plan"),
        "--minShapes=input_ids:1x1,attention_mask:1x1",
        "--optShapes=input_ids:4x128,attention_mask:4x128",
        "--maxShapes=input_ids:8x128,attention_mask:8x128",
        *("--memPoolSize=workspace:4096", "--versionCompatible", "--hardwareCompatibilityLevel=sameComputeCapability"),
        *("--allowWeightStreaming", "--skipInference"),
    )


def test_a_path_that_docker_would_take_apart(request_for: Make, tmp_path: Path) -> None:
    """docker reads a mount as comma-separated values."""
    request = request_for("24.10", timing_cache=tmp_path / 'a, "b"' / "timing")
    assert f'type=bind,"source={tmp_path}/a, ""b""",target=/cache' in container_command(request)


@pytest.mark.parametrize(
    ("release", "fields", "message"),
    [
        (
            "25.02",
            {"hardware_compatibility": "same-compute-capability"},
            r"TensorRT 10\.8\.0\.43 builds no plan for all .*expected 25\.03 or newer: TensorRT has it since 10\.9",
        ),
        ("24.04", {}, r"engines cannot be built for Triton 24\.04 \(got TensorRT 8\.6\.3"),
        ("26.08", {"fp16": True}, r"TensorRT 11 takes the precision from the ONNX file"),
        ("24.10", {"fp16": True, "weight_streaming": True}, "weight streaming needs a strongly typed network"),
    ],
)
def test_what_a_release_cannot_do(request_for: Make, release: str, fields: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_request(request_for(release, **fields))


@pytest.mark.parametrize("release", ["25.03", "26.02", "26.08"])
def test_every_newer_release_builds_for_all_gpus_of_a_capability(request_for: Make, release: str) -> None:
    request = request_for(release, hardware_compatibility="same-compute-capability")
    check_request(request)
    assert "--hardwareCompatibilityLevel=sameComputeCapability" in trtexec_arguments(request)


def test_operators_of_onnx_runtime_alone(encoder: Callable[..., Path]) -> None:
    path = encoder(operator="EmbedLayerNormalization", domain="com.microsoft")
    with pytest.raises(UsageError, match=r"EmbedLayerNormalization \(com\.microsoft\) is not a standard ONNX op"):
        check_source(path)


def test_external_data_must_be_beside_the_file(encoder: Callable[..., Path]) -> None:
    path = encoder(external=True)
    with pytest.raises(UsageError, match=r"external data file model\.onnx\.data is missing next to model\.onnx"):
        check_source(path)
    path.with_name("model.onnx.data").write_bytes(b"\0" * 100)
    with pytest.raises(UsageError, match="external data is cut short"):
        check_source(path)
    path.with_name("model.onnx.data").write_bytes(b"\0" * 1024)
    assert check_source(path).signature is not None


def test_types_that_an_engine_has_not(encoder: Callable[..., Path]) -> None:
    path = encoder((("input_ids", "INT64", ["batch", "seq"]), ("weight", "DOUBLE", ["batch", "seq"])))
    with pytest.raises(UsageError, match="an engine cannot take or give tensor weight"):
        check_source(path)
