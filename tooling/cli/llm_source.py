"""What gen-config makes of a language model's directory: an engine's settings, and the models around it. Layer: cli."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tooling.cli.config_source import Source
from tooling.cli.options import size_bytes
from tooling.errors import MissingError, UsageError, suggest

if TYPE_CHECKING:
    from tooling.llm.model_facts import ModelFacts
    from tooling.llm.plan import CacheType, Speculation, Wants
    from tooling.releases import Release

Form = Literal["api", "ensemble", "bls"]
LARGEST = 2**24
"""Above this a number of tokens, streams or GPUs is a slip of the keyboard."""


@dataclass(frozen=True, slots=True)
class LlmAsk:
    """What the options of language models say; None and empty values leave it to be chosen."""

    llm: Path
    gpu_memory: str | None = None
    gpus: int | None = None
    streams: int | None = None
    context: int | None = None
    mean_tokens: int | None = None
    token_budget: int | None = None
    kv_cache: CacheType | None = None
    quantization: str | None = None
    speculate: str | None = None
    prefix_caching: bool | None = None
    low_latency: str | None = None
    form: Form | None = None
    engine: tuple[str, ...] = ()


def from_llm(model_dir: Path, ask: LlmAsk, backend: str | None, release: Release, *, force: bool) -> Source:
    """A model whose files all follow from the options. Raises UsageError for edited files, unless `force` is given."""
    from tooling.llm.model_facts import read_facts
    from tooling.repository import absolute

    model_dir, llm = absolute(model_dir), absolute(ask.llm)
    facts, wants = read_facts(llm), _wants(ask)
    if backend == "tensorrtllm":
        from tooling.cli.trtllm_source import trtllm_source

        return trtllm_source(model_dir, facts, wants, ask, release)
    if backend not in (None, "vllm"):
        raise UsageError(
            "no engine for language models", where="--backend", got=f"`{backend}`", expected="vllm or tensorrtllm"
        )
    if ask.form:
        raise UsageError("--form is for TensorRT-LLM", hint="leave it out, or name --backend tensorrtllm")
    return _vllm_source(model_dir, facts, wants, ask, release, force=force)


def _wants(ask: LlmAsk) -> Wants:
    from tooling.llm.plan import Wants

    return Wants(
        _smallest_gpu() if ask.gpu_memory is None else gpu_bytes(ask.gpu_memory),
        gpus=ask.gpus or 1,
        context=ask.context,
        mean_tokens=ask.mean_tokens,
        streams=ask.streams,
        token_budget=ask.token_budget,
        cache_type=ask.kv_cache or "auto",
        quantization=ask.quantization,
        speculation=speculation(ask.speculate) if ask.speculate else None,
        prefix_caching=ask.prefix_caching is not False,
    )


def gpu_bytes(text: str) -> int:
    """Bytes of one GPU, as said."""
    size = size_bytes("--gpu-memory", text)
    if size < 2**28:
        raise UsageError("no GPU is so small", where="--gpu-memory", got=f"`{text}`", expected="256MiB or more")
    return size


def _smallest_gpu() -> int:
    """Bytes of the smallest GPU of this machine."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        sizes = [int(line) for line in done.stdout.split()] if shutil.which(command[0]) else []
    except (OSError, subprocess.SubprocessError, ValueError):
        sizes = []
    if not sizes:
        raise MissingError(
            "no GPU to ask for its memory",
            where="nvidia-smi",
            hint="say it: --gpu-memory 80GiB (for a CPU: its memory)",
        )
    return min(sizes) * 2**20


def speculation(text: str) -> Speculation:
    """How tokens are guessed ahead."""
    from tooling.llm.plan import Speculation
    from tooling.repository import absolute

    by, _, count = text.rpartition(":") if text.rpartition(":")[2].isdecimal() else (text, "", "")
    tokens = int(count[:9]) if count else Speculation().tokens
    if not by or not 1 <= tokens <= 64:
        raise UsageError(
            "not understood", where="--speculate", got=f"`{text}`", expected="ngram, ngram:4, or DIR:4, up to 64 tokens"
        )
    return Speculation(tokens, None if by == "ngram" else absolute(Path(by)))


def engine_values(words: tuple[str, ...]) -> dict[str, Any]:
    """KEY=VALUE with values as JSON has them; other text stands for itself. Raises UsageError for another form."""
    found: dict[str, Any] = {}
    for word in words:
        key, sign, text = word.partition("=")
        if not key or not sign:
            raise UsageError("not understood", where="--engine", got=f"`{word}`", expected="KEY=VALUE")
        if key in found:
            raise UsageError("an argument is given twice", where="--engine", got=f"`{key}`", hint="give it once")
        try:
            found[key] = json.loads(text)
        except (ValueError, RecursionError):
            found[key] = text
    return found


def engine_value(word: str) -> None:
    """Raise UsageError for what is no KEY=VALUE."""
    engine_values((word,))


