"""The four ways to serve texts, on one server, and what the reference library says to the same texts."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.quiet import quiet
from export.text_pipeline import TextOptions, write_text_pipeline
from export.verify import open_session
from tooling.cli import main
from tooling.console import Console
from tooling.server import EmbeddedServer, ServerOptions

ROOT = Path(__file__).parents[3]
SILENT = Console(quiet=True)
BUCKETS = (16, 32, 64, 256)
WAYS = {
    "free": TextOptions(),
    "bucketed": TextOptions("buckets", edges=BUCKETS),
    "merged": TextOptions("merged"),
    "routed": TextOptions("models", edges=BUCKETS),
}
LONG = "The parcel arrived two days late, and the box was open. " * 60
ODD = [
    "",
    " ",
    "\0",
    "a\0b\0",
    LONG,
    "多言語の文章です。",
    "Ünïcödé – naïve façade",
    "مرحبا بالعالم",
    "🙂🙃👩‍👩‍👧",
    "[MASK] [SEP]",
]
INVALID = [b"\xff\xfe", b"caf\xe9 au lait", b"\xe4\xb8", b"\xed\xa0\x80 half of a pair"]


def real_sentences() -> list[str]:
    """200 sentences: the bundled ones, then those of the documentation."""
    from perf.lengths import sentences

    found = list(sentences())
    for page in sorted((ROOT / "docs").glob("*.md")):
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        plain = (" ".join(part.split()) for part in prose.split("\n\n") if not part.startswith(("#", "|", "-", " ")))
        found += [s for part in plain for s in re.split(r"(?<=[.:;]) ", part) if len(s.split()) > 2]
    assert len(found) >= 200
    return found[:200]


@pytest.fixture(scope="session")
def texts() -> list[bytes]:
    """200 real sentences, then odd strings, then some that are not UTF-8."""
    return [*(text.encode() for text in (*real_sentences(), *ODD)), *INVALID]


@pytest.fixture(scope="session")
def reference(minilm_dir: Path, texts: Sequence[bytes]) -> np.ndarray:
    """Embeddings by sentence-transformers, [texts, 384]; what is not UTF-8 has its bad bytes replaced."""
    with quiet(SILENT):
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(minilm_dir), device="cpu")
        found = model.encode([text.decode("utf-8", "replace") for text in texts], batch_size=16)
    return np.asarray(found)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, minilm_repository: Path) -> Path:
    """A repository with the exported model `encoder_model` and its config. Read-only: copy it to change it."""
    repository = tmp_path_factory.mktemp("text") / "repository"
    shutil.copytree(minilm_repository / "minilm", repository / "encoder_model")
    assert main(["gen-config", str(repository / "encoder_model"), "--instances", "1", "-q"]) == 0
    return repository


@pytest.fixture(scope="session")
def text_repository(tmp_path_factory: pytest.TempPathFactory, exported: Path) -> Path:
    """The same with a pipeline of each kind over it. Read-only.

    Their tokenizers have a token that the model has no row for, as one that was extended after training.
    """
    repository = tmp_path_factory.mktemp("pipelines") / "repository"
    shutil.copytree(exported, repository)
    for name, options in WAYS.items():
        write_text_pipeline(repository / "encoder_model", name, options, console=SILENT)
    for file in repository.glob("*/1/tokenizer.json"):
        tokenizer = json.loads(file.read_text())
        tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 30522, "content": "<beyond>"})
        file.write_text(json.dumps(tokenizer))
    return repository


@pytest.fixture(scope="session")
def server(runtime: Any, text_repository: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(text_repository, runtime, ServerOptions(strict_config=True)) as running:
        running.load("encoder_model")
        yield running


@pytest.fixture(scope="session")
def load(server: EmbeddedServer) -> Callable[[str], str]:
    """Load a pipeline with all that it needs, once; its name."""
    loaded: set[str] = set()

    def call(way: str) -> str:
        names = [*(f"encoder_model_{edge}" for edge in BUCKETS), way] if way == "routed" else [f"{way}_tokenizer", way]
        for name in names:
            if name not in loaded and name in server.models():
                server.load(name)
                loaded.add(name)
        return way

    return call


Embed = Callable[..., np.ndarray]


@pytest.fixture(scope="session")
def embed(server: EmbeddedServer, load: Callable[[str], str]) -> Embed:
    """`embed(model, [text, …])` in one request: embeddings [texts, 384]; raises Triton's error."""
    import tritonclient.grpc as triton

    client = triton.InferenceServerClient(server.grpc_url)

    def call(model: str, rows: Sequence[bytes], output: str = "embeddings") -> np.ndarray:
        tensor = triton.InferInput("text", [len(rows), 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[row] for row in rows], dtype=np.object_))
        return client.infer(load(model), [tensor], outputs=[triton.InferRequestedOutput(output)]).as_numpy(output)

    return call


@pytest.fixture(scope="session")
def alone(exported: Path, minilm_dir: Path) -> Callable[[Sequence[bytes]], np.ndarray]:
    """The exported file on each text by itself, unpadded, tokenized by transformers: embeddings [texts, 384]."""
    with quiet(SILENT):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(minilm_dir))
    session = open_session(exported / "encoder_model" / "1" / "model.onnx")

    def run(texts: Sequence[bytes]) -> np.ndarray:
        found = []
        for text in texts:
            tokens = tokenizer(text.decode("utf-8", "replace"), truncation=True, max_length=256, return_tensors="np")
            found.append(session.run(["embeddings"], {name: tokens[name].astype(np.int64) for name in tokens})[0])
        return np.concatenate(found)

    return run
