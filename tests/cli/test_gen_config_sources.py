"""`tritune gen-config` on every kind of source: which file counts, what stands beside the config, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tooling.config.proto import pb
from tooling.config.render import parse


@pytest.fixture
def place(tmp_path: Path):
    """`place("repo/m/1/model.py", "text")` writes a file below the test's directory; returns the model directory."""

    def write(path: str, content: str | bytes = b"") -> Path:
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        return target.parents[1]

    return write


def config_of(result):
    assert result.code == 0, result.err
    return parse(result.json["data"]["config"], "config")


PLAN = b"ftrt" + bytes(20) + bytes([10, 5, 0, 18])
SIDECAR = {
    "tensorrt": "10.5.0.18",
    "compute_capability": "8.9",
    "inputs": [{"name": "ids", "data_type": "INT64", "shape": [-1, -1]}],
    "outputs": [{"name": "emb", "data_type": "FP16", "shape": [-1, 384]}],
    "profiles": [{"ids": {"min": [1, 1], "opt": [8, 64], "max": [32, 128]}}],
}


def test_a_plan_with_its_sidecar(place, run_cli):
    place("repo/enc/1/model.plan.json", json.dumps(SIDECAR))
    model = place("repo/enc/1/model.plan", PLAN)
    result = run_cli("gen-config", model, "--json", "--release", "24.10")
    config = config_of(result)
    assert (config.platform, config.max_batch_size) == ("tensorrt_plan", 32)
    assert config.output[0].data_type == pb().TYPE_FP16  # the engine's own type, not the builder's precision
    assert "Triton 24.10 has" not in result.err
    assert "built by TensorRT" not in run_cli("gen-config", model, "--stdout").err, "the release that engines are for"
    assert "Triton 26.08 has 11" in run_cli("gen-config", model, "--release", "26.08").err
    assert run_cli("gen-config", model, "--max-batch-size", 64).code == 2
    longer = {"ids": {"min": [1, 1], "opt": [8, 64], "max": [16, 512]}}
    place("repo/enc/1/model.plan.json", json.dumps({**SIDECAR, "profiles": [*SIDECAR["profiles"], longer]}))
    chosen = config_of(run_cli("gen-config", model, "--profile", 1, "--stdout", "--json"))
    assert (chosen.max_batch_size, list(chosen.instance_group[0].profile)) == (16, ["1"])


def test_vllm(place, run_cli):
    model = place("repo/llm/1/model.json", '{"model": "facebook/opt-125m"}')
    config = config_of(run_cli("gen-config", model, "--json"))
    assert config.backend == "vllm" and config.model_transaction_policy.decoupled and not config.input
    assert config.instance_group[0].kind == pb().ModelInstanceGroup.KIND_MODEL
    assert (model / "1" / "model.json").read_text() == '{"model": "facebook/opt-125m"}'


def test_of_several_files_triton_s_own_order_or_the_backend_decides(place, run_cli):
    place("repo/two/1/model.json", '{"model": "x"}')
    model = place("repo/two/1/model.py", "class TritonPythonModel: ...")
    declared = ["--input", "x:FP32:-1,3", "--output-tensor", "y:FP32:-1,2"]
    assert config_of(run_cli("gen-config", model, *declared, "--stdout", "--json")).backend == "python"
    assert config_of(run_cli("gen-config", model, "--backend", "vllm", "--stdout", "--json")).backend == "vllm"
    result = run_cli("gen-config", model, "--backend", "pytorch")
    assert result.code == 2 and "expected <version>/FILE, such as 1/model.pt" in result.err


def test_a_file_with_another_name_is_named(place, run_cli, minilm_repository):
    place("repo/bert/1/notes.json")
    onnx = (minilm_repository / "minilm" / "1" / "model.onnx").read_bytes()
    model = place("repo/bert/1/bert.onnx", onnx)
    config = config_of(run_cli("gen-config", model, "--json"))
    assert (config.name, config.default_model_filename) == ("bert", "bert.onnx")


