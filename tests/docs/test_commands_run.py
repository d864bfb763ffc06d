"""Every `tritune` command in a code block of the documentation runs, page by page; the others are accounted for.

A page finds what it speaks of: models, texts, logs, a server at localhost:8000 with clients. `tune` and `compare` get a
small budget, a promotion passes no gate that measures and is watched for a moment, limits on latency are loose: a busy
machine fails no page. Only what needs a GPU ends with exit code 3. A command that takes more than five minutes fails.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import pytest

from tooling.repository import cpu_name
from tooling.server import EmbeddedServer, ServerOptions

from ..export.conftest import write_model
from .blocks import commands

pytestmark = pytest.mark.live
ROOT = Path(__file__).resolve().parents[2]
SERVER = "localhost:8000"
LIMIT_S = 300.0
TRITUNE = (sys.executable, "-u", "-c", "from tooling.cli import entry; entry()")
BUDGET = {"tune": "4s", "compare": "3s"}
ROLLOUT = ("promote", "rollback", "drift")
"""They ask the server at localhost:8000 without being told so."""
TRIAL_S = 45
"""Long enough for a hundred requests to a share of 5 %."""
ELSEWHERE = {"commands.md": "usage lines, made from the commands themselves"}
WITH_VLLM = ("tune", "quality", "openai")
"""Commands of llm.md that ask a real engine: tests/llm run them (`make test-llm`), and tests/perf/test_aiperf.py what
AIPerf is for."""
ANSWERS = ("tune", "compare", "check", "study", "drift")  # 1 is an answer of theirs
LINE = re.compile(r"^(?:\$ )?((?:tritune|cp|mkdir|curl) .*)$", re.MULTILINE)


def _commands(page: Path) -> tuple[str, ...]:
    found = [line.strip() for block in commands(page) for line in LINE.findall(block.code)]
    return tuple(one for one in found if not (page.name == "llm.md" and one.split()[1] in WITH_VLLM))


MEASURING = (
    *("README.md", "limits.md", "measuring.md", "operate.md", "project.md", "scaling.md", "simulator.md", "text.md"),
    "tuning.md",
)
PAGES = [
    pytest.param(page, id=page.name, marks=pytest.mark.pages if page.name in MEASURING else pytest.mark.long)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if _commands(page) and page.name not in ELSEWHERE
]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory, minilm_repository: Path, minilm_dir: Path) -> Path:
    """What the pages speak of, to be copied for each of them."""
    place = tmp_path_factory.mktemp("shelf")
    mini, both = ("minilm",), ("minilm", "encoder")
    repositories = {"quickstart/model_repository": mini, "model_repository": mini, "models": both, "new_models": both}
    for repository, names in {**repositories, "new": ("encoder",)}.items():
        for name in names:
            shutil.copytree(minilm_repository / "minilm", place / repository / name)
            config = place / repository / name / "config.pbtxt"
            config.write_text(config.read_text().replace('name: "minilm"', f'name: "{name}"'))
    for name in ("my-encoder", "sentence-transformers/all-MiniLM-L6-v2"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).symlink_to(minilm_dir)
    write_model(place / "my-classifier", "distilbert")
    write_model(place / "clip", "clip-both-text")
    shutil.copy(minilm_repository / "minilm" / "1" / "model.onnx", place / "bert.onnx")
    (place / "sbert_onnx").mkdir()  # as Optimum leaves it
    for file in (minilm_repository / "minilm" / "1" / "model.onnx", minilm_dir / "tokenizer.json"):
        shutil.copy(file, place / "sbert_onnx")
    sentences = (ROOT / "perf" / "data" / "sentences.txt").read_text().splitlines()[:40]
    (place / "texts.txt").write_text("\n".join(sentences))
    rows = [f"{second},{text!r}" for second, text in enumerate(text.replace('"', "") for text in sentences)]
    (place / "requests.csv").write_text("\n".join(["time,text", *rows]))
    tensor = {"datatype": "INT64", "shape": [1, 3], "data": [101, 2023, 102]}
    names = ("input_ids", "attention_mask", "token_type_ids")
    (place / "request.json").write_text(json.dumps({"inputs": [{"name": name, **tensor} for name in names]}))
    _write_llama(place / "Llama-3.1-8B", minilm_dir)
    (place / "docs").mkdir()
    (place / "docs" / "examples").symlink_to(ROOT / "docs" / "examples")
    return place


def _write_llama(place: Path, tokenizer_dir: Path) -> None:
    """What `gen-config --llm` reads of it: its figures and a tokenizer."""
    place.mkdir()
    figures = {
        "architectures": ["LlamaForCausalLM"],
        "torch_dtype": "bfloat16",
        "eos_token_id": 128001,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "vocab_size": 128256,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    }
    (place / "config.json").write_text(json.dumps(figures))
    shutil.copy(tokenizer_dir / "tokenizer.json", place)


@pytest.fixture
def desk(page: Path, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that a page is read in."""
    place = Path(shutil.copytree(shelf, tmp_path / "desk", symlinks=True))
    encoder = place / "models" / "encoder"
    if page.name in ("limits.md", "text.md"):  # they begin before there is a model
        shutil.rmtree(encoder)
    if page.name == "measuring.md":  # what a tuning on this kind of machine left
        (encoder / "configs").mkdir()
        shutil.copy(encoder / "config.pbtxt", encoder / "configs" / f"{cpu_name()}.pbtxt")
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def served(page: Path, desk: Path, runtime: Any) -> Iterator[EmbeddedServer]:
    """What stands for the server of the pages, and the clients that it has."""
    with EmbeddedServer(desk / "models", runtime, ServerOptions()) as server:
        for name in ("minilm", "encoder"):
            server.load(name)
        if page.name == "review.md":  # the answers of a promotion are what it looks at again
            promote = ["promote", "models/encoder", "new/encoder", "--url", server.http_url, "--hold", "0s"]
            assert _ended([*TRITUNE, *promote, "--skip", "slo", "--skip", "ab"])[0] == 0
        with _clients(server.grpc_url, desk / "models" / "encoder.split.json"):
            yield server


