"""What the user demands of a server, in terms like `p99<50ms`, and whether figures keep it. Layer: bottom of perf."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tooling.errors import Problem, UsageError, suggest
from tooling.units import format_duration_us, parse_duration_us

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

Kind = Literal["duration", "rate", "number", "share"]
Answer = Literal["met", "not met", "unknown"]


class Metric(NamedTuple):
    """A figure that may be limited: the name it has in a Measurement, what it is, and which way is better."""

    field: str
    kind: Kind
    better: Literal["higher", "lower"]


_LATENCIES = {name: f"{name}_us" for name in ("avg", "p50", "p90", "p95", "p99")}
METRICS: Mapping[str, Metric] = {
    "throughput": Metric("throughput_rps", "rate", "higher"),
    **{name: Metric(figure, "duration", "lower") for name, figure in _LATENCIES.items()},
    **{
        name if part == "avg" else f"{name}_{part}": Metric(f"{name}_{figure}", "duration", "lower")
        for name in ("ttft", "itl")
        for part, figure in _LATENCIES.items()
    },
    "tokens_per_s": Metric("tokens_per_s", "rate", "higher"),
    "cost_per_million": Metric("cost_per_million", "number", "lower"),
    "cosine": Metric("cosine", "share", "higher"),
    "token_agreement": Metric("token_agreement", "share", "higher"),
    "exact_answers": Metric("exact_answers", "share", "higher"),
    "perplexity_ratio": Metric("perplexity_ratio", "number", "lower"),
}
"""Every metric by the word users write: requests a second, latencies of whole requests, of the first token (`ttft`)
and between tokens (`itl`; without a percentile their mean), tokens a second, money for a million requests, the cosine
of an export's outputs with those of its source, and how far a language model's answers agree with recorded ones."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is judged: in words what a foreign metric is not, its own metrics (keys of METRICS), what to do about
    others, those that may be limited only, and the goal of limits that name none, if not the usual one."""

    foreign: str
    metrics: tuple[str, ...]
    advice: tuple[tuple[tuple[str, ...], str], ...] = ()
    limits: tuple[str, ...] = ()
    goal: str | None = None

    def strange(self, parts: Iterable[Term | Goal], where: str, preset: str = "") -> list[Problem]:
        """What is wrong with limits and goals that this has no figure for; `preset` stands for them."""
        return [self._problem(part, where, preset) for part in parts if part.metric not in self._taken(part)]

    def _taken(self, part: Term | Goal) -> tuple[str, ...]:
        return self.metrics if isinstance(part, Goal) else (*self.metrics, *self.limits)

    def _problem(self, part: Term | Goal, where: str, preset: str) -> Problem:
        word = f"`{part}`" if isinstance(part, Term) else f"`{part.metric}`"
        got = f"`{preset}`, which asks for {word}" if preset else word
        hint = next((advice for metrics, advice in self.advice if part.metric in metrics), "leave it out")
        return Problem(self.foreign, where, got, f"some of {', '.join(self._taken(part))}", hint)


_TOKENS = tuple(name for name in METRICS if name.startswith(("ttft", "itl", "tokens_")))
ANSWERS = Subject(
    "no limit of the quality of answers",
    ("token_agreement", "exact_answers", "perplexity_ratio"),
    ((("throughput", *_LATENCIES, *_TOKENS), "leave it out: `tritune tune` measures it"),),
)
_COMPARED = ((*ANSWERS.metrics, "cosine"), "leave it out: `tritune quality` compares the answers of language models")
REQUESTS = Subject(
    "no limit or goal for a model that answers whole requests",
    ("throughput", *_LATENCIES),
    (
        (_TOKENS, "tokens are those of language models: limit whole requests, as in `p95<50ms`"),
        (("cosine",), "leave it out: an export has limits of its own, and `tritune tune --also FORM` takes this one"),
        (("cost_per_million",), "leave it out: `tritune tune --price-per-hour P` tells it"),
        _COMPARED,
    ),
)
FORMS = replace(REQUESTS, limits=("cosine",))
"""Of a model beside which other forms of it are tried."""
STREAMS = Subject(
    "no limit or goal for a language model",
    ("throughput", *_TOKENS),
    (
        (tuple(_LATENCIES), "an answer takes as long as it has tokens: limit those, as in `ttft_p95<1s,itl_p95<100ms`"),
        _COMPARED,
    ),
    goal="tokens_per_s",
)
ENDPOINT = Subject(
    "not measured of an OpenAI endpoint",
    ("throughput", *_LATENCIES, *_TOKENS),
    (_COMPARED,),
    goal="tokens_per_s",
)
PRESETS: Mapping[str, tuple[str, ...]] = {"interactive": ("p99<=100ms", "throughput"), "batch": ("throughput",)}
"""Terms by the name of the use they stand for."""

_TERM = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)\s*(?:(<=|>=|<|>|=|≤|≥)\s*(.*))?")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_SPELLED = {"≤": "<=", "≥": ">="}
_OTHER_WORDS = {
    **dict.fromkeys(("rps", "qps", "rate", "requests_per_s"), "throughput"),
    **dict.fromkeys(("latency", "p999", "p99.9", "max"), "p99"),
    **dict.fromkeys(("mean", "average"), "avg"),
    **dict.fromkeys(("median",), "p50"),
    **dict.fromkeys(("tps", "tokens", "token_rate"), "tokens_per_s"),
    **dict.fromkeys(("cost", "price"), "cost_per_million"),
    **dict.fromkeys(("tpot",), "itl"),
}


@dataclass(frozen=True, slots=True)
class Term:
    """One limit: `metric` is a key of METRICS, `operator` one of < <= > >=; a duration is limited in microseconds."""

    metric: str
    operator: str
    limit: float

    def met_by(self, value: float) -> bool:
        """Whether a value keeps the limit."""
        if self.operator in ("<", ">"):
            return value < self.limit if self.operator == "<" else value > self.limit
        return value <= self.limit if self.operator == "<=" else value >= self.limit

    def __str__(self) -> str:
        return f"{self.metric}{self.operator}{spelled(self.metric, self.limit)}"


@dataclass(frozen=True, slots=True)
class Goal:
    """What is made better once every limit is kept: `metric` is a key of METRICS."""

    metric: str

    def score(self, *figures: object) -> float | None:
        """Larger is better, and a ratio of two scores is the gain: the value, or its inverse where lower is better."""
        value = figure(self.metric, *figures)
        if value is None or METRICS[self.metric].better == "higher":
            return value
        return 1 / value if value > 0 else math.inf

    def __str__(self) -> str:
        return f"{'highest' if METRICS[self.metric].better == 'higher' else 'lowest'} {self.metric}"


class Judgement(NamedTuple):
    """What one term says of some figures; `value` is None where they do not have it."""

    term: Term
    value: float | None
    answer: Answer

    def __str__(self) -> str:
        got = "no figure" if self.value is None else spelled(self.term.metric, self.value)
        return f"{self.term}: {self.answer} ({got})"


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits that must be kept, and the one figure that is then made better.

    Inside a pydantic model the field is written as `parse` takes it, and leaves as the list of `words`.
    """

    terms: tuple[Term, ...] = ()
    objective: Goal = field(default_factory=lambda: Goal("throughput"))

    @classmethod
    def parse(cls, words: str | Iterable[str], where: str = "slo", of: Subject | None = None) -> Slo:
        """The Slo of words such as `p99<50ms`, `throughput>200`, `interactive`; a string may hold several with commas.

        A metric by itself is the objective; a preset gives way to what is written beside it. Without an objective it is
        throughput, or p99 where throughput is the only thing limited, or that of what is judged. Raises UsageError with
        all problems, among them metrics that what is judged does not have.
        """
        listed = [words] if isinstance(words, str) or not isinstance(words, Iterable) else words
        split = [word.strip() for text in listed for word in _text(text, where).split(",") if word.strip()]
        chosen = [word for word in split if word in PRESETS]
        if len(set(chosen)) > 1:
            raise UsageError("two presets", where=where, got=" and ".join(chosen), expected="one of them")
        preset = [_parsed(word, where) for word in PRESETS[chosen[0]]] if chosen else []
        problems, own = _all_parsed([word for word in split if word not in PRESETS], where)
        problems += _twice(own, where)
        if of:
            problems += [*of.strange(preset, where, "".join(chosen[:1])), *of.strange(own, where)]
        if problems:
            raise UsageError(problems=problems)
        limited = {part.metric for part in own if isinstance(part, Term)}
        terms = [part for part in preset if isinstance(part, Term) and part.metric not in limited]
        terms += [part for part in own if isinstance(part, Term)]
        goals = [part for part in (*own, *preset) if isinstance(part, Goal)]
        if not goals and of and of.goal:
            goals = [Goal(of.goal)]
        return cls(tuple(terms), goals[0] if goals else _default_goal(terms))

    def judge(self, *figures: object) -> tuple[Judgement, ...]:
        """What each term says. `figures` are Measurements, Predictions or mappings {name of a figure: value}; the first
        that has a figure gives it. A saturated point has no latency of its own: its latency terms are not met."""
        saturated = any(getattr(source, "status", None) == "saturated" for source in figures)
        return tuple(self._judged(term, figure(term.metric, *figures), saturated) for term in self.terms)

    @staticmethod
    def _judged(term: Term, value: float | None, saturated: bool) -> Judgement:
        if value is None:
            return Judgement(term, None, "unknown")
        late = saturated and METRICS[term.metric].kind == "duration"
        return Judgement(term, value, "met" if term.met_by(value) and not late else "not met")

    def met(self, *figures: object) -> bool | None:
        """Whether every term is met; None while one is unknown and none is missed."""
        answers = {judgement.answer for judgement in self.judge(*figures)}
        return False if "not met" in answers else None if "unknown" in answers else True

    @property
    def words(self) -> tuple[str, ...]:
        """What `parse` reads back to the same Slo."""
        return (*map(str, self.terms), self.objective.metric)

    def __str__(self) -> str:
        return ", ".join([*map(str, self.terms), f"then {self.objective}" if self.terms else str(self.objective)])

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls.parse(value),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda slo: list(slo.words)),
        )


