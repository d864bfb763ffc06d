"""The layout of a model repository on disk: names, paths, writes that are whole or nothing. Layer: repository."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tooling.config.names import name_problem
from tooling.config.proto import ModelConfig
from tooling.errors import UsageError, json_fault
from tooling.signature.formats import FORMATS, Format, format_named, format_of

CONFIG_FILE = "config.pbtxt"
MODEL_FILE = "model.onnx"
_CODE_OR_SETTINGS = ("python", "vllm")  # their files are models only under their default names


def check_model_name(name: str, what: str = "model name") -> None:
    """Raise UsageError unless `name` is safe as a directory name for Triton (see `tooling.config.names`)."""
    problem = name_problem(name, what)
    if problem:
        raise UsageError(problems=[problem])


def absolute(path: Path) -> Path:
    """The path from the root and without `..`, so that its last part is a name. Links are kept, but before a `..`."""
    whole = path.absolute()
    if ".." not in whole.parts:
        return whole
    last = len(whole.parts) - whole.parts[::-1].index("..")
    return Path(os.path.realpath(Path(*whole.parts[:last])), *whole.parts[last:])


def config_path(model_dir: Path, hardware: str | None = None) -> Path:
    """Where a model's config stands: `config.pbtxt`, or `configs/<hardware>.pbtxt` (Triton's `--model-config-name`)."""
    if hardware is None:
        return model_dir / CONFIG_FILE
    check_model_name(hardware, "hardware name")
    return model_dir / "configs" / f"{hardware}.pbtxt"


def read_config(model_dir: Path, hardware: str | None = None) -> ModelConfig:
    """The config Triton would take for this hardware name: its own file, else `config.pbtxt`, as Triton falls back too.

    Raises UsageError when there is none or when it does not parse.
    """
    from tooling.config.render import parse

    own = config_path(model_dir, hardware)
    path = own if own.is_file() else config_path(model_dir)
    return parse(read_text(path, hint=f"write one with `tritune gen-config {shlex.quote(str(model_dir))}`"), str(path))


def is_there(path: Path) -> bool:
    """Whether something stands there: nothing does under a name that no file can have, or where nobody may look."""
    try:
        return path.exists()
    except OSError:
        return False


def _require_regular(path: Path) -> None:
    """Raise UsageError for a device, a pipe or a directory: reading may never end, and renaming over it destroys it.

    What cannot even be looked at is left to the reading or writing, which tells why.
    """
    if is_there(path) and not path.is_file():
        raise UsageError(
            "not a regular file",
            where=path,
            got="a directory" if path.is_dir() else "a device or a pipe",
            expected="a file",
            hint="name another file",
        )


def read_text(path: Path, *, hint: str | None = None) -> str:
    """The text of a config with its own line breaks; bytes that are no UTF-8, which comments may hold, as surrogates.

    Raises UsageError when it is missing or unreadable.
    """
    _require_regular(path)
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror, hint=hint) from error


def read_json(path: Path, *, expected: str, hint: str | None = None) -> object:
    """What a JSON file holds; NaN and Infinity are no JSON. Raises UsageError, with `expected` where it is none."""
    text = read_text(path, hint=hint)
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        got = json_fault(error, text)
    raise UsageError("not JSON", where=path, got=got, expected=expected, hint=hint)


def require_format(found: object, read: int, *, what: str, where: Path, hint: str) -> None:
    """Raise UsageError unless a file of ours, `what`, is in the format `read`: says if it is older or newer."""
    if type(found) is int and found == read:
        return
    number = type(found) is int and found > 0
    kind = "another" if not number else "an older" if found < read else "a newer"  # type: ignore[operator]
    raise UsageError(
        f"{what} is in {kind} format",
        where=where,
        got=f"schema_version {json.dumps(found)}"[:60],
        expected=str(read),
        hint=f"update tritune: {hint}" if kind == "a newer" else hint,
    )


def refuse_constant(name: str) -> NoReturn:
    """For `parse_constant` of the json module, which takes NaN and Infinity for numbers."""
    raise ValueError(f"{name} is no figure")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file and its format; the model directory, where the file stands as `<model_dir>/<version>/FILE`."""

    file: Path
    model_dir: Path | None
    format: Format

    @property
    def name(self) -> str:
        """The name Triton knows the model by; the file's own name where there is no model directory."""
        return self.model_dir.name if self.model_dir else self.file.stem

    @property
    def default_filename(self) -> str:
        """What `default_model_filename` must say: nothing for the name that Triton looks for by itself."""
        return "" if self.model_dir is None or self.file.name == self.format.file else self.file.name


