"""A release knows the fields of its time; what it does otherwise is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tooling.config.proto import pb
from tooling.config.release_advice import release_advice
from tooling.errors import UsageError
from tooling.releases import current_release, default_release, fields_since, release_named, releases
from tooling.signature.spec import ModelSignature, TensorSpec

SIGNATURE = ModelSignature(Path("model.onnx"), "onnxruntime", (), ())


def test_the_newest_complete_release_is_the_default():
    assert default_release().complete
    assert not any(release.complete for release in releases() if release.tag > default_release().tag)
    assert current_release().tag == "24.10"


def test_an_unknown_release():
    with pytest.raises(UsageError, match=r"no known release of Triton \(got `24\.13`; expected 23\.01 to"):
        release_named("24.13")


def test_every_field_with_a_date_exists():
    paths = set()

    def walk(descriptor) -> None:
        for field in descriptor.fields:
            paths.add(f"{descriptor.full_name.partition('.')[2]}.{field.name}")
        for inner in descriptor.nested_types:
            walk(inner)

    for message in pb().DESCRIPTOR.message_types_by_name.values():
        walk(message)
    known = {release.tag for release in releases()}
    for name, since in fields_since().items():
        assert name in paths and since in known


@pytest.mark.parametrize(
    ("tag", "change", "said"),
    [
        ("24.10", {"opset": 22}, "will not load opset 22 (its ONNX Runtime 1.19.2 takes at most 21)"),
        ("24.10", {"ir_version": 11}, "will not load IR version 11"),
        ("24.10", {"built_with": "10.6.0.26", "backend": "tensorrt"}, "built by TensorRT 10.6.0.26, and Triton 24.10"),
        ("24.10", {"built_with": "10.6.0.26", "version_compatible": True}, "built by TensorRT 10.6.0.26"),
        ("26.02", {"outputs": (TensorSpec("y", "TYPE_BF16", (-1, 4)),)}, "Triton 26.02 will not load BF16 tensors (y;"),
        ("26.08", {"built_with": "10.14.1.48", "backend": "tensorrt"}, "built by TensorRT 10.14.1.48"),
    ],
)
def test_files_of_another_time(tag, change, said):
    assert said in "".join(release_advice(pb().ModelConfig(), replace(SIGNATURE, **change), release_named(tag)))


@pytest.mark.parametrize(
    ("tag", "change"),
    [("24.10", {"built_with": "10.5.0.18"}), ("26.03", {"outputs": (TensorSpec("y", "TYPE_BF16", (-1, 4)),)}),
     ("26.08", {"built_with": "11.3.0.99"}), ("26.09", {"opset": 99}),
     ("24.10", {"built_with": "10.3.0.26", "version_compatible": True}),
     ("24.10", {"backend": "openvino", "ir_version": 11})],
)  # fmt: skip
def test_files_that_fit_or_of_which_nothing_is_known(tag, change):
    assert not list(release_advice(pb().ModelConfig(), replace(SIGNATURE, **change), release_named(tag)))


def test_what_a_release_does_otherwise():
    config = pb().ModelConfig()
    accelerator = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="tensorrt")
    accelerator.parameters["precision_mode"] = "FP16"
    said = {tag: list(release_advice(config, SIGNATURE, release_named(tag))) for tag in ("24.10", "26.01", "26.08")}
    assert [len(lines) for lines in said.values()] == [0, 0, 1]
    assert "precision_mode" in said["26.08"][0]
