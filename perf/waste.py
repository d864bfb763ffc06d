"""How much of what is computed is padding, and what would mend it. Layer: bottom of perf, pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tooling.errors import UsageError
from tooling.signature.roles import role
from tooling.signature.spec import ModelSignature

Lengths = Sequence[int]


@dataclass(frozen=True, slots=True)
class Padding:
    """`share` of the computed tokens is padding: requests of up to `rows` rows are padded to up to `length` tokens.

    `smaller_batch` is the largest number of rows that halves the padding (or 1), `edge` the length whose bucket, beside
    that of the longest, saves most; each with the share that would remain. None where it would save nothing.
    """

    share: float
    rows: int
    length: int
    smaller_batch: tuple[int, float] | None = None
    edge: tuple[int, float] | None = None

    @property
    def mend(self) -> str:
        """The knobs that move it, in words."""
        ways = []
        if self.smaller_batch:
            rows, share = self.smaller_batch
            ways.append(f"requests of {rows} row{'s' * (rows != 1)} instead of {self.rows}: {share:.0%} padding")
        if self.edge:
            length, share = self.edge
            ways.append(f"a bucket edge at {length} tokens beside {self.length}: {share:.0%} padding")
        return "; ".join(ways) or "requests that are filled better"


def padding_of(requests: Sequence[tuple[int, Lengths]]) -> Padding:
    """The padding of requests, each its padded length and the real length of each of its rows.

    Raises ValueError for no request, or for rows that are longer than their request.
    """
    if not requests or any(not rows or max(rows) > padded for padded, rows in requests):
        raise ValueError("requests need rows that are not longer than the request")
    computed = sum(padded * len(rows) for padded, rows in requests)
    real = sum(sum(rows) for _, rows in requests)
    most_rows, longest = max(len(rows) for _, rows in requests), max(padded for padded, _ in requests)
    share = 1 - real / computed
    return Padding(share, most_rows, longest, _smaller_batch(requests, real, share), _edge(requests, real, share))


def _smaller_batch(requests: Sequence[tuple[int, Lengths]], real: int, share: float) -> tuple[int, float] | None:
    """Rows that are padded to the longest of their request have less to pad to in a smaller one."""
    best: tuple[int, float] | None = None
    rows = max(len(rows) for _, rows in requests) // 2
    while rows >= 1:
        parts = [(padded, lengths[i : i + rows]) for padded, lengths in requests for i in range(0, len(lengths), rows)]
        computed = sum(_refilled(padded, part, requests) * len(part) for padded, part in parts)
        left = 1 - real / computed
        if left < share - 0.01:
            best = (rows, left)
        if left <= share / 2:
            return best
        rows //= 2
    return best


def _refilled(padded: int, part: Lengths, requests: Sequence[tuple[int, Lengths]]) -> int:
    """What a smaller request is padded to: its longest row, unless all requests have one fixed length."""
    fixed = len({length for length, _ in requests}) == 1 and any(max(rows) < length for length, rows in requests)
    return padded if fixed else max(part)


def _edge(requests: Sequence[tuple[int, Lengths]], real: int, share: float) -> tuple[int, float] | None:
    """The edge below the longest that leaves the least to compute when each request goes to the next edge."""
    longest = max(padded for padded, _ in requests)
    needs = [(max(rows), len(rows)) for _, rows in requests]
    edges = sorted({need for need, _ in needs if need < longest})
    found = [(sum((edge if need <= edge else longest) * rows for need, rows in needs), edge) for edge in edges]
    if not found:
        return None
    computed, edge = min(found)
    left = 1 - real / computed
    return (edge, left) if left < share - 0.01 else None


def fixed_shape_padding(signature: ModelSignature, lengths: Lengths, *, batching: bool) -> Padding | None:
    """The padding of texts of these lengths in a model whose token axis is fixed; None for one with a free axis."""
    axis = next((spec for spec in signature.required_inputs if role(spec) == "ids"), None)
    fixed = axis.dims[-1] if axis and len(axis.dims) > (1 if batching else 0) else -1
    if fixed < 1 or not lengths:
        return None
    return padding_of([(fixed, [min(length, fixed)]) for length in lengths])


def file_padding(path: Path, signature: ModelSignature) -> Padding | None:
    """The padding in perf_analyzer's input file, from its attention mask; None for a model without one.

    Raises UsageError for a file that cannot be read as such.
    """
    mask = next((spec for spec in signature.required_inputs if role(spec) == "ones"), None)
    if mask is None:
        return None
    try:
        steps = json.loads(path.read_text(encoding="utf-8"))["data"]
        found = [_step(step[mask.name]) for step in steps]
        return padding_of([one for one in found if one[1]])
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror) from error
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(
            "not input data of perf_analyzer with an attention mask",
            where=path,
            got=f"{type(error).__name__}: {error}",
            expected=f'{{"data": [{{"{mask.name}": {{"content": [1, 1, 0], "shape": [3]}}}}]}}',
        ) from error


def _step(tensor: Any) -> tuple[int, list[int]]:
    content = [int(value) for value in tensor["content"]]
    shape = [int(size) for size in tensor.get("shape") or [len(content)]]
    padded = shape[-1]
    rows = [content[i : i + padded] for i in range(0, len(content), padded)]
    return padded, [sum(value != 0 for value in row) for row in rows]
