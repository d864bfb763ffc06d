"""Rules about the comments that silence rules. Layer: check."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tooling.check.finding import Evidence, Finding, Stage
from tooling.check.model import Model
from tooling.check.rules.kinds import advice

IGNORE_UNKNOWN = advice(
    "ignore-unknown-rule",
    "A comment silences a rule that does not exist.",
    "The name between the brackets is the id of a rule, as findings show it.",
    "max_batch_size: 8  # tritune: ignore[no-such-rule] because",
    "tritune",
    evidence=Evidence.DOCUMENTED,
    stage=Stage.POLL,
)
IGNORE_REASON = advice(
    "ignore-without-reason",
    "A comment silences a rule without saying why.",
    "`# tritune: ignore[RULE] reason`: who reads it next wants to know.",
    "max_batch_size: 8  # tritune: ignore[requests-not-merged]",
    "tritune",
    evidence=Evidence.DOCUMENTED,
    stage=Stage.POLL,
)
IGNORE_NOTHING = advice(
    "ignore-without-rule",
    "A comment silences nothing: it names no rule.",
    "The rules stand in brackets, as findings show them.",
    "max_batch_size: 8  # tritune: ignore requests-not-merged",
    "tritune",
    evidence=Evidence.DOCUMENTED,
    stage=Stage.POLL,
)
RULES = (IGNORE_UNKNOWN, IGNORE_REASON, IGNORE_NOTHING)


def comments(model: Model, known: Collection[str]) -> Iterator[Finding]:
    """The comments that silence rules."""
    for ignore in model.text.ignores() if model.text else []:
        for name in ignore.rules:
            if name not in known:
                yield model.find(IGNORE_UNKNOWN, f"there is no rule `{name}`", place=ignore.place)
        if not ignore.rules:
            text = "no rule is named, so nothing is silenced"
            yield model.find(IGNORE_NOTHING, text, place=ignore.place, hint="# tritune: ignore[RULE] reason")
        elif not ignore.reason:
            yield model.find(IGNORE_REASON, "say why behind the bracket", place=ignore.place)
