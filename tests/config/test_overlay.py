"""Settings under the schema's own names reach every kind of field; what does not fit is told with its place."""

from __future__ import annotations

import pytest

from perf.workload_file import read_keys
from tooling.config.overlay import merge
from tooling.config.proto import pb
from tooling.config.yaml_file import read_yaml
from tooling.errors import UsageError


@pytest.fixture
def merged(tmp_path):
    """`merged(yaml)` → a config of one input and one output with these settings over it."""

    def write_and_merge(text: str):
        (tmp_path / "more.yaml").write_text(text)
        config = pb().ModelConfig(name="m", max_batch_size=8)
        config.input.add(name="ids", data_type="TYPE_INT64", dims=[-1])
        config.output.add(name="emb", data_type="TYPE_FP32", dims=[4])
        config.dynamic_batching.max_queue_delay_microseconds = 5
        merge(config, read_yaml(tmp_path / "more.yaml"), "more.yaml")
        return config

    return write_and_merge


EVERYTHING = """
dynamic_batching:
  preserve_ordering: true
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy: {timeout_action: delay, default_timeout_microseconds: 500ms, allow_timeout_override: true}
  priority_queue_policy:
    1: {max_queue_size: 4}
input:
- {name: ids, allow_ragged_batch: true}
- {name: extra, data_type: fp32, dims: [2, 2], optional: true, format: NCHW, reshape: {shape: [4]}}
output:
- {name: emb, label_filename: labels.txt}
batch_input:
- {kind: BATCH_ELEMENT_COUNT, target_name: len, data_type: INT32, source_input: [ids]}
instance_group:
- {count: 2, kind: GPU, gpus: [0, 1], rate_limiter: {priority: 2, resources: [{name: R, count: 1, global: true}]}}
- {count: 1, kind: cpu}
optimization:
  execution_accelerators:
    gpu_execution_accelerator:
    - {name: tensorrt, parameters: {precision_mode: FP16, trt_engine_cache_enable: true, trt_min_subgraph_size: 5}}
parameters:
  intra_op_thread_count: 2
  enable_mem_arena: false
  other: {string_value: text}
version_policy: {specific: {versions: [1, 3]}}
response_cache: {enable: true}
model_transaction_policy: {decoupled: true}
metric_tags: {team: search}
model_warmup:
- {name: w, batch_size: 1, inputs: {ids: {data_type: INT64, dims: [8], zero_data: true}}}
"""


def test_every_kind_of_field(merged):
    config = merged(EVERYTHING)
    batching = config.dynamic_batching
    assert batching.max_queue_delay_microseconds == 5  # what is not named stays
    assert (batching.preserve_ordering, batching.priority_levels) == (True, 3)
    policy = batching.default_queue_policy
    assert (policy.timeout_action, policy.default_timeout_microseconds) == (pb().ModelQueuePolicy.DELAY, 500_000)
    assert batching.priority_queue_policy[1].max_queue_size == 4
    ids, extra = config.input
    assert (list(ids.dims), ids.allow_ragged_batch) == ([-1], True)
    assert (extra.data_type, extra.optional, list(extra.reshape.shape)) == (pb().TYPE_FP32, True, [4])
    assert config.batch_input[0].target_name == ["len"]
    assert [(g.count, list(g.gpus)) for g in config.instance_group] == [(2, [0, 1]), (1, [])]
    assert getattr(config.instance_group[0].rate_limiter.resources[0], "global") is True
    accelerator = config.optimization.execution_accelerators.gpu_execution_accelerator[0]
    assert dict(accelerator.parameters) == {
        "precision_mode": "FP16",
        "trt_engine_cache_enable": "1",
        "trt_min_subgraph_size": "5",
    }
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "intra_op_thread_count": "2",
        "enable_mem_arena": "0",
        "other": "text",
    }
    assert list(config.version_policy.specific.versions) == [1, 3]
    assert config.response_cache.enable and config.model_transaction_policy.decoupled
    assert config.metric_tags["team"] == "search" and config.model_warmup[0].inputs["ids"].zero_data


