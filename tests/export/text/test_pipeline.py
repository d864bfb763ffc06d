"""What `--pipeline text` writes, and what it refuses to write."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import export.text_pipeline
from export.clients import client_texts
from export.padding_check import check_padding
from export.text_pipeline import TextOptions, write_text_pipeline
from tooling.config.render import parse
from tooling.console import Console
from tooling.errors import Refused, UsageError
from tooling.releases import current_release
from tooling.repository import read_config
from tooling.runtime.location import PINS

from ...compose import read

Run = Callable[..., Any]
SILENT = Console(quiet=True)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, bert_dir: Path) -> Path:
    """A repository with the small random BERT exported as `tiny_model`. Read-only, see `repository`."""
    from export.run import export_model

    repository = tmp_path_factory.mktemp("tiny") / "repository"
    export_model(bert_dir, repository, "tiny_model", console=SILENT)
    return repository


@pytest.fixture
def repository(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "repository"))


def write(repository: Path, *args: Any, force: bool = False, **options: Any) -> Any:
    return write_text_pipeline(repository / "tiny_model", "tiny", TextOptions(*args, **options), force=force)


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


CLIENTS = [f"clients/client_{name}" for name in ("async.py", "curl.sh", "grpc.py", "http.py")]


@pytest.mark.parametrize("padding", ["merged", "models"])
def test_gen_config_changes_only_what_is_asked_of_a_part(repository: Path, run_cli: Run, padding: str) -> None:
    """Instances and fixed shapes are the pipeline's: no model file tells them. The pipeline may write them again."""
    buckets = () if padding == "merged" else (16,)
    write(repository, padding, buckets)
    part = repository / ("tiny" if padding == "merged" else "tiny_model_16")
    before = read_config(part)
    assert before.instance_group[0].count > 0 and before.HasField("dynamic_batching")
    assert run_cli("gen-config", part).code == 2, "it is left alone"
    assert read_config(part) == before
    write(repository, padding, buckets)
    assert run_cli("gen-config", part, "--no-dynamic-batching").code == 0
    before.ClearField("dynamic_batching")
    assert read_config(part) == before
    with pytest.raises(UsageError, match="the file is not as tritune wrote it"):
        write(repository, padding, buckets)


def test_a_config_that_was_edited_meanwhile_is_left_alone(
    repository: Path, run_cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository)

    def edited(*words: Any) -> float:
        assert run_cli("gen-config", repository / "tiny_tokenizer", "--instances", "3").code == 0
        return check_padding(*words)

    monkeypatch.setattr(export.text_pipeline, "check_padding", edited)
    with pytest.raises(UsageError, match=r"tiny_tokenizer/config.pbtxt: the file is not as tritune wrote it"):
        write(repository, max_tokens=16)
    assert read_config(repository / "tiny_tokenizer").instance_group[0].count == 3
    assert json.loads((repository / "tiny_tokenizer" / "1" / "text.json").read_text())["max_tokens"] != 16


