"""Workloads as YAML files, and the real data they are made from: texts, and logs of requests. Layer: above workload."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import yaml

from perf.mix import expand, histogram
from perf.validation import validated
from perf.workload import Workload
from tooling.config.yaml_file import loader
from tooling.errors import UsageError, kind_of, suggest
from tooling.repository import read_text

MOST_TEXTS = 1_000
"""Of more texts than this, evenly spaced ones are sent."""
TIME_COLUMNS = ("time", "timestamp", "ts", "date", "datetime", "time_s", "time_ms", "start", "@timestamp")
LENGTH_COLUMNS = ("length", "tokens", "size", "token_count", "num_tokens", "prompt_tokens", "input_tokens")
TEXT_COLUMNS = ("text", "prompt", "query", "sentence", "input", "content", "message", "document")
_TEXT_FORMS = (".txt", ".jsonl", ".csv")
_LOG_FORMS = (".jsonl", ".csv")
_FRACTION = re.compile(r"[.,](\d+)")
_OFFSET = re.compile(r"(:\d\d(?:\.\d+)?[+-]\d\d)(\d\d)?$")
_EPOCH_SCALES = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""A number larger than the first is a time since 1970 in units of which the second make a second."""


def read_workload(path: Path) -> Workload:
    """The workload of a YAML (or JSON) file; `texts: FILE` stands for the texts of a file beside it.

    Raises UsageError with every problem of the file.
    """
    data = read_keys(path)
    if isinstance(data.get("texts"), str):
        data["texts"] = spaced(read_texts(path.parent / data["texts"]), MOST_TEXTS)
    return validated(Workload, data, path)


def require_workload(path: Path) -> None:
    """Raise UsageError, as `read_workload` does, but without a look into the file of texts: it must be there."""
    data = read_keys(path)
    texts = data.get("texts")
    validated(Workload, {**data, "texts": ["a"]} if isinstance(texts, str) else data, path)
    if isinstance(texts, str) and not (path.parent / texts).exists():
        expected = f"a path from {path.parent}"
        raise UsageError(
            "there is no such file or directory", where=f"{path}: texts", got=f"`{texts}`", expected=expected
        )


def read_keys(path: Path) -> dict[str, Any]:
    """The keys of a workload's file as they stand there. Raises UsageError for what is no mapping in YAML."""
    try:
        data = yaml.load(_decoded(path), Loader=loader())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        raise UsageError("not YAML", where=place, got=getattr(error, "problem", None) or str(error)) from None
    except (RecursionError, ValueError) as error:  # nested too deep; a number or a date that is none
        raise UsageError("not YAML", where=path, got=str(error)) from None
    if not isinstance(data, dict):
        expected = "keys such as `concurrency: 8`"
        raise UsageError(
            "not a workload", where=path, got="an empty file" if data is None else kind_of(data), expected=expected
        )
    return data


def workload_text(workload: Workload, comments: Iterable[str], texts: str | None = None) -> str:
    """The YAML that `read_workload` reads, with `comments` at its top; lengths and sizes that came from shares are
    shares again. `texts` names the file of its texts."""
    data = workload.model_dump(mode="json", exclude_defaults=True)
    for name in ("lengths", "batch"):
        shares = histogram(data.get(name) or ())
        if shares and expand(shares) == tuple(data[name]):
            data[name] = shares
    if data.pop("texts", None) and texts:
        data["texts"] = texts
    if "duration_s" in data:
        data["duration"] = f"{data.pop('duration_s'):g}s"
    head = "".join(f"# {line}\n" for line in comments)
    return head + yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)


