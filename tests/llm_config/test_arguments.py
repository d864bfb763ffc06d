"""The facts about vLLM's engine arguments: by version, by type, and read from the source of an installed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.errors import MissingError
from tooling.llm.argument_reader import read_arguments
from tooling.llm.arguments import added_in, arguments_of, contradictions, removed_in, takes
from tooling.releases import releases


def test_every_release_with_a_vllm_has_its_arguments() -> None:
    for release in releases():
        if release.vllm:
            assert {"model", "max_num_seqs", "gpu_memory_utilization"} <= set(arguments_of(release.vllm)), release.tag


def test_arguments_come_and_go() -> None:
    """As the versions' own sources have them."""
    assert "disable_log_requests" in arguments_of("0.9.2")
    assert "disable_log_requests" not in arguments_of("0.10.1.1")
    assert removed_in("disable_log_requests", "0.27.1") == "0.10.1.1"
    assert removed_in("disable_log_requests", "0.9.2") is None
    assert "speculative_config" not in arguments_of("0.5.5")
    assert added_in("speculative_config", "0.5.5") == "0.8.4"
    assert arguments_of("0.9.1") == arguments_of("0.9.0.1"), "between two versions that are known, the older"


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("max_num_seqs", 8, True),
        ("max_num_seqs", "8", False),
        ("max_num_seqs", True, False),
        ("max_model_len", None, True),
        ("gpu_memory_utilization", 1, True),
        ("gpu_memory_utilization", "0.9", False),
        ("enforce_eager", False, True),
        ("kv_cache_dtype", "fp8", True),
        ("kv_cache_dtype", "float8", False),
        ("dtype", "half", True),
        ("dtype", "fp16", False),
        ("scheduling_policy", "priority", True),
        ("scheduling_policy", "lifo", False),
        ("speculative_config", {"method": "ngram"}, True),
        ("speculative_config", "ngram", False),
        ("served_model_name", ["a", "b"], True),
        ("compilation_config", 3, True),
    ],
)
def test_values_by_type(name: str, value: object, taken: bool) -> None:
    assert takes(arguments_of("0.11.0")[name], value) is taken


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_num_seqs": 256, "max_num_batched_tokens": 255}, ["max_num_batched_tokens"]),
        ({"max_num_seqs": 256, "max_num_batched_tokens": 256}, []),
        (
            {"max_model_len": 4096, "max_num_batched_tokens": 2048, "enable_chunked_prefill": False},
            ["max_num_batched_tokens"],
        ),
        ({"max_model_len": 4096, "max_num_batched_tokens": 2048, "enable_chunked_prefill": True}, []),
        ({"gpu_memory_utilization": 1.5}, ["gpu_memory_utilization"]),
        ({"gpu_memory_utilization": 0}, ["gpu_memory_utilization"]),
        ({"tensor_parallel_size": 0}, ["tensor_parallel_size"]),
        ({"speculative_config": {}}, ["speculative_config"]),
        ({"speculative_config": {"method": "ngram"}}, ["speculative_config"]),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}, []),
        (
            {
                "speculative_config": {
                    "method": "ngram",
                    "num_speculative_tokens": 4,
                    "prompt_lookup_min": 5,
                    "prompt_lookup_max": 2,
                }
            },
            ["speculative_config"],
        ),
    ],
)
def test_what_rules_each_other_out(arguments: dict[str, object], said: list[str]) -> None:
    assert [found.argument for found in contradictions(arguments)] == said


def test_the_source_of_a_vllm_is_read_without_running_it(tmp_path: Path) -> None:
    """Aliases of Literals in its config modules, old choices of the command line, and what cannot be told."""
    package = tmp_path / "vllm"
    (package / "engine").mkdir(parents=True)
    (package / "config").mkdir()
    (package / "config" / "cache.py").write_text('Kind = Literal["auto", "fp8"]\nBoth = Kind | str\n')
    (package / "engine" / "arg_utils.py").write_text(
        "raise RuntimeError\n"
        "class EngineArgs:\n"
        "    kind: Optional[Kind] = None\n"
        "    both: Both = 'auto'\n"
        "    dtype: str = 'auto'\n"
        "    count: 'int | None' = None\n"
        "    names: list[str] | None = None\n"
        "    other: CompilationConfig = None\n"
        "    _hidden: int = 0\n"
        "    def add(parser):\n"
        "        parser.add_argument('--dtype', choices=['auto', 'half'])\n"
    )
    assert read_arguments(package) == {
        "kind": ("'auto'", "'fp8'"),
        "both": ("str",),
        "dtype": ("'auto'", "'half'"),
        "count": ("int",),
        "names": ("list",),
        "other": ("any",),
    }
    with pytest.raises(MissingError, match=r"engine/arg_utils.py"):
        read_arguments(tmp_path)