def figure(metric: str, *figures: object) -> float | None:
    """The value of a key of METRICS in the first of `figures` that has it; None where none has."""
    name = METRICS[metric].field
    for source in figures:
        value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
        if isinstance(value, (int, float)) and not math.isnan(value):
            return float(value)
    return None


def spelled(metric: str, value: float) -> str:
    """A value of a metric as people read it, and `Slo.parse` too: `50ms`, `200`, `0.999`."""
    if METRICS[metric].kind != "duration":
        return f"{value:.12g}"
    short = format_duration_us(value)
    return short if value != round(value) or parse_duration_us(short) == value else f"{value:.0f}us"


def _text(word: object, where: str) -> str:
    if isinstance(word, str):
        return word
    raise UsageError("not a term", where=where, got=repr(word), expected="text like `p99<50ms`")


def _all_parsed(words: Iterable[str], where: str) -> tuple[list[Problem], list[Term | Goal]]:
    problems: list[Problem] = []
    parts: list[Term | Goal] = []
    for word in words:
        try:
            parts.append(_parsed(word, where))
        except UsageError as error:
            problems += error.problems
    return problems, parts


def _parsed(word: str, where: str) -> Term | Goal:
    found = _TERM.fullmatch(word)
    if not found:
        raise UsageError("not a term", where=where, got=f"`{word}`", expected="METRIC<VALUE or METRIC>VALUE")
    name, sign, limit = found.groups()
    metric = METRICS.get(name)
    if metric is None:
        known = (*METRICS, *PRESETS)
        other = _OTHER_WORDS.get(name.lower())
        raise UsageError(
            "unknown metric or preset",
            where=where,
            got=f"`{name}`",
            expected=f"one of {', '.join(known)}",
            hint=f"did you mean `{other}`?" if other else suggest(name.lower(), known),
        )
    if sign is None:
        return Goal(name)
    sign = _SPELLED.get(sign, sign)
    right = "<" if metric.better == "lower" else ">"
    if sign[0] != right:
        hint = f"write `{name}{right}{limit}`; the bare word `{name}` asks for the {Goal(name)}"
        what = f"the limit of {name} is {'an upper' if right == '<' else 'a lower'} one"
        raise UsageError(what, where=where, got=f"`{word}`", expected=f"`{right}` or `{right}=`", hint=hint)
    return Term(name, sign, _limit(name, metric.kind, limit.strip(), f"{where}, `{word}`"))


