"""The tensors of Triton's `vllm` backend, between requests, vLLM's outputs and responses. Layer: backend."""

from __future__ import annotations

import json

import numpy as np
import triton_python_backend_utils as pb_utils

_EXTRAS = (
    "return_finish_reason",
    "return_cumulative_logprob",
    "return_logprobs",
    "return_num_input_tokens",
    "return_num_output_tokens",
)


def _input(name, kind, dims=(1,), optional=True):
    return {"name": name, "data_type": f"TYPE_{kind}", "dims": list(dims), "optional": optional}


INPUTS = (
    {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]},
    _input("image", "STRING", (-1,)),
    _input("stream", "BOOL"),
    _input("sampling_parameters", "STRING"),
    _input("exclude_input_in_output", "BOOL"),
    *(_input(name, "BOOL") for name in _EXTRAS),
    _input("embedding_request", "STRING"),
)
OUTPUTS = tuple(
    {"name": name, "data_type": f"TYPE_{kind}", "dims": [dim]}
    for name, kind, dim in (
        ("text_output", "STRING", -1),
        ("finish_reason", "STRING", -1),
        ("cumulative_logprob", "FP32", -1),
        ("logprobs", "STRING", -1),
        ("num_input_tokens", "UINT32", 1),
        ("num_output_tokens", "UINT32", -1),
    )
)


class Generation:
    """What one request asks for. `stream`: an answer for each step, of the new tokens only, instead of one at the end.

    Raises ValueError for what cannot be generated.
    """

    def __init__(self, request):
        if _element(request, "image") is not None or _element(request, "embedding_request") is not None:
            raise ValueError("this server generates text from text only: no images, no embeddings")
        self.prompt = _text(_element(request, "text_input"), "text_input")
        self.stream = bool(_element(request, "stream", False))
        excluded = bool(_element(request, "exclude_input_in_output", self.stream))
        if self.stream and not excluded:
            raise ValueError("When streaming, `exclude_input_in_output` = False is not allowed.")
        self.prefix = "" if excluded else self.prompt
        self.extras = {name for name in _EXTRAS if _element(request, name, False)}
        given = _element(request, "sampling_parameters")
        written = request.parameters() if given is None else _text(given, "sampling_parameters")
        self.sampling = _sampling(written, own=given is None)

    def response(self, output):
        """A response with the texts (and what else was asked) of one of vLLM's outputs."""
        parts = output.outputs
        tensors = [_texts("text_output", [self.prefix + part.text for part in parts])]
        if "return_finish_reason" in self.extras:
            tensors.append(_texts("finish_reason", [str(part.finish_reason) for part in parts]))
        if "return_cumulative_logprob" in self.extras:
            sums = np.array([part.cumulative_logprob for part in parts], dtype=np.float32)
            tensors.append(pb_utils.Tensor("cumulative_logprob", sums))
        if "return_logprobs" in self.extras:
            tensors.append(_texts("logprobs", [_logprobs(part.logprobs) for part in parts]))
        if "return_num_input_tokens" in self.extras:
            count = np.array([len(output.prompt_token_ids)], dtype=np.uint32)
            tensors.append(pb_utils.Tensor("num_input_tokens", count))
        if "return_num_output_tokens" in self.extras:
            counts = np.array([len(part.token_ids) for part in parts], dtype=np.uint32)
            tensors.append(pb_utils.Tensor("num_output_tokens", counts))
        return pb_utils.InferenceResponse(output_tensors=tensors)


def _element(request, name, default=None):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0]


def _text(value, name):
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"`{name}` is not UTF-8 text: {error}") from None


def _texts(name, values):
    return pb_utils.Tensor(name, np.array([value.encode("utf-8") for value in values], dtype=np.object_))


def _sampling(written, own):
    """The sampling parameters of a JSON text; of a request's `own` parameters, those of Triton are left out."""
    try:
        values = json.loads(written or "{}")
    except ValueError as error:
        raise ValueError(f"`sampling_parameters` is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"`sampling_parameters` must be a JSON object, not {type(values).__name__}")
    return {name: value for name, value in values.items() if not (own and name.startswith("triton_"))}


def _logprobs(steps):
    if steps is None:
        return "null"
    return json.dumps(
        [
            {
                token: {"logprob": found.logprob, "rank": found.rank, "decoded_token": found.decoded_token}
                for token, found in step.items()
            }
            for step in steps
        ]
    )
