"""Calls of the model from a Python step, and answers cut out of its outputs. Layer: model data."""

from __future__ import annotations

import json

import triton_python_backend_utils as pb_utils
from texts import counts


class Answers:
    """The outputs that the step promises: those of the model, and the count of tokens."""

    def __init__(self, args, texts):
        self._texts = texts
        promised = [output for output in json.loads(args["model_config"])["output"] if output["name"] != "token_count"]
        self._names = [output["name"] for output in promised]
        self._sequences = {output["name"] for output in promised if int(output["dims"][0]) == -1}

    def call(self, model, encodings, length):
        """A request to the model; its answer comes in the memory of the CPU, where numpy can read it."""
        arrays = self._texts.padded(encodings, length)
        return pb_utils.InferenceRequest(
            model_name=model,
            inputs=[pb_utils.Tensor(name, array) for name, array in arrays.items()],
            requested_output_names=self._names,
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
        )

    def response(self, outputs, encodings, begin, end):
        """The rows of one request; outputs that have a vector for each token end where its longest text ends."""
        tensors = [counts(encodings)]
        for name, array in outputs.items():
            rows = array[begin:end]
            if name in self._sequences:
                rows = rows[:, : self._texts.longest(encodings)]
            tensors.append(pb_utils.Tensor(name, rows))
        return pb_utils.InferenceResponse(tensors)


def outputs_of(answer):
    """Arrays by name."""
    return {tensor.name(): tensor.as_numpy() for tensor in answer.output_tensors()}
