"""The engine arguments of a vLLM model, from a plan, and the page that says why each is as it is. Layer: llm."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tooling.errors import Problem, UsageError
from tooling.llm.arguments import Contradiction, arguments_of, contradictions, misfits, version_key
from tooling.llm.model_place import relative_paths
from tooling.llm.page import page
from tooling.llm.plan import Choice, Plan, Speculation, explained
from tooling.releases import Release
from tooling.signature.vllm_model import unnamed

FILE: Final = "model.json"
AT_LOAD: Final = ("fp8", "bitsandbytes", "experts_int8")
"""Ways in which vLLM itself quantises plain weights; others need weights that are quantised already."""
_ENGINE_V1: Final = "0.8.1"  # its scheduler always prefills in chunks, and takes speculation and prefix caching with it
_CACHED_CHUNKS: Final = "0.6.3"
_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "memory": ("gpu_memory_utilization",),
    "GPUs": ("tensor_parallel_size", "pipeline_parallel_size"),
    "weights": ("quantization",),
    "cache type": ("kv_cache_dtype",),
    "context": ("max_model_len",),
    "sequences": ("max_num_seqs",),
    "token budget": ("max_num_batched_tokens",),
    "chunked prefill": ("enable_chunked_prefill",),
    "prefix caching": ("enable_prefix_caching",),
    "speculation": ("speculative_config", "speculative_model", "num_speculative_tokens"),
}
"""The arguments that stand for a choice."""
_STAMP: Final = re.compile(r"<!-- model\.json: ([0-9a-f]{12}) -->")


def engine_arguments(plan: Plan, release: Release, model: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The content of model.json for the vLLM of a release; `own` arguments are put over the chosen ones.

    Raises UsageError for a release whose vLLM is not known, and for own arguments that it does not take.
    """
    if release.vllm is None:
        raise UsageError(
            "the vLLM of this release is not known", got=release.tag, hint="name another with --release, like 25.10"
        )
    known = arguments_of(release.vllm)
    engine = f"vLLM {release.vllm} (Triton {release.tag})"
    wrong = misfits(own, known, engine, release.vllm, "--engine")
    problems = [*wrong, *relative_paths(own, "--engine")]
    if problems:
        raise UsageError(problems=problems)
    wants = plan.wants
    found: dict[str, Any] = {
        "model": model,
        "max_model_len": plan.context,
        "max_num_seqs": plan.sequences,
        "max_num_batched_tokens": plan.batched_tokens,
        "gpu_memory_utilization": round(wants.share, 3),
        "tensor_parallel_size": plan.layout.tensor_parallel,
        "pipeline_parallel_size": plan.layout.pipeline_parallel,
        "kv_cache_dtype": wants.cache_type,
        "quantization": wants.quantization,
        **_scheduling(plan, release.vllm),
        **_speculation(wants.speculation, known),
    }
    kept = {name: value for name, value in found.items() if value is not None and name in known}
    arguments = {**kept, **own}
    if problem := unnamed(arguments, Path("--engine")):
        raise UsageError(problems=[problem])
    broken = [_ruled_out(found, own, engine) for found in contradictions(arguments, release.vllm)]
    if broken:
        raise UsageError(problems=broken)
    return arguments


def _ruled_out(found: Contradiction, own: Mapping[str, Any], engine: str) -> Problem:
    if found.argument == "speculative_config" and found.argument not in own:
        return Problem(found.message, "--speculate", engine, hint="give ngram:N, or another --release")
    return Problem(found.message, "--engine" if own else None)


def _scheduling(plan: Plan, version: str) -> dict[str, Any]:
    """Prefill in parts, cached prefixes and speculation exclude each other before vLLM's second engine."""
    wants = plan.wants
    if version_key(version) >= version_key(_ENGINE_V1):
        return {"enable_chunked_prefill": True, "enable_prefix_caching": wants.prefix_caching}
    if wants.speculation:  # whole prompts then: a step must hold the longest
        return {
            "enable_chunked_prefill": False,
            "enable_prefix_caching": False,
            "use_v2_block_manager": True,
            "max_num_batched_tokens": max(plan.batched_tokens, plan.context),
        }
    both = version_key(version) >= version_key(_CACHED_CHUNKS)
    return {"enable_chunked_prefill": True, "enable_prefix_caching": wants.prefix_caching and both}


def _speculation(speculation: Speculation | None, known: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    if speculation is None:
        return {}
    draft = str(speculation.draft) if speculation.draft else None
    if "speculative_config" in known:
        config: dict[str, Any] = {"num_speculative_tokens": speculation.tokens}
        config |= {"model": draft} if draft else {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
        return {"speculative_config": config}
    if "speculative_model" not in known:
        raise UsageError("this vLLM does not speculate", where="--speculate", hint="name a later --release")
    by = {} if draft else {"ngram_prompt_lookup_max": 4, "ngram_prompt_lookup_min": 2}
    return {"speculative_model": draft or "[ngram]", "num_speculative_tokens": speculation.tokens, **by}


def text_of(arguments: Mapping[str, Any]) -> str:
    """The arguments as the file has them."""
    return json.dumps(arguments, indent=2, ensure_ascii=False) + "\n"


def vllm_page(plan: Plan, arguments: Mapping[str, Any], release: Release) -> str:
    """The page beside the config. It names the text of model.json that it is about, so that edits by hand show."""
    settings = {
        choice: ", ".join(f"`{name}`" for name in names if name in arguments) for choice, names in _ARGUMENTS.items()
    }
    served_by = f"vLLM {release.vllm} of Triton {release.tag}"
    text = page(plan, str(arguments["model"]), served_by, [*explained(plan), *_prefill(arguments)], settings)
    return f"{text}\n<!-- {FILE}: {_digest(text_of(arguments))} -->\n"


def _prefill(arguments: Mapping[str, Any]) -> list[Choice]:
    """How prompts are computed, as this vLLM does it."""
    chunked, cached = arguments.get("enable_chunked_prefill"), arguments.get("enable_prefix_caching")
    found = []
    if chunked is not None:
        why = "a long prompt is computed in parts between steps, and stops nobody"
        why = why if chunked else "this vLLM does not prefill in parts while it speculates: a step holds a whole prompt"
        found.append(Choice("chunked prefill", "on" if chunked else "off", why))
    if cached is not None:
        why = "prompts that begin alike (a system prompt, a conversation) are computed once"
        why = why if cached else "asked for, or this vLLM does not combine it with chunked prefill or speculation"
        found.append(Choice("prefix caching", "on" if cached else "off", why))
    return found


def is_edited(arguments_text: str, page_text: str) -> bool:
    """Whether a model.json is not the one that its page is about."""
    found = _STAMP.search(page_text)
    return found is None or found[1] != _digest(arguments_text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]