def locate_model(path: Path, backend: str | None = None, *, ensembles: bool = False) -> ModelFile:
    """The model file meant by a model directory, a version directory or a file; of several versions the highest.

    Where a version holds files of several formats, Triton's own order decides, or `backend`. Raises UsageError when
    there is none; where `path` is a repository it names the models in it, with `ensembles` these too.
    """
    path = absolute(path)
    if path.name == path.parent.name == MODEL_FILE:  # with external data, model.onnx may be a directory
        path = path.parent
    formats = FORMATS if backend is None else (format_named(backend),)
    if path.is_dir() and format_of(path) is None:
        path = path if path.name.isdecimal() else _newest_version(path, formats, ensembles=ensembles)
        found = _model_in(path, formats)
        if found is None:
            raise UsageError(
                "no model file in this directory", where=path, expected=" or ".join(known.file for known in formats)
            )
    else:
        found = _model_at(path, formats)
    file, form = found
    model_dir = file.parent.parent if file.parent.name.isdecimal() else None
    return ModelFile(file / form.file if file.is_dir() else file, model_dir, form)


def _model_at(path: Path, formats: Sequence[Format]) -> tuple[Path, Format]:
    if not path.exists():
        raise UsageError("does not exist", where=path, expected="a model file or a model directory")
    form = format_of(path) if len(formats) > 1 else formats[0]
    if form is None:
        raise UsageError(
            "not a model file by its name",
            where=path,
            expected=", ".join(suffix for known in formats for suffix in known.suffixes),
            hint="say what it is with --backend",
        )
    return path, form


def _newest_version(model_dir: Path, formats: Sequence[Format], *, ensembles: bool) -> Path:
    versions = _versions(model_dir, formats)
    if versions:
        return versions[-1]
    models = sorted(child.name for child in model_dir.iterdir() if _is_named(child, formats, ensembles=ensembles))
    raise UsageError(
        "no model file in this directory",
        where=model_dir,
        expected=f"<version>/FILE, such as 1/{formats[0].file if len(formats) == 1 else 'model.onnx'}",
        hint=f"this is a repository: name one of its models: {', '.join(models)}"
        if models
        else "make one with `tritune export SOURCE --repository REPO --name NAME`",
    )


def _is_named(child: Path, formats: Sequence[Format], *, ensembles: bool) -> bool:
    """Whether a directory of a repository is one that could have been meant."""
    if not child.is_dir():
        return False
    if _versions(child, formats):
        return True
    try:
        return ensembles and read_config(child).platform == "ensemble"
    except UsageError:
        return False


def _versions(model_dir: Path, formats: Sequence[Format]) -> list[Path]:
    """Version directories that hold a model file, lowest first."""
    found = (d for d in model_dir.iterdir() if d.name.isdecimal() and d.is_dir() and _model_in(d, formats))
    return sorted(found, key=lambda d: int(d.name))


def _model_in(version: Path, formats: Sequence[Format]) -> tuple[Path, Format] | None:
    """The file Triton would take, else the only file whose name says that it is a model."""
    for form in formats:
        if (version / form.file).exists():
            return version / form.file, form
    artefacts = [form for form in formats if form.backend not in _CODE_OR_SETTINGS]
    children = sorted(version.iterdir())
    models = [(child, form) for child in children for form in artefacts if child.suffix.lower() in form.suffixes]
    return models[0] if len(models) == 1 else None


