"""Triton's `vllm` backend for a server without GPUs: vLLM's CPU engine; Triton's Python stub runs this file.

Layer: backend data, no part of the tool's import graph. Tensors, parameters, engine arguments and texts are those of
the backend in NVIDIA's vLLM container, so that a repository gets the same answers here and there.
"""

from __future__ import annotations

import contextlib
import json
import locale
from pathlib import Path

with contextlib.suppress(locale.Error):  # the stub starts in the C locale, where libraries cannot read UTF-8 files
    locale.setlocale(locale.LC_ALL, "C.UTF-8")

import triton_python_backend_utils as pb_utils
from llm_answers import Answers
from llm_arguments import require_arguments
from llm_environment import Refusal, read_adapters, read_arguments, use_environment
from llm_models import in_plain_words, require_models
from llm_tensors import INPUTS, OUTPUTS


class TritonPythonModel:
    """One engine: its scheduler lives in a process of its own, and requests join and leave it at every step."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        written = auto_complete_model_config.as_dict()
        for listed, tensors, add in (
            (written["input"], INPUTS, auto_complete_model_config.add_input),
            (written["output"], OUTPUTS, auto_complete_model_config.add_output),
        ):
            names = {tensor["name"] for tensor in listed}
            for tensor in tensors:
                if tensor["name"] not in names:
                    add(dict(tensor))
        auto_complete_model_config.set_model_transaction_policy({"decoupled": True})
        auto_complete_model_config.set_max_batch_size(0)
        return auto_complete_model_config

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self._name = args["model_name"]
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self._unload_when_dead = parameters.get("ENABLE_VLLM_HEALTH_CHECK", "").lower() == "true"
        try:
            if not pb_utils.using_decoupled_model_transaction_policy(config):
                raise Refusal("vLLM Triton backend must be configured to use decoupled model transaction policy")
            folder = Path(pb_utils.get_model_dir())
            arguments = read_arguments(folder)
            require_models(folder, arguments)
            adapters = read_adapters(folder, arguments)
            use_environment()
            from llm_engine import DECLARED, NAME, Engine  # imports vLLM, which must see the environment

            require_arguments(folder, arguments, DECLARED, NAME)
            labels = {"model": args["model_name"], "version": args["model_version"]}
            told = parameters.get("REPORT_CUSTOM_METRICS", "").lower() == "true"
            try:
                self._engine = Engine(arguments, adapters, labels if told else None)
            except Refusal as error:
                raise Refusal(in_plain_words(str(error), folder, arguments)) from None
        except Refusal as error:
            raise pb_utils.TritonModelException(str(error)) from None
        self._answers = Answers(pb_utils.Logger.log_error)

    def execute(self, requests):
        """Hand the requests to the engine and return at once; answers follow as tokens come."""
        for request in requests:
            sender = request.get_response_sender()
            if death := self._engine.death:
                self._refuse(sender, death)
            else:
                self._engine.start(request, self._answers.of(sender))

    def finalize(self):
        self._engine.stop()
        self._answers.stop()

    def _refuse(self, sender, death):
        text = f"the vLLM engine of '{self._name}' has died, unload the model and load it again: {death}"
        error = pb_utils.TritonError(text, pb_utils.TritonError.UNAVAILABLE)
        sender.send(pb_utils.InferenceResponse(error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        if self._unload_when_dead:
            self._unload_when_dead = False
            pb_utils.unload_model(self._name)
