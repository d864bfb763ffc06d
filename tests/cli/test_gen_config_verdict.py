"""`tritune gen-config` asks `tritune check`: what Triton refuses is not written, what it ignores is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.check.finding import Severity
from tooling.check.runner import check
from tooling.check.target import Target
from tooling.releases import release_named

QUEUE = "dynamic_batching.default_queue_policy"
START = (
    "sequence_batching.control_input[0]="
    "{ name: 's' control: { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }"
)
TENSORRT = "optimization.execution_accelerators.gpu_execution_accelerator[0]={ name: 'tensorrt' %s }"

STATE = (
    "sequence_batching.state[0]={ input_name: 'a' output_name: 'b' data_type: TYPE_FP32 dims: 1 "
    "initial_state { name: 'i' data_type: TYPE_FP32 dims: 1 } }"
)
METRIC = (
    "model_metrics.metric_control[0]={ histogram_options { buckets: 1 } "
    "metric_identifier { family: 'nv_inference_first_response_histogram_ms' } }"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory with a model of one operator: `x` and `y` are FP32 [batch, 3]."""
    from onnx import TensorProto, helper

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("batch", 3)) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", tensors[:1], tensors[1:])
    path = tmp_path / "m" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    opset = helper.make_opsetid("", 17)
    path.write_bytes(helper.make_model(graph, ir_version=8, opset_imports=[opset]).SerializeToString())
    return path.parents[1]


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["dynamic_batching.preferred_batch_size=16"], "preferred"),
        (["dynamic_batching.priority_levels=2"], "default_priority_level"),
        (["dynamic_batching.preserve_ordering=true", f"{QUEUE}.timeout_action=DELAY",
          f"{QUEUE}.default_timeout_microseconds=1s"], "DELAY"),
        (["platform=tensorrt_plan"], "platform"),
        (["input[x].reshape={ shape: 4 }"], "hold another number of elements"),
        (["input[x].format=NHWC"], "needs 3 dims"),
        (["output[y].label_filename=l.txt"], "l.txt"),
        (["batch_input+={ kind: BATCH_ELEMENT_COUNT target_name: 'n' data_type: TYPE_INT32 }"], "source_input"),
        (["instance_group[0].kind=CPU", "instance_group[0].gpus=0"], "KIND_CPU must not list gpus"),
        (["instance_group[0].profile=0"], "profile is for TensorRT plans only"),
        (["response_cache.enable=true", "model_transaction_policy.decoupled=true"], "decoupled"),
        (["response_cache.enable=true", "sequence_batching={}"], "sequence"),
        (["sequence_batching.direct.minimum_slot_utilization=1.5"], "minimum_slot_utilization"),
        ([START, START.replace("[0]=", "+=")], "twice"),
        (["model_metrics.metric_control[0].histogram_options.buckets=1.5"], "metric_identifier"),
        (["parameters[intra_op_thread_count]=many"], "`many` is no whole number"),
        ([TENSORRT % "parameters { key: 'precision_mode' value: 'FP8' }"], "FP8"),
        ([TENSORRT.replace("'tensorrt'", "'tensort'") % ""], "tensort"),
        ([STATE], "zero_data"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("written", [False, True], ids=["generated", "edited"])
def test_what_triton_refuses_is_not_written(model, run_cli, assignments, said, written):
    path = model / "config.pbtxt"
    if written:
        path.write_text('backend: "onnxruntime"\nmax_batch_size: 8\n'
                        "input { name: 'x' data_type: TYPE_FP32 dims: 3 }\n"
                        "output { name: 'y' data_type: TYPE_FP32 dims: 3 }\n")  # fmt: skip
    before = path.read_bytes() if written else None
    result = run_cli("gen-config", model, *(word for text in assignments for word in ("--set", text)))
    assert (result.code, result.out) == (2, "") and said in result.err, result.err
    assert not written or f"error: {path}:" in result.err
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["parameters[intra_op_num_threads]=1"], "it has no effect (did you mean intra_op_thread_count?)"),
        ([f"{QUEUE}.allow_timeout_override=true"], "allow_timeout_override"),
        (["dynamic_batching.priority_queue_policy[1].max_queue_size=3"], "priority_queue_policy"),
        ([TENSORRT % ""], "engines are built at request time"),
        ([TENSORRT.replace("tensorrt", "cuda") % "parameters { key: 'gpu_mem_limit' value: '1' }"], "is overwritten"),
        (["dynamic_batching.preserve_ordering=true"], "preserve_ordering"),
    ],
)  # fmt: skip
def test_what_triton_ignores_is_told(model, run_cli, assignments, said):
    result = run_cli("gen-config", model, *(word for text in assignments for word in ("--set", text)))
    assert result.code == 0 and said in result.err and result.err.startswith("warning: "), result.err
    target = Target(release_named("26.01"), release_named=True)
    found = check(model.parent, target)
    assert not found.fails(Severity.ERROR) and found.fails(Severity.WARNING)


