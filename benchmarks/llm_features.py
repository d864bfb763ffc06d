"""Prefix caching and speculation on the embedded server with the real vLLM: on against off.

    python benchmarks/llm_features.py [VARIANT…]

Each variant is an engine of its own, one after the other. Prompts with a beginning in common: eight streams of short
answers. Speculation: a single stream, where latency is tightest, and four. How many guesses are made and kept is a
property of the model and its texts: here a random Llama, whose draft is a copy of itself.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import tempfile
from pathlib import Path
from typing import Any

from llm_batching import SMALL, add_model, figures, make_llama, serving

from perf.generation import Ask, generate
from perf.llm_curve import text
from tooling.errors import TrituneError
from tooling.server import EmbeddedServer

SHARED = 512
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


def variants(draft: Path) -> dict[str, dict[str, Any]]:
    model = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 3}
    return {
        "prefix caching": {"enable_prefix_caching": True},
        "no prefix caching": {"enable_prefix_caching": False},
        "no speculation": {},
        "n-gram speculation": {"speculative_config": NGRAM},
        "draft-model speculation": {"speculative_config": model},
    }


def counter(server: EmbeddedServer, name: str) -> float:
    found = re.search(rf"^vllm:{name}{{.*}} (\S+)$", server.metrics(), re.M)
    return float(found[1]) if found else 0.0


def measure(server: EmbeddedServer, asks: list[Ask], clients: int, part: str, whole: str) -> str:
    before = [counter(server, name) for name in (part, whole)]
    seen = figures(asks, generate(server.grpc_url, "llm", asks, clients=clients))
    got, of = (counter(server, name) - old for name, old in zip((part, whole), before, strict=True))
    return (
        f"{clients} streams: {seen['tokens/s']:.0f} tokens/s, TTFT p50 {seen['TTFT p50 ms']:.0f} ms, "
        f"ITL p95 {seen['ITL p95 ms']:.1f} ms, {got:.0f} of {of:.0f}"
    )


def prefixes(server: EmbeddedServer) -> str:
    rng = random.Random(5)
    shared = text(SHARED, rng)
    asks = [Ask(shared + text(24, rng), 8) for _ in range(48)]
    generate(server.grpc_url, "llm", asks[:1])
    return measure(server, asks, 8, "prefix_cache_hits_total", "prefix_cache_queries_total")


def speculation(server: EmbeddedServer) -> str:
    rng = random.Random(6)
    asks = [*(Ask(text(48, rng), 96) for _ in range(7)), Ask(text(48, rng), 16)]
    generate(server.grpc_url, "llm", asks[:1])
    names = "spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"
    return "; ".join(measure(server, asks, clients, *names) for clients in (1, 4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", nargs="*")
    chosen = parser.parse_args().variant
    with tempfile.TemporaryDirectory() as folder:
        model = make_llama(Path(folder) / "llama", **SMALL)
        for name, arguments in variants(model).items():
            if chosen and name not in chosen:
                continue
            repository = Path(folder) / name.replace(" ", "-")
            add_model(repository, "llm", model, **arguments)
            try:
                with serving(repository, "llm") as server:
                    seen = prefixes(server) if "prefix" in name else speculation(server)
            except TrituneError as error:
                seen = f"does not run: {str(error)[:200]}"
            print(f"{name:<24} {seen} (load average {os.getloadavg()[0]:.1f})", flush=True)


if __name__ == "__main__":
    main()
