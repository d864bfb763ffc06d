"""The simulated engine against what can be worked out by hand: steps, chunks, the KV cache, and speculation."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.sim.llm import EngineSettings, Generation, StepTime, simulate_llm
from perf.sim.llm_fit import SeenSteps, fit_steps
from tooling.errors import UsageError

ROOMY = EngineSettings(max_num_seqs=8, max_num_batched_tokens=100, kv_blocks=1_000)
MS = StepTime(fixed_us=1_000, per_token_us=0, per_sequence_us=0, per_kv_token_us=0)


def at_once(*outputs: int, prompt: int = 10) -> list[Generation]:
    return [Generation(0, prompt, output) for output in outputs]


def test_each_step_gives_each_sequence_a_token() -> None:
    seen = simulate_llm(ROOMY, MS, at_once(5, 3))
    assert seen.steps == 5
    assert seen.latency_us == (5_000, 3_000)
    assert seen.ttft_us == (1_000, 1_000)
    assert seen.figures["itl_avg_us"] == 1_000
    assert seen.tokens_per_s == pytest.approx(8 / 0.005)


def test_a_short_one_takes_the_place_of_one_that_ended() -> None:
    """Two places: the third request begins in the step after the first has ended, not after the batch has."""
    two = EngineSettings(max_num_seqs=2, max_num_batched_tokens=100, kv_blocks=1_000)
    assert simulate_llm(two, MS, at_once(3, 100, 2)).latency_us == (3_000, 100_000, 5_000)


def test_a_long_prompt_is_computed_in_chunks_beside_those_that_decode() -> None:
    """Budget of 100: while one decodes, the prompt of 250 takes 99, 99 and 52; then it has its first token."""
    requests = [Generation(0, 10, 50), Generation(1_500, 250, 1)]
    seen = simulate_llm(ROOMY, MS, requests)
    assert seen.ttft_us[1] == 5_000 - 1_500
    assert seen.latency_us[0] == 50_000


def test_without_chunks_a_prompt_waits_for_a_step_with_room() -> None:
    whole = EngineSettings(max_num_seqs=8, max_num_batched_tokens=100, kv_blocks=1_000, chunked_prefill=False)
    assert simulate_llm(whole, MS, [Generation(0, 60, 1), Generation(0, 60, 1)]).ttft_us == (1_000, 2_000)
    with pytest.raises(UsageError, match="never fits into a step"):
        simulate_llm(whole, MS, at_once(1, prompt=101))


def test_time_is_affine_in_tokens_sequences_and_cache() -> None:
    law = StepTime(fixed_us=100, per_token_us=2, per_sequence_us=30, per_kv_token_us=0.5)
    seen = simulate_llm(ROOMY, law, at_once(2))
    prefill, decode = 100 + 2 * 10 + 30 + 0.5 * 10, 100 + 2 + 30 + 0.5 * 11
    assert seen.ttft_us == (prefill,)
    assert seen.latency_us == (prefill + decode,)


def test_a_full_cache_starts_the_last_comer_anew() -> None:
    """4 blocks of 16: two of 16 + 20 tokens need 3 blocks each. The second gives its own back in step 17 at the latest
    and computes prompt and tokens again when the first has ended."""
    tight = EngineSettings(max_num_seqs=8, max_num_batched_tokens=100, kv_blocks=4)
    seen = simulate_llm(tight, MS, at_once(20, 20, prompt=16))
    assert seen.preemptions == 1
    assert seen.latency_us[0] == 20_000
    assert 20_000 < seen.latency_us[1] < 30_000
    with pytest.raises(UsageError, match="which is all the KV cache holds"):
        simulate_llm(tight, MS, at_once(60))


def test_a_closed_loop_keeps_its_clients_busy() -> None:
    law = StepTime(1_000, 0, 0, 0, overhead_us=500)
    seen = simulate_llm(ROOMY, law, at_once(*[4] * 10), clients=2)
    assert seen.latency_us == (4_500,) * 10
    assert seen.throughput_rps == pytest.approx(2 / 0.0045)
    assert seen.mean_running == 2


@pytest.mark.parametrize(("acceptance", "steps"), [(0.0, 121), (1.0, 31)])
def test_speculation_at_its_bounds(acceptance: float, steps: int) -> None:
    """Three drafts: with none kept a token a step, with all kept four; the first step only computes the prompt."""
    drafts = EngineSettings(8, 100, 1_000, draft_tokens=3, acceptance=acceptance)
    assert simulate_llm(drafts, MS, at_once(121)).steps == steps


def test_speculation_in_between() -> None:
    """Kept one after the other with 0.5 each, three drafts bring 1 + 0.5 + 0.25 + 0.125 tokens a step."""
    drafts = EngineSettings(8, 100, 10_000, draft_tokens=3, acceptance=0.5)
    assert simulate_llm(drafts, MS, at_once(20_001)).steps == pytest.approx(20_000 / 1.875, rel=0.02)


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(8, 64), st.integers(8, 40))
def test_every_request_ends_whatever_the_engine(seed: int, places: int, budget: int, blocks: int) -> None:
    rng = random.Random(seed)
    requests = [Generation(rng.uniform(0, 1e5), rng.randint(1, 50), rng.randint(1, 50)) for _ in range(20)]
    requests.sort()
    seen = simulate_llm(EngineSettings(places, budget, blocks), MS, requests)
    assert seen.requests == 20
    assert all(
        latency > 1_000 * output - 1e-3 for latency, (_, _, output) in zip(seen.latency_us, requests, strict=True)
    )
    assert all(first <= whole for first, whole in zip(seen.ttft_us, seen.latency_us, strict=True))
    assert seen.mean_running <= places


def test_the_law_is_found_from_steps_with_scatter() -> None:
    law, rng = StepTime(800, 12, 90, 0.4), random.Random(1)
    seen = []
    for _ in range(400):
        tokens, sequences, kv = rng.randint(1, 200), rng.randint(1, 16), rng.randint(10, 4_000)
        seen.append(SeenSteps(1, tokens, sequences, kv, law.us(tokens, sequences, kv) * rng.gauss(1, 0.05)))
    seen.append(SeenSteps(1, 10, 1, 10, 1e6))  # a pause of the machine
    found = fit_steps(seen)
    for part in ("fixed_us", "per_token_us", "per_sequence_us", "per_kv_token_us"):
        assert getattr(found.law, part) == pytest.approx(getattr(law, part), rel=0.12)
    assert found.median_error < 0.05
    assert max(found.law.factors) > 100, "the pause is scatter"


def test_no_part_of_a_law_is_negative() -> None:
    seen = [SeenSteps(1, n, n, 100 - n, 1_000 + n) for n in range(1, 40)]
    law = fit_steps(seen).law
    assert min(law.fixed_us, law.per_token_us, law.per_sequence_us, law.per_kv_token_us) >= 0
    with pytest.raises(UsageError, match="too few steps"):
        fit_steps(seen[:5])


@pytest.mark.parametrize("wrong", [{"max_num_seqs": 0}, {"kv_blocks": 0}, {"acceptance": 1.5}, {"draft_tokens": -1}])
def test_settings_that_mean_nothing(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        EngineSettings(**{"max_num_seqs": 8, "max_num_batched_tokens": 64, "kv_blocks": 10, **wrong})