def test_a_release_knows_the_fields_of_its_time(model, run_cli):
    result = run_cli("gen-config", model, "--set", METRIC, "--release", "24.10")
    assert result.code == 2
    assert "Triton 24.10 does not know the field model_metrics: it came with 24.11" in result.err
    assert run_cli("gen-config", model, "--set", METRIC, "--release", "24.11").code == 0


def test_the_model_file_is_read_once(model, run_cli, monkeypatch):
    """By whoever takes the signature from it: the verdict is on the text."""

    def read(path: Path) -> None:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr("tooling.check.model.read_graph", read)
    assert run_cli("gen-config", model, "--warmup", "1x1", "--sequence", "oldest").code == 0


def test_all_is_told_at_once(model, run_cli):
    result = run_cli("gen-config", model, "--set", "dynamic_batching.preferred_batch_size=9", "--response-cache",
                     "--decoupled", "--set", "input[x].format=NHWC")  # fmt: skip
    assert result.code == 2 and result.err.count("error: ") == 3


def test_sequences_by_options(model, run_cli):
    """The control's tensor must be one of the model's; what belongs to another batcher is refused."""
    argv = ["--sequence", "direct"]
    result = run_cli("gen-config", model, *argv, "--max-queue-delay", "1ms")
    assert result.code == 2 and "--max-queue-delay is for dynamic batching" in result.err
    result = run_cli("gen-config", model, *argv, "--queue-size", 2)
    assert result.code == 2 and "the queue is one of dynamic batching" in result.err
    for wrong in (["--control", "x=BEGIN"], ["--state", "x"], ["--batch-input", "x=COUNT:y"], ["--resource", "R=0"]):
        result = run_cli("gen-config", model, *wrong)
        assert result.code == 2 and f"error: {wrong[0]}: not understood (got `{wrong[1]}`; expected" in result.err
    assert run_cli("gen-config", model, "--sequence", "oldest", "--iterative", "--resource", "R=2").code == 0
    text = (model / "config.pbtxt").read_text()
    assert "  oldest {\n  }\n  iterative_sequence: true\n" in text and "dynamic_batching" not in text
    assert '      name: "R"\n      count: 2\n' in text


@pytest.mark.parametrize(
    "field", ["instance_group { kind: 7 }", "input { name: 'x' data_type: 99 format: -1 dims: 3 }"]
)
def test_numbers_that_no_enum_has_are_no_bug(model, run_cli, field):
    """Triton's parser reads them; what comes of them is the backend's affair."""
    (model / "config.pbtxt").write_text(f'backend: "onnxruntime"\nmax_batch_size: 8\n{field}\n')
    assert run_cli("check", model.parent).code in (0, 1)
    result = run_cli("gen-config", model, "--queue-size", 2)
    assert result.code == 2 and ": no value of this field (got " in result.err
    assert run_cli("gen-config", model, "--client-sample", "--force").code == 0
