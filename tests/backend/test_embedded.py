"""What the backend does inside the real server: its answers, its batches, its refusals."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tooling.errors import Refused
from tooling.repository import read_config
from tooling.runtime import Runtime
from tooling.runtime.location import site_packages
from tooling.server import EmbeddedServer

pytestmark = pytest.mark.live

PAIR = {"a": ["FP32", "batch", "w"], "b": ["FP32", "batch", "w"]}
PAIR_OUTPUTS = {"sum": ["FP32", "batch", "w"], "prod": ["FP32", "batch", "w"]}
PAIR_CONFIG = """
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "a" data_type: TYPE_FP32 dims: [-1] }, { name: "b" data_type: TYPE_FP32 dims: [-1] } ]
output [ { name: "sum" data_type: TYPE_FP32 dims: [-1] }, { name: "prod" data_type: TYPE_FP32 dims: [-1] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { max_queue_delay_microseconds: 100000 }
"""
RAGGED_CONFIG = """
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [-1] } ]
batch_input [ {
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "n" data_type: TYPE_FP32 source_input: "x"
} ]
batch_output [ { target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { max_queue_delay_microseconds: 100000 }
"""
SEQUENCE_CONFIG = """
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [1] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [1] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
sequence_batching {
  control_input [ { name: "start" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] } ]
}
"""
STATE_CONFIG = """
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "a" data_type: TYPE_FP32 dims: [-1] } ]
output [ { name: "prod" data_type: TYPE_FP32 dims: [-1] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
sequence_batching { state [ { input_name: "b" output_name: "sum" data_type: TYPE_FP32 dims: [8] } ] }
"""
REFERENCE = """
import sys
import numpy as np
import onnxruntime as ort

model, feeds, answers = sys.argv[1:]
options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(model, options)
cases = {}
for key, array in np.load(feeds).items():
    case, _, name = key.partition("/")
    cases.setdefault(case, {})[name] = array
np.savez(answers, **{case: session.run(["embeddings"], feed)[0] for case, feed in cases.items()})
"""


@pytest.fixture(scope="module")
def repository(
    tmp_path_factory: pytest.TempPathFactory,
    minilm_repository: Path,
    add_and_multiply: Callable[..., Path],
    write_onnx: Callable[..., Path],
) -> Path:
    root = tmp_path_factory.mktemp("embedded")
    (root / "minilm").symlink_to(minilm_repository / "minilm")
    for name, config in {"pair": PAIR_CONFIG, "state": STATE_CONFIG}.items():
        add_and_multiply(root / name / "1" / "model.onnx", PAIR, PAIR_OUTPUTS)
        (root / name / "config.pbtxt").write_text(config)
    one_axis = {"x": ["FP32", "total"], "n": ["FP32", "requests"]}
    add_and_multiply(
        root / "ragged" / "1" / "model.onnx", one_axis, {"y": ["FP32", "total"], "cnt": ["FP32", "requests"]}
    )
    (root / "ragged" / "config.pbtxt").write_text(RAGGED_CONFIG)
    column = ["FP32", "batch", 1]
    adding = ([("Add", ["x", "start"], "y")], {"x": column, "start": column}, {"y": column})
    write_onnx(root / "sequence" / "1" / "model.onnx", *adding)
    (root / "sequence" / "config.pbtxt").write_text(SEQUENCE_CONFIG)
    texts = {"x": ["STRING", "batch", 2]}
    write_onnx(root / "text" / "1" / "model.onnx", [("Identity", ["x"], "y")], texts, {"y": ["STRING", "batch", 2]})
    numbers = ({"x": ["FP32", "batch", 2]}, {"y": ["FP32", "batch", 2]})
    write_onnx(root / "newer_opset" / "1" / "model.onnx", [("Identity", ["x"], "y")], *numbers, opset=23)
    write_onnx(root / "newer_ir" / "1" / "model.onnx", [("Identity", ["x"], "y")], *numbers, ir_version=11)
    return root


@pytest.fixture(scope="module")
def server(repository: Path, runtime: Runtime) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(repository, runtime) as running:
        yield running


@pytest.fixture(scope="module")
def infer(server: EmbeddedServer) -> Iterator[Callable[..., Any]]:
    """One request over gRPC: `infer(model, inputs, outputs=…)`, with the client's own options after them."""
    import tritonclient.grpc as grpc_client
    from tritonclient.utils import np_to_triton_dtype

    client = grpc_client.InferenceServerClient(server.grpc_url)

    def call(model: str, inputs: dict[str, Any], outputs: tuple[str, ...] = (), **more: Any) -> Any:
        given = []
        for name, array in inputs.items():
            given.append(grpc_client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
            given[-1].set_data_from_numpy(array)
        asked = [grpc_client.InferRequestedOutput(name) for name in outputs] or None
        return client.infer(model, given, outputs=asked, client_timeout=30, **more)

    yield call
    client.close()


def test_answers_equal_onnxruntime_bit_for_bit(
    server: EmbeddedServer, infer: Callable[..., Any], repository: Path, runtime: Runtime, tmp_path: Path
) -> None:
    config = read_config(repository / "minilm")
    config.parameters["intra_op_thread_count"].string_value = "1"
    server.load("minilm", config)
    random = np.random.default_rng(7)
    feeds = {}
    for batch, length in [(1, 32), (3, 17), (8, 128)]:
        mask = np.ones((batch, length), np.int64)
        mask[-1, length // 2 :] = 0
        ids = random.integers(1000, 20000, (batch, length))
        feeds[f"{batch}x{length}"] = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    np.savez(tmp_path / "feeds.npz", **{f"{case}/{n}": a for case, feed in feeds.items() for n, a in feed.items()})
    model = repository / "minilm" / "1" / "model.onnx"
    command = [runtime.python, "-I", "-c", REFERENCE, model, tmp_path / "feeds.npz", tmp_path / "answers.npz"]
    subprocess.run(command, check=True, timeout=60)
    expected = np.load(tmp_path / "answers.npz")
    for case, feed in feeds.items():
        assert np.array_equal(infer("minilm", feed).as_numpy("embeddings"), expected[case]), case


def test_concurrent_requests_batch_and_each_gets_its_own_answer(
    server: EmbeddedServer,
    infer: Callable[..., Any],
    settled: Callable[..., Any],
    counts: Callable[..., tuple[int, int]],
) -> None:
    server.load("pair")
    rows, executions = counts(server, "pair")

    def ask(index: int) -> None:
        rows = 1 + index % 3
        a = np.full((rows, 8), index, np.float32)
        b = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8)
        answer = infer("pair", {"a": a, "b": b}, request_id=f"request-{index}")
        assert answer.get_response().id == f"request-{index}"
        assert np.array_equal(answer.as_numpy("sum"), a + b)
        assert np.array_equal(answer.as_numpy("prod"), a * b)

    with ThreadPoolExecutor(24) as pool:
        assert len(list(pool.map(ask, range(24)))) == 24
    asked = rows + 48  # 8 requests each of 1, 2 and 3 rows
    assert settled(lambda: counts(server, "pair")[0], asked) == asked
    assert counts(server, "pair")[1] - executions < 24


def test_only_what_was_asked_for_comes_back(server: EmbeddedServer, infer: Callable[..., Any]) -> None:
    server.load("pair")
    one = np.ones((1, 4), np.float32)
    answer = infer("pair", {"a": one, "b": one}, outputs=("prod",))
    assert [output.name for output in answer.get_response().outputs] == ["prod"]


def test_a_failing_run_answers_with_onnxruntimes_text_and_the_model_goes_on(
    server: EmbeddedServer, infer: Callable[..., Any]
) -> None:
    from tritonclient.utils import InferenceServerException

    server.load("pair")
    three, four = np.ones((1, 3), np.float32), np.ones((1, 4), np.float32)
    with pytest.raises(InferenceServerException, match=r"onnx runtime error 6: Non-zero status code .*3 by 4"):
        infer("pair", {"a": three, "b": four})
    assert infer("pair", {"a": four, "b": four}).as_numpy("sum").tolist() == [[2.0] * 4]


def test_ragged_requests_run_together_and_are_cut_apart(
    server: EmbeddedServer,
    infer: Callable[..., Any],
    settled: Callable[..., Any],
    counts: Callable[..., tuple[int, int]],
) -> None:
    server.load("ragged")
    rows, executions = counts(server, "ragged")
    requests = [np.full((1, 2 + index), index, np.float32) for index in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda x: infer("ragged", {"x": x}).as_numpy("y"), requests))
    for request, answer in zip(requests, answers, strict=True):
        assert np.array_equal(request, answer)
    assert settled(lambda: counts(server, "ragged")[0], rows + 4) == rows + 4
    assert counts(server, "ragged")[1] - executions < 4


def test_text_passes_unchanged(server: EmbeddedServer, infer: Callable[..., Any]) -> None:
    server.load("text")
    text = np.array([["plain", "žluťoučký kůň"]], dtype=np.object_)
    assert [word.decode() for word in infer("text", {"x": text}).as_numpy("y")[0]] == text[0].tolist()


def test_sequence_controls_reach_the_model(server: EmbeddedServer, infer: Callable[..., Any]) -> None:
    server.load("sequence")
    five = np.array([[5.0]], np.float32)
    first = infer("sequence", {"x": five}, sequence_id=9, sequence_start=True)
    last = infer("sequence", {"x": five}, sequence_id=9, sequence_end=True)
    assert (first.as_numpy("y").item(), last.as_numpy("y").item()) == (6.0, 5.0)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("newer_opset", r"onnx runtime error 1: Load model from .* Opset 23 is under development"),
        ("newer_ir", r"onnx runtime error 1: Load model from .*Unsupported model IR version: 11, max supported .*: 10"),
        ("state", "implicit state is not supported"),
    ],
)
def test_what_this_release_cannot_run_is_refused(server: EmbeddedServer, model: str, text: str) -> None:
    with pytest.raises(Refused, match=text):
        server.load(model)


