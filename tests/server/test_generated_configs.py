"""What gen-config writes for each backend, loaded and asked on the real server."""

from __future__ import annotations

import http.client
import io
import json
import subprocess
import sys
import threading
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from tooling.errors import MissingError, Refused, UsageError
from tooling.server import EmbeddedServer
from tooling.server.remote_signature import read_remote

pytestmark = pytest.mark.live


RAGGED = ["--ragged", "row", "--batch-input", "index=ELEMENT_COUNT:row"]
SEQUENCE = ["--sequence", "oldest", "--control", "index=START"]


def two_inputs(repository: Path, name: str, row: list) -> Path:
    """z = index + 0 · sum(row): one model with a row of data, and a tensor that Triton makes."""
    from onnx import TensorProto, helper, save

    def value(tensor: str, shape: list):
        return helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape)

    zero = helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0])
    nodes = [
        helper.make_node("ReduceSum", ["row"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("Add", ["index", "nothing"], ["z"]),
    ]
    shape = ["b"] if len(row) == 1 else ["b", 1]
    graph = helper.make_graph(nodes, "g", [value("row", row), value("index", shape)], [value("z", shape)], [zero])
    path = repository / name / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def split_heads(repository: Path, name: str) -> Path:
    """Rows of 384 cut into heads, to lengths computed in the graph: only ONNX Runtime's optimiser knows 12 and 32."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    constants = {"first": np.array(0), "axis": np.array([0]), "rest": np.array([-1]), "heads": np.array([12, 32])}
    nodes = [
        helper.make_node("Shape", ["x"], ["lengths"]),
        helper.make_node("Gather", ["lengths", "first"], ["length"], axis=0),
        helper.make_node("Unsqueeze", ["length", "axis"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest", "heads"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    tensors = [
        helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape)
        for tensor, shape in (("x", ["b", "s", 384]), ("y", ["b", "p", "q", "r"]))
    ]
    kept = [numpy_helper.from_array(value, key) for key, value in constants.items()]
    graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:], kept)
    path = repository / name / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.fixture(scope="module")
def repository(tmp_path_factory, minilm_repository) -> Path:
    """MiniLM warmed up by real tokens, a Python model from the template, strings, and an ensemble of two models."""
    from tooling.cli import main

    repository = tmp_path_factory.mktemp("generated") / "repository"
    (repository / "minilm").mkdir(parents=True)
    for name in ("1", "tokenizer"):
        (repository / "minilm" / name).symlink_to(minilm_repository / "minilm" / name)
    tensors = ["--input", "x:FP32:-1,3", "--output-tensor", "y:FP32:-1,2"]
    tokens = ["--input", "text:STRING:-1,1"]
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        tokens += ["--output-tensor", f"{name}:INT64:-1,-1"]
    for name, row in (("ragged", ["n"]), ("sequence", ["b", 2])):
        two_inputs(repository, name, row)
    split_heads(repository, "heads")
    two_inputs(repository, "edited", ["b", 2]).parents[1].joinpath("config.pbtxt").write_text(
        "# mine\nplatform: 'onnxruntime_onnx'  # as ever\nmax_batch_size: 2\n"
    )
    for argv in (
        ["heads"],
        ["edited", "--max-batch-size", "4", "--set", "instance_group[0].kind=CPU", "--queue-size", "9"],
        ["ragged", *RAGGED],
        ["sequence", *SEQUENCE],
        ["minilm", "--warmup", "2x16", "--instances", "1", "--kind", "cpu"],
        ["mine", "--template", *tensors, "--max-batch-size", "4", "--max-queue-delay", "500ms"],
        ["alone", "--template", "--input", "x:FP32:3", "--output-tensor", "y:FP64:2,2"],
        ["tokens", "--template", *tokens],
        ["stream", "--template", "--decoupled", *tensors],
        ["pipe", "--ensemble", "tokens,minilm"],
    ):
        assert main(["gen-config", str(repository / argv[0]), *argv[1:], "-q"]) == 0
    return repository


@pytest.fixture(scope="module")
def server(repository, runtime):
    with EmbeddedServer(repository, runtime) as running:
        yield running


def infer(
    server: EmbeddedServer, model: str, parameters: dict | None = None, **inputs: tuple[str, list, list]
) -> tuple[int, dict]:
    tensors = [
        {"name": name, "datatype": data_type, "shape": shape, "data": data}
        for name, (data_type, shape, data) in inputs.items()
    ]
    body = {"parameters": parameters or {}, "inputs": tensors}
    host, _, port = server.http_url.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    with closing(connection):
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_the_template_runs_a_batch_at_once(server, settled, counts):
    server.load("mine")
    rows, executions = counts(server, "mine")
    answers: list[tuple[int, dict]] = []

    def ask(rows: int) -> None:
        answers.append(infer(server, "mine", x=("FP32", [rows, 3], [0.0] * 3 * rows)))

    threads = [threading.Thread(target=ask, args=(1,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(status, answer["outputs"][0]["shape"]) for status, answer in answers] == [(200, [1, 2])] * 4
    assert settled(lambda: counts(server, "mine"), (rows + 4, executions + 1)) == (rows + 4, executions + 1)


def test_the_template_keeps_its_word_about_types_and_shapes(server, repository):
    server.load("alone")
    status, answer = infer(server, "alone", x=("FP32", [3], [1, 2, 3]))
    assert (status, answer["outputs"][0]["datatype"], answer["outputs"][0]["shape"]) == (200, "FP64", [2, 2])
    model = repository / "alone" / "1" / "model.py"
    model.write_text(model.read_text().replace("np.zeros(", "np.zeros([3]) if True else (", 1))
    server.load("alone")
    status, answer = infer(server, "alone", x=("FP32", [3], [1, 2, 3]))
    assert status == 500 and "y: shape (3,), expected [2, 2]" in answer["error"]


def test_minilm_is_warmed_up_with_real_tokens(server, settled, counts):
    server.load("minilm")
    assert settled(lambda: counts(server, "minilm"), (2, 1)) == (2, 1)  # the warmup: two requests, one execution
    signature = read_remote(server.http_url, "minilm")
    assert (signature.backend, signature.max_batch_size) == ("onnxruntime", 8)
    assert [(t.name, t.dims) for t in (*signature.inputs, *signature.outputs)][-2:] == [
        ("token_type_ids", (-1, -1)),
        ("embeddings", (-1, 384)),
    ]
    with pytest.raises(UsageError) as caught:
        read_remote(server.http_url, "minilmm")
    assert caught.value.problems[0].hint == "did you mean `minilm`?"


def test_output_shapes_are_those_of_the_optimised_session(server):
    server.load("heads")
    assert server.model_config("heads")["output"][0]["dims"] == [-1, 12, 32]


def test_an_edited_config_is_served_as_it_says(server, repository):
    assert (repository / "edited" / "config.pbtxt").read_text().startswith("# mine\nplatform: 'onnxruntime_onnx'  # as")
    server.load("edited")
    config = server.model_config("edited")
    assert (config["max_batch_size"], config["instance_group"][0]["kind"]) == (4, "KIND_CPU")
    assert config["dynamic_batching"]["default_queue_policy"]["max_queue_size"] == 9


def test_tensors_that_triton_makes(server):
    server.load("ragged")
    status, answer = infer(server, "ragged", row=("FP32", [1, 5], [1.0] * 5))
    assert (status, answer["outputs"][0]["data"]) == (200, [5.0]), answer
    server.load("sequence")
    parameters = {"sequence_id": 7, "sequence_start": True, "sequence_end": True}
    status, answer = infer(server, "sequence", parameters, row=("FP32", [1, 2], [1.0, 2.0]))
    assert (status, answer["outputs"][0]["data"]) == (200, [1.0]), answer


def test_the_ensemble_answers(server):
    server.load("pipe")
    status, answer = infer(server, "pipe", text=("BYTES", [2, 1], ["a", "b"]))
    assert (status, answer["outputs"][0]["shape"]) == (200, [2, 384]), answer


@pytest.mark.parametrize("model", ["mine", "tokens", "minilm", "stream"])
def test_the_client_sample_is_answered(model, server, repository, run_cli, tmp_path):
    server.load(model)
    sample = tmp_path / "client.py"
    sample.write_text(run_cli("gen-config", repository / model, "--client-sample").out)
    url = server.grpc_url if model == "stream" else server.http_url
    done = subprocess.run([sys.executable, sample, url], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_config_from_the_running_server(server, run_cli, tmp_path):
    server.load("mine")
    result = run_cli("gen-config", tmp_path / "mine", "--url", server.http_url, "--max-queue-delay", "1ms")
    assert result.code == 0, result.err
    assert (tmp_path / "mine" / "config.pbtxt").read_text().count("dims: [") == 2


SIDECAR = {
    "tensorrt": "10.5.0.18",
    "compute_capability": "8.9",
    "inputs": [{"name": "ids", "data_type": "INT64", "shape": [-1, -1]}],
    "outputs": [{"name": "emb", "data_type": "FP16", "shape": [-1, 384]}],
    "profiles": [{"ids": {"min": [1, 1], "opt": [8, 64], "max": [32, length]}} for length in (128, 512)],
}
IR = """<net name="m" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="?,3" element_type="f32"/>
<output><port id="0" precision="FP32" names="x"><dim>-1</dim><dim>3</dim></port></output></layer>
<layer id="1" name="y" type="Result" version="opset1">
<input><port id="0" precision="FP32"><dim>-1</dim><dim>3</dim></port></input></layer>
</layers><edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/></edges></net>"""
FORWARD = "class Net(Module):\n  def forward(self, x: Tensor) -> Tensor:\n    return x"


def torchscript() -> bytes:
    """An archive as `torch.jit.save` lays it out, of a module that returns what it gets."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02c__torch__\nNet\nq\x00.")
        archive.writestr("model/code/__torch__.py", FORWARD)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("backend", "files", "argv"),
    [
        ("tensorrt", {"model.plan": b"ftrt" + bytes(20) + bytes([10, 5, 0, 18]),
                      "model.plan.json": json.dumps(SIDECAR).encode()}, ["--max-queue-delay", "1ms"]),
        ("openvino", {"model.xml": IR.encode()}, ["--max-batch-size", "4", "--threads", "2"]),
        ("pytorch", {"model.pt": torchscript()}, ["--input", "I__0:FP32:-1,3", "--output-tensor", "O__0:FP32:-1,3"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_the_core_takes_the_configs_of_backends_that_are_not_here(backend, files, argv, server, repository, run_cli):
    """All that stops the model is the backend's library, which only NVIDIA's images have."""
    for name, content in files.items():
        path = repository / backend / "1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert run_cli("gen-config", repository / backend, *argv).code == 0
    with pytest.raises(Refused, match=f"unable to find backend library for backend '{backend}'"):
        server.load(backend)


def test_nothing_answers():
    with pytest.raises(MissingError, match="no Triton server answers here"):
        read_remote("127.0.0.1:9", "m")
