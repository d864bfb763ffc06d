"""`tritune gen-config` on real files: what it writes, shows, compares, protects and refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tooling.config.render import origin, parse

ROOT = Path(__file__).parents[2]


@pytest.fixture
def onnx_file(tmp_path: Path):
    """`onnx_file(path, shape, ir, opset)` writes a model of one Relu."""
    from onnx import TensorProto, helper

    def write(path: str, shape=("batch", 3), ir: int = 8, opset: int = 17) -> Path:
        tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", tensors[:1], tensors[1:])
        model = helper.make_model(graph, ir_version=ir, opset_imports=[helper.make_opsetid("", opset)])
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(model.SerializeToString())
        return tmp_path / path

    return write


@pytest.fixture
def relu(onnx_file) -> Path:
    """The model directory of a small model that can batch."""
    return onnx_file("repo/relu/1/model.onnx").parents[1]


def knobs(result) -> dict:
    assert result.code == 0, result.err
    return result.json["data"]["knobs"]


def test_the_example_config_is_what_is_generated(minilm_repository, run_cli, tmp_path, update_golden):
    example = ROOT / "model_repository" / "minilm" / "config.pbtxt"
    target = example if update_golden else tmp_path / "config.pbtxt"
    assert run_cli("gen-config", minilm_repository / "minilm", "--output", target, "--force").code == 0
    assert target.read_bytes() == example.read_bytes()


def test_minilm_costs_little(minilm_repository):
    """Memory and processor time of the whole command in a process of its own (wall time depends on who else runs)."""
    program = (
        "import sys, time; from pathlib import Path; from tooling.cli import main; code = main(sys.argv[1:]);"
        "peak = Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0];"
        "print(peak, time.process_time(), file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, "gen-config", str(minilm_repository / "minilm"), "--stdout"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    peak_kib, seconds = map(float, done.stderr.split())
    assert peak_kib <= 300 * 1024
    assert seconds <= 2  # about 0.4 on an idle machine


def test_a_model_directory_gets_its_config(relu, run_cli):
    result = run_cli("gen-config", relu)
    path = relu / "config.pbtxt"
    assert (result.code, result.out) == (0, f"wrote {path}: default instances, batch ≤ 8, no delay\n")
    assert result.err == ""
    config = parse(path.read_text(), str(path))
    assert (config.name, config.max_batch_size, list(config.input[0].dims)) == ("relu", 8, [3])


def test_a_second_run_changes_nothing(relu, run_cli):
    run_cli("gen-config", relu)
    before = (relu / "config.pbtxt").stat().st_mtime_ns
    result = run_cli("gen-config", relu / "1" / "model.onnx", "--json")
    assert result.json["data"]["changed"] is False
    assert (relu / "config.pbtxt").stat().st_mtime_ns == before


def test_every_knob_reaches_the_config(relu, run_cli):
    argv = "--max-batch-size 16 --preferred-batch-size 8,4 --preferred-batch-size 16 --max-queue-delay 2ms"
    argv += " --instances 2 --kind cpu --threads 1"
    result = run_cli("gen-config", relu, *argv.split(), "--json")
    assert knobs(result) == {
        "max_batch_size": 16,
        "dynamic_batching": True,
        "preferred_batch_size": [4, 8, 16],
        "max_queue_delay_us": 2000,
        "instance_count": 2,
        "instance_kind": "cpu",
        "intra_op_threads": 1,
    }
    config = parse((relu / "config.pbtxt").read_text(), "config.pbtxt")
    assert config.instance_group[0].count == 2 and config.parameters["intra_op_thread_count"].string_value == "1"
    assert not knobs(run_cli("gen-config", relu, "--no-dynamic-batching", "--json"))["dynamic_batching"]


def test_a_model_that_cannot_batch_is_said_and_served_whole(onnx_file, run_cli):
    path = onnx_file("repo/fixed/1/model.onnx", shape=(1, 3))
    result = run_cli("gen-config", path)
    assert result.code == 0 and "no batching (max_batch_size 0): no free first axis in `x` [1, 3], `y`" in result.err
    text = (path.parents[1] / "config.pbtxt").read_text()
    assert "\nmax_batch_size: 0\n" in text and "dims: [1, 3]" in text and "dynamic_batching" not in text


def test_a_batch_of_one_is_merged_with_nothing(relu, run_cli):
    result = run_cli("gen-config", relu, "--max-batch-size", 1)
    assert result.err == "" and result.out.endswith("batch ≤ 1, requests not merged\n")


def test_all_impossible_knobs_are_refused_at_once(onnx_file, run_cli):
    path = onnx_file("repo/fixed/1/model.onnx", shape=(1, 3))
    result = run_cli("gen-config", path, "--max-batch-size", 4, "--preferred-batch-size", 8)
    assert (result.code, result.out) == (2, "")
    assert result.err.count("error: ") == 3 and "preferred_batch_size 8 > max_batch_size 4" in result.err
    assert "`x` has none (got shape [1, 3]" in result.err  # that, and each tensor
    assert not (path.parents[1] / "config.pbtxt").exists()


def test_hardware_has_a_file_of_its_own(relu, run_cli):
    from tooling.repository import hardware_name

    assert run_cli("gen-config", relu, "--hardware", "gpu-h200-x1").code == 0
    assert run_cli("gen-config", relu, "--hardware", "auto").code == 0
    names = {"gpu-h200-x1.pbtxt", f"{hardware_name()}.pbtxt"}
    assert {p.name for p in (relu / "configs").iterdir()} == names and not (relu / "config.pbtxt").exists()


def test_what_binds_a_config_to_hardware_is_told_once(relu, run_cli):
    said = "warning: this config holds for one kind of hardware only"
    for argv, told in (
        (["--kind", "cpu", "--stdout"], True),
        (["--set", "instance_group=[{gpus: 0}]"], True),
        (["--kind", "cpu", "--hardware", "cpu-2"], False),
        (["--kind", "model"], False),
        (["--instances", 2, "--threads", 1], False),
    ):
        result = run_cli("gen-config", relu, *argv)
        assert result.code == 0 and (said in result.err) == told, argv
    path = relu / "config.pbtxt"
    path.write_text("max_batch_size: 4")
    assert said in run_cli("gen-config", relu, "--kind", "cpu").err
    assert run_cli("gen-config", relu, "--instances", 2).err == ""


def test_stdout_shows_the_text_and_writes_nothing(relu, onnx_file, run_cli):
    for path, name in ((relu, "relu"), (onnx_file("loose.onnx"), "other")):
        result = run_cli("gen-config", path, "--stdout", "--name", name)
        assert result.code == 0 and result.err == ""
        assert origin(result.out) == "generated" and f'name: "{name}"' in result.out
        assert result.out == run_cli("gen-config", path, "--stdout", "--name", name, "--json").json["data"]["config"]
    assert not (relu / "config.pbtxt").exists()


def test_a_loose_file_needs_a_place_for_its_config(onnx_file, run_cli, tmp_path):
    path = onnx_file("loose.onnx")
    result = run_cli("gen-config", path)
    assert result.code == 2 and "hint: name the file to write with --output" in result.err
    target = tmp_path / "new" / "config.pbtxt"
    assert run_cli("gen-config", path, "--output", target).code == 0
    assert parse(target.read_text(), "").name == "loose"


def test_diff_and_check_compare_and_write_nothing(relu, run_cli):
    path = relu / "config.pbtxt"
    for mode, shown in (("--diff", '+name: "relu"'), ("--check", f"{path}: missing")):
        result = run_cli("gen-config", relu, mode)
        assert result.code == 1 and shown in result.out and not path.exists()
    run_cli("gen-config", relu)
    written = path.read_text()
    assert run_cli("gen-config", relu, "--diff") == (0, "", "")
    assert run_cli("gen-config", relu, "--check") == (0, f"{path}: as generated\n", "")
    result = run_cli("gen-config", relu, "--max-batch-size", 4, "--diff")
    assert result.code == 1 and "\n-max_batch_size: 8\n+max_batch_size: 4\n" in result.out
    assert run_cli("gen-config", relu, "--max-batch-size", 4, "--check").code == 1
    assert path.read_text() == written


def test_edits_are_kept_unless_forced(relu, run_cli):
    path = relu / "config.pbtxt"
    run_cli("gen-config", relu)
    assert run_cli("gen-config", relu, "--max-batch-size", 4).code == 0  # unedited: written over
    edited = path.read_text().replace("size: 4", "size: 5")
    path.write_text(edited)
    result = run_cli("gen-config", relu)
    assert (result.code, result.out) == (2, "") and "--diff" in result.err and "--force" in result.err
    assert path.read_text() == edited
    assert run_cli("gen-config", relu, "--force").code == 0
    assert origin(path.read_text()) == "generated"


def test_an_edit_is_not_lost_to_another_one_of_the_same_moment(relu, run_cli, monkeypatch):
    from tooling.cli import gen_config

    config = relu / "config.pbtxt"
    run_cli("gen-config", relu)
    config.write_text(f"# mine\n{config.read_text()}")
    real = gen_config.make_draft

    def slow(*given, **named):
        draft = real(*given, **named)
        config.write_text(f"# theirs\n{config.read_text()}")
        return draft

    monkeypatch.setattr(gen_config, "make_draft", slow)
    refused = run_cli("gen-config", relu, "--max-batch-size", "2")
    assert (refused.code, refused.out) == (2, "")
    assert f"error: {config}: it was changed while this command ran\nhint: run the command again" in refused.err
    assert config.read_text().startswith("# theirs\n# mine\n") and "max_batch_size: 8" in config.read_text()


def test_no_device_is_read(relu, run_cli):
    for mode in ((), ("--diff",), ("--check",)):
        refused = run_cli("gen-config", relu, "--output", "/dev/zero", "--force", *mode)
        assert (refused.code, refused.out) == (2, "") and "not a regular file" in refused.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--max-queue-delay", "2"], "--max-queue-delay: not a duration (got `2`"),
        (["--preferred-batch-size", "4,x"], "--preferred-batch-size: not a whole number (got `x`"),
        (
            ["--preferred-batch-size", "4294967296"],
            "out of range (got `4294967296`; expected batch sizes, like 4,8",
        ),
        (["--instances", "0"], "--instances: out of range (got `0`; expected 1 to 1000000)"),
        (["--max-batch-size", "-3"], "--max-batch-size: out of range (got `-3`; expected 0 to 1000000)"),
        (["--kind", "tpu"], "--kind: no such choice (got `tpu`; expected auto, cpu, gpu, model)"),
        (["--diff", "--check"], "--diff and --check exclude each other"),
        (["--output", "x", "--hardware", "auto"], "--output and --hardware exclude each other"),
        (["--stdout", "--output", "x"], "--stdout and --output exclude each other"),
        (["--client-sample", "--hardware", "x"], "--client-sample and --hardware exclude each other"),
        (["--stdout", "--name", "other"], "a model must have the name of its directory (got `other`; expected `relu`)"),
        (["--hardware", "a b"], "not a usable hardware name"),
        (["--no-dynamic-batching", "--queue-size", "2"], "the queue is one of dynamic batching"),
        (["--gpus", "-1"], "--gpus: not a whole number (got `-1`; expected GPUs, like 0,1)"),
        (["--model", "other"], "--model is for --url"),
        (["--url", "localhost:8000", "--backend", "python"], "--backend has no meaning with --url"),
        (["--template", "--backend", "vllm"], "--backend has no meaning with --template"),
        (["--ensemble", "auto", "--input", "x:FP32:3"], "--input has no meaning with --ensemble"),
        (["--ensemble", "auto", "--url", "localhost:8000"], "--url and --ensemble exclude each other"),
        (["--tokenizer", "."], "--tokenizer is for --warmup"),
        (["--name", "other"], "a model must have the name of its directory (got `other`; expected `relu`)"),
        (["--max-queue-delay", "1ms", "--no-dynamic-batching"], "max_queue_delay needs dynamic batching"),
    ],
)
def test_wrong_usage(argv, message, relu, run_cli):
    result = run_cli("gen-config", relu, *argv)
    assert (result.code, result.out) == (2, "") and message in result.err
    assert [p.name for p in relu.iterdir()] == ["1"]


def test_a_repository_path_with_blanks_quotes_and_accents(onnx_file, run_cli):
    path = onnx_file("mes 'modèles' \"à moi\"/relu/1/model.onnx")
    assert run_cli("gen-config", path.parents[1]).code == 0
    result = run_cli("gen-config", onnx_file("repo/mon modèle/1/model.onnx").parents[1])
    assert result.code == 2 and "not a usable model name (got `mon modèle`" in result.err


def test_a_truncated_model_is_one_clear_error(relu, run_cli):
    path = relu / "1" / "model.onnx"
    path.write_bytes(path.read_bytes()[:-20])
    result = run_cli("gen-config", relu)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {path}: not a whole ONNX file (got ") and "\nhint: " in result.err
    problems = run_cli("gen-config", relu, "--json").json["error"]["problems"]
    assert [p["where"] for p in problems] == [str(path)]


def test_a_place_that_cannot_be_written_is_one_clear_error(relu, run_cli, tmp_path):
    (tmp_path / "file").touch()
    result = run_cli("gen-config", relu, "--output", tmp_path / "file" / "config.pbtxt")
    assert result.code == 2 and "cannot be written" in result.err


def test_a_model_too_new_for_the_tested_release_is_a_warning(onnx_file, run_cli):
    path = onnx_file("repo/new/1/model.onnx", ir=11, opset=22)
    assert run_cli("gen-config", path).err == ""  # the newest release that all is known of
    result = run_cli("gen-config", path, "--release", "24.10")
    assert result.code == 0
    assert "Triton 24.10 will not load opset 22" in result.err and "will not load IR version 11" in result.err


@pytest.mark.live
@pytest.mark.long
def test_the_real_server_loads_what_is_generated(onnx_file, run_cli, runtime):
    """Each kind of shape Triton has a rule of its own for."""
    from tooling.server import EmbeddedServer

    shapes = {"one_axis": ("batch",), "fixed": (2, 3), "scalar": ()}
    for name, shape in shapes.items():
        result = run_cli("gen-config", onnx_file(f"repo/{name}/1/model.onnx", shape=shape), "--json")
        assert result.code == 0, result.err
    repository = Path(result.json["data"]["path"]).parents[1]
    with EmbeddedServer(repository, runtime) as server:
        for name in shapes:
            server.load(name)
            assert server.model_config(name)["max_batch_size"] == (8 if name == "one_axis" else 0)
