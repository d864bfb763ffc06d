"""perf_analyzer's raw export, read as a stream: what the printed figures leave out. Layer: above measurement."""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from tooling.errors import ExternalError
from tooling.repository import write_atomic

Integers = npt.NDArray[np.int64]
Kind = tuple[tuple[str, int], ...]
"""What tells one kind of request from another: the number of elements of each input."""

PERCENTILES = (50, 90, 95, 99)
_CHUNK = 1 << 20
_DECODER = json.JSONDecoder(strict=False)
_REQUESTS = re.compile(r'"requests"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_HEADER = ("sent_ns", "first_ns", "last_ns", "responses", "tokens", "first_tokens")
_TOKENS = "num_output_tokens"
"""The output by which Triton's LLM backends tell, when asked, how many tokens a response holds."""


class Requests(NamedTuple):
    """Every answered request in order of sending: when it left, when its first and last response came (ns since 1970),
    the number of its responses; and how many there were of each kind. `tokens` in all and `first_tokens` in the first
    response are None where the responses do not tell."""

    sent_ns: Integers
    first_ns: Integers
    last_ns: Integers
    responses: Integers
    kinds: Mapping[Kind, int]
    tokens: Integers | None = None
    first_tokens: Integers | None = None

    @property
    def latency_ns(self) -> Integers:
        """From leaving to the last response."""
        return self.last_ns - self.sent_ns


def read_profile_export(path: Path, *, empty_finals: bool = False) -> Requests:
    """The requests of the first experiment in the file, which may be larger than memory.

    `empty_finals` leaves the last response of each request out, where it only says that there are no more. Raises
    ExternalError for a damaged file.
    """
    columns = [array("q") for _ in _HEADER]
    kinds: Counter[Kind] = Counter()
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for request in _objects(file):
                times = request["response_timestamps"]
                if empty_finals and len(times) > 1:
                    times = times[:-1]
                row = (request["timestamp"], times[0], times[-1], len(times), *_told_tokens(request))
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
                kinds[_kind(request["request_inputs"])] += 1
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise ExternalError("perf_analyzer's export cannot be read", where=path, got=problem[:120]) from None
    rows = np.array(columns, dtype=np.int64)
    if not rows.size:
        raise ExternalError("perf_analyzer's export holds no request", where=path)
    return _requests(rows[:, np.argsort(rows[0], kind="stable")], kinds)


def write_requests(path: Path, requests: Requests) -> None:
    """The times as CSV, a line a request: some 60 bytes in place of all its tensors."""
    columns = [column for column in (*requests[:4], requests.tokens, requests.first_tokens) if column is not None]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    header = ",".join(_HEADER[: len(columns)])
    write_atomic(path, "\n".join([header, *(",".join(map(str, row)) for row in rows), ""]))


def read_requests(path: Path) -> Requests:
    """The times that `write_requests` wrote; the kinds of the requests are not kept."""
    return _requests(np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.int64, ndmin=2).T, {})


def _requests(columns: Integers, kinds: Mapping[Kind, int]) -> Requests:
    sent, first, last, responses, *tokens = columns
    told = tokens if tokens and (tokens[0] > 0).any() else (None, None)
    return Requests(sent, first, last, responses, kinds, *told)


def _objects(file: TextIO) -> Iterator[dict[str, Any]]:
    """Each request, with no more than a few in memory at a time."""
    text = file.read(_CHUNK)
    found = _REQUESTS.search(text)
    if found is None:
        raise ValueError("it holds no requests")
    place, step = found.end(), _CHUNK
    while True:
        place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]
        if text[place : place + 1] == "]":
            return
        try:
            request, place = _DECODER.raw_decode(text, place)
        except ValueError:
            more = file.read(step)
            if not more:
                raise
            text, place, step = text[place:] + more, 0, 2 * step  # a request may be larger than a chunk
            continue
        step = _CHUNK
        yield request


