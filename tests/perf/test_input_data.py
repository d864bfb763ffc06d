"""Requests made for a model: valid ids, types as perf_analyzer wants them, shapes as the configuration has them."""

from __future__ import annotations

import base64
import json
import re
import struct
from math import gcd
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.input_data import write_input_data
from perf.lengths import fit_to_model, sentence_lengths, sentences
from perf.workload import Workload
from tooling.errors import UsageError
from tooling.signature.spec import ModelSignature, TensorSpec
from tooling.signature.vocabulary import read_vocabulary

CLS, SEP, SPECIAL = 101, 102, {0, 100, 101, 102, 103}
BERT = tuple(TensorSpec(name, "TYPE_INT64", (-1, -1)) for name in ("input_ids", "attention_mask", "token_type_ids"))


def signature(*inputs: TensorSpec) -> ModelSignature:
    return ModelSignature(Path("model.onnx"), "onnxruntime", inputs, ())


@pytest.fixture
def written(tmp_path, minilm_dir):
    """Write requests and give back the steps that perf_analyzer would read."""

    def write(*inputs: TensorSpec, lengths: tuple[int, ...] = (5,), **options: Any) -> list[dict[str, Any]]:
        workload = Workload(concurrency=4, lengths=lengths)
        options = {"tokenizer_dir": minilm_dir, **options}
        data = write_input_data(tmp_path / "in.json", signature(*inputs), workload, **options)
        steps = json.loads(data.path.read_text())["data"]
        assert len(steps) == data.steps
        return steps

    return write


def test_a_text_model_gets_real_tokens_between_its_special_ones(written):
    steps = written(*BERT, lengths=(3, 20, 128))
    for step, length in zip(steps, (3, 20, 128) * 20, strict=False):
        ids = step["input_ids"]["content"]
        assert step["input_ids"]["shape"] == [length] == [len(ids)]
        assert (ids[0], ids[-1]) == (CLS, SEP)
        assert all(0 <= i < 30522 and i not in SPECIAL for i in ids[1:-1])
        assert step["attention_mask"]["content"] == [1] * length
        assert step["token_type_ids"]["content"] == [0] * length


def test_a_length_shorter_than_the_special_tokens(written):
    assert written(BERT[0], lengths=(1,))[0]["input_ids"]["content"] == [CLS]


def test_same_arguments_same_bytes_and_another_seed_other_ones(tmp_path, minilm_dir):
    files = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        workload = Workload(concurrency=2, lengths=(7, 9), seed=seed)
        write_input_data(tmp_path / name, signature(*BERT), workload, minilm_dir)
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1] != files[2]


@given(clients=st.integers(1, 300), count=st.integers(0, 200))
def test_steps_are_a_prime_above_the_clients_that_holds_every_length(tmp_path_factory, clients, count):
    lengths = tuple(range(1, count + 1))
    spec = TensorSpec("pixels", "TYPE_BOOL", (-1, -1) if lengths else (-1, 2))
    path = tmp_path_factory.mktemp("steps") / "in.json"
    data = write_input_data(path, signature(spec), Workload(concurrency=clients, lengths=lengths))
    assert data.steps > clients
    assert all(gcd(data.steps, other) == 1 for other in range(2, data.steps))
    assert data.lengths[:count] == lengths
    assert len(data.lengths) == (data.steps if lengths else 0)


@pytest.mark.parametrize("data_type", ["TYPE_FP32", "TYPE_FP64"])
def test_floats_have_a_point(written, tmp_path, data_type):
    written(TensorSpec("features", data_type, (-1, 4)), TensorSpec("mask", data_type, (-1, 4)))
    numbers = re.findall(r'"content":\[(.*?)\]', (tmp_path / "in.json").read_text())
    assert numbers
    assert all("." in number for row in numbers for number in row.split(","))


def test_halves_are_raw_bytes(written):
    step = written(TensorSpec("mask", "TYPE_FP16", (-1, 3)), TensorSpec("bmask", "TYPE_BF16", (-1, 2)))[0]
    assert struct.unpack("<3e", base64.b64decode(step["mask"]["b64"])) == (1, 1, 1)
    assert base64.b64decode(step["bmask"]["b64"]) == b"\x80\x3f" * 2
    assert step["mask"]["shape"] == [3]


def test_other_types_get_values_of_their_own_kind(written):
    step = written(
        TensorSpec("flag", "TYPE_BOOL", (-1, 1)),
        TensorSpec("text", "TYPE_STRING", (-1, 1)),
        TensorSpec("count", "TYPE_UINT8", (-1, 2)),
        TensorSpec("position_ids", "TYPE_INT64", (-1, -1)),
        lengths=(4,),
    )[0]
    assert [type(v) for v in step["flag"]["content"]] == [bool]
    assert step["text"]["content"][0] in sentences()
    assert step["count"] == {"content": [0, 0], "shape": [2]}
    assert step["position_ids"]["content"] == [0, 1, 2, 3]


