"""Whether a language model still answers as it did: greedy answers beside a recorded reference. Layer: above slo."""

from __future__ import annotations

import http.client
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from perf.slo import ANSWERS, Judgement, Slo
from tooling.errors import ExternalError, UsageError, json_fault
from tooling.repository import read_text, require_format, write_atomic
from tooling.server.client import Answer as HttpError
from tooling.server.client import TritonHttp, address, unreachable

SCHEMA_VERSION: Final = 1
_AGAIN: Final = "record it anew with --record"
DEFAULT_SLO: Final = ("token_agreement>=0.9", "perplexity_ratio<=1.05")
_ALTERNATIVES: Final = 5
"""How many probabilities are asked for at each token: where answers part, the other's token is often among them."""
_TIMEOUT_S: Final = 300.0
Encode = Callable[[str], Sequence[object]]


class Step(NamedTuple):
    """A token of an answer, and the logarithms of the probabilities of it and of a few others; empty where unknown."""

    token: str
    logprobs: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Generated:
    """A greedy answer to a prompt, token by token."""

    prompt: str
    text: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """Answers that others are compared with: of which model, with how many tokens at most."""

    model: str
    max_tokens: int
    answers: tuple[Generated, ...]


@dataclass(frozen=True, slots=True)
class Quality:
    """How far answers agree with a reference.

    `token_agreement` is the part of the reference's tokens before the first that differs, the mean over prompts;
    `exact_answers` the part of the prompts without a difference. `perplexity_ratio` compares what both models think of
    the reference's tokens, as long as both have said the same before: 1 where they think alike, above 1 where these
    answers surprise the model more; None where a model does not tell.
    """

    prompts: int
    tokens: int
    token_agreement: float
    exact_answers: float
    perplexity: float | None
    perplexity_ratio: float | None
    parted: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Asker:
    """Greedy answers of one model on a running server, through Triton's generate endpoint.

    The inputs of the model say in which way it wants to be asked. `encode` gives the tokens of a text, for models that
    do not say them. Raises MissingError where no server answers, UsageError for a model that generates no text.
    """

    def __init__(self, url: str, model: str, encode: Encode | None = None) -> None:
        self._url, self._model, self._encode = address(url), model, encode
        self._http = TritonHttp(self._url, _TIMEOUT_S)
        try:
            config = self._http.model_config(model)
        except HttpError as error:
            raise UsageError("the server has no such model", where=self._url, got=error.reason) from None
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self._url, error) from error
        self._inputs = {str(tensor["name"]) for tensor in config.get("input", [])}
        if "text_input" not in self._inputs:
            raise UsageError(
                "the model takes no text_input, so it is no language model",
                where=f"{self._url}, {model}",
                got=", ".join(sorted(self._inputs)),
                expected="a model of the vLLM or TensorRT-LLM backend",
            )

    def answers(self, prompts: Iterable[str], max_tokens: int, told: Callable[[], None]) -> tuple[Generated, ...]:
        """One at a time: a model may round otherwise when it answers several at once. `told` is called after each."""
        found = []
        for prompt in prompts:
            found.append(self._answer(prompt, max_tokens))
            told()
        return tuple(found)

    def _answer(self, prompt: str, max_tokens: int) -> Generated:
        try:
            answer = self._http.generate(self._model, self._body(prompt, max_tokens))
        except HttpError as error:
            raise ExternalError("the model did not answer", where=self._model, got=error.reason) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ExternalError("the server did not answer", where=self._url, got=str(error)) from error
        text = _text(answer.get("text_output"))
        return Generated(prompt, text, self._steps(text, answer.get("logprobs")))

    def _body(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {"text_input": prompt}
        if "sampling_parameters" in self._inputs:
            sampling = {"temperature": 0, "max_tokens": max_tokens, "logprobs": _ALTERNATIVES}
            flags = {"stream": False, "exclude_input_in_output": True, "return_logprobs": True}
            body["sampling_parameters"] = json.dumps(sampling)
            return body | {name: flag for name, flag in flags.items() if name in self._inputs}
        if "sampling_param_max_tokens" in self._inputs:
            body |= {"sampling_param_max_tokens": max_tokens, "sampling_param_top_k": 1, "streaming": False}
            return body | {"sampling_param_exclude_input_from_output": True}
        return body | {"max_tokens": max_tokens, **({"top_k": 1} if "top_k" in self._inputs else {})}

    def _steps(self, text: str, logprobs: object) -> tuple[Step, ...]:
        listed = _list(logprobs)
        if listed:
            return tuple(_step(entry) for entry in listed if isinstance(entry, dict) and entry)
        if self._encode is None:
            raise UsageError(
                "the model does not say its tokens",
                where=self._model,
                expected="the output `logprobs`, which the vLLM backend has from 24.12 on",
                hint="give the tokenizer with --tokenizer DIR",
            )
        return tuple(Step(str(token), {}) for token in self._encode(text))


def _text(value: object) -> str:
    if isinstance(value, list):
        value = "".join(map(str, value))
    return value if isinstance(value, str) else ""


def _list(value: object) -> list[Any]:
    """The list that JSON text holds, as the vLLM backend sends it."""
    try:
        found = json.loads(_text(value) or "null")
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def _step(entry: Mapping[str, Any]) -> Step:
    """One token with its alternatives: the greedy one is the likeliest."""
    values = {str(token): float(said["logprob"]) for token, said in entry.items()}
    return Step(max(values, key=lambda token: values[token]), values)


def compare(reference: Reference, answers: Sequence[Generated]) -> Quality:
    """How far answers to the reference's prompts agree with it."""
    common = [_common(one, other) for one, other in zip(reference.answers, answers, strict=True)]
    agreed = [
        1.0 if not one.steps and not other.steps else length / max(len(one.steps), len(other.steps), 1)
        for one, other, length in zip(reference.answers, answers, common, strict=True)
    ]
    surprises = [
        pair
        for one, other, length in zip(reference.answers, answers, common, strict=True)
        for pair in _surprises(one, other, length)
    ]
    mine = math.fsum(pair[1] for pair in surprises) / len(surprises) if surprises else None
    before = math.fsum(pair[0] for pair in surprises) / len(surprises) if surprises else None
    parted = [one.prompt for one, share in zip(answers, agreed, strict=True) if share < 1]
    return Quality(
        len(answers),
        sum(len(one.steps) for one in reference.answers),
        math.fsum(agreed) / len(agreed),
        sum(share == 1 for share in agreed) / len(agreed),
        math.exp(mine) if mine is not None else None,
        math.exp(mine - before) if mine is not None and before is not None else None,
        tuple(parted),
    )


def _common(one: Generated, other: Generated) -> int:
    """Tokens before the first that differs."""
    length = 0
    for mine, others in zip(one.steps, other.steps, strict=False):
        if mine.token != others.token:
            break
        length += 1
    return length


def _surprises(one: Generated, other: Generated, common: int) -> Iterable[tuple[float, float]]:
    """What the reference's token costs each of the two, wherever both have said the same before.

    Where they part, the reference's token may be beyond the alternatives that were told: it then costs as much as the
    last of them, which is the least that it can.
    """
    for mine, others in list(zip(one.steps, other.steps, strict=False))[: common + 1]:
        if mine.logprobs and others.logprobs:
            yield -mine.logprobs[mine.token], -others.logprobs.get(mine.token, min(others.logprobs.values()))


def judge(quality: Quality, words: str) -> tuple[Judgement, ...]:
    """What the terms say; without any, the usual ones, as far as there is a figure for them.

    Raises UsageError for terms of other figures than these.
    """
    slo = Slo.parse(words or DEFAULT_SLO, "--slo", ANSWERS)
    if not slo.terms:
        expected = f"limits of some of {', '.join(ANSWERS.metrics)}"
        raise UsageError(ANSWERS.foreign, where="--slo", got=words, expected=expected)
    judged = slo.judge(quality)
    return judged if words else tuple(one for one in judged if one.answer != "unknown")


def save(path: Path, reference: Reference) -> None:
    """Write a reference, whole or not at all."""
    content = {"schema_version": SCHEMA_VERSION, **asdict(reference)}
    for answer in content["answers"]:
        answer["steps"] = [[token, logprobs] for token, logprobs in answer["steps"]]
    write_atomic(path, json.dumps(content, ensure_ascii=False, indent=1))


def load(path: Path) -> Reference:
    """Read a reference. Raises UsageError for a file that holds none."""
    text = read_text(path)
    try:
        content = json.loads(text)
        require_format(content["schema_version"], SCHEMA_VERSION, what="the record of answers", where=path, hint=_AGAIN)
        answers = tuple(
            Generated(
                str(one["prompt"]),
                str(one["text"]),
                tuple(Step(str(token), {str(k): float(v) for k, v in logs.items()}) for token, logs in one["steps"]),
            )
            for one in content["answers"]
        )
        found = Reference(str(content["model"]), int(content["max_tokens"]), answers)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        decoding = isinstance(error, (json.JSONDecodeError, RecursionError))
        problem = json_fault(error, text) if decoding else f"{type(error).__name__}: {error}"[:120]
        raise UsageError("holds no recorded answers", where=path, got=problem, hint=_AGAIN) from None
    if not answers:
        raise UsageError("holds no recorded answers", where=path, got="an empty list", hint=_AGAIN)
    return found


def read_prompts(path: Path) -> tuple[str, ...]:
    """A prompt a line; of a .jsonl the texts under `prompt`, `text_input` or `text`. Raises UsageError without any."""
    found = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if path.suffix == ".jsonl" and line.strip():
            line = _prompt_of(line, f"{path}:{number}")
        if line.strip():
            found.append(line)
    if not found:
        raise UsageError("holds no prompt", where=path, expected="a prompt a line")
    return tuple(found)


def _prompt_of(line: str, where: str) -> str:
    try:
        entry = json.loads(line)
        return next(str(entry[key]) for key in ("prompt", "text_input", "text") if key in entry)
    except (ValueError, TypeError, StopIteration):
        raise UsageError(
            "no prompt",
            where=where,
            got=line[:60],
            expected='{"prompt": "…"}, or the text under `text_input` or `text`',
        ) from None
