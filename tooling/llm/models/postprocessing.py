"""Token ids to text, behind a TensorRT-LLM engine. Layer: model data.

The parameter of its config is `tokenizer_dir`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class TritonPythonModel:
    def initialize(self, args):
        folder = json.loads(args["model_config"])["parameters"]["tokenizer_dir"]["string_value"]
        self._tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        """A text for each beam; ids beyond a beam's length are padding."""
        ids = pb_utils.get_input_tensor_by_name(request, "output_ids").as_numpy()
        lengths = pb_utils.get_input_tensor_by_name(request, "sequence_length").as_numpy()
        beams = ids.reshape(-1, ids.shape[-1])
        texts = [
            self._tokenizer.decode([int(token) for token in beam[:length]], skip_special_tokens=True).encode("utf-8")
            for beam, length in zip(beams, lengths.reshape(-1), strict=True)
        ]
        array = np.array(texts, np.object_).reshape(ids.shape[0], -1)
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", array)])
