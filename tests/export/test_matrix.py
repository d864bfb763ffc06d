"""Many architectures: exported, checked, loaded by the real server, and asked there what they are verified by here.

`make test` runs a few of them, `make test-long` one of each family, `make matrix` all.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from export.graph import Reference
from export.options import ExportOptions
from export.plan import make_plan
from export.quiet import quiet
from export.run import ExportResult, export_model
from export.source import open_source
from export.torch_model import load_model
from export.verify import judge
from tooling.console import Console
from tooling.errors import TrituneError
from tooling.server import EmbeddedServer, ServerOptions
from tooling.signature.onnx_file import read_onnx

pytestmark = pytest.mark.live
SILENT = Console(quiet=True)
ZOO: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "zoo.yaml").read_text())
TIERS = {"quick": (), "long": (pytest.mark.long,), "matrix": (pytest.mark.matrix,)}
KINDS = [
    pytest.param(kind, marks=TIERS[entry.get("tier", "matrix")], id=kind)
    for kind, entry in ZOO.items()
    if "refused" not in entry
]
REFUSED = [kind for kind, entry in ZOO.items() if "refused" in entry]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("matrix") / "repository"


@pytest.fixture(scope="module")
def server(repository: Path, runtime: Any) -> Iterator[EmbeddedServer]:
    repository.mkdir()
    with EmbeddedServer(repository, runtime, ServerOptions(strict_config=True)) as running:
        yield running


@pytest.fixture
def ask(server: EmbeddedServer) -> Iterator[Callable[[str, Mapping[str, Any]], dict[str, Any]]]:
    """One inference over HTTP: `ask("model", {"x": array})` gives every output by its name."""
    with quiet(SILENT):
        from tritonclient import http

    client = http.InferenceServerClient(server.http_url)

    def send(model: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
        inputs = []
        for name, values in tensors.items():
            data_type = {"int64": "INT64", "float32": "FP32", "float16": "FP16"}[str(values.dtype)]
            inputs.append(http.InferInput(name, list(values.shape), data_type))
            inputs[-1].set_data_from_numpy(values)
        answer = client.infer(model, inputs)
        return {output["name"]: answer.as_numpy(output["name"]) for output in answer.get_response()["outputs"]}

    yield send
    client.close()


def export(kind: str, make_model: Callable[..., Path], place: Path, repository: Path) -> tuple[Path, ExportResult]:
    source = make_model(place / kind, kind)
    options = ExportOptions(task=ZOO[kind].get("task"))
    return source, export_model(source, repository, kind, options, console=SILENT)


@pytest.mark.parametrize("kind", KINDS)
def test_served_answers_are_those_of_torch(
    kind: str,
    make_model: Callable[..., Path],
    repository: Path,
    server: EmbeddedServer,
    ask: Callable[..., dict[str, Any]],
    run_cli: Callable[..., Any],
    tmp_path: Path,
) -> None:
    source, result = export(kind, make_model, tmp_path, repository)
    assert result.manifest.exporter == ZOO[kind].get("exporter", "torchscript")
    assert run_cli("gen-config", result.model_dir).code == 0
    checked = run_cli("check", repository, "--model", kind)
    assert checked.code == 0, checked.out
    assert served_faults(source, result, server, ask) == []


def served_faults(
    source: Path, result: ExportResult, server: EmbeddedServer, ask: Callable[..., dict[str, Any]]
) -> list[str]:
    """What the verification says of the answers that the server gives."""
    name = result.model_dir.name
    server.load(name)
    try:
        with quiet(SILENT):
            found = open_source(source)
            plan = make_plan(found, result.manifest.task)
            reference = Reference(load_model(found, plan), plan)
        inputs = read_onnx(result.model_file).inputs
        verdict = judge(
            lambda tensors: ask(name, tensors), inputs, reference, plan, found.tokenizer_file, result.manifest.precision
        )
    finally:
        server.unload(name)
    return list(verdict.faults())


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bert-mean", ExportOptions(optimize=True)),
        ("gpt2", ExportOptions(optimize=True)),
        ("bert-mean", ExportOptions(precision="fp16")),
        ("vit", ExportOptions(precision="fp16", convert_io=True)),
        ("bert-mean", ExportOptions(precision="int8")),
    ],
    ids=["optimised", "optimised-decoder", "half", "half-images", "eight-bits"],
)
def test_converted_models_answer_alike_on_the_older_onnxruntime_of_the_server(
    kind: str,
    options: ExportOptions,
    make_model: Callable[..., Path],
    repository: Path,
    server: EmbeddedServer,
    ask: Callable[..., dict[str, Any]],
    run_cli: Callable[..., Any],
    tmp_path: Path,
) -> None:
    source = make_model(tmp_path / kind, kind)
    name = f"{kind}-{options.precision}-{'optimised' if options.optimize else 'plain'}"
    result = export_model(source, repository, name, options, console=SILENT)
    assert run_cli("gen-config", result.model_dir).code == 0
    assert run_cli("check", repository, "--model", name).code == 0
    assert served_faults(source, result, server, ask) == []


def test_client_that_asks_for_classes_gets_their_names(
    make_model: Callable[..., Path],
    repository: Path,
    server: EmbeddedServer,
    run_cli: Callable[..., Any],
    edit_json: Callable[..., None],
    tmp_path: Path,
) -> None:
    source = make_model(tmp_path / "classes", "distilbert")
    edit_json(source / "config.json", id2label={"0": "bad", "1": "fair", "2": "very good"})
    result = export_model(source, repository, "classes", console=SILENT)
    assert run_cli("gen-config", result.model_dir).code == 0
    server.load("classes")
    with quiet(SILENT):
        from tritonclient import http

    client = http.InferenceServerClient(server.http_url)
    tokens = np.array([[5, 9, 23, 2]])
    inputs = [http.InferInput(name, [1, 4], "INT64") for name in ("input_ids", "attention_mask")]
    for entry, values in zip(inputs, (tokens, np.ones_like(tokens)), strict=True):
        entry.set_data_from_numpy(values)
    named = client.infer("classes", inputs, outputs=[http.InferRequestedOutput("logits", class_count=3)])
    logits = client.infer("classes", inputs).as_numpy("logits")[0]
    client.close()
    found = [text.decode().split(":") for text in named.as_numpy("logits")[0]]
    labels = ["bad", "fair", "very good"]
    assert [(int(index), label) for _, index, label in found] == [(i, labels[i]) for i in np.argsort(-logits)]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["vit", "gpt2"])
def test_clients_of_images_and_decoders_are_answered(
    kind: str,
    make_model: Callable[..., Path],
    repository: Path,
    server: EmbeddedServer,
    run_cli: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """The Python ones, as a user runs them: an image, and a prompt with an empty cache."""
    name = f"{kind}-clients"
    source = make_model(tmp_path / kind, kind)
    done = run_cli("export", source, "-r", repository, "--name", name)
    assert done.code == 0, done.err
    assert run_cli("gen-config", repository / name).code == 0
    server.load(name)
    clients = sorted((repository / name / "clients").iterdir())
    assert [path.stem for path in clients] == ["client_async", "client_grpc", "client_http"]
    for path in clients:
        url = server.http_url if path.stem == "client_http" else server.grpc_url
        ran = subprocess.run([sys.executable, path, url], capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.startswith("logits [[") and "present" not in ran.stdout
    server.unload(name)


@pytest.mark.long
def test_server_loads_weights_from_a_file_of_their_own(
    make_model: Callable[..., Path],
    repository: Path,
    server: EmbeddedServer,
    ask: Callable[..., dict[str, Any]],
    run_cli: Callable[..., Any],
    tmp_path: Path,
) -> None:
    source = make_model(tmp_path / "bert", "bert")
    options = ExportOptions(inline_bytes=10_000)
    result = export_model(source, repository, "external", options, console=SILENT)
    assert (result.model_dir / "1" / "model.onnx" / "model.onnx.data").is_file()
    assert run_cli("gen-config", result.model_dir).code == 0
    assert run_cli("check", repository, "--model", "external").code == 0
    server.load("external")
    tokens = np.array([[5, 9, 23, 2]])
    given = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens)}
    answer = ask("external", given)["last_hidden_state"]
    with quiet(SILENT):
        found = open_source(source)
        plan = make_plan(found)
        (row,) = Reference(load_model(found, plan), plan)(given)
    assert np.abs(answer[0] - row["last_hidden_state"]).max() < 1e-4


@pytest.mark.matrix
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_exported_is_refused_with_its_reason(
    kind: str, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(TrituneError, match=ZOO[kind]["refused"]):
        export(kind, make_model, tmp_path, tmp_path / "repository")
    assert list((tmp_path / "repository").glob("*")) == []
