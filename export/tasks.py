"""What a model is exported for: the supported tasks, and which of them a config asks for. Layer: export tasks, pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tooling.errors import UsageError, suggest

Judge = Literal["vectors", "classes", "spans", "values"]


@dataclass(frozen=True, slots=True)
class Task:
    """A task under its name on the Hugging Face hub.

    `loader` is the transformers class that loads it. `outputs` are the fields of its answer, in the order of the file.
    `judge` is what the outputs are besides numbers: vectors with a direction, classes or token positions of which the
    largest counts, or plain values. With `per_token` the first axis after the batch is that of the tokens.
    """

    name: str
    loader: str
    outputs: tuple[str, ...]
    judge: Judge
    per_token: bool = False
    image: bool = False
    labels: bool = False


FEATURES: Final = Task("feature-extraction", "AutoModel", ("last_hidden_state",), "vectors", per_token=True)
CLASSIFY: Final = Task("text-classification", "AutoModelForSequenceClassification", ("logits",), "classes", labels=True)
RANK: Final = Task("text-ranking", "AutoModelForSequenceClassification", ("logits",), "values")
TAG: Final = Task("token-classification", "AutoModelForTokenClassification", ("logits",), "classes", per_token=True)
ANSWER: Final = Task(
    "question-answering", "AutoModelForQuestionAnswering", ("start_logits", "end_logits"), "spans", per_token=True
)
FILL: Final = Task("fill-mask", "AutoModelForMaskedLM", ("logits",), "classes", per_token=True)
GENERATE: Final = Task("text-generation", "AutoModelForCausalLM", ("logits",), "classes", per_token=True)
CLASSIFY_IMAGE: Final = Task(
    "image-classification", "AutoModelForImageClassification", ("logits",), "classes", image=True, labels=True
)
IMAGE_FEATURES: Final = Task(
    "image-feature-extraction", "AutoModel", ("last_hidden_state", "pooler_output"), "vectors", image=True
)

TASKS: Final[Mapping[str, Task]] = {
    task.name: task for task in (FEATURES, CLASSIFY, RANK, TAG, ANSWER, FILL, GENERATE, CLASSIFY_IMAGE, IMAGE_FEATURES)
}
# What the class name of a checkpoint ends with. A pre-training head is no task: its encoder is what is wanted.
_ENDINGS: Final[tuple[tuple[str, Task | None], ...]] = (
    ("ForSequenceClassification", CLASSIFY),
    ("ForTokenClassification", TAG),
    ("ForQuestionAnswering", ANSWER),
    ("ForMaskedLM", FILL),
    ("ForCausalLM", GENERATE),
    ("LMHeadModel", GENERATE),
    ("ForImageClassification", CLASSIFY_IMAGE),
    ("ForPreTraining", None),
    ("ModelWithProjection", None),
    ("Model", None),
)
_TOWERS: Final = ("text_config", "vision_config")


def task_named(name: str) -> Task:
    """The task of this name. Raises UsageError that lists the supported ones."""
    if name not in TASKS:
        raise UsageError(
            "unsupported task",
            where="--task",
            got=f"`{name}`",
            expected=f"one of {', '.join(TASKS)}",
            hint=suggest(name, TASKS) or "leave --task out for that of the config",
        )
    return TASKS[name]


def infer_task(config: Mapping[str, Any], where: Path) -> Task:
    """The task that the architecture in `config` (that of `config.json`, the file `where`) was saved for.

    Raises UsageError for one that is not supported, and for a model of text and images, which has two.
    """
    names = [str(name) for name in config.get("architectures") or ("Model",)]
    found = [task for name in names for ending, task in _ENDINGS if name.endswith(ending)][:1]
    if not found:
        raise UsageError(
            "unsupported task",
            where=where,
            got=f"architecture {', '.join(names)}",
            expected=f"an architecture for one of {', '.join(TASKS)}",
            hint="say with --task which of these the model can do, or export the model saved for another head",
        )
    task = found[0] or _base_task(config, where)
    # A cross-encoder is a classifier of pairs with a single label, the score.
    return RANK if task is CLASSIFY and label_count(config) == 1 else task


def _base_task(config: Mapping[str, Any], where: Path) -> Task:
    """Features of what the model takes."""
    if all(isinstance(config.get(tower), Mapping) for tower in _TOWERS):
        raise UsageError(
            "the model has a text and an image half",
            where=where,
            got=f"model_type {config.get('model_type')}",
            expected="one of them",
            hint=f"choose with --task {FEATURES.name} (text) or --task {IMAGE_FEATURES.name}",
        )
    seen = "image_size" in config or "num_channels" in config
    return IMAGE_FEATURES if seen and "vocab_size" not in config else FEATURES


def half_of(config: Mapping[str, Any], task: Task) -> Mapping[str, Any]:
    """The part of a config that the task is about: a model of text and images keeps one for each."""
    inner = config.get(_TOWERS[task.image])
    return inner if isinstance(inner, Mapping) else config


def label_count(config: Mapping[str, Any]) -> int:
    """How many classes a classifier's config names; transformers takes two where it names none."""
    named = config.get("id2label")
    return len(named) if isinstance(named, Mapping) and named else int(config.get("num_labels") or 2)


def label_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The class names by their index, each one line of text, as Triton reads them."""
    named = config.get("id2label")
    if not isinstance(named, Mapping):
        return tuple(f"LABEL_{index}" for index in range(label_count(config)))
    ordered = sorted(named.items(), key=lambda item: int(item[0]))
    return tuple(" ".join(str(label).split()) or f"LABEL_{index}" for index, label in ordered)
