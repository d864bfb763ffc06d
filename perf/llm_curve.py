"""How long the steps of a served LLM take, from a few short runs. Layer: above generation and the simulator."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from statistics import median

from perf.generation import Answer, Ask, generate
from perf.sim.llm_fit import SeenSteps, StepFit, fit_steps
from tooling.errors import UsageError

LEVELS = (1, 2, 4, 8, 16)
"""Sequences that decode at once."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_DECODED, _WINDOW = 40, 6
_PROMPTS = (8, 64, 160)
_APART = 14
"""Steps between two prompts that join: more than a window on both sides."""


def text(length: int, rng: random.Random) -> str:
    """Letters at random, so that no prompt begins like another: a prefix that is cached costs nothing."""
    return "".join(rng.choices(_LETTERS, k=length))


def measure_steps(
    url: str,
    model: str,
    *,
    levels: Sequence[int] = LEVELS,
    context: int | None = None,
    seed: int = 0,
) -> StepFit:
    """The law of the steps of a model that nobody else uses, from `levels` sequences at once that decode after short
    and long prompts, and prompts that join while another sequence decodes.

    Lengths are in letters, at most as many as `context` leaves room for beside an answer; the server says how many
    tokens they are. Raises what `generate` and `fit_steps` do, UsageError where there is no room.
    """
    rng, prompts = random.Random(seed), _within(context)
    first = generate(url, model, [Ask(text(prompts[0], rng), _DECODED)] * 2, clients=1)[-1]
    step_s = (first.times_s[-1] - first.times_s[0]) / (_DECODED - 1)
    seen: list[SeenSteps] = []
    for level in levels:
        for length in (prompts[0], prompts[-1]):
            asks = [Ask(text(length, rng), _DECODED) for _ in range(level)]
            seen += _decoding(generate(url, model, asks, due_s=[0.0] * level))
    joined = [Ask(text(length, rng), 1) for length in prompts for _ in range(4)]
    long = Ask(text(prompts[0], rng), _APART * (len(joined) + 2))
    due = [0.0, *((number + 1) * _APART * step_s for number in range(len(joined)))]
    seen += _joining(generate(url, model, [long, *joined], due_s=due))
    alone = generate(url, model, [Ask(text(length, rng), 1) for length in prompts for _ in range(4)], clients=1)
    law = fit_steps(seen).law
    overhead = median(a.ttft_s * 1e6 - law.us(a.prompt, 1, a.prompt) for a in alone)
    return fit_steps(seen, max(0.0, overhead))


def _within(context: int | None) -> tuple[int, ...]:
    """Lengths of the prompts."""
    room = _PROMPTS[-1] if context is None else context - _DECODED - 1  # a token may begin every prompt
    if room < _PROMPTS[0]:
        least = _PROMPTS[0] + _DECODED + 1
        raise UsageError(
            "the context is too short to be measured", got=f"{context} tokens", expected=f"at least {least}"
        )
    return tuple(min(length, room) for length in _PROMPTS)


def _decoding(answers: Sequence[Answer]) -> Iterator[SeenSteps]:
    """Windows in which all of them decode: after the last first token, and before the first last one."""
    begin, end = max(a.times_s[0] for a in answers), min(a.times_s[-1] for a in answers)
    one, count = answers[-1], len(answers)
    context = sum(a.prompt for a in answers)
    inside = [place for place, at in enumerate(one.times_s) if begin <= at <= end]
    for start, stop in zip(inside[::_WINDOW], inside[_WINDOW::_WINDOW], strict=False):
        steps = sum(one.counts[start + 1 : stop + 1])
        kv_tokens = steps * context + count * _lengths(one, start, stop)
        yield SeenSteps(steps, count * steps, count * steps, kv_tokens, (one.times_s[stop] - one.times_s[start]) * 1e6)


def _joining(answers: Sequence[Answer]) -> Iterator[SeenSteps]:
    """Windows around each prompt that shared one step with the sequence that decodes."""
    long, *joined = answers
    half = _WINDOW // 2
    for answer in joined:
        middle = min(range(len(long.times_s)), key=lambda place: abs(long.times_s[place] - answer.times_s[0]))
        start, stop = middle - half, middle + half
        if start < 0 or stop >= len(long.times_s):
            continue
        begin, end = long.times_s[start], long.times_s[stop]
        if sum(begin <= other.times_s[0] <= end or begin <= other.sent_s <= end for other in joined) != 1:
            continue
        steps = sum(long.counts[start + 1 : stop + 1])
        kv_tokens = steps * long.prompt + _lengths(long, start, stop) + answer.prompt
        yield SeenSteps(steps, steps + answer.prompt, steps + 1, kv_tokens, (end - begin) * 1e6)


def _lengths(answer: Answer, start: int, stop: int) -> int:
    """Generated tokens that the steps after response `start` up to `stop` read, summed over them."""
    done, more = sum(answer.counts[: start + 1]), sum(answer.counts[start + 1 : stop + 1])
    return more * done + more * (more + 1) // 2
