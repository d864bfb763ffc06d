"""Random command lines over odd files, in process: an exit code of the table, no traceback, one object with --json.

Nothing here can serve, download or install: there is no runtime, no package index and no model hub, and every URL is
that of a closed port. `TRITUNE_FUZZ` is the number of command lines.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from ..every_command import every_command

FUZZ = int(os.environ.get("TRITUNE_FUZZ", "40"))
CODES = {0, 1, 2, 3, 4, 130, 143}
LONGEST_S = 60

CONFIG = 'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 8\ndynamic_batching { }\n'
PROJECT = "version: 1\nmodels: {m: {config: {max_batch_size: 4}, tune: false}}\ndeploy: {compose: {gpus: none}}\n"
FILES = {
    "tritune.yaml": PROJECT.encode(),
    "workload.yaml": b"concurrency: 4\nlengths: [5, 6]\n",
    "texts.txt": b"one text\nanother one\n",
    "log.csv": b"time,tokens,text\n1,5,a\n3,7,b\n2,6,c\n",
    "study/study.jsonl": b'{"record": "header", "schema_version": 2, "workload": {"concurrency": 8}}\n',
    "no-study/study.jsonl": b'{"record": "header"}\n{"record": 1}\n[2]\n',
    "curve.json": b'{"schema_version": 1, "runs": [], "tool": {}, "server": {}, "host": {}, "model": {}}',
    "hf/config.json": b'{"model_type": "bert", "architectures": ["BertModel"], "hidden_size": "x"}',
    "engine/config.json": b'{"version": "0.14.0", "build_config": {"max_batch_size": null}, "pretrained_config": []}',
    "template.json": b'{"max_batch_size": 1e400}',
    "empty": b"",
    "binary": bytes(range(256)) * 40,
    "latin-1.yaml": b"owner: caf\xe9\n",
    "deep.json": b"[" * 50_000,
    "deep.yaml": b"a: " + b"{a: " * 500,
    "scalar.yaml": b"42\n",
    "nulls.json": b'{"a": null, "record": null, "runs": null, "models": null}',
    "twice.yaml": b"models: {m: {}, m: {}}\nmodels: 3\nversion: .inf\n",
    "alias.yaml": b"a: &a [*a]\nmodels: *a\n",
    "no model.onnx": b"\x08\x08\x12\xff\xff\xff\xff\x0f",
    "half.plan": b"ftrt" + b"\xff" * 20,
    "model.pt": b"PK\x03\x04" + b"\x00" * 40,
    "kl\u00e4rung und mehr.txt": "größe\n\ud83d".encode("utf-8", "surrogatepass"),
}  # fmt: skip
WORDS = (
    "m", "nope", "x,y", "1,2", "0", "-1", "1.5", "9" * 400, "1e400", "nan", "-inf", "١", "8", "2ms", "1GiB", "0s",
    "p99<50ms", "p99<50ms,throughput", "<", "a=b", "=", "max_batch_size=4", "dynamic_batching.x=1", "input[9].name=1",
    "x:INT64:-1", "x:FP32:1,2", ":", "24.10", "99.99", "24.1", "..", "*", "\udcff", "a\x00b", "a\nb", "\u202e", "--",
    "-", "x" * 5000, "file:///etc", "{}", "[", "'", "$(id)", "%s", "all", "none", "auto", "json", "text", "10,20,30",
)  # fmt: skip
URLS = ("127.0.0.1:1", "http://127.0.0.1:1", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "http://", "[", "::1", ":")
NUMBERS = ("0", "1", "2", "8", "64", "-1", "2.5", "1000000", "9" * 20)
RIGHT = (
    "model_repository", "model_repository/m", "model_repository/m/1/model.onnx", "study", "curve.json", "texts.txt",
    "log.csv", "hf", "workload.yaml", "tritune.yaml",
)  # fmt: skip
GLOBALS = ("-q", "-v", "--no-progress")
ALONE = {
    "HF_HUB_OFFLINE": "1",
    "PIP_NO_INDEX": "1",
    "TRITUNE_RUNTIME": "nowhere/runtime",
    "XDG_CACHE_HOME": "cache",
}


class Hung(BaseException):
    """A command line took longer than any of these may."""


@pytest.fixture(scope="module")
def commands() -> list[tuple[list[str], list[tuple[list[str], str, bool]], int]]:
    """Of every command: its words, its options (names, help, whether a flag), its number of arguments."""
    found = []
    for words, command, context in every_command():
        options = [p for p in command.params if p.param_type_name == "option"]
        told = [([*p.opts, *p.secondary_opts], (p.get_help_record(context) or ("",))[0], p.is_flag) for p in options]
        found.append((words, told, len(command.params) - len(options)))
    return found


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with files of all kinds, right ones among them."""
    root = tmp_path_factory.mktemp("clean") / "some files"
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (root / "model_repository" / "m" / "1").mkdir(parents=True)
    onnx.save(model, root / "model_repository" / "m" / "1" / "model.onnx")
    (root / "model_repository" / "m" / "config.pbtxt").write_text(CONFIG)
    (root / "model_repository" / "other" / "1").mkdir(parents=True)
    (root / "model_repository" / "other" / "config.pbtxt").write_bytes(b'name: "\xff" max_batch_size: -1 {{{')
    for name in ("loop", "/dev/null", "/dev/zero", "/dev/full", "/proc/self/mem"):
        (root / Path(name).name).symlink_to(name)
    os.mkfifo(root / "pipe")
    return root


