"""Continuous against static batching of generations, on the embedded server with the real vLLM.

    python benchmarks/llm_batching.py [--only traffic|streams] [--rounds N] [--requests N] [--seconds S]

Both sides are the same engine with the same 8 places, the same prompts and the same numbers of tokens. Continuous: a
request is sent when it comes up, and joins the running batch at the next step. Static: a batch is sent when the one
before it is answered whole. Needs `make setup-llm`. The model is a random Llama: tokens cost what they cost in a real
one, and mean nothing. A round of the traffic takes five minutes, the streams four.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perf.generation import Answer, Ask, generate
from perf.llm_curve import text
from perf.llm_traffic import figures as under_load
from perf.sim.llm import percentiles
from perf.slo import Slo
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
def serving(repository: Path, *names: str) -> Iterator[EmbeddedServer]:
    runtime = find_runtime()
    find_llm(runtime)
    with EmbeddedServer(repository, runtime, ServerOptions(load_timeout_s=300)) as server:
        with ThreadPoolExecutor() as pool:  # an engine that starts uses one core
            list(pool.map(server.load, names))
        yield server


def requests(count: int, rng: random.Random) -> list[Ask]:
    """Three in four answers are short (4 to 16 tokens), the others long (128 to 256); prompts of 8 to 64 tokens."""
    lengths = ((4, SHORT), (4, SHORT), (4, SHORT), (128, 256))
    return [Ask(text(rng.randint(8, 64), rng), rng.randint(*rng.choice(lengths))) for _ in range(count)]


def figures(asks: Sequence[Ask], answers: Sequence[Answer]) -> dict[str, float]:
    assert [a.tokens for a in answers] == [ask.tokens for ask in asks], "every request gets exactly its tokens"
    short_us = [a.latency_s * 1e6 for a, ask in zip(answers, asks, strict=True) if ask.tokens <= SHORT]
    seen = under_load(answers)
    times = {"TTFT p50": "ttft_p50_us", "TTFT p95": "ttft_p95_us", "ITL p95": "itl_p95_us"}
    return {
        "tokens/s": seen["tokens_per_s"],
        **{f"{name} ms": seen[figure] / 1e3 for name, figure in times.items()},
        "short p95 ms": percentiles(short_us)["p95_us"] / 1e3,
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


SIDES = ("continuous", "static")
STREAMS = (2, 4, 6, 8, 12)
"""One alone is the same on both sides."""
SLO = Slo.parse("ttft_p95<1s,itl_p95<100ms")
"""What a reader asks for: words within a second, and ten tokens a second, which is faster than reading."""
MISSED = 2
"""A side is done when it has missed the limits at so many numbers of streams."""


def compare(server: EmbeddedServer, count: int, rounds: int) -> None:
    rng = random.Random(7)
    asks = requests(count, rng)
    generate(server.grpc_url, "llm", asks[:PLACES], clients=PLACES)  # warm
    full = figures(asks, generate(server.grpc_url, "llm", asks, due_s=[0.0] * count))
    mean_tokens = statistics.mean(ask.tokens for ask in asks)
    print(f"{count} requests, {mean_tokens:.0f} tokens on average; load average {os.getloadavg()[0]:.1f}")
    for name, due_s in scenarios(asks, full["tokens/s"] / mean_tokens, rng).items():

        def run(side: str, due_s: list[float] = due_s) -> dict[str, float]:
            static = side == "static"
            places = PLACES if static else None
            answers = generate(server.grpc_url, "llm", asks, due_s=due_s, clients=places, whole_batches=static)
            return figures(asks, answers)

        for side, runs in in_turn(run, SIDES, rounds).items():
            print(f"{name:<28} {side:<11}" + "".join(f"  {key} {spread([r[key] for r in runs])}" for key in runs[0]))


def in_turn(
    run: Callable[[str], dict[str, float]], sides: Sequence[str], rounds: int
) -> dict[str, list[dict[str, float]]]:
    """The figures of each side in each round; rounds go forward and backward."""
    seen: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for turn in range(rounds):
        for side in sides if turn % 2 == 0 else sides[::-1]:
            seen[side].append(run(side))
    return seen


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in runs) for name in runs[0]}


def shown(runs: Sequence[dict[str, float]]) -> str:
    """Tokens a second, and the 95th percentiles of the times to and between tokens."""
    tokens = spread([one["tokens_per_s"] for one in runs])
    ttft, itl = (spread([one[f"{name}_p95_us"] / 1e3 for one in runs]) for name in ("ttft", "itl"))
    return f"tokens/s {tokens}  TTFT p95 ms {ttft}  ITL p95 ms {itl}"


def streams(server: EmbeddedServer, rounds: int, seconds: float) -> None:
    """How many clients, each of whom sends its next request when its last is answered, keep the limits.

    Both sides are measured in the same rounds at each number, and judged by the medians of the rounds. After `seconds`
    no further number is begun.
    """
    rng = random.Random(7)
    asks, begin = requests(3 * max(STREAMS), rng), time.monotonic()
    generate(server.grpc_url, "llm", asks[:PLACES], clients=PLACES)  # warm
    held: dict[str, dict[int, bool]] = {side: {} for side in SIDES}
    print(f"limits: {SLO}")
    for clients in STREAMS:
        sent = asks[: max(16, 3 * clients)]
        sides = [side for side in SIDES if list(held[side].values()).count(False) < MISSED]
        if not sides or time.monotonic() - begin > seconds:
            break

        def run(side: str, clients: int = clients, sent: list[Ask] = sent) -> dict[str, float]:
            whole = side == "static"
            answers = generate(server.grpc_url, "llm", sent, clients=clients, whole_batches=whole)
            assert [a.tokens for a in answers] == [ask.tokens for ask in sent], "every request gets exactly its tokens"
            return under_load(answers)

        for side, runs in in_turn(run, sides, rounds).items():
            held[side][clients] = SLO.met(medians(runs)) is True
            said = "kept" if held[side][clients] else "missed"
            load = f"{said}; load average {os.getloadavg()[0]:.1f}"
            print(f"{clients:>2} streams  {side:<11}{shown(runs)}  {load}", flush=True)
    for side, levels in held.items():
        kept, missed = ([n for n, one in levels.items() if one is answer] for answer in (True, False))
        print(f"streams that kept the limits, {side}: {kept or 'none'}; that missed them: {missed or 'none'}")


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f} [{min(values):.0f}–{max(values):.0f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("traffic", "streams"))
    parser.add_argument("--rounds", type=int, help="default: 1 of the traffic, 3 of the streams")
    parser.add_argument("--requests", type=int, default=64, help="of the traffic")
    parser.add_argument("--seconds", type=float, default=200, help="of the streams")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_llama(Path(folder) / "llama", **SMALL)
        repository = Path(folder) / "repository"
        add_model(repository, "llm", model)
        with serving(repository, "llm") as server:
            if options.only != "streams":
                compare(server, options.requests, options.rounds or 1)
            if options.only != "traffic":
                streams(server, options.rounds or 3, options.seconds)


if __name__ == "__main__":
    main()
