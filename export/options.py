"""What a person may ask of an export beside its source. Layer: export, bottom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Precision = Literal["fp32", "fp16", "int8"]
Exporter = Literal["dynamo", "torchscript"]

OPSETS: Final = range(14, 24)
"""The operator sets that an exporter writes."""

# protobuf ends at 2 GiB, and the graph needs some room beside the weights.
INLINE_BYTES: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Everything left out is decided from the source: its own task, the exporter that verifies, the tested release.

    `convert_io` makes inputs and outputs half precision too. Weights of more than `inline_bytes` stand in a file of
    their own.
    """

    task: str | None = None
    opset: int | None = None
    release: str | None = None
    exporter: Exporter | None = None
    precision: Precision = "fp32"
    convert_io: bool = False
    optimize: bool = False
    trust_remote_code: bool = False
    inline_bytes: int = INLINE_BYTES
