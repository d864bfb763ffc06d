"""The models that an engine's arguments name: asked for before it starts, and told when it got none. Layer: backend.

What counts as an id, and where the cache is, is the same as in tooling.llm.model_place, which the stub does not have.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from llm_environment import ARGUMENTS, Refusal

_ID = re.compile(r"(?!.*(?:--|\.\.))(\b[\w.-]+\b/)?\b[\w.-]{1,96}\b(/[\w.-]+\.gguf|:[\w.-]+)?")
"""How the id of a model at Hugging Face is spelled."""
_NAMED = ("model", "tokenizer", "hf_config_path", "speculative_model")
_DRAFTS = ("model", "speculative_model", "speculative_model_dir")
_CONFIGS = ("config.json", "params.json")
_CLOSED = re.compile(r"gated repo|40[13] Client Error|not a valid model identifier|Repository Not Found", re.I)
_AWAY = re.compile(
    r"couldn.t connect to|cached snapshot|in the (?:disk|local) cache|outgoing traffic|offline mode is enabled"
    r"|name resolution|Name or service not known|Network is unreachable|Max retries exceeded|All connection attempts",
    re.I,
)
_UNTOLD = re.compile(r"Invalid repository ID or local directory specified: '([^']*)'")
_VALIDATION = re.compile(r"\d+ validation errors? for \w+\n\s*(?:Value error, )?(.*?)(?: \[type=.*|\Z)", re.S)
"""What pydantic puts around the words of an error."""
_FIELD = re.compile(r"^(\S+)\n  (.+?) \[type=\w+, input_value=(.*), input_type=\w+\]", re.M)
"""What pydantic says of one field."""
_WEIGHTS = re.compile(r"Cannot find any model weights with `([^`]*)`")
_KNOWN = re.compile(r" Supported architectures: dict_keys\(.*?\]\)\.?", re.S)


def named_models(arguments):
    """The arguments that name a model, each with its text. N-gram speculation names none."""
    speculative = arguments.get("speculative_config")
    drafts = speculative if isinstance(speculative, dict) else {}
    listed = [(name, arguments.get(name)) for name in _NAMED]
    listed += [(f"speculative_config.{name}", drafts.get(name)) for name in _DRAFTS]
    for name, text in listed:
        if isinstance(text, str) and text and not text.startswith("[") and not ("." in name and text == "ngram"):
            yield name, text


def require_models(folder, arguments):
    """Raise Refusal for models that vLLM would not find, or would look for in vain at Hugging Face.

    As in the container a relative path is looked for in the server's working directory, which a stub keeps.
    """
    file, model = folder / ARGUMENTS, arguments.get("model")
    if not isinstance(model, str) or not model:
        got = f"`model` is {json.dumps(model)}" if "model" in arguments else "it has no `model`"
        raise Refusal(f"'{file}' names no model: {got}, and should be a Hugging Face id or an absolute path")
    for name, text in named_models(arguments):
        if "://" in text:
            continue
        if _seen(text, Path.exists):
            if name == "model" and "hf_config_path" not in arguments and not _seen(text, _holds_model):
                raise Refusal(
                    f"`model` of '{file}' is the directory '{text}', which holds no config.json (nor params.json, nor "
                    "a GGUF file): name the directory that the model was saved to"
                )
        elif not _ID.fullmatch(text):
            raise Refusal(_nowhere(name, text, folder))
        elif offline() and not in_cache(text):
            raise Refusal(_not_got([(name, text)], file, "HF_HUB_OFFLINE forbids to ask Hugging Face"))


def in_plain_words(text, folder, arguments):
    """Why an engine does not start: in plain words where it asked Hugging Face in vain or found no tokenizer, else the
    engine's own, without lists and addresses that say nothing of this model."""
    file = folder / ARGUMENTS
    if fields := _FIELD.findall(text):
        told = "; ".join(f"`{name}` is {value[:60]}: {message}" for name, message, value in fields)
        return f"vLLM does not take what '{file}' holds: {told}"
    text = _VALIDATION.sub(r"\1", text)
    first = text.split("\n")[0]
    reason, untold = None, _UNTOLD.search(text)
    if _CLOSED.search(text):
        reason = "Hugging Face knows no such model, or gives it only to those who log in (`hf auth login`, HF_TOKEN)"
    elif _AWAY.search(text):
        reason = "Hugging Face cannot be reached from here"
    elif untold:
        reason = "Hugging Face cannot be reached from here, or knows no such model"
    ids = [(name, one) for name, one in named_models(arguments) if _ID.fullmatch(one) and not _seen(one, Path.exists)]
    ids = [(name, one) for name, one in ids if not untold or one == untold[1]]
    lacking = [(name, one) for name, one in ids if not in_cache(one)] or ids
    if reason is not None and lacking:
        return f"{_not_got(lacking, file, reason)}. {first}"
    if weightless := _WEIGHTS.search(text):
        lack = "holds no weights that the engine can read: put the model's .safetensors files there"
        return f"{_lacking('model', weightless[1], arguments, file, lack)}. {first}"
    if "instantiate the backend tokenizer" in text:
        name = "tokenizer" if arguments.get("tokenizer") else "model"
        lack = "holds no tokenizer that the engine can read: put tokenizer.json there, or name the directory of "
        lack += "another as `tokenizer`"
        first = first.rstrip().removesuffix(" from one of:")
        return f"{_lacking(name, arguments.get(name), arguments, file, lack)}. {first}"
    return " ".join(_KNOWN.sub("", text.split("\n\n")[0]).split())