def spaced(texts: tuple[str, ...], most: int) -> tuple[str, ...]:
    """At most `most` of the texts, evenly spaced."""
    return texts if len(texts) <= most else tuple(texts[i * len(texts) // most] for i in range(most))


def read_texts(path: Path, column: str | None = None) -> tuple[str, ...]:
    """The texts of a file: each line of a .txt, the text column of a .csv, the strings or text fields of a .jsonl.

    `column` names the column or field; by default the first of TEXT_COLUMNS that is there, or the only one. Empty texts
    are left out. Raises UsageError for a file without any, or one that does not hold what its name says.
    """
    form = _form(path, _TEXT_FORMS)
    if form == ".txt":
        if column:
            what, hint = "a file with a text a line has no columns", "leave --text-column out"
            raise UsageError(what, where=path, got=f"`{column}`", hint=hint)
        texts: Iterable[str] = (line.rstrip("\r") for line in _decoded(path).split("\n"))
    else:
        texts = (_text_of(row, column, path, place) for place, row in _rows(path, form))
    found = tuple(text for text in texts if text.strip())
    if not found:
        raise UsageError("there is no text", where=path, expected="at least one that is not empty")
    return found


@dataclass(frozen=True, slots=True)
class Log:
    """Requests that were logged, in order of time: seconds since the first, and either their lengths or their texts."""

    times_s: tuple[float, ...]
    lengths: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()

    @property
    def rate_rps(self) -> float:
        """Requests a second on average."""
        return (len(self.times_s) - 1) / self.times_s[-1]


def read_log(
    path: Path, *, time: str | None = None, length: str | None = None, text: str | None = None, unit: str | None = None
) -> Log:
    """A .csv or .jsonl log with a time and, where it is there, a length or a text of each request.

    Columns are named, or found by the names in TIME_COLUMNS, LENGTH_COLUMNS, TEXT_COLUMNS. Times are ISO 8601 or
    numbers: seconds, or since 1970 also in ms, us and ns, which their size tells; `unit` (s, ms, us, ns) says it.
    Raises UsageError for a log that cannot be read so, or without two different times.
    """
    rows = list(_rows(path, _form(path, _LOG_FORMS)))
    if len(rows) < 2:
        raise UsageError("too few requests", where=path, got=len(rows), expected="at least two")
    keys = dict.fromkeys(key for _, row in rows[:100] for key in row)
    when = time or _named(TIME_COLUMNS, keys)
    if when is None or when not in keys:
        _no_column(path, when, "time", keys)
    size = length or (None if text else _named(LENGTH_COLUMNS, keys))
    words = text or (None if size else _named(TEXT_COLUMNS, keys))
    for name, what in ((size, "length"), (words, "text")):
        if name is not None and name not in keys:
            _no_column(path, name, what, keys)
    entries = sorted(
        ((_seconds(row.get(when), unit, place), place, row) for place, row in rows), key=lambda entry: entry[0]
    )
    _one_kind([(row.get(when), place) for place, row in rows])
    first, last = entries[0][0], entries[-1][0]
    if last == first:
        raise UsageError("all requests came at the same time", where=path, got=entries[0][2][when])
    return Log(
        tuple(round(at - first, 6) for at, _, _ in entries),
        tuple(_length(row.get(size), place) for _, place, row in entries) if size else (),
        tuple(_text_of(row, words, path, place) for _, place, row in entries) if words else (),
    )


def read_requests(path: Path) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The lengths, or else the texts, of a .csv or .jsonl log; when they came is not asked.

    Raises UsageError for a log that cannot be read so, or without a column of either.
    """
    rows = list(_rows(path, _form(path, _LOG_FORMS)))
    keys = dict.fromkeys(key for _, row in rows[:100] for key in row)
    size, words = _named(LENGTH_COLUMNS, keys), _named(TEXT_COLUMNS, keys)
    if size:
        return tuple(_length(row.get(size), place) for place, row in rows), ()
    if words:
        return (), tuple(_text_of(row, words, path, place) for place, row in rows)
    raise UsageError(
        "the log has no lengths",
        where=path,
        got=", ".join(keys) or "no requests",
        expected=f"a column such as {LENGTH_COLUMNS[0]}, or {TEXT_COLUMNS[0]}",
    )


def _form(path: Path, known: tuple[str, ...]) -> str:
    form = path.suffix.lower()
    if form not in known:
        raise UsageError("unknown kind of file", where=path, got=form or "no suffix", expected=" or ".join(known))
    return form


def _decoded(path: Path) -> str:
    text = read_text(path)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = f"byte 0x{ord(text[error.start]) & 0xFF:02x}"
        line = text.count("\n", 0, error.start) + 1
        raise UsageError("not UTF-8 text", where=f"{path}:{line}", got=byte, hint="convert it with iconv") from None
    return text.removeprefix("\ufeff")


def _rows(path: Path, form: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with its place; a JSON line that is a plain string is its `text`."""
    content = _decoded(path)
    if form == ".csv":
        try:
            reader = csv.DictReader(io.StringIO(content, newline=""), strict=True)
            for row in reader:
                yield f"{path}:{reader.line_num}", {key: value for key, value in row.items() if key is not None}
        except csv.Error as error:
            raise UsageError("not CSV", where=path, got=error) from None
        return
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError("not JSON", where=f"{path}:{number}", got=error, expected="one value a line") from None
        if not isinstance(row, (dict, str)):
            raise UsageError("not an object or a text", where=f"{path}:{number}", got=line.strip()[:60])
        yield f"{path}:{number}", row if isinstance(row, dict) else {"text": row}


def _named(names: Iterable[str], keys: Iterable[str]) -> str | None:
    """The first key with one of the names, in any case."""
    by_name = {key.strip().lower(): key for key in reversed(list(keys))}
    return next((by_name[name] for name in names if name in by_name), None)


def _no_column(path: Path, name: str | None, what: str, keys: Iterable[str]) -> NoReturn:
    """There is no column of this name, or none whose name tells that it holds `what`."""
    found = list(keys)
    raise UsageError(
        f"there is no column `{name}`" if name else f"no column is the {what}",
        where=path,
        got=", ".join(found)[:200] or "no columns",
        hint=(name and suggest(name, found)) or f"name it with --{what}-column",
    )


def _text_of(row: Mapping[str, Any], column: str | None, path: Path, place: str) -> str:
    name = column or _named(TEXT_COLUMNS, row) or (next(iter(row)) if len(row) == 1 else None)
    if name is None or name not in row:
        _no_column(path, name, "text", row)
    value = row[name]
    if not isinstance(value, str):
        raise UsageError("not a text", where=f"{place}, `{name}`", got=json.dumps(value)[:60], expected="a string")
    return value


def _length(value: Any, place: str) -> int:
    try:
        number = float(value)
        if number >= 1 and number == int(number):
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise UsageError("not a length", where=place, got=repr(value)[:60], expected="a whole number from 1")


def _one_kind(times: Sequence[tuple[Any, str]]) -> None:
    """Refuse numbers among dates: nothing says what they count from."""
    numbers = [_is_number(value) for value, _ in times]
    if any(numbers) and not all(numbers):
        value, place = times[numbers.index(not numbers[0])]
        expected = "a number, as before it" if numbers[0] else "a date, as before it"
        raise UsageError("times of two kinds", where=place, got=repr(value)[:60], expected=expected)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _moment(text: str) -> datetime:
    """ISO 8601, of which Python 3.10 reads fractions of three and six digits and offsets like +01:00 alone."""
    text = _FRACTION.sub(lambda found: f".{found[1]:0<6.6}", text.strip().replace("Z", "+00:00"))
    return datetime.fromisoformat(_OFFSET.sub(lambda found: f"{found[1]}:{found[2] or '00'}", text))


def _seconds(value: Any, unit: str | None, place: str) -> float:
    """Seconds of one logged time."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        try:
            moment = _moment(str(value)).timestamp()
        except (ValueError, OverflowError):
            expected = "ISO 8601 like 2026-05-01T12:00:00Z, or a number"
            raise UsageError("not a time", where=place, got=repr(value)[:60], expected=expected) from None
        if unit is not None:
            what = "a unit is for times that are numbers"
            raise UsageError(what, where=place, got=str(value), hint="leave the unit out") from None
        return moment
    if not 0 <= number < 1e20:
        raise UsageError("not a time", where=place, got=value, expected="a number from 0")
    if unit is not None:
        return number / {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit]
    return number / next((scale for least, scale in _EPOCH_SCALES if number > least), 1)