def test_fixed_dimensions_are_kept_and_optional_inputs_left_out(written):
    steps = written(TensorSpec("image", "TYPE_FP32", (-1, 3, 2, 2)), TensorSpec("extra", "TYPE_FP32", (-1,), True))
    assert steps[0].keys() == {"image"}
    assert steps[0]["image"]["shape"] == [3, 2, 2]
    assert len(steps[0]["image"]["content"]) == 12


def test_every_row_of_a_tensor_of_texts_is_a_text(written):
    ids = written(TensorSpec("input_ids", "TYPE_INT64", (-1, 2, -1)), lengths=(6,))[0]["input_ids"]
    assert ids["shape"] == [2, 6]
    assert [ids["content"][i] for i in (0, 5, 6, 11)] == [CLS, SEP, CLS, SEP]


@pytest.mark.parametrize(
    ("dims", "batching", "shape"),
    [
        ((-1, -1), True, [5]),
        ((-1, -1), False, [1, 5]),
        ((-1,), True, [1]),
        ((2, 3), False, [2, 3]),
        ((-1,), False, [5]),
    ],
)
def test_shapes_leave_the_batch_axis_out_only_where_the_configuration_batches(written, dims, batching, shape):
    assert written(TensorSpec("x", "TYPE_FP32", dims), batching=batching)[0]["x"]["shape"] == shape


def test_a_missing_tokenizer_is_named_never_made_up(tmp_path):
    workload = Workload(concurrency=1, lengths=(4,))
    with pytest.raises(UsageError) as refused:
        write_input_data(tmp_path / "in.json", signature(*BERT), workload, tmp_path / "tokenizer")
    assert refused.value.exit_code == 2
    problem = refused.value.problems[0]
    assert problem.where == str(tmp_path / "tokenizer")
    assert "--vocab-size N" in (problem.hint or "")
    assert not (tmp_path / "in.json").exists()


def test_without_a_tokenizer_directory_the_model_is_named(tmp_path):
    with pytest.raises(UsageError, match=re.escape("model.onnx")):
        write_input_data(tmp_path / "in.json", signature(*BERT), Workload(concurrency=1, lengths=(4,)))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model": {"vocab": {}}}', '{"model": {"vocab": 3}}', "\x00"])
def test_a_broken_tokenizer_is_named(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(UsageError) as refused:
        read_vocabulary(tmp_path, "model.onnx")
    assert refused.value.problems[0].where == str(tmp_path / "tokenizer.json")


def test_a_vocabulary_size_alone_gives_ids_well_inside(written):
    ids = [i for step in written(BERT[0], vocab_size=1000, tokenizer_dir=None) for i in step["input_ids"]["content"]]
    assert 250 <= min(ids) < max(ids) < 750


def test_a_free_axis_needs_lengths(tmp_path, minilm_dir):
    with pytest.raises(UsageError, match="no lengths"):
        write_input_data(tmp_path / "in.json", signature(*BERT), Workload(concurrency=1), minilm_dir)


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
    "special_tokens": {"<s>": {"ids": [0]}},
}


@pytest.mark.parametrize(
    ("processor", "before", "after"),
    [
        ({"type": "RobertaProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0]}, (0,), (1,)),
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, TEMPLATE]}, (0,), ()),
        ({"type": "ByteLevel"}, (), ()),
        (None, (), ()),
    ],
)
def test_the_special_tokens_of_other_tokenizers(tmp_path, processor, before, after):
    vocab = [["<s>", 0.0], ["</s>", 0.0], ["▁a", -1.0], ["▁b", -2.0]]
    content = {"model": {"vocab": vocab}, "added_tokens": [{"id": 0}, {"id": 1}], "post_processor": processor}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    vocabulary = read_vocabulary(tmp_path, "model.onnx")
    assert (tuple(vocabulary.ordinary), vocabulary.before, vocabulary.after) == ((2, 3), before, after)


def test_sentence_lengths_count_the_tokens_of_each_text_without_padding(minilm_dir):
    lengths = sentence_lengths(minilm_dir)
    words = [len(sentence.split()) for sentence in sentences()]
    assert len(lengths) == len(words) >= 60
    assert min(words) >= 3 and max(words) <= 60
    assert all(count + 2 <= length < 3 * count + 4 for count, length in zip(words, lengths, strict=True))


def test_sentence_lengths_name_the_directory_without_a_tokenizer(tmp_path):
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))):
        sentence_lengths(tmp_path)


def test_lengths_keep_to_what_the_model_can_take(tmp_path):
    """Real sentences are cut, as the tokenizer cuts texts; lengths that were asked for are refused."""
    assert fit_to_model((5, 200), tmp_path, asked=True) == (5, 200), "no manifest, no limit"
    (tmp_path / "export.json").write_text('{"max_tokens": 128}')
    assert fit_to_model((5, 200), tmp_path, asked=False) == (5, 128)
    assert fit_to_model((5, 128), tmp_path, asked=True) == (5, 128)
    with pytest.raises(UsageError, match=r"longer than the model can take \(got 200; expected at most 128 tokens"):
        fit_to_model((5, 200), tmp_path, asked=True)
    (tmp_path / "export.json").write_text('{"max_tokens": null}')
    assert fit_to_model((5, 200), tmp_path, asked=True) == (5, 200)
