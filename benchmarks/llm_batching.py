"""Continuous against static batching of generations, on the embedded server with the real vLLM.

    python benchmarks/llm_batching.py [--rounds N] [--requests N]

Both sides are the same engine with the same 8 places, the same prompts and the same numbers of tokens. Continuous: a
request is sent when it comes up, and joins the running batch at the next step. Static: a batch is sent when the one
before it is answered whole. Needs `make setup-llm`. The model is a random Llama: tokens cost what they cost in a real
one, and mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perf.generation import Answer, Ask, generate
from perf.llm_curve import text
from tooling.runtime import find_llm, find_runtime
from tooling.server import EmbeddedServer, ServerOptions

PLACES = 8
SHORT = 16  # tokens, at most, of a request that counts as short
CONFIG = """backend: "vllm"
instance_group [ { count: 1 kind: KIND_MODEL } ]
parameters { key: "REPORT_CUSTOM_METRICS" value { string_value: "true" } }
"""
SMALL = {"hidden": 512, "layers": 8}


def make_llama(directory: Path, hidden: int, layers: int, seed: int = 0) -> Path:
    """A random Llama with a token for each byte, as a Hugging Face directory."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    symbols = ["</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(directory)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(symbols),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=2048,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def add_model(repository: Path, name: str, model: Path, **arguments: Any) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG)
    written = {
        "model": str(model),
        "dtype": "float32",
        "max_model_len": 1024,
        "max_num_seqs": PLACES,
        "enforce_eager": True,
        **arguments,
    }
    (version / "model.json").write_text(json.dumps(written))


@contextmanager
def serving(repository: Path, name: str) -> Iterator[EmbeddedServer]:
    runtime = find_runtime()
    find_llm(runtime)
    with EmbeddedServer(repository, runtime, ServerOptions(load_timeout_s=300)) as server:
        server.load(name)
        yield server


def requests(count: int, rng: random.Random) -> list[Ask]:
    """Three in four answers are short (4 to 16 tokens), the others long (128 to 256); prompts of 8 to 64 tokens."""
    lengths = ((4, SHORT), (4, SHORT), (4, SHORT), (128, 256))
    return [Ask(text(rng.randint(8, 64), rng), rng.randint(*rng.choice(lengths))) for _ in range(count)]


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[int(share * (len(ordered) - 1) + 0.5)]


def figures(asks: Sequence[Ask], answers: Sequence[Answer]) -> dict[str, float]:
    assert [a.tokens for a in answers] == [ask.tokens for ask in asks], "every request gets exactly its tokens"
    span_s = max(a.times_s[-1] for a in answers) - min(a.due_s for a in answers)
    short = [a.latency_s for a, ask in zip(answers, asks, strict=True) if ask.tokens <= SHORT]
    ttft = [a.ttft_s for a in answers]
    return {
        "tokens/s": sum(ask.tokens for ask in asks) / span_s,
        "TTFT p50 ms": quantile(ttft, 0.5) * 1e3,
        "TTFT p95 ms": quantile(ttft, 0.95) * 1e3,
        "short p95 ms": quantile(short, 0.95) * 1e3,
        "ITL p95 ms": quantile([a.itl_s for a in answers if a.itl_s is not None], 0.95) * 1e3,
    }


def scenarios(asks: Sequence[Ask], capacity_rps: float, rng: random.Random) -> dict[str, list[float]]:
    """When requests come up: all at once; at random at half of what the engine can; the same in bursts."""
    rate, at, poisson = capacity_rps / 2, 0.0, []
    for _ in asks:
        at += rng.expovariate(rate)
        poisson.append(at)
    bursts = [(number // (2 * PLACES)) * 2 * PLACES / rate for number in range(len(asks))]
    return {
        "all at once": [0.0] * len(asks),
        f"{rate:.1f} requests/s at random": poisson,
        f"bursts of {2 * PLACES}": bursts,
    }


def capacity(run: Callable[[int], dict[str, float]], ttft_ms: float, itl_ms: float) -> int:
    """The most streams at once of those tried whose p95 of TTFT and ITL keep the limits."""
    kept = 0
    for streams in (2, 4, 6, 8, 12, 16):
        seen = run(streams)
        if seen["TTFT p95 ms"] > ttft_ms or seen["ITL p95 ms"] > itl_ms:
            break
        kept = streams
    return kept


def compare(server: EmbeddedServer, count: int, rounds: int) -> None:
    rng = random.Random(7)
    asks = requests(count, rng)
    sides: dict[str, dict[str, Any]] = {"continuous": {}, "static": {"clients": PLACES, "whole_batches": True}}
    generate(server.grpc_url, "llm", asks[:PLACES], clients=PLACES)  # warm
    full = figures(asks, generate(server.grpc_url, "llm", asks, due_s=[0.0] * count))
    mean_tokens = statistics.mean(ask.tokens for ask in asks)
    print(f"{count} requests, {mean_tokens:.0f} tokens on average; load average {os.getloadavg()[0]:.1f}")
    for name, due_s in scenarios(asks, full["tokens/s"] / mean_tokens, rng).items():
        seen: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for turn in range(rounds):
            for side in list(sides) if turn % 2 == 0 else list(sides)[::-1]:
                seen[side].append(figures(asks, generate(server.grpc_url, "llm", asks, due_s=due_s, **sides[side])))
        for side, runs in seen.items():
            print(f"{name:<28} {side:<11}" + "".join(f"  {key} {spread([r[key] for r in runs])}" for key in runs[0]))
    first = asks[: count // 2]

    def streams(side: str) -> Callable[[int], dict[str, float]]:
        batch = side == "static"
        return lambda n: figures(
            first, generate(server.grpc_url, "llm", first, due_s=None, clients=n, whole_batches=batch)
        )

    limits = {"ttft_ms": 250.0, "itl_ms": 50.0}
    for side in sides:
        print(f"streams at once with TTFT p95 ≤ 250 ms, ITL p95 ≤ 50 ms, {side}: {capacity(streams(side), **limits)}")


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f} [{min(values):.0f}–{max(values):.0f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_llama(Path(folder) / "llama", **SMALL)
        repository = Path(folder) / "repository"
        add_model(repository, "llm", model)
        with serving(repository, "llm") as server:
            compare(server, options.requests, options.rounds)


if __name__ == "__main__":
    main()
