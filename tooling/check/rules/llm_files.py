"""Rules about what holds for the arguments of every engine of language models: keys that stand twice, and models that
are paths. Layer: check.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tooling.check.files import closed, exists, is_file, json_object, read_limited, yaml_object
from tooling.check.finding import Finding, Place
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, note
from tooling.llm.model_place import (
    beside,
    folders,
    holds_config,
    holds_model,
    how_to_get,
    hub_cache,
    in_cache,
    is_path,
    mounted,
    named_models,
)

_LARGEST: Final = 2**20
_MOUNTED: Final = Path("/models")
"""Where containers have the repository."""
_KIND: Final = 'backend: "vllm"\n--- 1/model.onnx\nabsent\n--- 1/model.json\n'

TWICE = advice(
    "llm-argument-twice",
    "A key stands twice in the file of the engine's arguments.",
    "JSON and YAML keep the last one, without a word: what stands before it has no effect.",
    _KIND + '{"model": "org/llm", "max_num_seqs": 8, "max_num_seqs": 64}',
    "Python's json, PyYAML",
)
ELSEWHERE = advice(
    "llm-model-elsewhere",
    "A model is named by a path at which nothing stands on this machine, or by one that is not absolute.",
    "The engine gets the path as it stands and looks on its server: a relative one below the directory that the server "
    "was started in (`/` under `tritune serve`, /opt/tritonserver in NVIDIA's images), never beside the file that "
    "names it. What it does not find it takes for the id of a model at Hugging Face, and the load fails.",
    _KIND + '{"model": "./weights"}',
    "triton-inference-server/server#7587",
)
FETCHED = note(
    "llm-model-fetched",
    "A model is named by a Hugging Face id, and the cache of this machine does not hold it.",
    "The engine fetches it when it starts, which takes minutes for a large one and needs a network and, for one that "
    "is not public, a token (HF_TOKEN). Where it may not ask (HF_HUB_OFFLINE) or gets no answer the load fails.",
    _KIND + '{"model": "org/llm"}',
    "vLLM's ModelConfig",
)
RULES = (TWICE, ELSEWHERE, FETCHED)


def arguments_file(model: Model, place: Place, path: Path, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    """What does not depend on the engine; `path` is the file of its arguments, JSON or YAML."""
    yield from twice(model, place, path)
    for name, text in named_models(arguments):
        whole = name == "model" and not arguments.get("hf_config_path")
        yield from elsewhere(model, place, path.parent, name, text, whole=whole)


def twice(model: Model, place: Place, path: Path) -> Iterator[Finding]:
    """Keys of a JSON or YAML file that stand twice in one object."""
    for key, values in doubled(path).items():
        shown = ", then ".join(_shown(value) for value in values)
        yield model.find(TWICE, f"{key} stands {_times(len(values))}: {shown}", place=place, hint="keep the last one")


def elsewhere(
    model: Model, place: Place, folder: Path, name: str, text: str, *, whole: bool = False
) -> Iterator[Finding]:
    """A model that is named by the path `text` in a file of the version directory `folder`; of a `whole` one the config
    is needed, and not its tokenizer alone."""
    path, meant = Path(text), beside(text, folder)
    if path.is_absolute():
        if not exists(path) and not _mounted(path, folder):
            said = f"{name}: nothing stands at {text} on this machine"
            yield model.find(ELSEWHERE, said, place=place, hint="right where the server has it there: mount it so")
        elif path.is_dir() and closed(path) is None and not (holds_config if whole else holds_model)(path):
            yield model.find(ELSEWHERE, f"{name}: {text} holds no config.json", place=place)
    elif meant is not None or is_path(text):
        said = f"{name}: `{text}` is not looked for beside this file, but below the directory the server was started in"
        hint = f"the absolute path on the server; here it is {meant}" if meant else "the absolute path on the server"
        yield model.find(ELSEWHERE, said, place=place, hint=hint)
    elif "://" not in text and in_cache(text) is None:
        said = f"{name}: `{text}` is a Hugging Face id, and not in {hub_cache()}: the engine has to fetch it"
        yield model.find(FETCHED, said, place=place, hint=how_to_get(text))


def _mounted(path: Path, folder: Path) -> bool:
    """Whether a path of the container, which has the repository at its usual place, is there in the repository."""
    return path.is_relative_to(_MOUNTED) and exists(folder.parent.parent / path.relative_to(_MOUNTED))


def outside(model: Model) -> Iterator[str]:
    """The absolute paths that the engines of a model read models and adapters from."""
    names = {"vllm": "model.json", "python": "model.yaml"}
    for version in model.served if model.config.backend in names else ():
        folder = model.version_dir(version)
        file = folder / names[model.config.backend]
        arguments = (json_object if file.suffix == ".json" else yaml_object)(file) or {}
        if file.suffix != ".json" and "triton_config" not in arguments:
            continue
        named = [*map(str, folders(arguments))]
        adapters = (json_object(folder / "multi_lora.json") or {}) if model.config.backend == "vllm" else {}
        paths = (Path(text) for text in adapters.values() if isinstance(text, str) and text.startswith("/"))
        named += map(str, map(mounted, paths))
        yield from (text for text in named if not Path(text).is_relative_to(_MOUNTED))


def doubled(path: Path) -> dict[str, list[Any]]:
    """The keys that stand more than once in one object of a JSON or YAML file, with their values in order; empty for
    what is neither."""
    try:
        content = read_limited(path, _LARGEST) or b"" if is_file(path) else b""
        return _in_json(content) if path.suffix == ".json" else _in_yaml(content)
    except (OSError, ValueError, RecursionError):
        return {}


def _in_json(content: bytes) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}

    def read(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.update(_more_than_one(pairs))
        return dict(pairs)

    json.loads(content, object_pairs_hook=read)
    return found


def _in_yaml(content: bytes) -> dict[str, list[Any]]:
    import yaml

    found: dict[str, list[Any]] = {}
    try:
        pending = [yaml.compose(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader))]
    except yaml.YAMLError:
        return {}
    seen: set[int] = set()  # an alias is the node that it stands for, which may be one around it
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            found.update(_more_than_one([(str(key.value), value.value) for key, value in node.value]))
            pending += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            pending += node.value
    return found


def _more_than_one(pairs: list[tuple[str, Any]]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return {key: listed for key, listed in values.items() if len(listed) > 1}


def _times(count: int) -> str:
    return "twice" if count == 2 else f"{count} times"


def _shown(value: object) -> str:
    if isinstance(value, list | dict):
        return "…"
    text = value if isinstance(value, str) else json.dumps(value)
    return f"`{text[:40]}…`" if len(text) > 40 else f"`{text}`"
