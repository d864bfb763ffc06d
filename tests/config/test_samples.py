"""The Python model and the client that go with a config: they compile, and say what people get wrong."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tooling.config.proto import pb
from tooling.config.samples import client_sample, python_model
from tooling.errors import UsageError
from tooling.signature.declared import Declared, declare
from tooling.signature.python_model import read_python_text


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("top", [0, 4])
def test_the_template_says_what_was_declared(top, decoupled):
    declared = declare(['a"b:FP32:-1,3', "text:STRING:-1,1"], ["y:INT64:-1,2"])
    text = python_model("m", declared, top, decoupled=decoupled)
    signature = read_python_text(text.encode(), Path("model.py"), Declared())
    assert (signature.inputs, signature.outputs) == (declared.inputs, declared.outputs)
    assert (signature.max_batch_size, signature.decoupled) == (top, decoupled)
    assert ("np.concatenate" in text) is (top > 0 and not decoupled)
    assert ("get_response_sender" in text) is decoupled
    assert "astype(dtype, copy=False)" in text and "TritonModelException" in text


@pytest.mark.parametrize(
    ("inputs", "outputs", "said"),
    [([], ["y:FP32:1"], "--input: a template needs tensors"), (["x:FP32:1"], [], "--output-tensor: a template needs"),
     (["x:BF16:1"], ["y:FP32:1"], "numpy has no bfloat16")],
)  # fmt: skip
def test_no_template(inputs, outputs, said):
    with pytest.raises(UsageError, match=said):
        python_model("m", declare(inputs, outputs), 0, decoupled=False)


def config(top: int, **tensors: str):
    made = pb().ModelConfig(name="m", max_batch_size=top)
    for name, text in tensors.items():
        data_type, _, dims = text.partition(":")
        made.input.add(name=name, data_type=f"TYPE_{data_type}", dims=[int(d) for d in dims.split(",")])
    return made


def values(text: str) -> dict[str, tuple[str, str]]:
    """The inputs of a sample: protocol type and the code of the array."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "values":
            return {
                ast.literal_eval(key): (ast.literal_eval(value.elts[0]), ast.unparse(value.elts[1]))
                for key, value in zip(node.value.keys, node.value.values, strict=True)
            }
    raise AssertionError(text)


def test_a_client_sends_the_model_s_inputs_and_strings_as_objects():
    text = client_sample(config(8, text="STRING:1", ids="INT64:-1", half="BF16:2"))
    assert values(text) == {
        "text": ("BYTES", "np.array([[text] for text in TEXTS[:2]], dtype=np.object_)"),
        "ids": ("INT64", "np.zeros([2, 8], dtype=np.int64)"),
        "half": ("BF16", "np.zeros([2, 2], dtype=np.float32)"),
    }
    assert "dtype=object" in text and "token_type_ids" in text and "import tritonclient.http" in text


def test_batches_stay_within_the_model():
    assert values(client_sample(config(1, text="STRING:1")))["text"][1].endswith("TEXTS[:1]], dtype=np.object_)")
    alone = values(client_sample(config(0, text="STRING:3", ids="INT64:-1,4")))
    assert alone["text"][1] == "np.full([3], TEXTS[0], dtype=np.object_)"
    assert alone["ids"][1] == "np.zeros([1, 4], dtype=np.int64)"


def test_decoupled_models_are_streamed():
    made = config(0, text="STRING:1")
    made.model_transaction_policy.decoupled = True
    text = client_sample(made)
    assert "start_stream" in text and "import tritonclient.grpc" in text and "localhost:8001" in text
    vllm = pb().ModelConfig(name="llm", backend="vllm")
    vllm.model_transaction_policy.decoupled = True
    assert list(values(client_sample(vllm))) == ["text_input"]
