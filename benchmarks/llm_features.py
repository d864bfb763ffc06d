"""Prefix caching and speculation on the embedded server with the real vLLM: on against off.

    python benchmarks/llm_features.py prefixes
    python benchmarks/llm_features.py speculation [--texts repeating|random] [--rounds N] [--slo TERMS]

Prefixes: each variant is an engine of its own, one after the other; eight streams of short answers to prompts with a
beginning in common. Speculation: all variants are served side by side and measured in turn, at few streams, where
latency is tightest; a number of streams is kept when the medians of the rounds are within `--slo`. How many guesses
are right is a property of the model and its texts, so there are two ends: `repeating` is a Llama whose answers go
round a circle of eight letters, which n-grams and a draft of one layer guess; `random` is one whose answers do not
repeat, and whose draft is a copy of itself. A step costs the same in both.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import tempfile
from pathlib import Path
from typing import Any

from llm_batching import SMALL, add_model, figures, in_turn, make_llama, medians, serving, shown

from perf.generation import Ask, generate
from perf.llm_curve import text
from perf.llm_speculation import Drafts, drafts_of, speculative_config
from perf.llm_traffic import figures as under_load
from perf.slo import Slo
from tooling.server import EmbeddedServer

SHARED = 512
CIRCLE = "abcdefgh"
STREAMS = (1, 2, 4)
CACHED = "prefix_cache_hits_total", "prefix_cache_queries_total"


def counter(server: EmbeddedServer, model: str, name: str) -> float:
    found = re.search(rf'^vllm:{name}{{[^}}]*model="{model}"[^}}]*}} (\S+)$', server.metrics(), re.M)
    return float(found[1]) if found else 0.0


def prefixes(folder: Path) -> None:
    model, rng = make_llama(folder / "llama", **SMALL), random.Random(5)
    shared = text(SHARED, rng)
    asks = [Ask(shared + text(24, rng), 8) for _ in range(48)]
    for cached in (True, False):
        repository = folder / f"cached-{cached}"
        add_model(repository, "llm", model, enable_prefix_caching=cached)
        with serving(repository, "llm") as server:
            generate(server.grpc_url, "llm", asks[:1])
            before = [counter(server, "llm", one) for one in CACHED]
            seen = figures(asks, generate(server.grpc_url, "llm", asks, clients=8))
            found, of = (counter(server, "llm", one) - old for one, old in zip(CACHED, before, strict=True))
        print(
            f"prefix caching {'on' if cached else 'off'}: {seen['tokens/s']:.0f} tokens/s, "
            f"TTFT p50 {seen['TTFT p50 ms']:.0f} ms, ITL p95 {seen['ITL p95 ms']:.1f} ms, {found:.0f} of {of:.0f} "
            f"tokens found (load average {os.getloadavg()[0]:.1f})",
            flush=True,
        )


def make_repeating(directory: Path, hidden: int, layers: int) -> Path:
    """A Llama of which each token decides the next, in a circle: its layers cost what they cost, and add nothing."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    file = make_llama(directory, hidden, layers) / "model.safetensors"
    weights = load_file(file)
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
    circle = AutoTokenizer.from_pretrained(directory).convert_tokens_to_ids(list(CIRCLE))
    embedded, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"].zero_()
    for token in range(len(embedded)):
        place = circle.index(token) + 1 if token in circle else token
        head[circle[place % len(circle)]] += embedded[token]
    save_file(weights, file, metadata={"format": "pt"})
    return directory


def speculation(folder: Path, texts: str, rounds: int, slo: Slo) -> None:
    if texts == "repeating":
        model = make_repeating(folder / "llama", **SMALL)
        draft = make_repeating(folder / "draft", **{**SMALL, "layers": 1})
    else:
        model = draft = make_llama(folder / "llama", **SMALL)
    variants: dict[str, dict[str, Any]] = {
        "none": {},
        "n-grams": {"speculative_config": speculative_config(4, None)},
        "draft": {"speculative_config": speculative_config(3, str(draft))},
    }
    for name, arguments in variants.items():
        add_model(folder / "repository", name, model, kv_cache_memory_bytes=1 << 28, **arguments)
    rng = random.Random(6)
    asks = [Ask(text(48, rng), 96) for _ in range(4)]
    kept: dict[str, list[int]] = {name: [] for name in variants}
    with serving(folder / "repository", *variants) as server:
        for name in variants:
            generate(server.grpc_url, name, asks[:2])
        print(f"texts: {texts}; limits: {slo}")
        for clients in STREAMS:
            before = {name: drafts_of(server.metrics(), name) for name in variants}

            def run(name: str, clients: int = clients) -> dict[str, float]:
                return under_load(generate(server.grpc_url, name, asks, clients=clients))

            for name, runs in in_turn(run, list(variants), rounds).items():
                now, old = drafts_of(server.metrics(), name), before[name]
                share = Drafts(now.drafted - old.drafted, now.accepted - old.accepted)
                if slo.met(medians(runs)):
                    kept[name].append(clients)
                load = f"load average {os.getloadavg()[0]:.1f}"
                print(f"{clients} streams  {name:<8}{shown(runs)}  {share}; {load}", flush=True)
    for name, streams in kept.items():
        print(f"{name}: within the limits at {', '.join(map(str, streams)) or 'no number of'} streams")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prefixes", "speculation"))
    parser.add_argument("--texts", choices=("repeating", "random"), default="repeating")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slo", default="ttft_p95<250ms,itl_p95<25ms")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "prefixes":
            prefixes(Path(folder))
        else:
            speculation(Path(folder), options.texts, options.rounds, Slo.parse(options.slo, "--slo"))


if __name__ == "__main__":
    main()