def guard_overwrite(path: Path, text: str) -> None:
    """Raise UsageError when writing the config `text` to `path` would lose what a person or a measurement put there."""
    from tooling.config.render import origin

    present = read_text(path) if path.exists() else text
    if present == text or origin(present) == "generated":
        return
    known = {
        "measured": "the file holds measured settings with their evidence",
        "exported": "the file is part of what `tritune export` wrote, and no model file tells all of it",
    }
    which = origin(present) or ""
    raise UsageError(
        known.get(which, "the file is not as tritune wrote it"),
        where=path,
        got=None if which in known else "an edited or hand-written config",
        hint="name what to change with --set or other options, and the rest stays; "
        "or generate it anew with --force (--diff shows what that changes)",
    )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn every OSError of the block into a UsageError that names `path`: unwritable, full, too long a name."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            "cannot be written",
            where=path,
            got=_in_the_way(path) or error.strerror or str(error),
            hint="choose a directory you may write to, with room left",
        ) from error


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Let one command at a time read, change and write the files of a directory; others wait, where the file system
    knows such locks, and then have the directory that stands there. Never within itself."""
    import fcntl

    with ExitStack() as clean_up:
        with suppress(OSError):  # not there yet, or not to be locked
            held: os.stat_result | None = None
            while held is None or not os.path.samestat(held, directory.stat()):  # it gave way to another meanwhile
                handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
                clean_up.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
                held = os.fstat(handle)
        yield


def _in_the_way(path: Path) -> str | None:
    """A file, or a link to nothing, that stands where a directory above `path` should."""
    block = next((above for above in reversed(path.parents) if os.path.lexists(above) and not above.is_dir()), None)
    return None if block is None else f"{block}, which is no directory"


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a whole file or nothing: beside it first, synced, then renamed over it; a symlink is replaced.

    Missing parent directories are made. Raises UsageError when it cannot be written.
    """
    write_all({path: data})


def write_all(files: Mapping[Path, bytes | str]) -> None:
    """Write several files as `write_atomic` does, or none of them: a disk that is full takes no first half of them."""
    with ExitStack() as clean_up:
        finished: dict[Path, Path] = {}
        for path, data in files.items():
            _require_regular(path)
            beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
            with writing(path):
                clean_up.enter_context(directory_for(path.parent))
                clean_up.callback(_remove, beside)
                _write_synced(beside, data)
            finished[path] = beside
        for path, beside in finished.items():
            with writing(path):
                try:
                    beside.replace(path)
                except FileNotFoundError:  # its directory gave way to another one meanwhile (tooling.staging)
                    _write_synced(beside, files[path])
                    beside.replace(path)


def _write_synced(path: Path, data: bytes | str) -> None:
    with path.open("xb") as file:
        file.write(encode(data) if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())


def _remove(path: Path) -> None:
    with suppress(OSError):  # never made, or on a file system that was read-only all along
        path.unlink()


def encode(text: str) -> bytes:
    """The bytes of a text, with those that were no UTF-8 as they came: from `read_text`, or in the name of a path."""
    return text.encode("utf-8", "surrogateescape")


@contextmanager
def directory_for(path: Path) -> Iterator[None]:
    """Make a directory and its parents for the block; those made that are empty behind it are taken away again."""
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for folder in made:
            with suppress(OSError):  # not empty, or never made
                folder.rmdir()


def require_writable(path: Path) -> None:
    """Raise UsageError unless `write_atomic` could write this file: asked before work whose result goes there."""
    _require_regular(path)
    with writing(path), directory_for(path.parent):
        require_room(path.parent)


def require_room(directory: Path) -> None:
    """Raise OSError where not even a page may be written; an empty file may be made on a full disk too."""
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(bytes(4096))
        file.flush()


def usable_cores() -> int:
    """CPU cores this process may use: its affinity mask, cut to the quota of its cgroup (v2)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


def cpu_name() -> str:
    """The hardware name of a server that computes on the CPU here, as the embedded one always does: `cpu-2`."""
    return f"cpu-{usable_cores()}"


def hardware_name() -> str:
    """The name tuned configs of this machine are kept under: `gpu-h200-x1` with GPUs (nvidia-smi), else `cpu-2`."""
    gpus = _gpu_names()
    if not gpus:
        return cpu_name()
    slug = re.sub(r"[^a-z0-9]+", "-", gpus[0].lower().removeprefix("nvidia ")).strip("-")
    return f"gpu-{slug}-x{len(gpus)}"


def _gpu_names() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in listed.stdout.splitlines() if line.strip()]
