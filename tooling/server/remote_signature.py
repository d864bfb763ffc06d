"""The signature of a model on a running server, from the configuration it answers with. Layer: server."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any, Final

from tooling.errors import UsageError, suggest
from tooling.server.client import Answer, TritonHttp, unreachable
from tooling.signature.spec import ModelSignature, TensorSpec

_TIMEOUT_S: Final = 10


def read_remote(url: str, name: str) -> ModelSignature:
    """Inputs, outputs and backend of the model `name` on the server at `url` (HOST:PORT of its HTTP endpoint).

    Its `max_batch_size` counts as the largest the model allows: the server does not say more. Raises MissingError when
    nothing answers there, UsageError for a model the server has not loaded.
    """
    client = TritonHttp(url, _TIMEOUT_S)
    try:
        config = client.model_config(name)
    except Answer as answer:
        known = client.model_names()
        raise UsageError(
            "the server has no such model loaded",
            where=url,
            got=f"`{name}`",
            expected=", ".join(known) or "a loaded model",
            hint=suggest(name, known) or answer.reason,
        ) from answer
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise unreachable(url, error) from error
    if config.get("platform") == "ensemble":
        raise UsageError("an ensemble has no backend", where=url, got=f"`{name}`", hint="make it with --ensemble")
    batching = int(config["max_batch_size"]) > 0
    return ModelSignature(
        Path(f"{url}/{name}"),
        str(config["backend"]),
        tuple(_spec(tensor, batching) for tensor in config["input"]),
        tuple(_spec(tensor, batching) for tensor in config["output"]),
        max_batch_size=int(config["max_batch_size"]),
        decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled")),
    )


def _spec(tensor: dict[str, Any], batching: bool) -> TensorSpec:
    """A tensor with its full shape: what the model itself sees, so a reshape comes before the dims."""
    dims = tensor["reshape"]["shape"] if "reshape" in tensor else tensor["dims"]
    shape = tuple(int(dim) for dim in dims)
    return TensorSpec(
        str(tensor["name"]),
        str(tensor["data_type"]),
        (-1, *shape) if batching else shape,
        bool(tensor.get("optional")),
        bool(tensor.get("is_shape_tensor")),
        bool(tensor.get("is_non_linear_format_io")),
    )
