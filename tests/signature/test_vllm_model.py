"""vLLM's model.json names a model; its tensors are the backend's business."""

from __future__ import annotations

import pytest

from tooling.errors import UsageError
from tooling.signature.vllm_model import read_vllm


@pytest.fixture
def read(tmp_path):
    def write_and_read(text: str):
        (tmp_path / "model.json").write_text(text)
        return read_vllm(tmp_path / "model.json")

    return write_and_read


def test_a_model(read):
    signature = read('{"model": "facebook/opt-125m", "gpu_memory_utilization": 0.5}')
    assert (signature.inputs, signature.outputs, signature.max_batch_size, signature.decoupled) == ((), (), 0, True)
    assert not signature.can_batch


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not a JSON file"),
        ("[1]", "not a JSON object"),
        ('{"modle": "x"}', "names no model (got modle"),
        ('{"model": 1}', "names no model (got `1`"),
        ('{"model": "x", "enable_lora": "true"}', "the adapters are not listed"),
    ],
)
def test_no_model(text, said, read):
    with pytest.raises(UsageError) as caught:
        read(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(("text", "said"), [("", "got an empty file"), ("null", "got null"), ('"x"', "got a text")])
def test_what_it_holds_instead_is_told(text, said, read):
    with pytest.raises(UsageError, match=said):
        read(text)
