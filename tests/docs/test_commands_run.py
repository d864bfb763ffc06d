"""Every `tritune` command in a code block of the documentation runs, page by page.

A page finds what it speaks of: models, texts, logs, a server at localhost:8000. `tune` and `compare` get a small
budget, and limits on latency are loosened, so that a busy machine fails no page. Only what needs a GPU ends with exit
code 3. A page that takes more than eight minutes fails.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from tooling.repository import cpu_name
from tooling.server import EmbeddedServer, ServerOptions

from ..export.conftest import write_model

pytestmark = pytest.mark.live
ROOT = Path(__file__).resolve().parents[2]
SERVER = "localhost:8000"
LIMIT_S = 480.0
TRITUNE = (sys.executable, "-u", "-c", "from tooling.cli import entry; entry()")
BUDGET = {"tune": "4s", "compare": "3s"}
ELSEWHERE = {
    "commands.md": "usage lines, made from the commands themselves",
    "llm.md": "needs vLLM: `make test-llm`",
    "operate.md": "promotes on a server of its own: tests of `tritune promote`",
}
ANSWERS = ("tune", "compare", "check", "study")  # 1 is an answer of theirs
LINE = re.compile(r"^(?:\$ )?(tritune .*)$", re.MULTILINE)


def _commands(page: Path) -> tuple[str, ...]:
    blocks = re.findall(r"```(?:console|sh|)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return tuple(command.strip() for block in blocks for command in LINE.findall(block.replace("\\\n", " ")))


MEASURING = ("README.md", "measuring.md", "project.md", "scaling.md", "simulator.md", "text.md", "tuning.md")
PAGES = [
    pytest.param(page, id=page.name, marks=pytest.mark.pages if page.name in MEASURING else pytest.mark.long)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if _commands(page) and page.name not in ELSEWHERE
]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory, minilm_repository: Path, minilm_dir: Path) -> Path:
    """What the pages speak of, to be copied for each of them."""
    place = tmp_path_factory.mktemp("shelf")
    for repository in ("quickstart/model_repository", "model_repository", "models", "new_models"):
        for name in ("minilm", "encoder") if repository.endswith("models") else ("minilm",):
            shutil.copytree(minilm_repository / "minilm", place / repository / name)
            config = place / repository / name / "config.pbtxt"
            config.write_text(config.read_text().replace('name: "minilm"', f'name: "{name}"'))
    for name in ("my-encoder", "sentence-transformers/all-MiniLM-L6-v2"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).symlink_to(minilm_dir)
    write_model(place / "my-classifier", "distilbert")
    write_model(place / "clip", "clip-both-text")
    shutil.copy(minilm_repository / "minilm" / "1" / "model.onnx", place / "bert.onnx")
    sentences = (ROOT / "perf" / "data" / "sentences.txt").read_text().splitlines()[:40]
    (place / "texts.txt").write_text("\n".join(sentences))
    rows = [f"{second},{text!r}" for second, text in enumerate(text.replace('"', "") for text in sentences)]
    (place / "requests.csv").write_text("\n".join(["time,text", *rows]))
    tensor = {"datatype": "INT64", "shape": [1, 3], "data": [101, 2023, 102]}
    names = ("input_ids", "attention_mask", "token_type_ids")
    (place / "request.json").write_text(json.dumps({"inputs": [{"name": name, **tensor} for name in names]}))
    return place


@pytest.fixture
def desk(page: Path, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that a page is read in."""
    place = Path(shutil.copytree(shelf, tmp_path / "desk", symlinks=True))
    encoder = place / "models" / "encoder"
    if page.name == "text.md":  # it begins before there is a model
        shutil.rmtree(encoder)
    if page.name == "measuring.md":  # what a tuning on this kind of machine left
        (encoder / "configs").mkdir()
        shutil.copy(encoder / "config.pbtxt", encoder / "configs" / f"{cpu_name()}.pbtxt")
    monkeypatch.chdir(place)
    return place


@pytest.fixture(scope="module")
def served(shelf: Path, runtime: Any) -> Iterator[str]:
    """What stands for the server of the pages."""
    with EmbeddedServer(shelf / "models", runtime, ServerOptions()) as server:
        for name in ("minilm", "encoder"):
            server.load(name)
        yield server.http_url


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: Path, desk: Path, request: pytest.FixtureRequest) -> None:
    end = time.monotonic() + LIMIT_S
    for line in dict.fromkeys(_commands(page)):
        words = shlex.split(line.replace("cpu-2", cpu_name()), comments=True)[1:]
        if SERVER in words:
            words[words.index(SERVER)] = request.getfixturevalue("served")
        if words[0] == "serve":
            _serve_until_ready(words, end - time.monotonic())
            continue
        command = [*TRITUNE, *_affordable(words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=end - time.monotonic())
        allowed = {0, 1} if words[0] in ANSWERS else {3} if _needs_gpu(words) else {0}
        assert done.returncode in allowed, f"{page.name}: {line}\n{done.stdout}{done.stderr}"
        if words[0] == "init":
            _cap_tuning(desk / "tritune.yaml")


def _affordable(words: list[str]) -> list[str]:
    budget = ["--budget", BUDGET[words[0]]] if words[0] in BUDGET and "--budget" not in words else []
    loose = [re.sub(r"p99<\d+ms", "p99<9s", word) for word in words]
    if "--max-p99" in loose:
        loose[loose.index("--max-p99") + 1] = "9s"
    return [*loose, *budget]


def _needs_gpu(words: list[str]) -> bool:
    return "tensorrt" in words and "--print-command" not in words and not shutil.which("nvidia-smi")


def _cap_tuning(project: Path) -> None:
    text = project.read_text(encoding="utf-8")
    capped = re.sub(r"^    # tune: .*$", f"    tune: {{budget: {BUDGET['tune']}}}", text, flags=re.MULTILINE)
    assert capped != text
    project.write_text(capped, encoding="utf-8")


def _serve_until_ready(words: list[str], limit_s: float) -> None:
    """Ready, and ended by SIGTERM, which no shell keeps from what it runs in the background as it does with Ctrl-C."""
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    with subprocess.Popen([*TRITUNE, *words, *ports], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        watch = Timer(limit_s, process.kill)
        watch.start()
        ready = any(line.startswith("  curl") for line in process.stdout)
        process.terminate()
        code = process.wait()
        watch.cancel()
    assert ready and code == 143
