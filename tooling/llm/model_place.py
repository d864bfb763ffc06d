"""Where an engine finds the models that its arguments name: a path on its server, or a Hugging Face id. Layer: llm.

Engines are given the text as it stands. Triton's backends leave the working directory alone, so that a relative path is
looked for below the directory that the server was started in, never beside the file that names it. What is no path is
an id: the engine takes that model from the cache of its machine, or fetches it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tooling.errors import Problem, UsageError
from tooling.signature.vllm_model import unnamed

EMBEDDED_AT: Final = Path("/")
"""The directory that the embedded server is started in."""
_ID: Final = re.compile(r"(?!.*(?:--|\.\.))(\b[\w.-]+\b/)?\b[\w.-]{1,96}\b(/[\w.-]+\.gguf|:[\w.-]+)?")
_NAMED: Final = ("model", "tokenizer", "hf_config_path", "speculative_model")
_DRAFTS: Final = ("model", "speculative_model", "speculative_model_dir")
_WHOLE: Final = ("config.json", "params.json")
_PARTS: Final = ("adapter_config.json", "tokenizer_config.json", "tokenizer.json")


def named_models(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The arguments that name a model, each with its text. N-gram speculation names none."""
    speculative = arguments.get("speculative_config")
    drafts = speculative if isinstance(speculative, Mapping) else {}
    listed = [(name, arguments.get(name)) for name in _NAMED]
    listed += [(f"speculative_config.{name}", drafts.get(name)) for name in _DRAFTS]
    for name, text in listed:
        if isinstance(text, str) and text and not text.startswith("[") and not ("." in name and text == "ngram"):
            yield name, text


def is_path(text: str) -> bool:
    """Whether it can be nothing but a path: no Hugging Face id is spelled so, and no address of a store."""
    return "://" not in text and _ID.fullmatch(text) is None


def beside(text: str, folder: Path) -> Path | None:
    """What a relative text names in the version directory `folder`, around it or in the working directory: most
    likely what was meant. None where nothing stands there."""
    if Path(text).is_absolute():
        return None
    folder = folder.absolute()
    for start in (folder, folder.parent, folder.parent.parent, Path().absolute()):
        found = start / text
        if _seen(found, Path.is_file) or holds_model(found):
            return found.resolve()
    return None


def holds_config(folder: Path) -> bool:
    """Whether a directory holds what an engine reads of a model first: its config, or a file with everything in it."""
    if any(_seen(folder / name, Path.is_file) for name in _WHOLE):
        return True
    return _seen(folder, lambda path: path.is_dir() and any(path.glob("*.gguf")))


def holds_model(folder: Path) -> bool:
    """Whether a directory looks like that of a model, a tokenizer or an adapter."""
    return holds_config(folder) or any(_seen(folder / name, Path.is_file) for name in _PARTS)


def require_models(arguments: Mapping[str, Any], file: Path) -> None:
    """Raise UsageError for models that the embedded server would not find: paths at which nothing stands, directories
    that it would ask Hugging Face for, and ids where it must not ask and no cache holds them."""
    problems = [*filter(None, [unnamed(arguments, file)]), *_missing(arguments, file)]
    if problems:
        raise UsageError(problems=problems)


def misread(arguments: Mapping[str, Any], file: Path) -> str | None:
    """What to do about a model that the engine did not find; None where that cannot be told from here."""
    return next((problem.hint for problem in _missing(arguments, file) if problem.hint), None)


def _missing(arguments: Mapping[str, Any], file: Path) -> Iterator[Problem]:
    """Every model that is named and not found."""
    for name, text in named_models(arguments):
        path, needs = EMBEDDED_AT / text, name == "model" and not arguments.get("hf_config_path")
        if needs and _seen(path, Path.is_dir) and not holds_config(path):
            what, expected = f"`{name}` is a directory without a model", "config.json, params.json or a GGUF file in it"
            yield Problem(what, str(file), f"`{text}`", expected, "name the directory that the model was saved to")
        here = _seen(path, Path.exists) or "://" in text
        if not here and (problem := _not_found(name, text, file)):
            yield problem


def _not_found(name: str, text: str, file: Path) -> Problem | None:
    """What is wrong with a name at which nothing stands; None of an id that the engine may have, or fetch."""
    meant, expected = beside(text, file.parent), "an absolute path, or a Hugging Face id"
    if not is_path(text):
        if in_cache(text) or (meant is None and not is_offline()):
            return None
        if meant is None:
            what = f"`{name}` is a Hugging Face id that must not be fetched (HF_HUB_OFFLINE) and is not in the cache"
            got = f"`{text}`, looked for in {hub_cache()}"
            return Problem(what, str(file), got, f"{expected} of the cache", how_to_get(text))
    taken = "a path at which nothing stands" if is_path(text) else "taken for a Hugging Face id, and no directory"
    got = f"`{text}`" + ("" if Path(text).is_absolute() else f", looked for below {EMBEDDED_AT}")
    return Problem(f"`{name}` is {taken}", str(file), got, expected, f"write {meant}" if meant else None)


def hub_cache() -> Path:
    """Where this machine keeps what it has from Hugging Face, by the variables of its client."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{caches}/huggingface"
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(hub)).expanduser()


def in_cache(named: str) -> Path | None:
    """The directory in which this machine's cache holds the model with an id, or some of its files; None without."""
    snapshots = hub_cache() / f"models--{_repository(named).replace('/', '--')}" / "snapshots"
    try:
        found = [entry for entry in snapshots.iterdir() if any(entry.iterdir())]
        return max(found, key=lambda entry: entry.stat().st_mtime, default=None)
    except OSError:
        return None


def is_offline() -> bool:
    """Whether nothing may be asked of Hugging Face, by the variables of its client."""
    said = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return said.upper() in ("1", "ON", "YES", "TRUE")


def how_to_get(named: str) -> str:
    """What to do about a model that is named by an id and not at hand."""
    fetch = f"hf download {_repository(named)}"
    return f"where there is a network: `{fetch}` into the cache, or `{fetch} --local-dir DIR` and name that directory"


def _repository(named: str) -> str:
    """The repository of an id, which may name a file of it or a quantisation too."""
    return "/".join(named.partition(":")[0].split("/")[:2])


def folders(arguments: Mapping[str, Any]) -> list[Path]:
    """The paths that a container must have under the same name, each once."""
    named = (Path(text) for _, text in named_models(arguments) if text.startswith("/"))
    return list(dict.fromkeys(map(mounted, named)))


def mounted(path: Path) -> Path:
    """What a container must have for a path to be whole: the files of a snapshot in Hugging Face's cache are links into
    the directory of the model above."""
    model = path.parent.parent
    return model if path.parent.name == "snapshots" and model.name.startswith("models--") else path


def relative_paths(arguments: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """What is wrong with arguments that a new file shall hold: paths that no server looks for where they were typed."""
    for name, text in named_models(arguments):
        if is_path(text) and not Path(text).is_absolute():
            meant = beside(text, Path())
            yield Problem(
                "the engine looks for a relative path below the directory that its server was started in",
                where,
                f"`{name}={text}`",
                "the absolute path on the server, or a Hugging Face id",
                f"here it is {meant}" if meant else None,
            )


def _seen(path: Path, what: Callable[[Path], bool]) -> bool:
    """Whether this is so of a path, as far as that can be seen."""
    try:
        return what(path)
    except OSError:
        return False
