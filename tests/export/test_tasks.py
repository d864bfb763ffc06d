"""Every task on a model saved for it: names of outputs, labels, and the judgement of the libraries people use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from export.options import ExportOptions
from export.quiet import quiet
from export.run import ExportResult, export_model
from tooling.console import Console
from tooling.errors import UsageError

SILENT = Console(quiet=True)
FAST = ExportOptions(exporter="torchscript")
OUTPUTS = {
    "distilbert": ("text-classification", {"logits": (-1, 3)}),
    "xlm-roberta": ("text-ranking", {"scores": (-1, 1)}),
    "electra": ("token-classification", {"logits": (-1, -1, 3)}),
    "albert": ("question-answering", {"start_logits": (-1, -1), "end_logits": (-1, -1)}),
    "modernbert": ("fill-mask", {"logits": (-1, -1, 64)}),
    "vit": ("image-classification", {"logits": (-1, 3)}),
    "vit-features": ("image-feature-extraction", {"last_hidden_state": (-1, 5, 32), "pooler_output": (-1, 32)}),
    "clip-image": ("image-feature-extraction", {"image_embeds": (-1, 16)}),
    "clip-text": ("feature-extraction", {"text_embeds": (-1, 16)}),
}


@pytest.fixture(scope="module")
def exported(
    make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, ExportResult]]:
    """The source and the export of a model of the zoo, made once."""
    place = tmp_path_factory.mktemp("tasks")
    done: dict[str, tuple[Path, ExportResult]] = {}

    def get(kind: str) -> tuple[Path, ExportResult]:
        if kind not in done:
            source = make_model(place / kind, kind)
            done[kind] = (source, export_model(source, place / "repository", options=FAST, console=SILENT))
        return done[kind]

    return get


QUICK = ("distilbert", "xlm-roberta", "albert", "clip-image")


@pytest.mark.parametrize("kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.long) for k in OUTPUTS])
def test_task_is_inferred_and_its_outputs_have_their_usual_names(
    kind: str, exported: Callable[[str], tuple[Path, ExportResult]]
) -> None:
    manifest = exported(kind)[1].manifest
    task, outputs = OUTPUTS[kind]
    assert (manifest.task, {tensor.name: tensor.dims for tensor in manifest.outputs}) == (task, outputs)


def test_decoder_has_its_cache_as_inputs_and_outputs(exported: Callable[[str], tuple[Path, ExportResult]]) -> None:
    manifest = exported("gpt2")[1].manifest
    layers = [f"{layer}.{part}" for layer in (0, 1) for part in ("key", "value")]
    assert [t.name for t in manifest.inputs] == [
        "input_ids",
        "attention_mask",
        *(f"past_key_values.{name}" for name in layers),
    ]
    assert [t.name for t in manifest.outputs] == ["logits", *(f"present.{name}" for name in layers)]
    assert manifest.inputs[2].dims == manifest.outputs[1].dims == (-1, 4, -1, 8)


def test_labels_stand_one_a_line_in_the_order_of_the_classes(
    exported: Callable[[str], tuple[Path, ExportResult]], tmp_path: Path, edit_json: Callable[..., None]
) -> None:
    source, _ = exported("distilbert")
    # As JSON keeps them, the keys are text: 10 would come before 2.
    edit_json(source / "config.json", id2label={"2": "good\nand cheap", "0": "bad", "1": "überall"})
    result = export_model(source, tmp_path, "m", FAST, console=SILENT)
    assert (result.model_dir / "labels.txt").read_text(encoding="utf-8") == "bad\nüberall\ngood and cheap\n"
    assert result.manifest.labels == 3


def test_images_come_with_their_processor(make_model: Callable[..., Path], tmp_path: Path) -> None:
    source = make_model(tmp_path / "vit", "vit")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).unlink()
    (source / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5]}')
    result = export_model(source, tmp_path / "repository", options=FAST, console=SILENT)
    assert (result.model_dir / "processor" / "preprocessor_config.json").is_file()
    assert [(t.name, t.data_type, t.dims) for t in result.manifest.inputs] == [
        ("pixel_values", "TYPE_FP32", (-1, 3, 16, 16))
    ]


def test_scores_are_those_of_a_cross_encoder(exported: Callable[[str], tuple[Path, ExportResult]]) -> None:
    import onnxruntime

    source, result = exported("xlm-roberta")
    pairs = [("abc", "defg"), ("hij", "k"), ("lm", "nopqrst")]
    with quiet(SILENT):
        from sentence_transformers import CrossEncoder
        from tokenizers import Tokenizer

        expected = CrossEncoder(str(source), device="cpu").predict(pairs)
        tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
        tokenizer.enable_padding(pad_id=1)
        encoded = tokenizer.encode_batch(pairs)
    inputs = {
        "input_ids": np.array([row.ids for row in encoded], np.int64),
        "attention_mask": np.array([row.attention_mask for row in encoded], np.int64),
    }
    (scores,) = onnxruntime.InferenceSession(str(result.model_file)).run(None, inputs)
    assert np.abs(scores[:, 0] - expected).max() < 1e-5


def test_another_head_than_the_saved_one_has_no_weights(bert_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"weights of the model are missing .*classifier") as caught:
        export_model(bert_dir, tmp_path, "m", ExportOptions(task="token-classification"), console=SILENT)
    assert "--task" in (caught.value.problems[0].hint or "")


def test_model_without_a_plain_cache_is_refused(make_model: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no plain cache of keys and values"):
        export_model(make_model(tmp_path / "mamba", "mamba"), tmp_path / "repository", options=FAST, console=SILENT)
