"""Warmup samples hold real ids and stay inside what the model takes."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tooling.config.build import build_config
from tooling.config.changes import Changes
from tooling.config.knobs import Knobs
from tooling.config.warmup import Sample, add_samples, parse_samples
from tooling.errors import UsageError
from tooling.signature.spec import ModelSignature, TensorSpec

NAMES = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
TOKENS = tuple(TensorSpec(name, "TYPE_INT64", (-1, -1)) for name in NAMES)
EMB = TensorSpec("emb", "TYPE_FP32", (-1, 4))


def build(inputs=TOKENS, settings=None, folder=None, top: int = 8):
    signature = ModelSignature(Path("file"), "python", inputs, (EMB,))
    knobs = Knobs(max_batch_size=top, dynamic_batching=top > 0)
    return build_config(signature, "m", knobs, changes=Changes(settings or {}, "f"), folder=folder)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    vocabulary = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4}
    processor = {"type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", 2]}
    content = {"model": {"vocab": vocabulary}, "added_tokens": [{"id": i} for i in range(3)]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"post_processor": processor}))
    config = {"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_sample_holds_what_a_tokenizer_would_give(tokenizer):
    config = build()
    files = add_samples(config, parse_samples(["8x6"]), tokenizer)
    (sample,) = config.model_warmup
    assert (sample.name, sample.batch_size, sorted(sample.inputs)) == ("8x6", 8, sorted(NAMES))
    assert all(list(tensor.dims) == [6] for tensor in sample.inputs.values())
    ids = struct.unpack("<6q", files[sample.inputs["input_ids"].input_data_file])
    assert (ids[0], ids[-1]) == (1, 2) and set(ids[1:-1]) <= {3, 4}
    assert struct.unpack("<6q", files["attention_mask-6.bin"]) == (1,) * 6
    assert struct.unpack("<6q", files["position_ids-6.bin"]) == tuple(range(6))
    assert sample.inputs["token_type_ids"].zero_data
    again = build()
    assert add_samples(again, (Sample(8, 6),), tokenizer) == files and again == config


def test_every_type_has_its_bytes():
    inputs = (TensorSpec("text", "TYPE_STRING", (-1, 2)), TensorSpec("half", "TYPE_FP16", (-1, 3)))
    config = build(inputs)
    assert add_samples(config, (Sample(1, 5),), None) == {"text-2.bin": b"\4\0\0\0warm" * 2}
    assert config.model_warmup[0].inputs["half"].zero_data


def test_without_batching_a_free_first_axis_is_one_row(tokenizer):
    config = build(top=0)
    files = add_samples(config, (Sample(1, 4),), tokenizer)
    assert list(config.model_warmup[0].inputs["input_ids"].dims) == [1, 4] and len(files["input_ids-1x4.bin"]) == 32


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("16x4", "the batch is larger than the model takes, and a failing warmup can end the server (got 16"),
        ("1x513", "more than the model has positions for (got 513; expected usable length 512"),
    ],
)
def test_what_the_model_does_not_take(text, said, tokenizer):
    with pytest.raises(UsageError) as caught:
        add_samples(build(), parse_samples([text]), tokenizer)
    assert said in str(caught.value)


def test_ids_need_a_tokenizer(tmp_path):
    with pytest.raises(UsageError, match="warmup needs real token ids"):
        add_samples(build(), (Sample(1, 1),), None)
    with pytest.raises(UsageError, match="the tokenizer is missing"):
        add_samples(build(), (Sample(1, 1),), tmp_path / "none")


@pytest.mark.parametrize("text", ["8", "x8", "0x8", "8x0", "8x8x8", "8×8"])
def test_the_form(text):
    with pytest.raises(UsageError, match="--warmup: not a warmup sample"):
        parse_samples([text])


def sample(**fields) -> dict:
    ids = {"data_type": "INT64", "dims": [8], "zero_data": True, **fields.pop("ids", {})}
    return {"model_warmup": [{"name": "w", "batch_size": 1, "inputs": {"ids": ids}, **fields}]}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (sample(batch_size=16), "the batch is larger than the model takes"),
        (sample(batch_size=0), "the sample is skipped"),
        (sample(inputs={}), "input `ids` is missing"),
        (sample(inputs={"idz": {"data_type": "INT64", "dims": [8], "zero_data": True}}), "`idz` is no input"),
        (sample(ids={"zero_data": None, "random_data": True}), "random numbers are no token ids"),
        (sample(ids={"zero_data": None}), "no data (expected zero_data: true"),
        (sample(ids={"dims": [-1]}), "the shape is not whole (got [-1]"),
        (sample(ids={"data_type": "INT32"}), "another data type than the model takes (got TYPE_INT32"),
        (sample(ids={"zero_data": None, "input_data_file": "no.bin"}), "the file is missing"),
        (sample(ids={"zero_data": None, "input_data_file": "two.bin"}), "too short (got 2 bytes; expected 64 bytes"),
    ],
)
def test_samples_of_one_s_own(settings, said, tmp_path):
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "two.bin").write_bytes(b"\0\0")
    with pytest.raises(UsageError) as caught:
        build((TensorSpec("ids", "TYPE_INT64", (-1, -1)),), settings, tmp_path)
    assert said in str(caught.value)
