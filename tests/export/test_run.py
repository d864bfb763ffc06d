"""One export from a directory to the repository: whole, repeatable, or nothing at all."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

import export.build
import export.run
from export.manifest import read_manifest
from export.options import ExportOptions
from export.run import ExportResult
from export.run import export_model as export_with
from tooling.console import Console
from tooling.errors import MissingError, Refused, TrituneError, UsageError, install_extra
from tooling.repository import alone_in, write_atomic

SILENT = Console(quiet=True)


def export_model(source: Path, repository: Path, name: str | None = None, **more: Any) -> ExportResult:
    """By the exporter that takes the least time; what is tested here is the same for both."""
    console, force = more.pop("console", SILENT), more.pop("force", False)
    options = ExportOptions(exporter="torchscript", **more)
    return export_with(source, repository, name, options, force=force, console=console)


@pytest.fixture(scope="module")
def exported(bert_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportResult:
    """One export to look at; read-only."""
    return export_model(bert_dir, tmp_path_factory.mktemp("exported") / "repository", console=SILENT)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def test_layout_and_name_of_the_source(exported: ExportResult) -> None:
    assert exported.model_dir.name == "tiny-bert"
    assert list(contents(exported.model_dir)) == [
        "1/model.onnx",
        "export.json",
        "tokenizer/config.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    ]
    assert names(exported.model_dir.parent) == ["tiny-bert"]


def test_a_tokenizer_that_cuts_beyond_the_positions_is_told(
    source: Path, edit_json: Callable[..., None], tmp_path: Path, run_cli: Callable[..., Any]
) -> None:
    edit_json(source / "tokenizer_config.json", model_max_length=514)
    done = run_cli("export", source, "--repository", tmp_path / "repository", "--exporter", "torchscript")
    assert done.code == 0
    assert "warning: usable sequence length is 80, though the tokenizer cuts at 514" in done.err


def test_manifest_states_what_it_is_and_how_far_it_is_off(exported: ExportResult, bert_dir: Path) -> None:
    manifest = read_manifest(exported.model_dir)
    assert manifest == exported.manifest
    assert manifest.source.id == str(bert_dir)
    assert [(t.name, t.data_type, t.dims) for t in (*manifest.inputs, *manifest.outputs)] == [
        ("input_ids", "TYPE_INT64", (-1, -1)),
        ("attention_mask", "TYPE_INT64", (-1, -1)),
        ("token_type_ids", "TYPE_INT64", (-1, -1)),
        ("last_hidden_state", "TYPE_FP32", (-1, -1, 32)),
    ]
    assert (manifest.task, manifest.precision, manifest.exporter) == ("feature-extraction", "fp32", "torchscript")
    assert (manifest.opset, manifest.ir_version, manifest.release) == (18, 8, "24.10")
    assert len(manifest.verification.batches) >= 9
    assert 0 < manifest.verification.relative_error <= manifest.verification.limits["error"] == 1e-4
    assert {"tritune", "torch", "transformers", "onnx", "onnxscript", "onnxruntime"} == manifest.versions.keys()
    assert manifest.model_bytes == exported.model_file.stat().st_size
    assert manifest.created.utcoffset() is not None


def test_axes_carry_their_names(exported: ExportResult) -> None:
    import onnx

    graph = onnx.load(exported.model_file).graph
    shapes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.input}
    assert set(map(tuple, shapes.values())) == {("batch", "sequence")}
    assert [d.dim_param for d in graph.output[0].type.tensor_type.shape.dim][:2] == ["batch", "sequence"]


def test_same_export_is_reused_and_a_changed_one_is_not(source: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    first = export_model(source, repository, "m", console=SILENT)
    before = contents(first.model_dir)
    assert export_model(source, repository, "m", console=SILENT) == ExportResult(first.model_dir, first.manifest, True)
    assert contents(first.model_dir) == before
    first.model_file.write_bytes(b"damaged")
    repaired = export_model(source, repository, "m", console=SILENT)
    assert repaired.reused  # from the cache
    assert contents(first.model_dir)["1/model.onnx"] == before["1/model.onnx"]
    assert export_model(source, repository, "m", opset=17, console=SILENT).manifest.opset == 17
    assert not export_model(source, repository, "m", opset=17, force=True, console=SILENT).reused


def test_existing_configs_and_versions_stay(exported: ExportResult, bert_dir: Path, tmp_path: Path) -> None:
    model_dir = tmp_path / "m"
    kept = {"config.pbtxt": b"# mine", "configs/cpu-2.pbtxt": b"# tuned", "2/model.onnx": b"two", "tokenizer.txt": b"t"}
    replaced = {"1/model.onnx": b"old", "1/model.onnx.data": b"old", "tokenizer/old.txt": b"old", "export.json": b"{}"}
    for name, data in (kept | replaced).items():
        (model_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (model_dir / name).write_bytes(data)
    export_model(bert_dir, tmp_path, "m", console=SILENT)
    after = contents(model_dir)
    assert {name: after.pop(name) for name in kept} == kept
    assert after.keys() == contents(exported.model_dir).keys()
    assert names(tmp_path) == ["m"]


def test_what_is_written_meanwhile_goes_into_the_new_directory(
    exported: ExportResult, bert_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not into the one that it takes the place of, after its config was carried over."""
    shutil.copytree(exported.model_dir, tmp_path / "m")
    config, real, edits = tmp_path / "m" / "config.pbtxt", export.run._carry_over, list[Future[None]]()
    config.write_text("# old")

    def edit() -> None:
        with alone_in(config.parent):
            write_atomic(config, "# new")

    def carried(model_dir: Path, staged: Path) -> None:
        real(model_dir, staged)
        edits.append(pool.submit(edit))
        wait(edits, timeout=1)

    monkeypatch.setattr(export.run, "_carry_over", carried)
    with ThreadPoolExecutor(1) as pool:
        export_model(bert_dir, tmp_path, "m", opset=17)
        for made in edits:
            made.result(timeout=60)
    assert config.read_text() == "# new"
    assert names(tmp_path) == ["m"]


