"""Class names of an output come from labels.txt where it fits one output, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.config.build import build_config
from tooling.config.knobs import Knobs
from tooling.signature.spec import ModelSignature, TensorSpec

X = TensorSpec("x", "TYPE_FP32", (-1, 4))


def labelled(folder: Path | None, *dims: tuple[int, ...], knobs: Knobs | None = None) -> list[str]:
    """Names of label files of the outputs with these dims."""
    outputs = tuple(TensorSpec(f"y{n}", "TYPE_FP32", shape) for n, shape in enumerate(dims))
    signature = ModelSignature(Path("model.onnx"), "onnxruntime", (X,), outputs)
    return [output.label_filename for output in build_config(signature, "m", knobs or Knobs(), folder=folder).output]


@pytest.mark.parametrize(
    ("dims", "found"),
    [
        (((-1, 3),), ["labels.txt"]),
        (((-1, 3), (-1, 4)), ["labels.txt", ""]),
        (((-1, -1, 3),), [""]),  # of every token: Triton counts over all values of a row
        (((-1, 4),), [""]),
        (((-1, 3), (-1, 3)), ["", ""]),
    ],
)
def test_labels_go_to_the_output_they_fit(dims: tuple[tuple[int, ...], ...], found: list[str], tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("bad\ngood\nüberall\n", encoding="utf-8")
    assert labelled(tmp_path, *dims) == found


def test_without_labels_or_without_batching_there_are_none(tmp_path: Path) -> None:
    assert labelled(tmp_path, (-1, 3)) == [""]
    assert labelled(None, (-1, 3)) == [""]
    (tmp_path / "labels.txt").write_text("a\nb\nc")
    assert labelled(tmp_path, (-1, 3), knobs=Knobs(max_batch_size=0, dynamic_batching=False)) == [""]
    (tmp_path / "labels.txt").write_bytes(b"\xff\n\xfe\nc\n")
    assert labelled(tmp_path, (-1, 3)) == [""]
