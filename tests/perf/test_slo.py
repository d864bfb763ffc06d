"""Demands in words, and what figures say of them."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from perf.measurement import Load, Measurement
from perf.sim.prediction import Prediction
from perf.slo import (
    ANSWERS,
    ENDPOINT,
    FORMS,
    METRICS,
    PRESETS,
    REQUESTS,
    STREAMS,
    Goal,
    Slo,
    Term,
    figure,
)
from tooling.errors import UsageError

LOAD = Load(mode="concurrency", value=4.0)


def measured(**figures: float) -> Measurement:
    return Measurement(status="ok", load=LOAD, **figures)  # type: ignore[arg-type]


def predicted(**figures: float) -> Prediction:
    blank = dict.fromkeys(("avg_us", "p50_us", "p90_us", "p95_us", "p99_us", "queue_us", "queue_share"))
    counts = {"throughput_rps": 0.0, "requests": 1, "timed_out": 0, "refused": 0, "stages": (), "seed": 0}
    return Prediction(**{**blank, **counts, **figures})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "term"),
    [
        ("p99<50ms", Term("p99", "<", 50_000)),
        ("p99 ≤ 1.5s", Term("p99", "<=", 1_500_000)),
        ("avg<=800us", Term("avg", "<=", 800)),
        ("throughput>200", Term("throughput", ">", 200)),
        ("throughput ≥ 12.5/s", Term("throughput", ">=", 12.5)),
        ("cost_per_million<2.5", Term("cost_per_million", "<", 2.5)),
        ("cosine>0.999", Term("cosine", ">", 0.999)),
        ("ttft_p95<300ms", Term("ttft_p95", "<", 300_000)),
        ("itl<40ms", Term("itl", "<", 40_000)),
        ("tokens_per_s>1000", Term("tokens_per_s", ">", 1000)),
    ],
)
def test_each_metric_has_its_term(word, term):
    assert Slo.parse(word).terms == (term,)


def test_many_terms_in_one_string_or_in_a_list():
    assert Slo.parse("p99<50ms, throughput>200") == Slo.parse(["p99<50ms", "throughput>200"])
    assert Slo.parse([]) == Slo.parse("") == Slo() == Slo((), Goal("throughput"))


@pytest.mark.parametrize(
    ("words", "objective"),
    [("p99<50ms", "throughput"), ("throughput>200", "p99"), ("throughput>200,p99<1s", "throughput"), ("p95", "p95")],
)
def test_the_objective_is_named_or_follows_from_the_limits(words, objective):
    assert Slo.parse(words).objective == Goal(objective)


def test_presets_give_way_to_what_is_written_beside_them():
    assert Slo.parse("interactive") == Slo((Term("p99", "<=", 100_000),), Goal("throughput"))
    assert Slo.parse("batch") == Slo((), Goal("throughput"))
    assert Slo.parse("interactive,p99<40ms,p50") == Slo((Term("p99", "<", 40_000),), Goal("p50"))
    assert Slo.parse("p95<40ms,interactive").terms == (Term("p99", "<=", 100_000), Term("p95", "<", 40_000))


@pytest.mark.parametrize("words", ["p99<50ms", "p99<=12345us,throughput>200.5", *PRESETS, "cosine>0.999,ttft_p50"])
def test_its_words_read_back(words):
    assert Slo.parse(Slo.parse(words).words) == Slo.parse(words)


def test_it_reads_in_words():
    assert str(Slo.parse("interactive")) == "p99<=100ms, then highest throughput"
    assert str(Slo.parse("p95")) == "lowest p95"


@pytest.mark.parametrize(
    ("word", "what", "hint"),
    [
        ("p98<50ms", "unknown metric or preset (got `p98`; expected one of throughput, avg,", "did you mean `p9"),
        ("Throughputt>2", "unknown metric", "did you mean `throughput`?"),
        ("qps>200", "unknown metric", "did you mean `throughput`?"),
        ("interactiv", "unknown metric", "did you mean `interactive`?"),
        ("p99<50", "not a duration (got `50`", "`p99<50ms`?"),
        ("p99<", "not a duration (got ``", None),
        ("throughput>fast", "not a number (got `fast`", None),
        ("throughput>1e999", "not a number", None),
        ("p99>50ms", "the limit of p99 is an upper one (got `p99>50ms`; expected `<` or `<=`)", "write `p99<50ms`"),
        ("throughput=200", "the limit of throughput is a lower one", "write `throughput>200`"),
        ("cosine>1.5", "cannot be met or missed", None),
        ("p99<0", "cannot be met or missed", None),
        ("<50ms", "not a term", None),
        ("p99<50ms,p99<40ms", "stated twice (got p99", None),
        ("p50,p99", "stated twice (got the objective", None),
        ("interactive,batch", "two presets", None),
    ],
)
def test_what_is_no_slo(word, what, hint):
    with pytest.raises(UsageError) as refused:
        Slo.parse(word, "--slo")
    problem = refused.value.problems[0]
    assert what in str(problem) and str(problem).startswith("--slo")
    assert (problem.hint or "").startswith(hint or "")


@pytest.mark.parametrize(
    ("word", "of", "got", "hint"),
    [
        ("ttft_p95<300ms", REQUESTS, "`ttft_p95<300ms`", "limit whole requests, as in `p95<50ms`"),
        ("p99<1s,tokens_per_s", REQUESTS, "`tokens_per_s`", "limit whole requests"),
        ("cosine>0.9", REQUESTS, "`cosine>0.9`", "`tritune tune --also FORM` takes this one"),
        ("cosine", FORMS, "`cosine`", "`tritune tune --also FORM` takes this one"),
        ("cost_per_million<2", REQUESTS, "`cost_per_million<2`", "--price-per-hour"),
        ("exact_answers>0.9", REQUESTS, "`exact_answers>0.9`", "`tritune quality` compares"),
        ("p99<100ms", STREAMS, "`p99<100ms`", "limit those, as in `ttft_p95<1s,itl_p95<100ms`"),
        ("itl<1s,p95", STREAMS, "`p95`", "limit those, as in"),
        ("interactive", STREAMS, "`interactive`, which asks for `p99<=100ms`", "limit those, as in"),
        ("token_agreement>0.9", STREAMS, "`token_agreement>0.9`", "`tritune quality` compares"),
        ("cost_per_million<2", STREAMS, "`cost_per_million<2`", "leave it out"),
        ("cosine>0.9", ENDPOINT, "`cosine>0.9`", "`tritune quality` compares"),
        ("p99<1s,token_agreement>0.9", ANSWERS, "`p99<1s`", "`tritune tune` measures it"),
    ],
)
def test_a_metric_of_something_else_is_refused(word, of, got, hint):
    with pytest.raises(UsageError) as refused:
        Slo.parse(word, "--slo", of)
    (problem,) = refused.value.problems
    assert (problem.where, problem.what, problem.got) == ("--slo", of.foreign, got)
    assert hint in problem.hint
    assert problem.expected.startswith(f"some of {of.metrics[0]}, ")


def test_each_kind_has_its_metrics_and_its_goal():
    assert Slo.parse("p99<50ms", of=REQUESTS) == Slo.parse("p99<50ms")
    assert Slo.parse("cosine>0.9", of=FORMS).terms == (Term("cosine", ">", 0.9),)
    assert Slo.parse("ttft_p95<1s,itl<50ms", of=STREAMS).objective == Goal("tokens_per_s")
    assert Slo.parse("throughput>2", of=STREAMS).objective == Goal("tokens_per_s")
    assert Slo.parse("batch", of=STREAMS).objective == Goal("throughput")
    assert Slo.parse("p99<1s,itl_p95<50ms", of=ENDPOINT).objective == Goal("tokens_per_s")
    assert {*REQUESTS.metrics, *STREAMS.metrics, *ANSWERS.metrics, "cosine", "cost_per_million"} == {*METRICS}


def test_all_problems_are_told_at_once():
    with pytest.raises(UsageError) as refused:
        Slo.parse("p98<1ms,throughput>x,p99>1ms")
    assert len(refused.value.problems) == 3


@pytest.mark.parametrize("make", [measured, predicted, dict])
def test_it_judges_measurements_predictions_and_mappings_alike(make):
    figures = make(p99_us=40_000.0, throughput_rps=150.0)
    slo = Slo.parse("p99<50ms,throughput>200,cosine>0.999")
    assert [(j.value, j.answer) for j in slo.judge(figures)] == [
        (40_000, "met"),
        (150, "not met"),
        (None, "unknown"),
    ]
    assert str(slo.judge(figures)[0]) == "p99<50ms: met (40ms)"
    assert slo.met(figures) is False
    assert Slo.parse("p99<50ms,cosine>0.999").met(figures) is None
    assert Slo.parse("p99<50ms,cosine>0.999").met(figures, {"cosine": 0.99999}) is True
    assert Slo.parse("p99<40ms").met(figures) is False and Slo.parse("p99<=40ms").met(figures) is True


def test_a_saturated_point_keeps_no_latency_limit():
    point = Measurement(status="saturated", load=LOAD, p99_us=1.0, throughput_rps=300.0)
    assert [j.answer for j in Slo.parse("p99<50ms,throughput>200").judge(point)] == ["not met", "met"]


def test_scores_are_ratios_of_gain():
    slow, fast = measured(throughput_rps=100.0, p99_us=20_000.0), measured(throughput_rps=200.0, p99_us=10_000.0)
    for metric in ("throughput", "p99"):
        goal = Goal(metric)
        assert goal.score(fast) == pytest.approx(2 * (goal.score(slow) or 0))
    assert Goal("cosine").score(fast) is None


def test_every_latency_and_rate_has_the_name_of_the_measured_figure():
    known = {name for name in dir(measured()) if not name.startswith("_")}
    for word in ("throughput", "avg", "p50", "p90", "p95", "p99"):
        assert METRICS[word].field in known
    assert figure("p50", {"p50_us": float("nan")}) is None


class Holder(BaseModel):
    slo: Slo = Slo()


def test_pydantic_models_hold_it():
    holder = Holder.model_validate({"slo": "interactive"})
    assert holder.slo == Slo.parse("interactive")
    assert holder.model_dump(mode="json") == {"slo": ["p99<=100ms", "throughput"]}
    assert Holder.model_validate_json(holder.model_dump_json()) == holder
    with pytest.raises(UsageError, match="unknown metric"):
        Holder.model_validate({"slo": ["p98<1ms"]})
    with pytest.raises(UsageError, match="not a term"):
        Holder.model_validate({"slo": [3]})
    with pytest.raises(UsageError, match="not a term"):
        Holder.model_validate({"slo": 3})