@contextmanager
def _clients(url: str, split: Path) -> Iterator[None]:
    """Two that ask the encoder again and again while a part of its traffic goes to a version on trial."""
    over = Event()

    async def ask() -> None:
        from perf.client import Client

        names = ("input_ids", "attention_mask", "token_type_ids")
        inputs = {name: [[1, 1, 1]] for name in names}
        async with Client(url, "encoder", split=split) as client:
            while not over.is_set():
                if split.exists():
                    await asyncio.gather(*(client.infer(inputs, timeout_s=30) for _ in range(2)))
                else:
                    await asyncio.sleep(0.1)

    thread = Thread(target=lambda: asyncio.run(ask()))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: Path, desk: Path, request: pytest.FixtureRequest) -> None:
    took: list[str] = []
    for line in dict.fromkeys(_commands(page)):
        program, *words = shlex.split(line.replace("cpu-2", cpu_name()), comments=True)
        needed = SERVER in line or words[0] in ROLLOUT or program == "curl"
        server = request.getfixturevalue("served") if needed else None
        url = server.http_url if server else SERVER
        words = [url if word == SERVER else word for word in words]
        begun = time.monotonic()
        if program != "tritune":
            code, said = _ended(["/bin/sh", "-c", _shell(line, server)])
        elif words[0] == "serve":
            code, said = _ended_when_ready(words)
        else:
            code, said = _ended([*TRITUNE, *_affordable(words, url)])
        took.append(f"{time.monotonic() - begun:.0f} s: {line}")
        allowed = {0, 1} if words[0] in ANSWERS else {3} if _needs_gpu(words) else {0}
        assert code in allowed, "\n".join([f"{page.name}: {line}", said, *took])
        if words[0] == "init":
            _cap_tuning(desk / "tritune.yaml")


def _ended(command: list[str]) -> tuple[int, str]:
    """The exit code, and what was said."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends what it has begun
            said, _ = process.communicate()
            said = f"{said}\nthere was no end after {LIMIT_S:.0f} s"
    return process.returncode, said


def _shell(line: str, server: EmbeddedServer | None) -> str:
    """What a shell is to run, at the addresses of the server."""
    if server is not None:
        line = line.replace(SERVER, server.http_url).replace("localhost:8002", server.metrics_url)
    return line.replace("MODEL", "minilm")


def _affordable(words: list[str], url: str) -> list[str]:
    budget = ["--budget", BUDGET[words[0]]] if words[0] in BUDGET and "--budget" not in words else []
    loose = [re.sub(r"p99<\d+ms", "p99<9s", word) for word in words]
    if "--max-p99" in loose:
        loose[loose.index("--max-p99") + 1] = "9s"
    if words[0] in ROLLOUT:
        budget = ["--url", url]
    if words[0] == "promote":  # these gates measure, which takes a calm machine and longer than a page may
        budget += ["--skip", "slo", "--skip", "ab", *([] if "--hold" in words else ["--hold", "2s"])]
    if "--percent" in loose:  # two clients send the 100 requests that a trial needs in the time of TRIAL_S
        at = loose.index("--percent") + 1
        loose[at] = str(min(90, int(loose[at]) + 25))
    for option, seconds in (("--hold", TRIAL_S), ("--for", 3)):
        if option in loose:
            loose[loose.index(option) + 1] = f"{seconds}s"
    return [*loose, *budget]


def _needs_gpu(words: list[str]) -> bool:
    return "tensorrt" in words and "--print-command" not in words and not shutil.which("nvidia-smi")


def _cap_tuning(project: Path) -> None:
    text = project.read_text(encoding="utf-8")
    capped = re.sub(r"^    # tune: .*$", f"    tune: {{budget: {BUDGET['tune']}}}", text, flags=re.MULTILINE)
    assert capped != text
    project.write_text(capped, encoding="utf-8")


def _ended_when_ready(words: list[str]) -> tuple[int, str]:
    """Ready, and ended by SIGTERM, which no shell keeps from what it runs in the background as it does with Ctrl-C.

    0 where it was ready and ended as a program that is asked to; else its own exit code.
    """
    command = [*TRITUNE, *words, *(f"--{name}-port=0" for name in ("http", "grpc", "metrics"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        watch = Timer(LIMIT_S, process.terminate)
        watch.start()
        said, ready = "", False
        for line in process.stdout:
            said += line
            if line.startswith("  curl"):
                ready = True
                process.terminate()
        code = process.wait()
        watch.cancel()
    return (0 if ready and code == 143 else code or 1), said
