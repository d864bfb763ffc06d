"""Clients for an exported model, to copy from: Python over HTTP, gRPC and asyncio, and curl. Layer: export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tooling.config.proto import pb
from tooling.config.templates import environment
from tooling.repository import write_atomic
from tooling.signature.roles import role
from tooling.signature.spec import TensorSpec
from tooling.signature.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig

FOLDER: Final = "clients"
_CACHE: Final = ("past_key_values.", "present.")  # of a decoder: what it is given back, and what it gives
TEXTS: Final = ("How do I reset my password?", "She moved to the coast.")
_NUMPY: Final = {"INT64": "int64", "INT32": "int32", "FP32": "float32", "FP16": "float16", "BOOL": "bool_"}
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
    """The clients by file name. They send texts, or the token ids that the tokenizer makes of them, or zeros.

    A decoder is sent a prompt and an empty cache. There is none for a model with other free axes, and none of curl for
    large tensors.
    """
    tensors = _tensors(config, tokenizer_dir)
    facts = {
        "name": config.name,
        "takes_texts": any(tensor["datatype"] == "BYTES" for tensor in tensors),
        "takes_tokens": any("data" in tensor for tensor in tensors),
        "numpy": _NUMPY,
        "inputs": tensors,
        "outputs": [output.name for output in config.output if not output.name.startswith(_CACHE)],
        "texts": TEXTS[: tensors[0]["shape"][0]] if tensors else (),
        "body": json.dumps({"inputs": tensors}, ensure_ascii=False),
    }
    whole = all("data" in tensor for tensor in tensors)
    return {
        file: environment().get_template(template).render(**facts, transport=Path(file).stem.rpartition("_")[2])
        for file, template in _FILES.items()
        if tensors and (whole or not file.endswith(".sh"))
    }


def _tensors(config: ModelConfig, tokenizer_dir: Path) -> list[dict[str, Any]]:
    """Inputs as the HTTP protocol writes them, `data` as nested rows; without it zeros. Empty: no values are known."""
    rows = min(len(TEXTS), max(config.max_batch_size, 1))
    specs = [_spec(tensor, config.max_batch_size > 0) for tensor in config.input]
    if [spec.data_type for spec in specs] == ["TYPE_STRING"]:
        data: list[Any] = [[sentence] for sentence in TEXTS[:rows]]
        return [{"name": specs[0].name, "datatype": "BYTES", "shape": [rows, 1], "data": data}]
    open_ones = [spec for spec in specs if -1 in spec.dims[1:] and not spec.name.startswith(_CACHE)]
    strange = (len(spec.dims) != 2 or role(spec) == "values" for spec in open_ones)
    if any(strange) or any(spec.data_type.removeprefix("TYPE_") not in _NUMPY for spec in specs):
        return []
    tokens = _tokens(tokenizer_dir, rows) if open_ones else []
    found = []
    for spec in specs:
        tensor: dict[str, Any] = {"name": spec.name, "datatype": spec.data_type.removeprefix("TYPE_")}
        if spec in open_ones:
            tensor |= {"shape": [rows, len(tokens[0])], "data": _values(role(spec), tokens)}
        else:
            tensor["shape"] = [rows, *(0 if size == -1 else size for size in spec.dims[1:])]
        found.append(tensor)
    return found


def _spec(tensor: Any, batching: bool) -> TensorSpec:
    dims = (-1, *tensor.dims) if batching else tuple(tensor.dims)
    return TensorSpec(tensor.name, pb().DataType.Name(tensor.data_type), dims)


def _values(meaning: str, tokens: list[list[int]]) -> list[list[int]]:
    if meaning == "ids":
        return tokens
    if meaning == "positions":
        return [list(range(len(row))) for row in tokens]
    return [[int(meaning == "ones")] * len(row) for row in tokens]


def _tokens(tokenizer_dir: Path, rows: int) -> list[list[int]]:
    """Token ids of the texts, cut to the shortest: so the sample needs no padding."""
    tokenizer = read_tokenizer(tokenizer_dir)
    ids = [list(encoding.ids) for encoding in tokenizer.encode_batch(list(TEXTS[:rows]))]
    return [row[: min(map(len, ids))] or [0] for row in ids]