def refuse_unless_known(method: str | None, known: tuple[str, ...]) -> None:
    """Raise UsageError for a way to quantise that the engine does not have for plain weights."""
    if method is not None and method not in known:
        raise UsageError(
            "plain weights are not quantised so",
            where="--quantization",
            got=f"`{method}`",
            expected=", ".join(known),
            hint=suggest(method, known) or "give weights that are quantised already: they are recognised",
        )


def _vllm_source(
    model_dir: Path, facts: ModelFacts, wants: Wants, ask: LlmAsk, release: Release, *, force: bool
) -> Source:
    from tooling.deploy.image import image_of
    from tooling.llm.model_place import folders
    from tooling.llm.plan import make_plan, set_apart
    from tooling.llm.vllm_model import AT_LOAD
    from tooling.signature.spec import ModelSignature

    refuse_unless_known(wants.quantization, AT_LOAD)
    own = engine_values(ask.engine)
    files: dict[Path, bytes] = {}
    if ask.low_latency:
        wants, quick, gpu = set_apart(facts, wants)
        beside = _beside(model_dir, ask.low_latency)
        files |= _engine_files(beside, make_plan(facts, quick), own, release, force=force)
        files |= _config_file(beside, gpu, force=force)
    plan = make_plan(facts, wants)
    draft = wants.speculation.draft if wants.speculation else None
    named = {"model": str(facts.path), **({"speculative_model": str(draft)} if draft else {})}
    files |= _engine_files(model_dir, plan, own, release, force=force)
    signature = ModelSignature(model_dir / "1" / "model.json", "vllm", (), (), max_batch_size=0, decoupled=True)
    return Source(
        model_dir.name,
        model_dir,
        signature,
        files=files,
        notes=plan.notes,
        commands=(serving(model_dir.parent, image_of(release, "vllm-python-py3"), *folders({**named, **own})),),
    )


def check_beside(name: str) -> None:
    """Raise UsageError for a name that no second model can have."""
    from tooling.config.names import name_problem

    if problem := name_problem(name):
        raise UsageError(problems=[replace(problem, where="--low-latency")])


def _beside(model_dir: Path, name: str) -> Path:
    """The directory of a second model. Raises UsageError for the first one's name."""
    check_beside(name)
    if name == model_dir.name:
        raise UsageError("both models have one name", where="--low-latency", got=f"`{name}`")
    return model_dir.with_name(name)


def _engine_files(
    model_dir: Path, plan: Any, own: dict[str, Any], release: Release, *, force: bool
) -> dict[Path, bytes]:
    """model.json and the page about it. Raises UsageError where the one that stands there was edited."""
    from tooling.llm import vllm_model
    from tooling.llm.page import FILE as PAGE
    from tooling.repository import encode, read_text

    arguments = vllm_model.engine_arguments(plan, release, str(plan.facts.path), own)
    path, page = model_dir / "1" / vllm_model.FILE, model_dir / PAGE
    if path.exists() and not force:
        about = read_text(page) if page.exists() else ""
        if vllm_model.is_edited(read_text(path), about):
            raise UsageError(
                "the file is not as tritune wrote it",
                where=path,
                hint="put the change into --engine KEY=VALUE, or generate it anew with --force",
            )
    return {
        path: encode(vllm_model.text_of(arguments)),
        page: encode(vllm_model.vllm_page(plan, arguments, release)),
    }


def _config_file(model_dir: Path, gpu: int | None, *, force: bool) -> dict[Path, bytes]:
    """The config of an engine that is pinned to one GPU, or shares the first."""
    from tooling.config.build import build_config
    from tooling.config.knobs import Knobs
    from tooling.config.proto import pb
    from tooling.config.render import render
    from tooling.repository import config_path, guard_overwrite
    from tooling.signature.spec import ModelSignature

    signature = ModelSignature(model_dir / "1" / "model.json", "vllm", (), (), max_batch_size=0, decoupled=True)
    config = build_config(signature, model_dir.name, Knobs(max_batch_size=0, dynamic_batching=False))
    if gpu is not None:
        config.instance_group[0].kind = pb().ModelInstanceGroup.KIND_GPU
        config.instance_group[0].gpus[:] = [gpu]
    path, text = config_path(model_dir), render(config)
    if not force:
        guard_overwrite(path, text)
    return {path: text.encode()}


def serving(repository: Path, image: str, *mounted: Path, gpus: bool = True) -> str:
    """The command that serves the repository in a container, with these paths under their own names."""
    from shlex import quote

    mounts = f"-v {quote(str(repository))}:/models:ro"
    for folder in map(str, mounted):
        mounts += f" -v {quote(folder)}:{quote(folder)}:ro"
    on = "--gpus all " if gpus else ""
    return (
        f"docker run --rm {on}--shm-size 2g -p 127.0.0.1:8000-8002:8000-8002 {mounts} {image} "
        "tritonserver --model-repository=/models"
    )
