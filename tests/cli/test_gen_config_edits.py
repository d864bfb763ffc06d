"""`tritune gen-config` on configs that people wrote: what it changes, and every byte that it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.config.render import origin, parse, render

WRITTEN = b"""\
# mine, \xe9 in Latin-1\r
backend: 'onnxruntime'\r
max_batch_size: 4   # small\r
input [ { name: "x" data_type: TYPE_FP32 dims: [3] } ]\r
output < name: "y", data_type: TYPE_FP32; dims: 3 >\r
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory with a hand-written config: Latin-1, CRLF, every kind of bracket."""
    from onnx import TensorProto, helper

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", tensors[:1], tensors[1:])
    path = tmp_path / "repo" / "relu" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    path.write_bytes(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    )
    (path.parents[1] / "config.pbtxt").write_bytes(WRITTEN)
    return path.parents[1]


def lines(model: Path) -> list[bytes]:
    return (model / "config.pbtxt").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("argv", "changed"),
    [
        (["--max-batch-size", 16], {2: b"max_batch_size: 16   # small\r\n"}),
        (["--set", "max_batch_size=16"], {2: b"max_batch_size: 16   # small\r\n"}),
        (
            ["--set", "max_batch_size=2", "--set", "input[x].optional=false"],
            {2: b"max_batch_size: 2   # small\r\n"},
        ),
        (["--name", "relu", "--set", "-backend", "--set", "platform=onnxruntime_onnx"], {
            1: b'platform: "onnxruntime_onnx"\r\n'}),
        (["--max-batch-size", 0], {
            2: b"max_batch_size: 0   # small\r\n",
            3: b'input [ { name: "x" data_type: TYPE_FP32 dims: [-1, 3] } ]\r\n',
            4: b'output < name: "y", data_type: TYPE_FP32; dims: -1 dims: 3 >\r\n',
        }),
        (["--response-cache"], {5: b"response_cache {\r\n  enable: true\r\n}\r\n"}),
        (["--instances", 2], {5: b"instance_group {\r\n  count: 2\r\n}\r\n"}),
        (["--max-batch-size", 4], {}),
    ],
)  # fmt: skip
def test_only_the_lines_that_are_asked_for_change(argv, changed, model, run_cli):
    result = run_cli("gen-config", model, *argv)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{'edited' if changed else 'unchanged'} {model}/config.pbtxt: ")
    before = WRITTEN.splitlines(keepends=True)
    expected = [changed.get(number, line) for number, line in enumerate([*before, b""])]
    assert b"".join(lines(model)) == b"".join(expected)


def test_every_way_to_ask_is_an_edit(model, run_cli, tmp_path):
    (tmp_path / "more.yaml").write_text("version_policy: {latest: {num_versions: 2}}")
    result = run_cli("gen-config", model, "--from", tmp_path / "more.yaml", "--stdout")
    assert result.out.startswith("# mine, \ufffd in Latin-1") and "num_versions: 2" in result.out
    data = run_cli("gen-config", model, "--parameter", "enable_mem_arena=0", "--stdout", "--json").json["data"]
    assert data["edited"] and 'string_value: "0"' in data["config"] and data["path"] is None
    assert b"".join(lines(model)) == WRITTEN


def test_nothing_asked_leaves_it_alone_and_force_makes_it_anew(model, run_cli):
    result = run_cli("gen-config", model)
    assert (result.code, result.out) == (2, "")
    assert "the file is not as tritune wrote it" in result.err and "--set" in result.err and "--force" in result.err
    assert run_cli("gen-config", model, "--check").code == 1
    assert "-backend: 'onnxruntime'\r\n" in run_cli("gen-config", model, "--diff").out
    assert run_cli("gen-config", model, "--force", "--max-batch-size", 2, "--diff").out.startswith("---")
    assert b"".join(lines(model)) == WRITTEN
    assert run_cli("gen-config", model, "--force", "--max-batch-size", 2).out.startswith("wrote ")
    assert origin((model / "config.pbtxt").read_text()) == "generated"


def test_diff_and_check_show_the_edit(model, run_cli):
    result = run_cli("gen-config", model, "--max-batch-size", 16, "--diff")
    assert result.code == 1
    assert [line for line in result.out.splitlines() if line[0] in "+-"][2:] == [
        "-max_batch_size: 4   # small",
        "+max_batch_size: 16   # small",
    ]
    result = run_cli("gen-config", model, "--max-batch-size", 16, "--check")
    assert (result.code, result.out) == (1, f"{model}/config.pbtxt: not as asked (see --diff)\n")
    result = run_cli("gen-config", model, "--max-batch-size", 4, "--check")
    assert (result.code, result.out) == (0, f"{model}/config.pbtxt: as asked\n")
    assert run_cli("gen-config", model, "--max-batch-size", 4, "--diff") == (0, "", "")
    assert b"".join(lines(model)) == WRITTEN


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--set", "max_batchsize=1"], "--set max_batchsize=1: `ModelConfig` has no field `max_batchsize`"),
        (["--set", "output[y].data_type=INT8"], "output `y` has another type than the model"),
        (["--set", "model_metrics={}", "--release", "24.10"], "24.10 does not know the field"),
        (["--parameter", "x"], "--parameter: not understood (got `x`; expected KEY=VALUE)"),
        (["--accelerator", "rocm"], "--accelerator: no accelerator of ONNX Runtime under Triton (got `rocm`"),
        (["--accelerator", "tensorrt:precision=FP16"], "tensorrt accelerator: unknown parameter precision"),
        (["--versions", "new"], "--versions: not a choice of versions (got `new`; expected all, latest:2 or 1,3)"),
        (["--gpus", "0,a"], "--gpus: not a whole number (got `a`; expected GPUs, like 0,1)"),
        (["--queue-timeout", "5"], "--queue-timeout: not a duration (got `5`"),
        (["--priority-levels", -1], "--priority-levels: out of range (got `-1`; expected 0 to 1000000)"),
    ],
)
def test_what_cannot_be_is_refused_and_the_file_stays(argv, said, model, run_cli):
    result = run_cli("gen-config", model, *argv)
    assert (result.code, result.out) == (2, "") and said in result.err
    assert b"".join(lines(model)) == WRITTEN


def test_a_broken_file_is_told_where_and_can_be_made_anew(model, run_cli):
    (model / "config.pbtxt").write_text("max_batch_size: +4\n")
    result = run_cli("gen-config", model, "--max-batch-size", 8)
    assert result.code == 2 and f"{model}/config.pbtxt:1:17: Expected integer, got: +" in result.err
    assert run_cli("gen-config", model, "--force").code == 0


SHAPES = "trt_profile_min_shapes=x:1x3,trt_profile_opt_shapes=x:8x3,trt_profile_max_shapes=x:8x3"
OPTIONS = [
    *("--preserve-ordering", "--queue-timeout", "500ms", "--queue-size", "64", "--gpus", "1,0", "--response-cache"),
    *("--parameter", 'session.x="a"', "--versions", "latest:2"),
    *("--accelerator", "cuda", "--accelerator", "openvino"),
    *("--accelerator", f"tensorrt:precision_mode=FP16,{SHAPES},trt_engine_cache_enable=1"),
]


def test_every_option_on_a_new_config(model, run_cli):
    (model / "config.pbtxt").unlink()
    assert run_cli("gen-config", model, *OPTIONS).code == 0
    config = parse((model / "config.pbtxt").read_text(), "config")
    batching = config.dynamic_batching
    assert batching.preserve_ordering and batching.default_queue_policy.max_queue_size == 64
    assert batching.default_queue_policy.default_timeout_microseconds == 500_000
    assert list(config.instance_group[0].gpus) == [0, 1]
    assert config.parameters["session.x"].string_value == '"a"'
    accelerators = config.optimization.execution_accelerators
    assert [a.name for a in accelerators.gpu_execution_accelerator] == ["cuda", "tensorrt"]
    assert accelerators.gpu_execution_accelerator[1].parameters["trt_profile_max_shapes"] == "x:8x3"
    assert [a.name for a in accelerators.cpu_execution_accelerator] == ["openvino"]
    assert config.version_policy.latest.num_versions == 2 and config.response_cache.enable
    assert run_cli("gen-config", model, "--priority-levels", 3, "--versions", "1,3", "--decoupled").code == 0
    config = parse((model / "config.pbtxt").read_text(), "config")  # as generated: made anew from these options
    assert (config.dynamic_batching.priority_levels, config.dynamic_batching.default_priority_level) == (3, 3)
    assert list(config.version_policy.specific.versions) == [1, 3] and not config.response_cache.enable
    assert config.model_transaction_policy.decoupled
    assert run_cli("gen-config", model, "--versions", "all").code == 0
    assert b"  all {" in b"".join(lines(model))


def test_settings_are_put_under_the_options(model, run_cli, tmp_path):
    (tmp_path / "more.yaml").write_text("dynamic_batching: {max_queue_delay_microseconds: 1ms}\nmax_batch_size: 2")
    argv = ["--force", "--from", tmp_path / "more.yaml", "--max-queue-delay", "3ms", "--set", "max_batch_size=32"]
    assert run_cli("gen-config", model, *argv).code == 0
    config = parse((model / "config.pbtxt").read_text(), "config")
    assert (config.max_batch_size, config.dynamic_batching.max_queue_delay_microseconds) == (32, 3000)


def test_a_change_to_measured_settings_says_what_becomes_of_their_evidence(model, run_cli):
    path = model / "configs" / "cpu-2.pbtxt"
    path.parent.mkdir()
    config = parse(WRITTEN.decode("latin-1").replace("\xe9", "e"), "config")
    path.write_text(render(config, evidence=["p99 24.1ms"]))
    assert run_cli("gen-config", model, "--hardware", "cpu-2").code == 2
    result = run_cli("gen-config", model, "--hardware", "cpu-2", "--instances", 2)
    assert result.code == 0 and "holds measured settings" in result.err
    assert "# p99 24.1ms\n" in path.read_text() and "count: 2" in path.read_text()


def test_tensors_that_the_file_does_not_say_are_those_of_the_config(tmp_path, run_cli):
    model = tmp_path / "repo" / "mine"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text("class TritonPythonModel: ...")
    assert "no --input and no --output-tensor" in run_cli("gen-config", model).err
    (model / "config.pbtxt").write_text(
        '# mine\nbackend: "python" max_batch_size: 4\n'
        'input { name: "k" data_type: TYPE_STRING dims: 1 reshape {} optional: true }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: 2 }\n'
    )
    assert run_cli("gen-config", model, "--max-batch-size", 0, "--set", "input[k].optional=false").code == 0
    assert (model / "config.pbtxt").read_text() == (
        '# mine\nbackend: "python" max_batch_size: 0\n'
        'input { name: "k" data_type: TYPE_STRING dims: -1 }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: -1 dims: 2 }\n'
    )
    assert run_cli("gen-config", model, "--force").code == 0
    config = parse((model / "config.pbtxt").read_text(), "config")
    assert (config.max_batch_size, config.input[0].HasField("reshape")) == (8, True)


def test_configs_without_a_model_file_are_edited_too(tmp_path, run_cli):
    model = tmp_path / "repo" / "llm"
    model.mkdir(parents=True)
    tensor = 'name: "ids" data_type: TYPE_INT32 dims: -1 allow_ragged_batch: true'
    text = f'# inflight\nbackend: "tensorrtllm"\ninput {{ {tensor} }}\n'
    (model / "config.pbtxt").write_text(text)
    assert run_cli("gen-config", model, "--parameter", "max_beam_width=1", "--decoupled").code == 0
    edited = (model / "config.pbtxt").read_text()
    assert edited.startswith(text) and "max_beam_width" in edited and "decoupled: true" in edited
    result = run_cli("gen-config", model, "--set", "dynamic_batching.preferred_batch_size=4")
    assert result.code == 2 and "preferred_batch_size 4 > max_batch_size 0" in result.err


def test_an_ensemble_is_edited_and_joined_again(model, run_cli):
    (model / "config.pbtxt").unlink()
    assert run_cli("gen-config", model).code == 0
    pipe, graph = model.with_name("pipe"), model.parent / "graph.yaml"
    graph.write_text("steps: [relu]")
    assert run_cli("gen-config", pipe, "--ensemble", graph).code == 0
    assert run_cli("gen-config", pipe, "--max-batch-size", 2, "--no-dynamic-batching").code == 0  # as generated
    assert origin((pipe / "config.pbtxt").read_text()) == "generated"
    path = pipe / "config.pbtxt"
    path.write_text("# my pipe\n" + path.read_text() + "version_policy { all {} }  # both\n")
    assert run_cli("gen-config", pipe, "--ensemble", graph).code == 0
    config = parse(path.read_text(), "config")
    assert path.read_text().startswith("# my pipe\n") and "{ all {} }  # both\n" in path.read_text()
    assert (config.max_batch_size, config.platform) == (8, "ensemble")
    assert config.ensemble_scheduling.step[0].model_version == -1