def test_version_from_elsewhere_is_not_replaced_unasked(bert_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.plan").write_bytes(b"engine")
    with pytest.raises(UsageError, match="not exported by tritune"):
        export_model(bert_dir, tmp_path, "m", console=SILENT)
    assert contents(tmp_path) == {"m/1/model.plan": b"engine"}
    export_model(bert_dir, tmp_path, "m", force=True, console=SILENT)
    assert (tmp_path / "m" / "1" / "model.onnx").is_file()


def test_failed_verification_leaves_what_was_there(
    exported: ExportResult, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = export.build.save_model

    def scaled(model: Any, *rest: Any) -> Path:
        """The real file, with weights that are off: a wrong file of the right form."""
        import onnx_ir

        for value in model.graph.initializers.values():
            if value.const_value.dtype == onnx_ir.DataType.FLOAT:
                value.const_value = onnx_ir.tensor(value.const_value.numpy() * 1.001)
        return real(model, *rest)

    monkeypatch.setattr(export.build, "save_model", scaled)
    fresh, old = tmp_path / "fresh", tmp_path / "old"
    with pytest.raises(Refused, match=r"a difference of .* at last_hidden_state\[.*\] of \d × \d+ tokens"):
        export_model(source, fresh, "m", console=SILENT)
    assert not fresh.exists()
    (old / "m").mkdir(parents=True)
    (old / "m" / "config.pbtxt").write_text("# mine")
    with pytest.raises(Refused):
        export_model(source, old, "m", console=SILENT)
    assert contents(old) == {"m/config.pbtxt": b"# mine"}


def test_model_that_a_trace_cannot_hold_is_refused(make_model: Callable[..., Path], tmp_path: Path) -> None:
    longformer = make_model(
        tmp_path / "longformer", "longformer"
    )  # pads to its window, by an amount that a trace freezes
    with pytest.raises(Refused, match="the exported model does not answer as the source does"):
        export_model(longformer, tmp_path / "repository", "m", console=SILENT)
    assert not (tmp_path / "repository").exists()


def test_model_without_a_mask_is_refused(make_model: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not take a padded batch"):
        export_model(make_model(tmp_path / "fnet", "fnet"), tmp_path / "repository", "m", console=SILENT)


CODE = """
open({ran!r}, "a").close()
from transformers import BertConfig, BertModel
class OwnConfig(BertConfig):
    model_type = "own"
class OwnModel(BertModel):
    config_class = OwnConfig
"""


@pytest.fixture
def with_code(source: Path, tmp_path: Path, edit_json: Callable[..., None]) -> tuple[Path, Path]:
    """A model whose own code leaves a file behind when it runs: (source, that file)."""
    ran = tmp_path / "ran"
    (source / "own.py").write_text(CODE.format(ran=str(ran)))
    auto = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    edit_json(source / "config.json", model_type="own", architectures=["OwnModel"], auto_map=auto)
    return source, ran


def test_code_that_comes_with_a_model_does_not_run(with_code: tuple[Path, Path], tmp_path: Path) -> None:
    source, ran = with_code
    with pytest.raises(UsageError, match="transformers cannot load the model") as caught:
        export_model(source, tmp_path / "repository", console=SILENT)
    assert "--trust-remote-code" in (caught.value.problems[0].hint or "")
    assert not ran.exists()
    assert not (tmp_path / "repository").exists()


def test_code_that_is_trusted_runs_and_is_part_of_what_the_export_follows_from(
    with_code: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    source, ran = with_code
    first = export_model(source, tmp_path / "repository", "m", trust_remote_code=True)
    assert ran.exists()
    (source / "own.py").write_text((source / "own.py").read_text() + "# changed\n")
    second = export_model(source, tmp_path / "repository", "m", trust_remote_code=True)
    assert first.manifest.source.sha256 != second.manifest.source.sha256


def test_weights_that_a_file_lacks_are_not_made_up(source: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(source / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"1 weights of the model are missing .*encoder\.layer\.1\.output\.dense"):
        export_model(source, tmp_path / "repository", console=SILENT)


def test_weights_of_another_config(source: Path, tmp_path: Path, edit_json: Callable[..., None]) -> None:
    edit_json(source / "config.json", intermediate_size=48)
    with pytest.raises(UsageError, match="transformers cannot load the model"):
        export_model(source, tmp_path / "repository", console=SILENT)


@pytest.mark.parametrize("name", ["with blank", "../out", "", "naïve", "a/b"])
def test_invalid_model_name(name: str, bert_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a usable model name"):
        export_model(bert_dir, tmp_path / "repository", name, console=SILENT)
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize("repository", ["a-file", "a-file/below", "/proc/tritune"])
def test_unwritable_repository(repository: str, bert_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("in the way")
    with pytest.raises(UsageError, match="cannot be written"):
        export_model(bert_dir, tmp_path / repository, "m", console=SILENT)
    assert contents(tmp_path) == {"a-file": b"in the way"}


def test_file_with_the_name_of_the_model(bert_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "m").write_text("in the way")
    with pytest.raises(UsageError, match="not a directory"):
        export_model(bert_dir, tmp_path, "m", console=SILENT)
    assert contents(tmp_path) == {"m": b"in the way"}


def test_full_disk_leaves_nothing(bert_dir: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (20_000, hard)
    )  # the model is larger, and the write fails as on a full disk
    try:
        with pytest.raises(UsageError, match="cannot be written"):
            export_model(bert_dir, tmp_path / "repository", "m", console=SILENT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize(
    ("library", "extra"),
    [("torch", "export"), ("transformers", "export"), ("safetensors", "export"), ("onnxruntime", "cpu")],
)
def test_missing_library(
    library: str, extra: str, bert_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingError, match=library) as caught:
        export_model(bert_dir, tmp_path / "repository", "m", console=SILENT)
    assert caught.value.problems[0].hint == install_extra(extra)
    assert not (tmp_path / "repository").exists()


def test_interrupt_leaves_nothing(bert_dir: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    program = "from tooling.cli import entry; entry()"
    argv = [sys.executable, "-c", program, "export", str(bert_dir), "--repository", str(repository)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert "loaded into torch" in child.stderr.readline()
        assert len(names(repository)) == 1
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (130, "", "interrupted\n")
    assert not repository.exists()


def test_library_use_prints_nothing(bert_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    export_model(bert_dir, tmp_path / "repository", "m")
    assert capfd.readouterr() == ("", "")


def test_damaged_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "export.json").write_text(json.dumps({"schema_version": 2}))
    with pytest.raises(UsageError, match=r"export\.json: not an export manifest"):
        read_manifest(tmp_path)
    with pytest.raises(TrituneError, match="no export manifest"):
        read_manifest(tmp_path / "nowhere")