def test_new_numpy_in_the_runtime_is_refused(repository: Path, runtime: Runtime, tmp_path: Path) -> None:
    with (
        EmbeddedServer(repository, _with_numpy_2(runtime, tmp_path)) as server,
        pytest.raises(Refused, match=r"numpy 2\.\S+ in the server's environment corrupts tensors.*runtime install"),
    ):
        server.load("pair")


def _with_numpy_2(runtime: Runtime, directory: Path) -> Runtime:
    """The same runtime with another numpy: its environment linked file by file, numpy 2 in place of its own."""
    old = site_packages(runtime.root)
    new = directory / "venv" / old.relative_to(runtime.root / "venv")
    new.mkdir(parents=True)
    for entry in old.iterdir():
        if not entry.name.startswith("numpy"):
            (new / entry.name).symlink_to(entry)
    if old.parent.name == f"python3.{sys.version_info.minor}" and np.__version__ >= "2":
        for entry in Path(np.__file__).parents[1].glob("numpy*"):
            (new / entry.name).symlink_to(entry)
    else:
        pip = [runtime.python, "-m", "pip", "install", "-q", "--no-deps", "--target", new, "numpy>=2,<3"]
        subprocess.run(pip, check=True, timeout=120)
    (directory / "venv" / "pyvenv.cfg").write_bytes((runtime.root / "venv" / "pyvenv.cfg").read_bytes())
    (directory / "venv" / "bin").mkdir()
    for name in ("python", "python3"):
        (directory / "venv" / "bin" / name).symlink_to(os.path.realpath(runtime.python))
    return dataclasses.replace(runtime, python=directory / "venv" / "bin" / "python")
