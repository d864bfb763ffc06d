"""Clients for an exported model, to copy from: Python over HTTP, gRPC and asyncio, and curl. Layer: export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from export.source import first_line, missing_library
from tooling.config.proto import pb
from tooling.config.templates import environment
from tooling.errors import UsageError
from tooling.repository import write_atomic
from tooling.signature.roles import role
from tooling.signature.spec import TensorSpec

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig

FOLDER: Final = "clients"
TEXTS: Final = ("How do I reset my password?", "She moved to the coast.")
_FILES: Final = {
    "client_http.py": "client_python.py.j2",
    "client_grpc.py": "client_python.py.j2",
    "client_async.py": "client_async.py.j2",
    "client_curl.sh": "client_curl.sh.j2",
}


def write_clients(model_dir: Path, config: ModelConfig) -> None:
    """Write `clients/` into a model directory, what is there already excepted.

    Raises UsageError when the directory or its tokenizer cannot be used.
    """
    for file, text in client_texts(config, model_dir / "tokenizer").items():
        path = model_dir / FOLDER / file
        if not path.is_file() or path.read_bytes() != text.encode():
            write_atomic(path, text)


def client_texts(config: ModelConfig, tokenizer_dir: Path) -> dict[str, str]:
    """The clients by file name. They send texts, or the token ids that the tokenizer makes of the same texts."""
    rows = min(len(TEXTS), max(config.max_batch_size, 1))
    tensors = _tensors(config, tokenizer_dir, rows)
    facts = {
        "name": config.name,
        "takes_texts": any(tensor["datatype"] == "BYTES" for tensor in tensors),
        "inputs": tensors,
        "outputs": [output.name for output in config.output],
        "texts": TEXTS[:rows],
        "body": json.dumps({"inputs": tensors}, ensure_ascii=False),
    }
    return {
        file: environment().get_template(template).render(**facts, transport=Path(file).stem.rpartition("_")[2])
        for file, template in _FILES.items()
    }


def _tensors(config: ModelConfig, tokenizer_dir: Path, rows: int) -> list[dict[str, Any]]:
    """Inputs as the HTTP protocol writes them, `data` as nested rows."""
    if [tensor.data_type for tensor in config.input] == [pb().DataType.Value("TYPE_STRING")]:
        (text,) = config.input
        data: list[Any] = [[sentence] for sentence in TEXTS[:rows]]
        return [{"name": text.name, "datatype": "BYTES", "shape": [rows, 1], "data": data}]
    tokens = _tokens(tokenizer_dir, rows)
    shape = [rows, len(tokens[0])]
    found = []
    for tensor in config.input:
        kind = pb().DataType.Name(tensor.data_type)
        data = _values(role(TensorSpec(tensor.name, kind, (-1, *tensor.dims))), tokens)
        found.append({"name": tensor.name, "datatype": kind.removeprefix("TYPE_"), "shape": shape, "data": data})
    return found


def _values(meaning: str, tokens: list[list[int]]) -> list[list[int]]:
    if meaning == "ids":
        return tokens
    if meaning == "positions":
        return [list(range(len(row))) for row in tokens]
    return [[int(meaning == "ones")] * len(row) for row in tokens]


def _tokens(tokenizer_dir: Path, rows: int) -> list[list[int]]:
    """Token ids of the texts, cut to the shortest: so the sample needs no padding."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise missing_library(error) from error
    path = tokenizer_dir / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise UsageError(
            "the tokenizer cannot be read", where=path, got=first_line(error), hint="export the model again"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids = [list(encoding.ids) for encoding in tokenizer.encode_batch(list(TEXTS[:rows]))]
    return [row[: min(map(len, ids))] or [0] for row in ids]
