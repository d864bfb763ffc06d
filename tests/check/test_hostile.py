"""Broken and hostile files: findings or a plain error, never a traceback, and never for long."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tooling.check.registry import rules
from tooling.check.report import as_text
from tooling.check.runner import check as judge
from tooling.check.target import Target
from tooling.errors import UsageError
from tooling.releases import current_release

FUZZ = int(os.environ.get("TRITUNE_FUZZ", "200"))
"""A tenth of the repositories that the long test damages; `make fuzz` damages 10,000."""
LONGEST_S = 5
EXAMPLES = [rule.example for rule in rules().values() if "--- request\n" not in rule.example]
PIECES = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"'",
    b":",
    b"\x00",
    b"\xff",
    b"-1",
    b"99999999999999999999",
    b"#",
    b"\n",
    b"inf",
]


def _mutate(data: bytes, source: random.Random) -> bytes:
    """Take out, double, replace or insert a few pieces."""
    for _ in range(source.randint(1, 4)):
        start = source.randint(0, len(data))
        end = min(len(data), start + source.randint(0, 12))
        kind = source.randrange(4)
        if kind == 0:
            data = data[:start] + data[end:]
        elif kind == 1:
            data = data[:start] + source.choice(PIECES) + data[end:]
        elif kind == 2:
            data = data[:end] + data[start:end] + data[end:]
        else:
            data = data[:start] + source.randbytes(source.randint(1, 4)) + data[end:]
    return data


def _damage(seed: int, count: int, strict: bool, write: ModuleType, tmp_path: Path) -> None:
    """Judge so many examples, each with one or two files damaged. What is raised is raised; what takes long fails."""
    source = random.Random(seed)
    target = Target(current_release(), strict=strict, gpus=0)
    for number in range(count):
        made = write.write_example(tmp_path / str(number), source.choice(EXAMPLES))
        files = sorted(path for path in made.path.rglob("*") if path.is_file()) if made.path.is_dir() else [made.path]
        for path in source.sample(files, min(2, len(files))):
            path.write_bytes(_mutate(path.read_bytes(), source))
        started = time.process_time()
        with suppress(UsageError):  # a path that is nothing to judge
            as_text(judge(made.path, target), details=True)
        assert time.process_time() - started < LONGEST_S
        shutil.rmtree(tmp_path / str(number))


@pytest.mark.parametrize("strict", [False, True])
def test_mutated_files_end_in_findings(strict: bool, write: ModuleType, tmp_path: Path) -> None:
    _damage(7, 150, strict, write, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("strict", [False, True])
def test_many_mutated_files_end_in_findings(strict: bool, write: ModuleType, tmp_path: Path) -> None:
    _damage(8, 5 * FUZZ, strict, write, tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.pbtxt", b"\x00" * (50 << 20)),
        ("config.pbtxt", b"input { } " * 26_000),
        ("config.pbtxt", b"dynamic_batching { " * 13_000),
        ("config.pbtxt", b"parameters { key: 'a' value { string_value: '${b}' } } " * 4_700),
        ("1/model.onnx", b"\x08\x01" * (25 << 20)),
        ("1/model.onnx", b"\x0a" * (50 << 20)),
        ("1/model.onnx", b""),
        ("1/model.py", b"(" * 100_000),
        (
            "1/model.py",
            b"class TritonPythonModel:\n    def execute(self, r):\n"
            + b"        a.get_response_sender().send(b)\n" * 5_000,
        ),
    ],
    ids=["zeros", "inputs", "nesting", "placeholders", "fields", "lengths", "empty", "brackets", "calls"],
)
def test_junk_is_told_and_passed(
    name: str, content: bytes, tmp_path: Path, check: Callable[..., dict[str, Any]]
) -> None:
    path = tmp_path / "repository" / "model" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    (path.parents[len(Path(name).parts) - 1] / "1").mkdir(exist_ok=True)
    assert check(tmp_path / "repository")["findings"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.pt", "entries"),
        ("model.pt", "code"),
        ("model.pt", "pickle"),
        ("model.xml", b"<net>" + b"<a/>" * 2_000_000),
        ("model.plan.json", b"[" * 2_000_000),
        ("model.json", b'{"a":' * 400_000),
        ("model.yaml", b"- a\n" * 500_000),
    ],
    ids=["entries", "code", "pickle", "elements", "sidecar", "arguments", "settings"],
)
def test_junk_of_other_backends_is_passed(
    file: str, content: bytes | str, tmp_path: Path, check: Callable[..., dict[str, Any]]
) -> None:
    """Archives of more entries than anybody counts, code and pickles without end, brackets a million deep."""
    configs = {".pt": 'platform: "pytorch_libtorch"', ".xml": 'backend: "openvino"', ".yaml": 'backend: "python"'}
    configs |= {".json": 'backend: "vllm"'} if file == "model.json" else {".json": 'platform: "tensorrt_plan"'}
    version = tmp_path / "repository" / "model" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(configs[Path(file).suffix], encoding="utf-8")
    (version / "model.plan").write_bytes(b"ftrt" + bytes(20) + bytes((10, 5, 0, 0)))
    (version / "model.py").write_text("from tensorrt_llm import LLM\nclass TritonPythonModel: pass", encoding="utf-8")
    if isinstance(content, str):
        with zipfile.ZipFile(version / file, "w") as archive:
            pickle = b"0" * 20_000_000 if content == "pickle" else b"\x80\x02c__torch__\nM\nq\x00)\x81."
            archive.writestr("model/data.pkl", pickle)
            archive.writestr("model/code/__torch__.py", "class M(Module):\n" + "    x = 1\n" * 2_000_000)
        if content == "entries":
            data = (version / file).read_bytes()
            at = data.rindex(b"PK\5\6") + 10
            (version / file).write_bytes(data[:at] + b"\xff\xff" + data[at + 2 :])
    else:
        (version / file).write_bytes(content)
    started = time.process_time()
    check(tmp_path / "repository")
    assert time.process_time() - started < LONGEST_S


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_not_read(kind: str, tmp_path: Path, check: Callable[..., dict[str, Any]]) -> None:
    """Nobody writes to the pipes, and the device never ends."""
    files = [*(f"1/model.{end}" for end in ("onnx", "plan", "xml", "pt", "py", "json", "plan.json"))]
    files += ["warmup/data", "labels.txt"]

    def make(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")

    for number, backend in enumerate(("onnxruntime", "tensorrt", "openvino", "pytorch", "python", "vllm")):
        root = tmp_path / f"{number}"
        for file in files:
            make(root / "written" / file)
        for file in ("unread/config.pbtxt", "compose.yaml", "Dockerfile"):
            make(root / file)
        sample = 'inputs { key: "x" value { data_type: TYPE_STRING dims: [ 1 ] input_data_file: "data" } }'
        (root / "written" / "config.pbtxt").write_text(
            f'backend: "{backend}"\ninput {{ name: "x" data_type: TYPE_STRING dims: [ 1 ] }}\n'
            'output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] label_filename: "labels.txt" }\n'
            f'model_warmup {{ name: "w" batch_size: 1 {sample} }}',
            encoding="utf-8",
        )
        found = {finding["rule"] for finding in check(root)["findings"]}
        assert "config-unreadable" in found
        assert ("model-file-not-regular" in found) == (backend != "vllm")


def test_loops_of_links_and_odd_names(tmp_path: Path, check: Callable[..., dict[str, Any]]) -> None:
    root = tmp_path / "repository"
    for name in ("loop", "a b", "é", "..odd", "it's"):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text('backend: "python"\nlabels: 1', encoding="utf-8")
    (root / "loop" / "1" / "model.onnx").symlink_to("model.onnx")
    (root / "loop" / "config.pbtxt").unlink()
    (root / "loop" / "config.pbtxt").symlink_to("config.pbtxt")
    (root / "self").symlink_to(".")
    (root / "gone").symlink_to("nowhere")
    data = check(root)
    assert {"loop", "a b", "é", "..odd", "it's", "self"} == set(data["models"])
    assert next(finding["rule"] for finding in data["findings"] if finding["model"] == "loop") == "config-unreadable"


def test_nothing_is_executed_or_unpickled(tmp_path: Path, check: Callable[..., dict[str, Any]]) -> None:
    """Code and pickles that would leave a mark."""
    mark = tmp_path / "mark"
    code = f"open({str(mark)!r}, 'w').close()\nclass TritonPythonModel: pass\n"
    pickle = f"cposix\nsystem\n(S'touch {mark}'\ntR.".encode()
    for name, file, content in (("python", "model.py", code.encode()), ("torch", "model.pt", pickle)):
        path = tmp_path / "repository" / name / "1" / file
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    check(tmp_path / "repository")
    assert not mark.exists()


def test_a_model_with_its_weights_outside_is_read_without_them(
    write: ModuleType, tmp_path: Path, check: Callable[..., dict[str, Any]]
) -> None:
    """A sparse file of three gigabytes stands for the weights; nobody reads it."""
    path = write.write_model(
        tmp_path / "repository" / "big" / "1" / "model.onnx", f"{write.MODEL} external weights.data"
    )
    with path.with_name("weights.data").open("wb") as weights:
        weights.truncate(3 << 30)
    assert check(tmp_path / "repository")["counts"]["error"] == 0


def test_a_model_that_no_session_takes_prints_nothing(
    write: ModuleType, tmp_path: Path, run_cli: Callable[..., Any]
) -> None:
    """ONNX Runtime names the operator it does not know, in bytes that are no text; its Python side prints on that."""
    path = write.write_model(tmp_path / "repository" / "odd" / "1" / "model.onnx", write.MODEL)
    path.write_bytes(path.read_bytes().replace(b"Unique", b"Uniqu\xff"))
    result = run_cli("check", tmp_path / "repository", "--json")
    assert json.loads(result.out)["error"] is None
    assert result.err == ""


@pytest.fixture
def unprivileged() -> Iterator[Callable[[], None]]:
    """A call that takes root's right to read everything away; done by the end."""
    own = os.geteuid()
    yield lambda: os.seteuid(65534 if own == 0 else own)
    os.seteuid(own)


