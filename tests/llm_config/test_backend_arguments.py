"""What the vLLM backend says of keys and values of model.json before an engine starts, by the types that vLLM itself
declares. The tool, which reads the same types from vLLM's source, takes the same values."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest

from tooling.llm import arguments as tool
from tooling.llm.arguments import takes
from tooling.runtime.location import BACKENDS_SOURCE


class Config:
    """Stands for a class of vLLM's own."""


Kind = Literal["auto", "half", "float"]
DECLARED: dict[str, Any] = {
    "model": str,
    "max_num_seqs": int | None,
    "max_model_len": Annotated[int, "at least 1"],
    "gpu_memory_utilization": float,
    "enforce_eager": bool,
    "enable_prefix_caching": Optional[bool],  # noqa: UP045  vLLM may write it so
    "dtype": Kind,
    "max_lora_rank": Literal[8, 16],
    "served_model_name": str | list[str] | None,
    "cpu_offload_params": set[str],
    "speculative_config": dict[str, Any] | None,
    "hf_overrides": dict[str, Any] | Callable[[Any], Any],
    "media_io_kwargs": Mapping[str, Any],
    "compilation_config": Config,
    "quantization_config": "dict[str, Any] | Config | None",
}
READ = {
    "model": ("str",),
    "max_num_seqs": ("int",),
    "max_model_len": ("int",),
    "gpu_memory_utilization": ("float",),
    "enforce_eager": ("bool",),
    "enable_prefix_caching": ("bool",),
    "dtype": ("'auto'", "'half'", "'float'"),
    "served_model_name": ("str", "list"),
    "cpu_offload_params": ("list",),
    "speculative_config": ("dict",),
    "hf_overrides": ("any",),
    "media_io_kwargs": ("dict",),
    "compilation_config": ("any",),
    "quantization_config": ("any",),
}
"""The same, as `argument_reader` tells types."""
VALUES = (None, True, 0, 8, 16, 0.5, "", "8", "true", "half", "halff", [], ["a"], {}, {"a": {"b": 1}})


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BACKENDS_SOURCE / "vllm"))
    return importlib.import_module("llm_arguments")


def test_the_backend_takes_what_the_tool_takes(backend: Any) -> None:
    """Four things aside: the tool takes null for everything and lists for vLLM's own classes, as its table does not
    tell more; of texts in place of flags the backend takes those that vLLM reads; it knows numbers that are choices.
    """
    classes = ("hf_overrides", "compilation_config")
    for name, types in READ.items():
        for value in VALUES[1:]:
            expected = takes(types, value) or (types == ("bool",) and value == "true")
            expected = expected and not (name in classes and isinstance(value, list))
            assert backend.takes(DECLARED[name], value) is expected, (name, value)
    assert [value for value in VALUES if backend.takes(DECLARED["max_lora_rank"], value)] == [8, 16]
    optional = ["max_num_seqs", "enable_prefix_caching", "served_model_name", "speculative_config"]
    assert [name for name, kind in DECLARED.items() if backend.takes(kind, None)] == [*optional, "quantization_config"]
    assert backend.COUNTS == tool._COUNTS


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_num_seqs", "8", '`max_num_seqs` is "8", and should be a whole number: write 8 without quotes'),
        ("max_num_seqs", "eight", '`max_num_seqs` is "eight", and should be a whole number'),
        ("max_num_seqs", [8], "`max_num_seqs` is [8], and should be a whole number"),
        ("max_num_seqs", {"most": 8}, '`max_num_seqs` is {"most": 8}, and should be a whole number'),
        ("max_num_seqs", -3, "`max_num_seqs` is -3, and should be 1 or more"),
        (
            "max_model_len",
            None,
            "`max_model_len` is null, and should be a whole number: leave it out for vLLM's default",
        ),
        ("max_model_len", True, "`max_model_len` is true, and should be a whole number"),
        ("max_model_len", 512.5, "`max_model_len` is 512.5, and should be a whole number"),
        ("gpu_memory_utilization", "0.9", '"0.9", and should be a number: write 0.9 without quotes'),
        ("enforce_eager", "maybe", '`enforce_eager` is "maybe", and should be true or false'),
        ("compilation_config", [1], "`compilation_config` is [1], and should be an object"),
        ("enforce_eager", 1, "`enforce_eager` is 1, and should be true or false"),
        ("dtype", "halff", '`dtype` is "halff", and should be "auto" or "half" or "float": did you mean "half"?'),
        ("dtype", "fp8", '`dtype` is "fp8", and should be "auto" or "half" or "float"'),
        ("max_lora_rank", 12, "`max_lora_rank` is 12, and should be 8 or 16"),
        ("served_model_name", {}, "`served_model_name` is {}, and should be a text or a list"),
        ("speculative_config", "ngram", '`speculative_config` is "ngram", and should be an object'),
        ("model_len", 8, "it has no engine argument `model_len`: did you mean `max_model_len`?"),
        ("swap_space", 8, "it has no engine argument `swap_space`: leave it out"),
    ],
)
def test_what_no_engine_takes_is_told_before_it_starts(
    backend: Any, tmp_path: Path, name: str, value: object, said: str
) -> None:
    with pytest.raises(backend.Refusal) as error:
        backend.require_arguments(tmp_path, {"model": "org/llm", name: value}, DECLARED, "vLLM 1.2 of this server")
    begin = f"vLLM 1.2 of this server does not take what '{tmp_path / 'model.json'}' holds: "
    assert str(error.value).startswith(begin)
    assert str(error.value).endswith(said)


def test_all_is_told_at_once(backend: Any, tmp_path: Path) -> None:
    arguments = {"model": "org/llm", "max_num_seqs": [], "seqs": 1, "dtype": {"a": "x" * 99}}
    with pytest.raises(backend.Refusal) as error:
        backend.require_arguments(tmp_path, arguments, DECLARED, "vLLM")
    assert str(error.value).count("; ") == 2
    assert '{"a": "xxxx' in str(error.value) and "x" * 60 not in str(error.value)
    backend.require_arguments(tmp_path, {"model": "org/llm", "max_num_seqs": 8, "dtype": "half"}, DECLARED, "vLLM")