def test_a_scheduler_takes_the_place_of_another(merged):
    config = merged(
        "sequence_batching: {direct: {}, control_input: [{name: S, control: [{kind: START, fp32_false_true: [0, 1]}]}]}"
    )
    assert config.WhichOneof("scheduling_choice") == "sequence_batching"
    control = config.sequence_batching.control_input[0].control[0]
    assert (control.kind, list(control.fp32_false_true)) == (0, [0.0, 1.0])


def test_null_clears(merged):
    config = merged("dynamic_batching: null\nparameters: {gone: null}\noutput: null")
    assert not config.HasField("dynamic_batching") and not config.output and not config.parameters


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_queue_delay_microseconds: 1", "`ModelConfig` has no field `max_queue_delay_microseconds`"),
        ("dynamic_batchin: {}", "has no field `dynamic_batchin`"),
        ("max_batch_size: '8'", "got `8`; expected a whole number"),
        ("max_batch_size: true", "got `True`; expected a whole number"),
        ("max_batch_size: 3000000000", "a whole number from -2147483648 to 2147483647"),
        ("instance_group: [{gpus: [1.5]}]", "instance_group[0].gpus: not a value of this field (got `[1.5]`"),
        ("instance_group: {count: 1}", "expected a list"),
        ("instance_group: [{kind: KIND_GUP}]", "expected KIND_AUTO, KIND_GPU"),
        ("dynamic_batching: 1", "expected a mapping"),
        ("dynamic_batching: {max_queue_delay_microseconds: 2 parsecs}", "expected a number with a unit"),
        ("dynamic_batching: {priority_queue_policy: {x: {}}}", "expected a whole number"),
        ("dynamic_batching: {}\nsequence_batching: {}", "exclude each other"),
        ("parameters: {a: [1]}", "expected a string, a number, or true or false"),
        ("response_cache: {enable: 1}", "expected true or false"),
        ("metric_tags: 1", "expected a mapping"),
    ],
)
def test_what_does_not_fit(text, said, merged):
    with pytest.raises(UsageError) as caught:
        merged(text)
    assert said in str(caught.value) and str(caught.value).startswith("more.yaml: ")


def test_all_faults_at_once_with_suggestions(merged):
    with pytest.raises(UsageError) as caught:
        merged("instance_groop: []\ninstance_group: [{knd: CPU, kind: GUP}]\ndynamic_batching: {preserve_order: true}")
    assert [(p.where, p.hint) for p in caught.value.problems] == [
        ("more.yaml: instance_groop", "did you mean `instance_group`?"),
        ("more.yaml: instance_group[0].knd", "did you mean `kind`?"),
        ("more.yaml: instance_group[0].kind", None),
        ("more.yaml: dynamic_batching.preserve_order", "did you mean `preserve_ordering`?"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", r"more.yaml:3:1: not a YAML file \(got `a` stands twice"),
        ("? [a, b]\n: 1", "a key is no plain name"),
        ("a: [1", "more.yaml:1:"),
        ("- 1", "not a mapping"),
        ("a: !!python/object:os.system {}", "not a YAML file"),
        ("a: \x00", "not a YAML file"),
    ],
)
def test_files_that_are_no_settings(text, said, merged):
    with pytest.raises(UsageError, match=said):
        merged(text)


@pytest.mark.parametrize("number", ["0x" + 5000 * "f", 5000 * "9", "0b" + 2000 * "1", "1:" + ":".join(5000 * ["59"])])
def test_endless_numbers_are_told_by_their_place(number, tmp_path):
    """Python makes no text of the longest, so that no message could name them."""
    file = tmp_path / "more.yaml"
    file.write_text(f"a:\n- 1\n- {number}\n")
    for read in (read_yaml, read_keys):
        with pytest.raises(UsageError) as caught:
            read(file)
        assert f"{file}:3:3: not" in str(caught.value)
        assert f"a number of {len(number)} characters" in str(caught.value)


def test_an_empty_file_and_a_missing_one(tmp_path):
    (tmp_path / "empty.yaml").touch()
    assert read_yaml(tmp_path / "empty.yaml") == {}
    with pytest.raises(UsageError, match="cannot be read"):
        read_yaml(tmp_path / "none.yaml")
