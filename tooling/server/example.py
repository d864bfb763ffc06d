"""A curl command that a user can paste to see a loaded model answer. Layer: server."""

from __future__ import annotations

import json
import math
from typing import Any

_FREE_DIM, _MOST_VALUES = 4, 64
_NOT_IN_JSON = ("TYPE_FP16", "TYPE_BF16")


def curl_example(http_url: str, name: str, config: dict[str, Any]) -> str:
    """An inference with ones (or texts) for every input, free axes of length 4; only the model's metadata when the
    inputs are large or of a type that JSON requests cannot carry. A decoupled model is asked for a stream, with the
    inputs that it must have: HTTP knows no other way. `config` is the completed configuration.
    """
    url = f"http://{http_url}/v2/models/{name}"
    if config.get("model_transaction_policy", {}).get("decoupled"):
        return f"curl -s {url}/generate_stream -d '{json.dumps(_texts(config), separators=(',', ':'))}'"
    inputs = [_tensor(entry, config["max_batch_size"]) for entry in config["input"]]
    values = sum(len(tensor["data"]) for tensor in inputs)
    if values > _MOST_VALUES or any(entry["data_type"] in _NOT_IN_JSON for entry in config["input"]):
        return f"curl -s {url}"
    return f"curl -s {url}/infer -d '{json.dumps({'inputs': inputs}, separators=(',', ':'))}'"


def _texts(config: dict[str, Any]) -> dict[str, Any]:
    required = (_tensor(entry, 0) for entry in config["input"] if not entry.get("optional"))
    return {tensor["name"]: tensor["data"][0] if len(tensor["data"]) == 1 else tensor["data"] for tensor in required}


def _tensor(entry: dict[str, Any], max_batch_size: int) -> dict[str, Any]:
    shape = [_FREE_DIM if dim < 0 else dim for dim in entry["dims"]]
    if max_batch_size > 0:
        shape.insert(0, 1)
    kind = entry["data_type"].removeprefix("TYPE_")
    value: object = {"STRING": "text", "BOOL": True}.get(kind, 1)
    data = [value] * min(math.prod(shape), _MOST_VALUES + 1)
    return {"name": entry["name"], "datatype": "BYTES" if kind == "STRING" else kind, "shape": shape, "data": data}
