"""The append-only record of a tuning: a header, then one line a measurement; locked and resumable. Layer: above
measurement, knows files but no server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from perf.measurement import Measurement
from perf.record_file import RecordFile
from tooling.console import Console
from tooling.errors import ExternalError, Problem, UsageError
from tooling.repository import refuse_constant, require_format

SCHEMA_VERSION = 2
"""1 was what was written until 30 November 2026, in several layouts."""
FILE_NAME = "study.jsonl"
_KIND = ("record", "schema_version")

Record = dict[str, Any]


class Study:
    """An opened study: what it holds already in `records`, and `append` for more. A context manager holding the lock.

    The file starts with a header of everything that must be equal for measurements to be comparable. Opening an
    existing study with another header, a study that another process writes, or a damaged one raises UsageError.
    `session` says who measures now: it goes before what this opening appends, and may differ each time.
    """

    def __init__(self, directory: Path, header: Mapping[str, Any], session: Mapping[str, Any] | None = None) -> None:
        self.directory, self.path = directory, directory / FILE_NAME
        self._session = session
        self.header: Record = {"record": "header", "schema_version": SCHEMA_VERSION, **header}
        self.records: list[Record] = []
        self._file = RecordFile(self.path)

    def __enter__(self) -> Study:
        if self.path.exists() and not self.path.is_file():
            raise UsageError("not a regular file", where=self.path, hint="give another --study directory")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            content = self._file.open()
        except BlockingIOError as error:
            self._require_own()
            raise UsageError(
                "the study is in use by another process",
                where=self.path,
                expected="one writer at a time",
                hint="wait until it ends, or give another --study directory",
            ) from error
        except OSError as error:
            raise UsageError(
                "the study cannot be written",
                where=self.path,
                got=error.strerror,
                hint="give another --study directory",
            ) from error
        try:
            self._load(content)
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()  # gives the lock up too

    def append(self, record: Record) -> Record:
        """Write one line and wait until it is on disk; returns the record. Raises UsageError when the disk refuses."""
        if self._session:
            self._write({"record": "session", **self._session})
            self._session = None
        self._write(record)
        self.records.append(record)
        return record

    def _write(self, record: Record) -> None:
        try:
            self._file.append(record)
        except OSError as error:
            raise UsageError(
                "the study cannot be written",
                where=self.path,
                got=error.strerror,
                hint="make room: what was measured before is kept, and the same command goes on from there",
            ) from error

    def _load(self, content: bytes) -> None:
        lines = self._own(content)
        if lines:
            self.header, self.records = lines[0], lines[1:]
        else:
            self._write(self.header)

    def _require_own(self) -> None:
        """Of a study that another process writes: who would be refused after it must not wait for it."""
        with suppress(OSError), closing(self._file):
            self._own(self._file.open(lock=False))

    def _own(self, content: bytes) -> list[Record]:
        """Header and records, none where nothing is written. Raises UsageError for those of another question."""
        lines = list(_parse(content, self.path))
        if lines:
            _require_schema(lines[0], self.path)
            _require_same_header(lines[0], self.header, self.path)
        return lines


def measurement_of(record: Record, path: Path) -> tuple[Measurement, float]:
    """The measurement of a record and the seconds it took. Raises UsageError for a record that holds none."""
    try:
        point, spent_s = Measurement.from_dict(record["measurement"]), float(record["spent_s"])
        figures = (point.throughput_rps, point.avg_us, point.p50_us, point.p90_us, point.p95_us, point.p99_us)
        if point.ok and not all(figure is None or figure > 0 for figure in figures):
            raise ValueError("figures of 0 or less")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            "the study is damaged: a measurement is not whole",
            where=path,
            got=f"{type(error).__name__}: {error}",
            hint="delete that line, or give another --study directory",
        ) from error
    return point, spent_s


@contextmanager
def resumable() -> Iterator[None]:
    """Say with every failure of a program that nothing measured is lost."""
    try:
        yield
    except ExternalError as error:
        kept = "what was measured is kept: the same command goes on from there"
        raise ExternalError(
            problems=[replace(p, hint=f"{p.hint}; {kept}" if p.hint else kept) for p in error.problems]
        ) from error


def study_dir(studies: Path, name: str, question: Record, header: Record, console: Console) -> Path:
    """Where the study of a question is kept: the same question under the same conditions finds it again.

    Under other conditions, or in another format, it is another study; what changed since the last one is told, never
    mixed.
    """
    asked = f"{name}-{_digest(question)[:6]}-"
    place = studies / f"{asked}{_digest({**header, 'schema_version': SCHEMA_VERSION})[:4]}"
    earlier = [path.parent for path in studies.glob(f"{asked}*/{FILE_NAME}")]
    if place not in earlier and earlier:
        last = max(earlier, key=lambda path: (path / FILE_NAME).stat().st_mtime)
        console.warning(f"a new study begins: {_since(last, header)}")
    return place.absolute()


def _since(last: Path, header: Record) -> str:
    """Why the study in `last` is not gone on with."""
    try:
        changed = [difference.name for difference in _differences(read_study(last)[0], header)]
    except UsageError as error:  # whoever reads it is told how to mend it
        return f"of the last one, {error.problems[0]}"
    return f"since {last} other `{'`, `'.join(changed)}`"


def _digest(data: Record) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def read_study(directory: Path) -> tuple[Record, list[Record]]:
    """Header and records of a study, without locking it. Raises UsageError when there is none or it is damaged."""
    path = directory / FILE_NAME
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            "no study here", where=directory, got=error.strerror, expected=f"a directory with `{FILE_NAME}`"
        ) from error
    lines = list(_parse(content[: content.rfind(b"\n") + 1], path))
    if not lines or lines[0].get("record") != "header":
        raise UsageError("the study has no header", where=path, hint="run `tritune tune` to make a study")
    _require_schema(lines[0], path)
    return lines[0], lines[1:]


def _require_schema(header: Record, path: Path) -> None:
    require_format(
        header.get("schema_version"),
        SCHEMA_VERSION,
        what="the study",
        where=path,
        hint="measure again, into another directory where --study names this one",
    )


def _parse(content: bytes, path: Path) -> Iterator[Record]:
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            record = json.loads(line.decode("utf-8", "surrogateescape"), parse_constant=refuse_constant)
        except (ValueError, RecursionError):
            record = None
        if not _is_record(record):
            raise UsageError(
                "the study is damaged",
                where=f"{path}:{number}",
                got=repr(line[:40].decode(errors="replace")),
                expected="one record of a study a line",
                hint="delete that line, or give another --study directory",
            )
        yield record


def _is_record(record: object) -> bool:
    """Whether a line is of the kind that `append` writes: an object that says what it is."""
    return isinstance(record, dict) and isinstance(record.get("record"), str)


class _Difference(NamedTuple):
    """A field of two headers, with its values as JSON."""

    name: str
    found: str
    wanted: str


def _differences(found: Record, wanted: Record) -> list[_Difference]:
    old, new = _flat(found), _flat(json.loads(json.dumps(wanted)))
    return [
        _Difference(name, *(json.dumps(values.get(name), ensure_ascii=False) for values in (old, new)))
        for name in dict.fromkeys([*old, *new])
        if name not in _KIND and old.get(name) != new.get(name)
    ]


def _require_same_header(found: Record, wanted: Record, path: Path) -> None:
    """Measurements of two headers must not be mixed; names every field that differs."""
    problems = [
        Problem(
            f"the study was made with another `{name}`",
            where=str(path),
            got=new,
            expected=old,
            hint="give a new --study directory",
        )
        for name, old, new in _differences(found, wanted)
    ]
    if problems:
        raise UsageError(problems=problems)


def _flat(record: Record, prefix: str = "") -> Record:
    flat: Record = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
