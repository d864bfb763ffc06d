"""Where an engine finds the models that its arguments name: a path on its server, or a Hugging Face id. Layer: llm.

Engines are given the text as it stands. Triton's backends leave the working directory alone, so that a relative path is
looked for below the directory that the server was started in, never beside the file that names it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tooling.errors import Problem, UsageError

EMBEDDED_AT: Final = Path("/")
"""The directory that the embedded server is started in."""
_ID: Final = re.compile(r"(?!.*(?:--|\.\.))(\b[\w.-]+\b/)?\b[\w.-]{1,96}\b(/[\w.-]+\.gguf|:[\w.-]+)?")
_NAMED: Final = ("model", "tokenizer", "hf_config_path", "speculative_model")
_DRAFTS: Final = ("model", "speculative_model", "speculative_model_dir")
_CONFIGS: Final = ("config.json", "params.json", "adapter_config.json", "tokenizer_config.json", "tokenizer.json")


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


def holds_model(folder: Path) -> bool:
    """Whether a directory looks like that of a model, a tokenizer or an adapter."""
    if any(_seen(folder / name, Path.is_file) for name in _CONFIGS):
        return True
    return _seen(folder, lambda path: path.is_dir() and any(path.glob("*.gguf")))


def require_models(arguments: Mapping[str, Any], file: Path) -> None:
    """Raise UsageError for models that the embedded server would not find: paths at which nothing stands, and
    directories that it would ask Hugging Face for."""
    problems = list(_missing(arguments, file))
    if not isinstance(arguments.get("model"), str) or not arguments["model"]:
        problems.insert(0, Problem("names no model", str(file), expected='`"model"`: a Hugging Face id or a directory'))
    if problems:
        raise UsageError(problems=problems)


def misread(arguments: Mapping[str, Any], file: Path) -> str | None:
    """What to do about an engine that asked Hugging Face for a model which stands here; None where it did not."""
    return next((problem.hint for problem in _missing(arguments, file) if problem.hint), None)


def _missing(arguments: Mapping[str, Any], file: Path) -> Iterator[Problem]:
    """Every model that is named and not found."""
    for name, text in named_models(arguments):
        if _seen(EMBEDDED_AT / text, Path.exists) or "://" in text:
            continue
        meant = beside(text, file.parent)
        what = f"`{name}` is a path at which nothing stands"
        if not is_path(text):
            if meant is None or _cached(text):
                continue
            what = f"`{name}` is taken for a Hugging Face id, and no directory"
        got = f"`{text}`" + ("" if Path(text).is_absolute() else f", looked for below {EMBEDDED_AT}")
        expected = "an absolute path, or a Hugging Face id"
        yield Problem(what, str(file), got, expected, f"write {meant}" if meant else None)


def _cached(named: str) -> bool:
    """Whether this machine holds the model that Hugging Face has under an id."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    return _seen(hub / f"models--{named.replace('/', '--')}", Path.is_dir)


def folders(arguments: Mapping[str, Any]) -> list[Path]:
    """The paths that a container must have under the same name, each once."""
    return [Path(text) for text in dict.fromkeys(text for _, text in named_models(arguments)) if text.startswith("/")]


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