def test_openvino_does_not_batch_by_itself(place, run_cli):
    layers = """<layer id="0" name="x" type="Parameter"><data shape="?,3" element_type="f32"/>
    <output><port id="0" precision="FP32" names="x"/></output></layer>
    <layer id="1" name="y" type="Result"><input><port id="0" precision="FP32"><dim>-1</dim><dim>3</dim></port></input>
    </layer>"""
    edges = '<edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/></edges>'
    model = place("repo/ov/1/model.xml", f'<net version="11"><layers>{layers}</layers>{edges}</net>')
    result = run_cli("gen-config", model, "--json")
    config = config_of(result)
    assert (config.max_batch_size, list(config.output[0].dims)) == (0, [-1, 3])
    assert "OpenVINO compiles a model for one batch size" in result.err
    assert "ENABLE_BATCH_PADDING" in config_of(run_cli("gen-config", model, "--max-batch-size", 4, "--json")).parameters


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "MODEL: the model is missing"),
        (["--template"], "--template: the model is missing"),
        (["--url", "localhost:8000"], "--url: the model is not named"),
        (["--url", "localhost", "--model", "m"], "--url: not HOST:PORT (got `localhost`"),
        (["--url", "localhost:99999", "--model", "m"], "--url: not HOST:PORT (got `localhost:99999`"),
        (["loose.bin"], "does not exist"),
        (["m", "--input", "x:FP:1"], "--input: not a data type of Triton"),
        (
            ["m", "--release", "24.10", "--backend", "tensorflow"],
            "--backend: no such choice (got `tensorflow`; exp",
        ),
    ],
)
def test_wrong_sources(argv, said, run_cli):
    result = run_cli("gen-config", *argv)
    assert (result.code, result.out) == (2, "") and said in result.err


def test_a_file_of_no_format(place, run_cli):
    place("repo/m/1/model.bin")
    result = run_cli("gen-config", place("repo/m/1/x.bin") / "1" / "x.bin")
    assert result.code == 2 and "not a model file by its name" in result.err and "--backend" in result.err


def test_settings_from_a_file(minilm_repository, run_cli, tmp_path):
    settings = tmp_path / "more.yaml"
    settings.write_text(
        "max_batch_size: 16\n"
        "dynamic_batching: {max_queue_delay_microseconds: 2ms, default_queue_policy: {max_queue_size: 64}}\n"
        "instance_group: [{count: 2, kind: GPU}, {count: 1, kind: CPU}]\n"
        "response_cache: {enable: true}\n"
    )
    result = run_cli("gen-config", minilm_repository / "minilm", "--from", settings, "--stdout", "--json")
    config = config_of(result)
    assert (config.max_batch_size, len(config.instance_group)) == (16, 2)
    assert config.dynamic_batching.max_queue_delay_microseconds == 2000
    assert result.json["data"]["knobs"] is None  # several groups are more than knobs can say
    settings.write_text("model_metrics: {metric_control: [{metric_identifier: {family: f}}]}")
    result = run_cli("gen-config", minilm_repository / "minilm", "--from", settings, "--stdout", "--release", "24.10")
    assert result.code == 2 and "Triton 24.10 does not know the field model_metrics: it came with 24.11" in result.err
    settings.write_text("dynamic_batching: {preferred_batch_size: [99]}\nparameters: {intra_op_thread_count: many}")
    result = run_cli("gen-config", minilm_repository / "minilm", "--from", settings, "--stdout")
    assert result.code == 2 and result.err.count("error: ") == 2


@pytest.fixture
def minilm(minilm_repository, tmp_path) -> Path:
    """A model directory of its own with the files of MiniLM."""
    model = tmp_path / "repo" / "minilm"
    model.mkdir(parents=True)
    for name in ("1", "tokenizer"):
        (model / name).symlink_to(minilm_repository / "minilm" / name)
    return model