def paths_in(root: Path) -> list[str]:
    return [*sorted(str(path.relative_to(root)) for path in root.rglob("*")), ".", "nowhere/at/all", "empty/below"]


def draw(rng: random.Random, commands: list[Any], paths: list[str]) -> list[str]:
    """A command line: mostly real options, with values of the right kind as often as of a wrong one."""
    words, options, arguments = rng.choice(commands)

    def value(told: str) -> str:
        choices = re.findall(r"(?<=[\[|])[\w.-]+(?=[|\]])", told)
        if "url" in told:
            return rng.choice(URLS)
        if choices and rng.random() < 0.8:
            return rng.choice(choices)
        if re.search("<int|<float|INTEGER|FLOAT", told) and rng.random() < 0.9:
            return rng.choice(NUMBERS)
        if re.search("path|FILE|DIR", told) and rng.random() < 0.8:
            return rng.choice(RIGHT if rng.random() < 0.5 else paths)
        return rng.choice(WORDS)

    line = []
    for names, told, is_flag in rng.sample(options, min(len(options), rng.randrange(5))):
        name = rng.choice(names)
        line += [name] if is_flag else [f"{name}={value(told)}"] if rng.random() < 0.1 else [name, value(told)]
    for _ in range(rng.choice((arguments, arguments, arguments, rng.randrange(3)))):
        line.insert(rng.randrange(len(line) + 1) if rng.random() < 0.1 else 0, value("path"))
    if words[0] in ("quickstart", "runtime"):  # these take minutes however little is asked for
        line.insert(0, "--nope")
    line = [*words, *line] if rng.random() < 0.98 else [rng.choice(WORDS), *words]
    for flag in GLOBALS:
        if rng.random() < 0.1:
            line.insert(rng.randrange(len(line) + 1), flag)
    return [*line, "--json"] if rng.random() < 0.5 and "--" not in line else line


def damage(rng: random.Random, root: Path) -> None:
    """Now and then one of the right files is cut, or some of its bytes are others."""
    files = sorted(path for name in RIGHT for path in [root / name, *(root / name).rglob("*")] if path.is_file())
    file = rng.choice(files)
    content = bytearray(file.read_bytes())
    if rng.random() < 0.6:
        return
    for _ in range(rng.randrange(1, 4)):
        content[rng.randrange(len(content))] = rng.choice((0, 9, 10, 34, 45, 48, 58, 91, 123, 125, 200, 255))
    file.write_bytes(content[: rng.randrange(len(content))] if rng.random() < 0.2 else content)


def wrong_with(argv: list[str], code: int, out: str, err: str) -> str | None:
    if code not in CODES:
        return f"exit code {code}"
    if "Traceback" in out + err:
        return "a traceback"
    if "--json" in argv:
        lines = out.splitlines()
        if len(lines) != 1 or json.loads(lines[0])["exit_code"] != code:
            return "stdout is not exactly one object"
    if code > 1 and "doctor" not in argv:  # whose result is what is missing
        if out and "--json" not in argv:
            return "text on stdout though there is no result"
        if not err:
            return "no message"
    return None


def test_no_command_line_breaks_the_tool(commands, clean, tmp_path, run_cli, monkeypatch) -> None:
    def hung(*_: Any) -> None:
        raise Hung

    for name, setting in ALONE.items():
        monkeypatch.setenv(name, setting)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    before = signal.signal(signal.SIGALRM, hung)
    paths, failed = paths_in(clean), []
    for number in range(FUZZ):
        root = tmp_path / "some files"
        shutil.copytree(clean, root, symlinks=True, copy_function=copy)
        monkeypatch.chdir(root)
        rng = random.Random(number)
        argv = draw(rng, commands, paths)
        damage(rng, root)
        signal.alarm(LONGEST_S)
        try:
            code, out, err = run_cli(*argv)
            wrong = wrong_with(argv, code, out, err)
        except Hung:
            wrong, err = f"no end after {LONGEST_S} s", ""
        finally:
            signal.alarm(0)
        if wrong:
            failed.append(f"{number}: {wrong}: tritune {shlex.join(argv)!r}\n{err[-1500:]}")
        shutil.rmtree(root)
    signal.signal(signal.SIGALRM, before)
    assert not failed, f"{len(failed)} of {FUZZ}\n" + "\n".join(failed)


def copy(source: str, target: str) -> None:
    if Path(source).is_fifo():
        os.mkfifo(target)
    else:
        shutil.copyfile(source, target)