def test_what_may_not_be_read_is_told(unprivileged: Callable[[], None], check: Callable[..., dict[str, Any]]) -> None:
    """One model each: a config, the directory, a version, a file, its labels; the others are judged all the same."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder) / "repository"
        closed = ("config/config.pbtxt", "directory", "version/1", "file/1/model.py", "labels/texts")
        for name in ("config", "directory", "version", "file", "labels", "open"):
            (root / name / "1").mkdir(parents=True)
            (root / name / "texts").mkdir()
            (root / name / "1" / "model.py").write_text("class TritonPythonModel: pass", encoding="utf-8")
            output = 'output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] label_filename: "texts/y" }'
            text = f'backend: "python"\n{output if name == "labels" else ""}'
            (root / name / "config.pbtxt").write_text(text, encoding="utf-8")
        check(root)  # what is imported now need not be found later
        Path(folder).chmod(0o755)
        for name in closed:
            (root / name).chmod(0)
        unprivileged()
        findings = check(root)["findings"]
        os.seteuid(os.getuid())
        for name in closed:
            (root / name).chmod(0o755)
    told = {f["model"]: f["message"] for f in findings if f["model"] and f["severity"] == "error"}
    assert told == {
        "config": "config.pbtxt cannot be read: Permission denied",
        "directory": "directory/ cannot be read: Permission denied",
        "version": "version/1/ cannot be read: Permission denied",
        "file": "cannot be read: Permission denied",
        "labels": "texts/y not found in labels/ (labels of output y)",
    }
