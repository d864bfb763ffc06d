"""Rules about the response cache, decoupled models, metrics and tags. Layer: check."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tooling.check.finding import Evidence, Finding, Stage
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load, note, poll
from tooling.errors import suggest

_LABEL: Final = re.compile(r"[A-Za-z0-9_]*")
_KNOWN_FAMILIES: Final = ("nv_inference_first_response_histogram_ms",)

DECOUPLED_CACHE = poll(
    "cache-with-decoupled",
    "The response cache does not work with a decoupled model.",
    "A decoupled model answers a request with any number of responses.",
    "model_transaction_policy { decoupled: true }\nresponse_cache { enable: true }",
    "ValidateModelConfig (core)",
)
METRIC_IDENTIFIER = poll(
    "metric-without-identifier",
    "A metric_control has no metric_identifier.",
    "It names the metric whose buckets are set.",
    "model_metrics { metric_control { histogram_options { buckets: [ 1 ] } } }\n--- options\n--release 24.11",
    "ValidateModelMetrics (core)",
    evidence=Evidence.READ,
    since="24.11",
)
METRIC_FAMILY = poll(
    "metric-without-family",
    "A metric_identifier has no family.",
    "The family is the name of the metric.",
    "model_metrics { metric_control { metric_identifier { } histogram_options { buckets: [ 1 ] } } }"
    "\n--- options\n--release 24.11",
    "ValidateModelMetrics (core)",
    evidence=Evidence.READ,
    since="24.11",
)
METRIC_OPTIONS = poll(
    "metric-without-options",
    "A metric_control has no histogram_options.",
    "Buckets are all there is to set.",
    'model_metrics { metric_control { metric_identifier { family: "nv_inference_first_response_histogram_ms" } } }'
    "\n--- options\n--release 24.11",
    "ValidateModelMetrics (core)",
    evidence=Evidence.READ,
    since="24.11",
)
METRIC_BUCKETS = poll(
    "metric-without-buckets",
    "histogram_options has no buckets.",
    "An empty list is not the default.",
    'model_metrics { metric_control { metric_identifier { family: "nv_inference_first_response_histogram_ms" } '
    "histogram_options { } } }\n--- options\n--release 24.11",
    "ValidateModelMetrics (core)",
    evidence=Evidence.READ,
    since="24.11",
)
METRIC_UNKNOWN = advice(
    "metric-family-unknown",
    "The family is no metric whose buckets can be set.",
    f"There is {', '.join(_KNOWN_FAMILIES)}; any other name only makes a warning in the log.",
    'model_metrics { metric_control { metric_identifier { family: "other" } histogram_options { buckets: [ 1 ] } } }'
    "\n--- options\n--release 24.11",
    "MetricModelReporter (core)",
    since="24.11",
    stage=Stage.POLL,
)
NO_SERVER_CACHE = advice(
    "cache-without-server-cache",
    "The model asks for the response cache, and the server has none.",
    "The server needs `--cache-config=local,size=BYTES` as well; without it nothing is cached and nothing is said.",
    "response_cache { enable: true }\n--- options\n--server-args --model-repository=/models",
    "InferenceServer::Init (core)",
    evidence=Evidence.RUN,
    stage=Stage.POLL,
)
CACHE_NEEDS_SERVER = note(
    "cache-needs-server-cache",
    "The response cache needs an option of the server too.",
    "Start it with `--cache-config=local,size=BYTES`. The key of the cache is the bytes of the inputs, without their "
    "shapes and types.",
    "response_cache { enable: true }",
    "InferenceServer::Init (core)",
    evidence=Evidence.RUN,
    stage=Stage.POLL,
)
TAG_NAME = load(
    "metric-tag-name",
    "The name of a metric tag is no label of Prometheus.",
    "Tags become labels `_NAME`, of ASCII letters, digits and `_`. tritonserver 2.51 ends with any other name: all "
    "models are "
    "gone. Values may be any text.",
    'metric_tags { key: "größe" value: "1" }',
    "tritonserver 2.51",
)
RULES = (
    *(DECOUPLED_CACHE, METRIC_IDENTIFIER, METRIC_FAMILY, METRIC_OPTIONS, METRIC_BUCKETS, METRIC_UNKNOWN),
    *(NO_SERVER_CACHE, CACHE_NEEDS_SERVER, TAG_NAME),
)


def features(model: Model) -> Iterator[Finding]:
    """The last part of ValidateModelConfig."""
    config = model.config
    if config.model_transaction_policy.decoupled and config.response_cache.enable:
        yield model.find(
            DECOUPLED_CACHE,
            "response_cache does not work with decoupled responses",
            "response_cache",
            says=f"Response Cache does not currently support model {config.name} with 'decoupled' transaction policy. "
            "Please disable the response cache.",
            hint="switch one of the two off",
            fix=("-response_cache",),
        )
    if config.HasField("model_metrics"):
        yield from _metrics(model)


def _metrics(model: Model) -> Iterator[Finding]:
    for index, control in enumerate(model.config.model_metrics.metric_control):
        where: tuple[str | int, ...] = ("model_metrics", "metric_control", index)
        if not control.HasField("metric_identifier"):
            says = "metric control must specify 'metric_identifier'"
            yield model.find(METRIC_IDENTIFIER, f"metric_control {index} has no metric_identifier", *where, says=says)
        elif not control.metric_identifier.family:
            says = "metric identifier must specify non-empty 'family'"
            yield model.find(METRIC_FAMILY, f"metric_control {index} has no family", *where, says=says)
        if not control.HasField("histogram_options"):
            says = "metric control must specify 'histogram_options'"
            yield model.find(METRIC_OPTIONS, f"metric_control {index} has no histogram_options", *where, says=says)
        elif not control.histogram_options.buckets:
            says = "histogram options must specify non-empty 'buckets'"
            yield model.find(METRIC_BUCKETS, f"metric_control {index} has no buckets", *where, says=says)
        family = control.metric_identifier.family
        if family and family not in _KNOWN_FAMILIES:
            hint = suggest(family, _KNOWN_FAMILIES)
            yield model.find(METRIC_UNKNOWN, f"{family} is no metric whose buckets can be set", *where, hint=hint)


def tags(model: Model) -> Iterator[Finding]:
    """Metric tags that Prometheus has no label for."""
    for key in sorted(model.config.metric_tags):
        if not _LABEL.fullmatch(key):
            yield model.find(
                TAG_NAME,
                f"metric_tags: `{key}` is no name of a label: tritonserver 2.51 dies on it",
                "metric_tags",
                key,
                hint="use ASCII letters, digits and _",
            )


def cache(model: Model) -> Iterator[Finding]:
    """Whether anything is cached."""
    if not model.written.response_cache.enable or model.config.HasField("sequence_batching"):
        return
    if model.target.cache is False:
        yield model.find(
            NO_SERVER_CACHE,
            f"{model.name} asks for the response cache but the server command has no --cache-config",
            "response_cache",
            hint="start the server with --cache-config=local,size=104857600",
        )
    elif model.target.cache is None:
        yield model.find(
            CACHE_NEEDS_SERVER,
            f"{model.name} asks for the response cache: the server needs --cache-config too",
            "response_cache",
        )
