"""`tritune export --format tensorrt`: what is asked for becomes the command that builds it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


def command(run_cli: Run, onnx: Path, repository: Path, *argv: str) -> list[str]:
    done = run_cli("export", onnx, "-r", repository, "--format", "tensorrt", "--print-command", "--json", *argv)
    assert done.code == 0, done.err
    return list(done.json["data"]["command"])


def test_profiles_from_buckets(run_cli: Run, encoder: Callable[..., Path], tmp_path: Path) -> None:
    words = command(
        run_cli, encoder(), tmp_path / "r", "--name", "enc", "--buckets", "64,128", "--max-batch-size", "16"
    )
    assert words[:2] == ["docker", "run"]
    assert "nvcr.io/nvidia/tensorrt:24.10-py3" in words
    assert [word for word in words if word.startswith("--maxShapes")] == [
        "--maxShapes=input_ids:16x64,attention_mask:16x64",
        "--maxShapes=input_ids:16x128,attention_mask:16x128",
    ]
    assert f"type=bind,source={tmp_path}/r/enc/1,target=/plan" in words


def test_the_longest_input_of_an_exported_model(run_cli: Run, encoder: Callable[..., Path], tmp_path: Path) -> None:
    words = command(run_cli, encoder(), tmp_path, "--max-tokens", "200", "--builder", "trtexec", "--engine", "opt=2x50")
    assert words[:4] == ["env", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=0", "trtexec"]
    assert "--optShapes=input_ids:2x50,attention_mask:2x50" in words
    assert "--maxShapes=input_ids:8x200,attention_mask:8x200" in words


@pytest.mark.live
def test_the_example_model_says_its_own_longest_input(run_cli: Run, minilm_repository: Path, tmp_path: Path) -> None:
    longest = json.loads((minilm_repository / "minilm" / "export.json").read_bytes())["max_tokens"]
    words = command(run_cli, minilm_repository / "minilm", tmp_path)
    assert any(word.startswith(f"--maxShapes=input_ids:8x{longest},") for word in words)
    assert f"type=bind,source={tmp_path}/minilm/1,target=/plan" in words


def test_a_model_with_no_free_axis_but_the_batch_needs_no_lengths(
    run_cli: Run, encoder: Callable[..., Path], tmp_path: Path
) -> None:
    words = command(run_cli, encoder((("x", "INT64", ["batch", 4]),)), tmp_path, "--engine", "opt=2")
    shapes = [word for word in words if "Shapes" in word]
    assert shapes == ["--minShapes=x:1x4", "--optShapes=x:2x4", "--maxShapes=x:8x4"]


def test_profiles_beyond_what_the_model_takes_are_told(
    run_cli: Run, encoder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tooling.cli.engine._own_length", lambda _: 128)
    argv = ("export", encoder(), "-r", tmp_path, "--format", "tensorrt", "--print-command")
    for asked in (("--buckets", "16,129"), ("--max-tokens", 129)):
        assert "the profiles take 129 tokens, and the model 128: longer inputs may fail" in run_cli(*argv, *asked).err
    assert "longer inputs may fail" not in run_cli(*argv, "--max-tokens", 128).err


def test_a_model_directory_without_an_onnx_file(run_cli: Run, tmp_path: Path) -> None:
    (tmp_path / "enc" / "1").mkdir(parents=True)
    (tmp_path / "enc" / "config.pbtxt").write_text('platform: "tensorrt_plan"')
    done = run_cli("export", tmp_path / "enc", "-r", tmp_path / "r", "--format", "tensorrt")
    assert (done.code, "a model directory without an ONNX file" in done.err) == (2, True)


def test_settings_reach_the_command(run_cli: Run, encoder: Callable[..., Path], tmp_path: Path) -> None:
    words = command(
        *(run_cli, encoder(), tmp_path, "--max-tokens", "64", "--precision", "fp16", "--engine", "workspace=2GiB"),
        *("--engine", f"timing_cache={tmp_path}/t", "--engine", "compatible=version,ampere+", "--engine", "gpu=1"),
    )
    for word in ("--fp16", "--memPoolSize=workspace:2048", "--timingCacheFile=/cache/t", "--versionCompatible"):
        assert word in words
    assert {"--hardwareCompatibilityLevel=ampere+", "device=1"} <= set(words)


def test_one_profile_for_a_workload(run_cli: Run, encoder: Callable[..., Path], tmp_path: Path) -> None:
    """Best where nine in ten requests fit, as large as the largest of them."""
    file = tmp_path / "traffic.yaml"
    file.write_text("concurrency: 8\nlengths: {16: 60, 48: 35, 300: 5}\nbatch: [1, 12]\n")
    words = command(run_cli, encoder(), tmp_path, "--workload", str(file))
    assert [word for word in words if "Shapes" in word] == [
        "--minShapes=input_ids:1x1,attention_mask:1x1",
        "--optShapes=input_ids:12x48,attention_mask:12x48",
        "--maxShapes=input_ids:12x300,attention_mask:12x300",
    ]
    assert "--maxShapes=input_ids:12x512,attention_mask:12x512" in command(
        run_cli, encoder(), tmp_path, "--workload", str(file), "--max-tokens", "512"
    )


def test_a_profile_for_each_bucket_of_a_workload(run_cli: Run, encoder: Callable[..., Path], tmp_path: Path) -> None:
    """Edges at the lengths that come, and one for what else the model takes."""
    file = tmp_path / "traffic.yaml"
    file.write_text("request_rate: 40\nlengths: {16: 60, 48: 40}\n")
    argv = ("--workload", str(file), "--padding", "buckets", "--max-tokens", "256")
    words = command(run_cli, encoder(), tmp_path, *argv)
    assert [word.split(",")[0] for word in words if word.startswith(("--optShapes", "--minShapes"))] == [
        *("--minShapes=input_ids:1x1", "--optShapes=input_ids:8x16"),
        *("--minShapes=input_ids:1x17", "--optShapes=input_ids:8x48"),
        *("--minShapes=input_ids:1x49", "--optShapes=input_ids:8x256"),
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--buckets", "64,128"], "--workload and --buckets exclude each other"),
        (["--max-batch-size", "2"], "no batch holds a whole request"),
        (["--engine", "min_shapes=input_ids:1x1"], "shapes by hand are a whole profile"),
        (["--format", "onnx"], "--workload: belongs to an engine"),
    ],
)
def test_a_workload_and_other_words(
    argv: list[str], message: str, run_cli: Run, encoder: Callable[..., Path], tmp_path: Path
) -> None:
    file = tmp_path / "traffic.yaml"
    file.write_text("concurrency: 8\nlengths: 16\nbatch: 4\n")
    done = run_cli("export", encoder(), "-r", tmp_path / "r", "--format", "tensorrt", "--workload", file, *argv)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_constants_that_half_precision_cannot_hold(run_cli: Run, encoder: Callable[..., Path], tmp_path: Path) -> None:
    """TensorRT 10 chooses types itself; told where it does, and not where the file decides."""
    argv = ("-r", tmp_path, "--format", "tensorrt", "--max-tokens", "64", "--print-command")
    told = run_cli("export", encoder(largest=-3.4e38), *argv, "--precision", "fp16")
    assert told.code == 0
    assert "table (3.4e+38) exceed what half precision holds (65504)" in told.err
    assert "outputs may contain NaN or Inf after the FP16 build. Compare with FP32 within a tolerance" in told.err
    assert "half precision" not in run_cli("export", encoder(largest=-3.4e38), *argv).err
    assert "half precision" not in run_cli("export", encoder(largest=65504), *argv, "--precision", "fp16").err
    assert "half precision" not in run_cli("export", encoder(largest=float("-inf")), *argv, "--precision", "fp16").err


@pytest.mark.parametrize("held", [{"value_float": -3.4e38}, {"value_floats": [1.0, -3.4e38]}])
def test_constants_that_an_operator_holds_as_plain_numbers(
    held: dict[str, Any], run_cli: Run, encoder: Callable[..., Path], tmp_path: Path
) -> None:
    import onnx

    path = encoder()
    model = onnx.load(path)
    model.graph.node.append(onnx.helper.make_node("Constant", [], ["far"], **held))
    onnx.save(model, path)
    argv = ("-r", tmp_path, "--format", "tensorrt", "--max-tokens", "64", "--print-command", "--precision", "fp16")
    assert "far (3.4e+38) exceed what half precision holds (65504)" in run_cli("export", path, *argv).err


def test_shapes_by_hand(run_cli: Run, encoder: Callable[..., Path], tmp_path: Path) -> None:
    shapes = {
        key: f"input_ids:{size},attention_mask:{size}" for key, size in (("min", "1x1"), ("opt", "2x8"), ("max", "4x9"))
    }
    argv = [word for key, text in shapes.items() for word in ("--engine", f"{key}_shapes={text}")]
    assert f"--maxShapes={shapes['max']}" in command(run_cli, encoder(), tmp_path, *argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "dynamic inputs input_ids, attention_mask need min/opt/max shapes"),
        (["--max-tokens", "64", "--engine", "wrkspace=1GiB"], "did you mean `workspace`?"),
        (["--max-tokens", "64", "--engine", "gpu"], "gpu needs one value"),
        (["--max-tokens", "64", "--engine", "gpu=one"], "gpu is out of range"),
        (["--max-tokens", "64", "--engine", "opt=axb"], "no usual size"),
        (["--max-tokens", "64", "--engine", "opt=9"], "the usual batch is outside the profile"),
        (["--max-tokens", "64", "--engine", "compatible=all"], "no such compatibility"),
        (["--max-tokens", "64", "--engine", "min_shapes=input_ids:1x1"], "shapes by hand are a whole profile"),
        (["--max-tokens", "64", "--precision", "int8"], "no precision of an engine"),
        (["--max-tokens", "64", "--release", "24.04"], "engines cannot be built for Triton 24.04"),
        (["--max-tokens", "64", "--release", "26.08", "--precision", "fp16"], "takes the precision from the ONNX file"),
        (["--max-tokens", "64", "--padding", "auto"], "belongs to a text pipeline"),
        (["--max-tokens", "64", "--pipeline", "text", "--texts", "x"], "--pipeline, --texts: belongs to a text"),
        (["--max-tokens", "64", "--optimize"], "--optimize: it makes operators that only ONNX Runtime has"),
        (["--max-tokens", "64", "--force", "--task", "fill-mask"], "--task: it is for the export to ONNX (got "),
        (["--max-tokens", "64", "--trust-remote-code", "--opset", "17"], "--opset, --trust-remote-code: it is for the"),
        (["--max-tokens", "64", "--exporter", "dynamo", "--external-data", "1MB"], "--exporter, --external-data: it"),
        (["--max-tokens", "64", "--precision", "fp16", "--convert-io"], "--convert-io: it is for the export to ONNX"),
        (["--max-tokens", "64", "--padding", "buckets"], "no lengths to make buckets of"),
        (["--max-tokens", "64", "--buckets", "32,128"], "--max-tokens and --buckets exclude each other"),
        (["--max-tokens", "64", "--engine", "opt=4x"], "--engine: no usual size"),
        (["--max-tokens", "99999999999"], "--max-tokens: out of range (got `99999999999`; expected 1 to 1000000)"),
        (["--max-tokens", "64", "--max-batch-size", "9999999999"], "--max-batch-size: out of range"),
        (
            ["--max-tokens", "64", "--engine", "workspace=1KiB"],
            "--engine workspace: too small (got `1KiB`; expected 1MiB or more)",
        ),
        (["--max-tokens", "64", "--engine", "workspace=lots"], "--engine workspace: not a size (got `lots`;"),
        (["--max-tokens", "64", "--engine", "timing_cache=/tmp"], "--engine timing_cache: the timing cache is a dir"),
        (["--max-tokens", "64", "--builder", "python"], "--print-command: the Python builder has no command"),
        (["--buckets", "128,64"], "--buckets: no usable length edges (got 128, 64"),
    ],
)
def test_refused(argv: list[str], message: str, run_cli: Run, encoder: Callable[..., Path], tmp_path: Path) -> None:
    done = run_cli("export", encoder(), "-r", tmp_path / "r", "--format", "tensorrt", "--print-command", *argv)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("smallest", "said"),
    [
        ("input_ids:1x0", "--engine: not a shape (got `input_ids:1x0`"),
        ("input_ids:1x9999999999", "--engine: not a shape (got `input_ids:1x9999999999`"),
        ("input_ids:1x1,input_ids:2x2", "--engine: not a shape (got input_ids twice"),
        ("input_ids:1x1", "give --engine min_shapes=NAME:1x128, opt_shapes=… and max_shapes=…"),
    ],
)
def test_shapes_by_hand_that_are_none(
    smallest: str, said: str, run_cli: Run, encoder: Callable[..., Path], tmp_path: Path
) -> None:
    both = "input_ids:4x9,attention_mask:4x9"
    words = [f"min_shapes={smallest}", f"opt_shapes={both}", f"max_shapes={both}"]
    argv = [part for word in words for part in ("--engine", word)]
    done = run_cli("export", encoder(), "-r", tmp_path / "r", "--format", "tensorrt", "--print-command", *argv)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_engine_options_need_an_engine(run_cli: Run, encoder: Callable[..., Path], tmp_path: Path) -> None:
    done = run_cli("export", encoder(), "-r", tmp_path, "--print-command")
    assert (done.code, "belongs to an engine" in done.err) == (2, True)
    asked = ("--max-batch-size", "4", "--builder", "trtexec", "--engine", "gpu=1")
    done = run_cli("export", encoder(), "-r", tmp_path, *asked)
    assert "--max-batch-size, --builder, --engine: belongs to an engine" in done.err


def test_without_a_gpu_the_command_is_told(
    run_cli: Run, encoder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    done = run_cli("export", encoder(), "-r", tmp_path / "r", "--format", "tensorrt", "--max-tokens", "64")
    assert (done.code, done.out) == (3, "")
    assert "hint: run on the machine with the GPU: mkdir -p " in done.err
    assert not (tmp_path / "r").exists()


def test_without_a_gpu_the_way_without_a_plan_is_told_and_fits(
    run_cli: Run, encoder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime's own engine: the same shapes and precision, and nothing that check finds wrong."""
    onnx = tmp_path / "models" / "enc" / "1" / "model.onnx"
    onnx.parent.mkdir(parents=True)
    encoder().rename(onnx)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    argv = ("--format", "tensorrt", "--buckets", "32,64", "--max-batch-size", 16, "--precision", "fp16")
    done = run_cli("export", onnx, "-r", tmp_path / "r", *argv)
    assert done.code == 3
    command = shlex.split(done.err.partition("build an engine at load: ")[2].splitlines()[0])
    assert command[:3] == ["tritune", "gen-config", str(tmp_path / "models" / "enc")]
    made = run_cli(*command[1:])
    assert made.code == 0, made.err
    text = (tmp_path / "models" / "enc" / "config.pbtxt").read_text()
    assert 'value: "input_ids:16x64,attention_mask:16x64"' in text
    for word in ('"trt_profile_min_shapes"', '"FP16"', '"trt_engine_cache_enable"', "max_batch_size: 16"):
        assert word in text
    found = run_cli("check", tmp_path / "models", "--json").json["data"]["findings"]
    assert [one["rule"] for one in found if one["severity"] != "info"] == []
