"""What gen-config makes of a language model's directory for TensorRT-LLM: the LLM API, or engines. Layer: cli."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.cli.config_source import Source
from tooling.errors import UsageError

if TYPE_CHECKING:
    from tooling.cli.llm_source import Form, LlmAsk
    from tooling.llm.model_facts import ModelFacts
    from tooling.llm.plan import Choice, Plan, Wants
    from tooling.releases import Release

_API_SETTINGS = {
    "memory": "`kv_cache_config.free_gpu_memory_fraction`",
    "GPUs": "`tensor_parallel_size`, `pipeline_parallel_size`",
    "weights": "",
    "cache type": "`kv_cache_config.dtype`",
    "context": "`max_seq_len`",
    "sequences": "`max_batch_size`",
    "token budget": "`max_num_tokens`",
    "speculation": "`speculative_config`",
    "chunked context": "`enable_chunked_prefill`",
    "prefix caching": "`kv_cache_config.enable_block_reuse`",
    "scheduler": "`scheduler_config.capacity_scheduler_policy`",
}
_ENGINE_SETTINGS = {
    "memory": "`kv_cache_free_gpu_mem_fraction`",
    "GPUs": "`gpu_device_ids`; `--tp_size`, `--pp_size` of the build",
    "weights": "`--qformat` of the build",
    "cache type": "`--kv_cache_dtype` of the build",
    "context": "`--max_seq_len` of the build",
    "sequences": "`max_batch_size`; `--max_batch_size` of the build",
    "token budget": "`--max_num_tokens` of the build",
    "speculation": "`--speculative_decoding_mode` of the build; `num_draft_tokens` of a request",
    "chunked context": "`enable_chunked_context`; `--use_paged_context_fmha` of the build",
    "prefix caching": "`enable_kv_cache_reuse`",
    "scheduler": "`batch_scheduler_policy`",
}


def trtllm_source(model_dir: Path, facts: ModelFacts, wants: Wants, ask: LlmAsk, release: Release) -> Source:
    """The models that serve `facts` under the TensorRT-LLM of a release. Raises UsageError for what it cannot do."""
    from tooling.deploy.image import image_of
    from tooling.llm.plan import make_plan

    form = _form(ask.form, wants, release)
    if ask.low_latency:
        raise UsageError("--low-latency is for vLLM", hint="generate a second model with a share of the memory")
    plan = make_plan(facts, wants)
    image = image_of(release, "trtllm-python-py3")
    if form == "api":
        return _api(model_dir, plan, ask, release, image)
    return _engine(model_dir, form, plan, ask, release, image)


def _form(asked: Form | None, wants: Wants, release: Release) -> Form:
    from tooling.llm.arguments import version_key

    if release.trtllm is None:
        raise UsageError(
            "no TensorRT-LLM is known for this release", got=release.tag, expected="24.05 to 26.07", where="--release"
        )
    has_api = version_key(release.trtllm) >= (1,)
    form = asked or ("api" if has_api else "bls")
    if form == "api" and not has_api:
        raise UsageError(
            "the LLM API came with TensorRT-LLM 1.0",
            where="--form",
            got=f"TensorRT-LLM {release.trtllm} of Triton {release.tag}",
            hint="--form bls or ensemble, or --release 25.09 and later",
        )
    if form != "api" and wants.speculation and (form == "ensemble" or wants.speculation.draft is None):
        raise UsageError(
            "an engine guesses with a draft model, called by a BLS model",
            where="--speculate",
            got=f"--form {form}" + ("" if wants.speculation.draft else ", n-grams"),
            hint="--form bls --speculate DIR, or --form api for n-grams",
        )
    return form


def _api(model_dir: Path, plan: Plan, ask: LlmAsk, release: Release, image: str) -> Source:
    from shlex import quote

    from tooling.cli.llm_source import engine_values, serving
    from tooling.llm import llm_api
    from tooling.llm.model_place import folders
    from tooling.repository import encode

    if plan.wants.quantization:
        raise UsageError(
            "the LLM API quantises nothing itself",
            where="--quantization",
            got=plan.wants.quantization,
            expected="weights that are quantised already, which it recognises",
            hint="quantise them with NVIDIA's ModelOpt and give that directory, or build an engine with --form bls",
        )
    own = engine_values(ask.engine)
    content = llm_api.settings(plan, str(own.get("model", plan.facts.path)), own)
    code = " ".join(f"{llm_api.IN_IMAGE}/{name}" for name in llm_api.CODE)
    copy = f"docker run --rm -v {quote(str(model_dir))}:/model {image} cp {code} /model/1/"
    return Source(
        model_dir.name,
        model_dir,
        config=llm_api.config(model_dir.name),
        joined=True,
        files={
            model_dir / "1" / llm_api.FILE: encode(llm_api.text_of(content)),
            **_page(model_dir, plan, f"TensorRT-LLM {release.trtllm} of Triton {release.tag}", _API_SETTINGS),
        },
        notes=plan.notes,
        commands=(copy, serving(model_dir.parent, image, *folders(content))),
    )


def _engine(model_dir: Path, form: Any, plan: Plan, ask: LlmAsk, release: Release, image: str) -> Source:
    from tooling.cli.llm_source import engine_values, refuse_unless_known, serving
    from tooling.config.render import render
    from tooling.llm import batcher
    from tooling.llm.model_place import mounted

    names, own = batcher.Names(model_dir.name), engine_values(ask.engine)
    refuse_unless_known(plan.wants.quantization, batcher.FORMATS)
    _refuse_unknown(own)
    if not (plan.facts.path / "tokenizer.json").is_file():
        raise UsageError(
            "the models around an engine need the tokenizer", where=plan.facts.path, expected="tokenizer.json"
        )
    engine = model_dir.parent.with_name(f"{model_dir.parent.name}-engines") / model_dir.name
    before, behind = batcher.tokenizer_configs(names, plan, *batcher.token_ids(plan.facts))
    decoupled = form == "bls"
    commands = batcher.build_commands(plan, image, engine)
    configs = [before, behind]
    draft = plan.wants.speculation.draft if plan.wants.speculation else None
    limits: dict[str, Any] = {}
    if draft is not None:  # neither may take the other's share of what is free
        quick, place = _draft_plan(plan, draft), engine.with_name(f"{engine.name}-draft")
        limits = {"max_tokens_in_paged_kv_cache": str(batcher.shared_tokens(plan))}
        configs.append(batcher.engine_config(names.draft, quick, str(place), limits | own, decoupled=decoupled))
        commands += batcher.build_commands(quick, image, place)
    configs.append(batcher.engine_config(names.engine, plan, str(engine), limits | own, decoupled=decoupled))
    files: dict[Path, bytes] = {}
    for config in configs:
        folder = model_dir.with_name(config.name)
        files[folder / "config.pbtxt"] = render(config).encode()
        files |= _version(folder, {names.preprocessing: "preprocessing", names.postprocessing: "postprocessing"})
    files |= _version(model_dir, {names.top: "bls"} if form == "bls" else {})
    files |= _page(model_dir, plan, f"TensorRT-LLM {release.trtllm} of Triton {release.tag}", _ENGINE_SETTINGS)
    return Source(
        model_dir.name,
        model_dir,
        config=batcher.top_config(names, form, plan),
        joined=True,
        files=files,
        notes=plan.notes,
        commands=(*commands, serving(model_dir.parent, image, mounted(plan.facts.path), engine.parent)),
    )


def _refuse_unknown(own: dict[str, Any]) -> None:
    from tooling.check.rules.tensorrt_llm import PARAMETERS
    from tooling.errors import suggest

    for name in own:
        if name not in PARAMETERS:
            raise UsageError(
                "no parameter of the tensorrtllm backend",
                where="--engine",
                got=f"`{name}`",
                hint=suggest(name, PARAMETERS),
            )


def _draft_plan(plan: Plan, draft: Path) -> Plan:
    """The draft model beside the other: the same lengths, on one GPU."""
    from dataclasses import replace

    from tooling.llm.memory import Layout
    from tooling.llm.model_facts import read_facts

    wants = replace(plan.wants, speculation=None, quantization=None, cache_type="auto")
    return replace(plan, facts=read_facts(draft), wants=wants, layout=Layout(), notes=())


def _version(folder: Path, codes: dict[str, str]) -> dict[Path, bytes]:
    """The version directory: its code, or a mark that keeps an empty one."""
    from tooling.llm.batcher import MODELS

    if folder.name in codes:
        return {folder / "1" / "model.py": (MODELS / f"{codes[folder.name]}.py").read_bytes()}
    return {folder / "1" / ".gitkeep": b""}


def _page(model_dir: Path, plan: Plan, served_by: str, settings: dict[str, str]) -> dict[Path, bytes]:
    from tooling.llm.page import FILE, page

    text = page(plan, str(plan.facts.path), served_by, _choices(plan), settings)
    return {model_dir / FILE: text.encode("utf-8", "surrogateescape")}


def _choices(plan: Plan) -> list[Choice]:
    """What TensorRT-LLM does otherwise than vLLM is said in its own words."""
    from tooling.llm.llm_api import policy
    from tooling.llm.plan import Choice, explained

    chosen, cached = policy(plan), plan.wants.prefix_caching
    sure = (
        "the cache holds all running sequences at their usual length: one starts when its whole length is sure to fit"
    )
    full = "the cache does not hold all running sequences at their usual length: they start as long as there is room, "
    return [
        *(choice for choice in explained(plan) if choice.name != "memory"),
        Choice("memory", f"{plan.wants.share:g}", "a share of what is free once the weights are loaded, for the cache"),
        Choice("scheduler", chosen, sure if chosen == "GUARANTEED_NO_EVICT" else f"{full}and some are paused"),
        Choice("chunked context", "on", "a long prompt is computed in parts between steps, and stops nobody"),
        Choice("prefix caching", "on" if cached else "off", "prompts that begin alike are computed once"),
    ]