def test_warmup_files_stand_beside_the_config(minilm, run_cli):
    assert run_cli("gen-config", minilm, "--warmup", "8x32", "--warmup", "1x128").code == 0
    config = parse((minilm / "config.pbtxt").read_text(), "config")
    assert [w.name for w in config.model_warmup] == ["8x32", "1x128"]
    assert sorted(p.name for p in (minilm / "warmup").iterdir()) == [
        "attention_mask-128.bin",
        "attention_mask-32.bin",
        "input_ids-128.bin",
        "input_ids-32.bin",
    ]
    assert run_cli("gen-config", minilm, "--warmup", "8x32", "--warmup", "1x128").out.startswith("unchanged")
    result = run_cli("gen-config", minilm, "--warmup", "1x513")
    assert result.code == 2 and "usable length 512" in result.err


def test_the_template_is_written_once(tmp_path, run_cli):
    argv = ["--template", "--input", "x:FP32:-1,3", "--output-tensor", "y:FP32:-1,2"]
    model = tmp_path / "repo" / "mine"
    assert run_cli("gen-config", model, *argv, "--stdout").code == 0 and not model.exists()
    assert run_cli("gen-config", model, *argv).code == 0
    assert run_cli("gen-config", model, "--check").code == 0  # the config follows from what was written
    result = run_cli("gen-config", model, *argv)
    assert result.code == 2 and "the model is there already" in result.err
    assert run_cli("gen-config", model, *argv, "--force").code == 0


def test_the_client_sample_is_shown(minilm, run_cli):
    result = run_cli("gen-config", minilm, "--client-sample")
    assert result.code == 0 and 'client.infer("minilm", inputs)' in result.out
    assert not (minilm / "config.pbtxt").exists()


def test_an_ensemble_of_models_beside(minilm, run_cli, tmp_path):
    argv = ["--template", "--input", "text:STRING:-1,1"]
    argv += [part for name in ("input_ids", "attention_mask", "token_type_ids")
             for part in ("--output-tensor", f"{name}:INT64:-1,-1")]  # fmt: skip
    assert run_cli("gen-config", minilm.with_name("tokens"), *argv).code == 0
    assert run_cli("gen-config", minilm).code == 0
    pipe = minilm.with_name("pipe")
    result = run_cli("gen-config", pipe, "--ensemble", "auto")
    assert (result.code, result.out) == (0, f"wrote {pipe}/config.pbtxt: ensemble of 2 models, batch ≤ 8\n"), result.err
    config = parse((pipe / "config.pbtxt").read_text(), "config")
    assert [t.name for t in config.input] == ["text"] and [t.name for t in config.output] == ["embeddings"]
    assert (pipe / "1" / ".gitkeep").exists()
    assert run_cli("gen-config", pipe, "--ensemble", "auto", "--check").code == 0
    assert run_cli("gen-config", pipe, "--ensemble", "tokens,minilm", "--check").code == 0
    graph = tmp_path / "graph.yaml"
    graph.write_text("steps: [tokens, minilm]\nmax_batch_size: 4\n")
    assert run_cli("gen-config", pipe, "--ensemble", graph, "--diff").code == 1
    settings = tmp_path / "more.yaml"
    settings.write_text("ensemble_scheduling: {max_inflight_requests: 4}")
    result = run_cli("gen-config", pipe, "--ensemble", "auto", "--from", settings, "--release", "24.10")
    assert result.code == 2 and "it came with 25.11" in result.err
    assert run_cli("gen-config", tmp_path / "none" / "pipe", "--ensemble", "auto").code == 2


@pytest.mark.parametrize("named", ['platform: "ensemble"', 'backend: "fil"'])
def test_tensors_by_hand_are_not_for_a_model_that_is_its_config(named, run_cli, tmp_path):
    config = tmp_path / "m" / "config.pbtxt"
    (tmp_path / "m" / "1").mkdir(parents=True)
    config.write_text(f"{named}\nmax_batch_size: 4\n")
    for option in ("--input", "--output-tensor"):
        result = run_cli("gen-config", tmp_path / "m", option, "x:FP32:-1,3", "--max-batch-size", "2")
        assert (result.code, result.out) == (2, "")
        assert f"{tmp_path / 'm'}: the config says itself what the model takes and gives\nhint: leave" in result.err
    assert config.read_text() == f"{named}\nmax_batch_size: 4\n"