def hub_cache():
    """Where this machine keeps what it has from Hugging Face."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{caches}/huggingface"
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(hub)).expanduser()


def in_cache(named):
    """Whether the cache holds files of the model with an id."""
    snapshots = hub_cache() / f"models--{_repository(named).replace('/', '--')}" / "snapshots"
    return _seen(snapshots, lambda path: any(path.glob("*/*")))


def offline():
    """Whether nothing may be asked of Hugging Face."""
    said = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return said.upper() in ("1", "ON", "YES", "TRUE")


def _not_got(lacking, file, reason):
    listed = ", ".join(f"`{name}` '{text}'" for name, text in lacking)
    fetch = " && ".join(f"hf download {_repository(text)}" for _, text in lacking)
    told = f"'{file}' names by a Hugging Face id what the engine did not get: {listed}. "
    if not offline() and all(in_cache(text) for _, text in lacking):
        return (
            f"{told}{reason}, and the engine asks although the cache '{hub_cache()}' holds files of it: start the "
            f"server with HF_HUB_OFFLINE=1, or fill the cache where there is a network (`{fetch}`)"
        )
    return (
        f"{told}The cache '{hub_cache()}' does not hold it whole, and {reason}: write the absolute path of a directory "
        f"that holds the model, or fill it where there is a network (`{fetch}`)"
    )


def _lacking(name, place, arguments, file, lack):
    """That the directory `place` of a model lacks something; one in the cache is to be fetched once more."""
    named = arguments.get(name)
    if isinstance(named, str) and _ID.fullmatch(named) and not _seen(named, Path.exists):
        cache = f"The cache '{hub_cache()}' does not hold it whole"
        return f"`{name}` '{named}', which '{file}' names, {lack}. {cache}: `hf download {_repository(named)}` fills it"
    return f"'{place}', which '{file}' names, {lack}"


def _nowhere(name, text, folder):
    here = "" if Path(text).is_absolute() else f" below '{Path.cwd()}', where the server was started"
    meant = _beside(folder, text)
    return (
        f"`{name}` of '{folder / ARGUMENTS}' is the path '{text}', and nothing stands there{here}: write the absolute "
        f"path{f' {meant}' if meant else ''}, or a Hugging Face id"
    )


def _beside(folder, named):
    """What a relative path names beside the arguments, which is most likely what was meant."""
    if Path(named).is_absolute():
        return None
    found = (start / named for start in (folder, folder.parent, folder.parent.parent))
    return next((path.resolve() for path in found if _seen(path, Path.exists)), None)


def _holds_model(path):
    return not path.is_dir() or any((path / name).is_file() for name in _CONFIGS) or any(path.glob("*.gguf"))


def _repository(named):
    """The repository of an id, which may name a file of it or a quantisation too."""
    return "/".join(named.partition(":")[0].split("/")[:2])


def _seen(path, what):
    """Whether this is so of a path, as far as that can be seen."""
    try:
        return what(Path(path))
    except OSError:
        return False
