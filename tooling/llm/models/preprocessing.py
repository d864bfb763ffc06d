"""Text to token ids, in front of a TensorRT-LLM engine. Layer: model data.

The parameters of its config are `tokenizer_dir`, `end_id` and `pad_id`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class TritonPythonModel:
    def initialize(self, args):
        given = {key: value["string_value"] for key, value in json.loads(args["model_config"])["parameters"].items()}
        self._tokenizer = Tokenizer.from_file(str(Path(given["tokenizer_dir"]) / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._end, self._pad = int(given["end_id"]), int(given["pad_id"])

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)
        wanted = pb_utils.get_input_tensor_by_name(request, "max_tokens").as_numpy().reshape(-1, 1)
        try:
            rows = [self._tokenizer.encode(text.decode("utf-8")).ids for text in texts]
        except UnicodeDecodeError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"text_input is no UTF-8: {error}"))
        if not all(rows):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("text_input has no tokens"))
        ids = np.full((len(rows), max(map(len, rows))), self._pad, np.int32)
        for row, tokens in zip(ids, rows, strict=True):
            row[: len(tokens)] = tokens
        column = np.ones((len(rows), 1), np.int32)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("input_ids", ids),
                pb_utils.Tensor("input_lengths", np.array([[len(tokens)] for tokens in rows], np.int32)),
                pb_utils.Tensor("request_output_len", wanted.astype(np.int32)),
                pb_utils.Tensor("end_id", column * self._end),
                pb_utils.Tensor("pad_id", column * self._pad),
            ]
        )
