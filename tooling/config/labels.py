"""Class names of an output, from the file that stands in the model directory. Layer: config."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tooling.config.proto import ModelConfig
from tooling.signature.spec import ModelSignature

LABELS_FILE: Final = "labels.txt"


def name_labels(config: ModelConfig, signature: ModelSignature, folder: Path | None) -> None:
    """Give the only output with one value for each line of `labels.txt` that file as its `label_filename`.

    Triton's classification extension counts over all values of a row of the batch, so an output with more axes, such as
    classes of every token, cannot have labels; and where two outputs would fit, nobody can say which is meant.
    """
    path = folder / LABELS_FILE if folder else None
    if path is None or not path.is_file():
        return
    try:
        count = len(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError):  # not what `tritune export` writes
        return
    fitting = [tensor.name for tensor in signature.outputs if tensor.dims[1:] == (count,)]
    if len(fitting) == 1:
        next(tensor for tensor in config.output if tensor.name == fitting[0]).label_filename = LABELS_FILE