def test_what_another_pipeline_of_the_name_leaves_is_told(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was written while this one was on its way."""

    def meanwhile(*words: Any) -> float:
        monkeypatch.undo()
        write(repository, "models", (16,))
        return check_padding(*words)

    monkeypatch.setattr(export.text_pipeline, "check_padding", meanwhile)
    assert [path.name for path in write(repository).stale] == ["tiny_model_16", "tiny_model_64"]


def test_three_models_join_by_their_names(repository: Path) -> None:
    written = write(repository)
    assert sorted(path.name for path in repository.iterdir()) == ["tiny", "tiny_model", "tiny_tokenizer"]
    assert files(repository / "tiny") == ["1/.keep", "Dockerfile", *CLIENTS, "config.pbtxt"]
    assert files(repository / "tiny_tokenizer") == [
        "1/model.py",
        "1/text.json",
        "1/texts.py",
        "1/tokenizer.json",
        "config.pbtxt",
    ]
    entry = read_config(repository / "tiny")
    assert [step.model_name for step in entry.ensemble_scheduling.step] == ["tiny_tokenizer", "tiny_model"]
    assert [tensor.name for tensor in entry.input] == ["text"]
    assert [tensor.name for tensor in entry.output] == ["last_hidden_state", "token_count"]
    assert read_config(repository / "tiny_tokenizer").HasField("dynamic_batching")
    settings = json.loads((repository / "tiny_tokenizer" / "1" / "text.json").read_text())
    assert settings == {
        "tensors": dict.fromkeys(["input_ids", "attention_mask", "token_type_ids"], "TYPE_INT64"),
        "buckets": [],
        "max_tokens": 64,
        "invalid_utf8": "replace",
        "vocabulary": 64,
        "pad_token": 0,
    }
    assert written.padding_error <= 1e-5 and written.stale == ()


def test_buckets_end_at_the_limit_of_the_model(repository: Path) -> None:
    assert write(repository, "buckets", (128, 8, 32)).edges == (8, 32, 64)
    assert write(repository, "buckets", (8,), max_tokens=16).edges == (8, 16)
    with pytest.raises(UsageError, match=r"longer than the model takes .*got 65; expected at most 64"):
        write(repository, max_tokens=65)


def test_a_model_for_each_bucket_has_its_own_queue_and_fixed_shapes(repository: Path) -> None:
    written = write(repository, "models", (16,))
    assert [path.name for path in written.models] == ["tiny", "tiny_model_16", "tiny_model_64"]
    for edge in (16, 64):
        model = repository / f"tiny_model_{edge}"
        config = read_config(model)
        assert [list(tensor.dims) for tensor in config.input] == [[edge]] * 3
        assert config.HasField("dynamic_batching") and [g.count for g in config.instance_group] == [1]
        assert (model / "1" / "model.onnx").samefile(repository / "tiny_model" / "1" / "model.onnx")
    settings = json.loads((repository / "tiny" / "1" / "text.json").read_text())
    assert settings["models"] == ["tiny_model_16", "tiny_model_64"]


def test_a_model_for_each_bucket_keeps_what_the_models_config_says(repository: Path) -> None:
    (repository / "tiny_model" / "config.pbtxt").write_text(
        "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 900 } instance_group { count: 3 }\n"
        'parameters { key: "intra_op_thread_count" value { string_value: "1" } } backend: "onnxruntime"'
    )
    write(repository, "models", (16,))
    config = read_config(repository / "tiny_model_16")
    assert (config.name, config.max_batch_size, config.instance_group[0].count) == ("tiny_model_16", 4, 3)
    assert config.dynamic_batching.max_queue_delay_microseconds == 900
    assert config.parameters["intra_op_thread_count"].string_value == "1"
    assert [list(tensor.dims) for tensor in config.input] == [[16]] * 3
    assert [tensor.name for tensor in read_config(repository / "tiny").output] == ["last_hidden_state", "token_count"]


def test_another_padding_replaces_the_pipeline_and_names_what_it_leaves(repository: Path) -> None:
    write(repository, "models", (16,))
    merged = write(repository, "merged")
    assert sorted(path.name for path in merged.stale) == ["tiny_model_16", "tiny_model_64"]
    assert (repository / "tiny" / "1" / "text.json").is_file()
    assert read_config(repository / "tiny").instance_group[0].count == 2  # as many as the model gets on a CPU
    buckets = write(repository, "buckets", (16,))
    assert [path.name for path in buckets.models] == ["tiny", "tiny_tokenizer", "tiny_model"]
    assert read_config(repository / "tiny").platform == "ensemble"


def test_tuned_configs_and_the_models_own_config_stay(repository: Path) -> None:
    write(repository)
    (repository / "tiny_tokenizer" / "configs").mkdir()
    (repository / "tiny_tokenizer" / "configs" / "cpu-2.pbtxt").write_text("max_batch_size: 8")
    config = repository / "tiny_model" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: 4"))
    write(repository)
    assert "max_batch_size: 4" in config.read_text()
    assert read_config(repository / "tiny").max_batch_size == 4
    assert (repository / "tiny_tokenizer" / "configs" / "cpu-2.pbtxt").is_file()


def test_other_models_and_edited_configs_are_not_replaced(repository: Path) -> None:
    shutil.copytree(repository / "tiny_model", repository / "tiny")
    before = files(repository)
    with pytest.raises(UsageError, match="another model has the name"):
        write(repository, force=True)
    assert files(repository) == before
    shutil.rmtree(repository / "tiny")
    write(repository)
    path = repository / "tiny_tokenizer" / "config.pbtxt"
    path.write_text(path.read_text() + "# mine\n")
    with pytest.raises(UsageError, match="not as tritune wrote it"):
        write(repository)
    write(repository, force=True)
    assert "# mine" not in path.read_text()


def deaf(file: Path) -> None:
    """Make the graph ignore its mask: every token counts, padding too."""
    import onnx
    from onnx import helper

    model = onnx.load(file)
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name == "attention_mask":
                node.input[place] = "all_ones"
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["all_shape"]),
        helper.make_node("ConstantOfShape", ["all_shape"], ["all_ones"], value=helper.make_tensor("v", 7, [1], [1])),
        helper.make_node("Identity", ["attention_mask"], ["unheard"]),
    ]
    for place, node in enumerate(nodes):
        model.graph.node.insert(place, node)
    file.unlink()  # it may be a link
    onnx.save(model, file)


def test_a_model_that_ignores_its_mask_is_refused(repository: Path) -> None:
    deaf(repository / "tiny_model" / "1" / "model.onnx")
    with pytest.raises(Refused, match=r"answers depend on their padding.*got a change of .* padded to 16"):
        write(repository, "buckets", (16,))
    assert sorted(path.name for path in repository.iterdir()) == ["tiny_model"]


def test_a_limit_that_the_model_does_not_have_is_found_out(repository: Path) -> None:
    """It has 80 positions, of which the tokenizer allows 64; with the wrong limit long texts would fail when served."""
    manifest = repository / "tiny_model" / "export.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "max_tokens": 100}))
    with pytest.raises(Refused, match="does not answer a batch of 1 × 100 tokens"):
        write(repository)


def test_minilm_answers_do_not_depend_on_padding(exported: Path) -> None:
    assert 0 < check_padding(exported / "encoder_model", (16, 128), 256, 0, "fp32", SILENT) <= 1e-5


def test_a_model_with_other_inputs_or_without_batches_is_refused(repository: Path) -> None:
    (repository / "tiny_model" / "config.pbtxt").write_text("max_batch_size: 0\n")
    with pytest.raises(UsageError, match="the model does not batch"):
        write(repository)
    (repository / "tiny_model" / "tokenizer" / "config.json").write_text("{}")
    (repository / "tiny_model" / "config.pbtxt").unlink()
    with pytest.raises(UsageError, match="the model's sizes cannot be read"):
        write(repository)


def test_clients_send_whole_tokens_of_one_length(repository: Path) -> None:
    write(repository)
    config = read_config(repository / "tiny_model")
    config.name = "tiny_model"
    curl = client_texts(config, repository / "tiny_model" / "tokenizer")["client_curl.sh"]
    body = json.loads(curl.partition(" -d '")[2].rpartition("'")[0])
    assert [tensor["name"] for tensor in body["inputs"]] == ["input_ids", "attention_mask", "token_type_ids"]
    assert {tuple(tensor["shape"]) for tensor in body["inputs"]} == {(2, len(body["inputs"][0]["data"][0]))}
    assert body["inputs"][1]["data"] == [[1] * body["inputs"][0]["shape"][1]] * 2


@pytest.mark.parametrize("padding", ["none", "buckets", "models", "merged"])
def test_check_finds_nothing_to_mend(repository: Path, run_cli: Run, padding: str) -> None:
    write(repository, padding, (16, 32))
    done = run_cli("check", repository, "--json")
    assert done.code == 0
    assert {finding["severity"] for finding in done.json["data"]["findings"]} <= {"info"}


def test_strings_are_sent_one_in_a_row(repository: Path, run_cli: Run, tmp_path: Path) -> None:
    """A list of two texts as shape [2] is refused, offline too; the client says how, and keeps trailing NUL bytes."""
    write(repository)
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2]}]}))
    done = run_cli("check", repository / "tiny", "--request", request)
    assert done.code == 1 and "[2, 1]" in done.out
    sample = run_cli("gen-config", repository / "tiny", "--client-sample").out
    for client in (sample, (repository / "tiny" / "clients" / "client_http.py").read_text()):
        assert "[text" in client and "for text in TEXTS" in client and "dtype=np.object_" in client


def test_clients_of_other_models_send_zeros_or_are_left_out(tmp_path: Path) -> None:
    image = 'name: "m" max_batch_size: 1 input { name: "pixel_values" data_type: TYPE_FP32 dims: [3, 4, 4] }'
    texts = client_texts(parse(image, "image"), tmp_path)
    assert sorted(texts) == ["client_async.py", "client_grpc.py", "client_http.py"]
    for text in texts.values():
        assert '"pixel_values": ("FP32", np.zeros([1, 3, 4, 4], dtype=np.float32))' in text
        compile(text, "client", "exec")
    cache = 'name: "m" max_batch_size: 1 input { name: "past" data_type: TYPE_FP32 dims: [2, -1, 8] }'
    assert client_texts(parse(cache, "decoder"), tmp_path) == {}


def test_the_image_has_the_packages_of_the_runtime() -> None:
    text = (Path(__file__).parents[3] / "export" / "triton" / "Dockerfile").read_text()
    assert (
        f"ARG TRITON_RELEASE={current_release().tag}\nFROM nvcr.io/nvidia/tritonserver:${{TRITON_RELEASE}}-py3" in text
    )
    for package in ("tokenizers", "numpy"):
        assert f'"{package}=={PINS[package]}"' in text


def test_compose_builds_that_image_for_both_services() -> None:
    root = Path(__file__).parents[3]
    services = read(root, "-f", "docker-compose.yml", "-f", "docker-compose.text.yml", "--profile", "cpu")["services"]
    for name in ("triton", "triton-cpu"):
        assert services[name]["build"]["context"] == str(root / "export" / "triton")
        assert services[name]["build"]["args"] == {"TRITON_RELEASE": current_release().tag}
        assert services[name]["image"] == f"tritune/triton-text:{current_release().tag}"
        assert services[name]["ports"] and services[name]["command"]