def _told_tokens(request: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of all responses and of the first; 0 where they do not tell."""
    counts = [_sum(output.get(_TOKENS, 0)) for output in request.get("response_outputs", ())]
    return sum(counts), counts[0] if counts else 0


def _sum(value: Any) -> int:
    """An element or a list of them; the empty text of an empty response is none."""
    return sum(value) if isinstance(value, list) else int(value or 0)


def _kind(inputs: Mapping[str, Any]) -> Kind:
    return tuple(sorted((name, len(value) if isinstance(value, list) else 1) for name, value in inputs.items()))


@lru_cache(maxsize=8)
def declared_kinds(input_file: Path, changed_ns: int) -> Mapping[Kind, float]:
    """The share of each kind of step in an input file, by the inputs whose elements are numbers: of others the export
    does not tell how many there were. `changed_ns` tells versions of the file apart."""
    steps = json.loads(input_file.read_text(encoding="utf-8"))["data"]
    told = [{name: count for name, value in step.items() if (count := _numbers(value))} for step in steps]
    names = set.intersection(*map(set, told)) if told else set()
    counts = Counter(tuple(sorted((name, step[name]) for name in names)) for step in told)
    return {kind: count / len(steps) for kind, count in counts.items()}


def _numbers(value: Any) -> int:
    content = value.get("content") if isinstance(value, Mapping) else value
    return len(content) if isinstance(content, list) and content and not isinstance(content[0], str) else 0


def strayed(sent: Mapping[Kind, int], declared: Mapping[Kind, float], workers: int) -> tuple[Kind, float, float] | None:
    """The kind whose share of the requests sent is furthest from the declared one, with both shares; None while all are
    as close as chance, and rounds that `workers` have not ended, explain."""
    names = {name for name, _ in next(iter(declared), ())}
    counts: Counter[Kind] = Counter(dict.fromkeys(declared, 0))
    for kind, count in sent.items():
        counts[tuple(part for part in kind if part[0] in names)] += count
    total = counts.total()

    def excess(kind: Kind) -> float:
        expected = total * declared.get(kind, 0.0)
        return float(abs(counts[kind] - expected) - 4 * expected**0.5 - workers - 1)

    worst = max(counts, key=excess, default=())
    if not names or excess(worst) <= 0:
        return None
    return worst, counts[worst] / total, declared.get(worst, 0.0)


def from_schedule_ns(requests: Requests, planned_ns: Integers) -> Integers:
    """Latencies from the time each request was to leave, which a late client hides from those since it left."""
    return np.asarray(requests.latency_ns + lateness_ns(requests, planned_ns), dtype=np.int64)


def lateness_ns(requests: Requests, planned_ns: Integers) -> Integers:
    """How late each request left. `planned_ns` are the planned times of at least as many requests, from any start: the
    run began where the earliest request, as compared with its plan, left on time."""
    late = requests.sent_ns - planned_ns[: len(requests.sent_ns)]
    return np.asarray(late - late.min(), dtype=np.int64)


def stream_figures(requests: Requests) -> dict[str, float]:
    """Times to the first response, mean times between the tokens of a request, and tokens a second, under Measurement's
    names. Where responses do not tell their tokens each counts as one: Triton's LLM backends send one for each token,
    but several together to a client that they are ahead of."""
    tokens = requests.responses if requests.tokens is None else requests.tokens
    later = tokens - (1 if requests.first_tokens is None else requests.first_tokens)
    figures = {f"ttft_{name}": value for name, value in percentiles_us(requests.first_ns - requests.sent_ns).items()}
    several = later > 0
    if several.any():
        spent = (requests.last_ns - requests.first_ns)[several] // later[several]
        figures |= {f"itl_{name}": value for name, value in percentiles_us(spent).items()}
    span_ns = int(requests.last_ns.max() - requests.sent_ns.min())
    return {**figures, "tokens_per_s": float(tokens.sum()) / max(span_ns, 1) * 1e9}


def percentiles_us(values_ns: Integers) -> dict[str, float]:
    """`avg_us` and `p50_us` to `p99_us`, read as perf_analyzer reads percentiles: floor(p/100·(n−1) + 0.5)."""
    places = [int(p / 100 * (len(values_ns) - 1) + 0.5) for p in PERCENTILES]
    ordered = np.sort(values_ns)
    found = {f"p{p}_us": float(ordered[place]) / 1e3 for p, place in zip(PERCENTILES, places, strict=True)}
    return {"avg_us": float(values_ns.mean()) / 1e3, **found}