def _limit(name: str, kind: Kind, text: str, where: str) -> float:
    """The number behind the operator, in microseconds for a duration."""
    if kind == "duration":
        try:
            value = float(parse_duration_us(text))
        except UsageError as error:
            problem = error.problems[0]
            hint = f"`{name}<{text}ms`?" if _NUMBER.fullmatch(text) else None
            raise UsageError(problem.what, where=where, got=f"`{text}`", expected=problem.expected, hint=hint) from None
    else:
        number = text.removesuffix("/s").rstrip() if kind == "rate" else text
        if not _NUMBER.fullmatch(number):
            raise UsageError("not a number", where=where, got=f"`{text}`", expected="a number like `200` or `2.5`")
        value = float(number)
    if value <= 0 or math.isinf(value) or (kind == "share" and value > 1):
        expected = "more than 0 and at most 1" if kind == "share" else "more than 0"
        raise UsageError("this limit cannot be met or missed", where=where, got=f"`{text}`", expected=expected)
    return value


def _twice(parts: Iterable[Term | Goal], where: str) -> list[Problem]:
    """A metric that is limited twice, or a second objective: which one is meant cannot be told."""
    problems, seen = [], set[str]()
    for part in parts:
        key = part.metric if isinstance(part, Term) else "the objective"
        if key in seen:
            problems.append(Problem("stated twice", where=where, got=key, expected="one term"))
        seen.add(key)
    return problems


def _default_goal(terms: Iterable[Term]) -> Goal:
    return Goal("p99") if {term.metric for term in terms} == {"throughput"} else Goal("throughput")
