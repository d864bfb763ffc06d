"""Triton's `onnxruntime` backend for a server without the native library; Triton's Python stub runs this file.

Layer: backend data, no part of the tool's import graph. Texts, rules and limits are those of the native backend of
release 24.10, so that a configuration gets the same verdict here and in the container.
"""

from __future__ import annotations

import contextlib
import json
import locale

with contextlib.suppress(locale.Error):  # the stub starts in the C locale, where libraries cannot read UTF-8 files
    locale.setlocale(locale.LC_ALL, "C.UTF-8")

import numpy as np
import triton_python_backend_utils as pb_utils
from native_batch import BatchLayout
from native_config import Refusal, auto_complete, validate


def _require_old_numpy():
    """Triton 2.51.0 hands tensors to numpy 2 with wrong strides: int32 [7, 8] arrives as [7, 7], without an error."""
    if int(np.__version__.split(".")[0]) >= 2:
        raise Refusal(
            f"numpy {np.__version__} in the server's environment corrupts tensors, numpy 1.26.4 is expected: "
            "run `tritune runtime install --force`"
        )


@contextlib.contextmanager
def _refusals():
    try:
        yield
    except Refusal as error:
        raise pb_utils.TritonModelException(str(error)) from None


class TritonPythonModel:
    """One model instance: one ONNX Runtime session in one stub process."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        config = auto_complete_model_config.as_dict()  # the stub's own dictionary: changes to it are what Triton reads
        with _refusals():
            _require_old_numpy()
            auto_complete(config, lambda: _session(config).signature)
        return auto_complete_model_config

    def initialize(self, args):
        config = json.loads(args["model_config"])
        with _refusals():
            _require_old_numpy()
            self._session = _session(config)
            validate(config, self._session.signature)
        self._layout = BatchLayout(config, self._session.signature, args["model_instance_name"])
        self._outputs = [output["name"] for output in config["output"]]

    def execute(self, requests):
        """Run all requests as one batch; a failure answers each of them, as the native backend does."""
        try:
            inputs = [{t.name(): t.as_numpy() for t in request.inputs()} for request in requests]
            wanted = [request.requested_output_names() for request in requests]
            names = [name for name in self._outputs if any(name in asked for asked in wanted)]
            batch = self._layout.gather(inputs)
            outputs = dict(zip(names, self._session.run(names, batch.feed), strict=True))
        except Refusal as error:
            # An error of its own for each response: one object shared by several kills tritonserver 2.51.0.
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))) for _ in requests]
        parts = {name: self._layout.split(name, array, batch) for name, array in outputs.items()}
        return [
            _response(request, asked, {name: pieces[index] for name, pieces in parts.items()})
            for index, (request, asked) in enumerate(zip(requests, wanted, strict=True))
        ]

    def finalize(self):
        self._session = None


def _session(config):
    from native_session import Session  # imports onnxruntime, which must see the locale and a checked numpy

    return Session(config, pb_utils.get_model_dir())


def _response(request, asked, pieces):
    tensors = []
    for name, piece in pieces.items():
        if name not in asked:
            continue
        if isinstance(piece, Refusal):
            request_id = request.request_id() or "<id_unknown>"
            error = pb_utils.TritonError(f"[request id: {request_id}] {piece}", pb_utils.TritonError.UNSUPPORTED)
            return pb_utils.InferenceResponse(error=error)
        tensors.append(pb_utils.Tensor(name, piece))
    return pb_utils.InferenceResponse(output_tensors=tensors)
