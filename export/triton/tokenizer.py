"""Texts in, token tensors out: the first step of a text pipeline's ensemble. Layer: model data."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils
from texts import BadText, Texts, counts, refused


class TritonPythonModel:
    def initialize(self, args):
        self._texts = Texts()

    def execute(self, requests):
        """Tokenize the requests of a batch together; pad each to its own edge, so that the model can batch them."""
        return [
            refused(read) if isinstance(read, BadText) else self._response(read) for read in self._texts.read(requests)
        ]

    def _response(self, encodings):
        arrays = self._texts.padded(encodings, self._texts.edge(encodings))
        tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
        return pb_utils.InferenceResponse([*tensors, counts(encodings)])
