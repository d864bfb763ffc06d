"""Text in, text out as it is generated: calls the tokenizer, the engine and the detokenizer. Layer: model data.

Tokens are gathered before they become text, because a token alone is often no whole character or word. With a draft
model, that one guesses `num_draft_tokens` ahead and the engine keeps the guesses that are its own: such requests do
not share a batch. The parameters of its config name the models: `preprocessing`, `engine`, `postprocessing`, `draft`.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils

_PASSED = {"temperature": "temperature", "top_k": "runtime_top_k", "top_p": "runtime_top_p", "seed": "seed"}


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self._names = {key: value["string_value"] for key, value in config["parameters"].items()}
        self._workers = ThreadPoolExecutor(max(1, int(config["max_batch_size"])))

    def execute(self, requests):
        """Start every request and return, so that the next may start while these run."""
        for request in requests:
            self._workers.submit(self._run, request, request.get_response_sender())

    def finalize(self):
        self._workers.shutdown()

    def _run(self, request, sender):
        try:
            for text in self._texts(request):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
        except Exception as error:  # whatever it is, the client must hear of it
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
        finally:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _texts(self, request):
        """The text of a request: in pieces where it asks to be streamed."""
        given = {tensor.name(): tensor for tensor in request.inputs()}
        made = self._call("preprocessing", [given["text_input"], given["max_tokens"]])
        guesses = int(given["num_draft_tokens"].as_numpy().item()) if "num_draft_tokens" in given else 0
        streamed = "stream" in given and bool(given["stream"].as_numpy().item())
        passed = [pb_utils.Tensor(_PASSED[name], given[name].as_numpy()) for name in _PASSED if name in given]
        steps = self._guessed(made, guesses, passed) if guesses else self._generated("engine", made, passed, streamed)
        tokens, sent = [], ""
        for new in steps:
            tokens += new
            if request.is_cancelled():
                return
            if streamed:
                text = self._decoded(tokens)
                if text.endswith("\ufffd"):  # the rest of a character is still to come
                    continue
                yield _text(text[len(sent) :])
                sent = text
        text = self._decoded(tokens)
        if not streamed or len(text) > len(sent):
            yield _text(text[len(sent) :])

    def _generated(self, model, made, passed, streamed, *more):
        """New tokens, step by step, or all at once."""
        inputs = [*made.values(), *passed, *more, pb_utils.Tensor("streaming", np.array([[streamed]]))]
        call = pb_utils.InferenceRequest(
            model_name=self._names[model], inputs=inputs, requested_output_names=["output_ids", "sequence_length"]
        )
        for answer in call.exec(decoupled=True):
            if answer.has_error():
                raise RuntimeError(answer.error().message())
            found = {tensor.name(): tensor.as_numpy() for tensor in answer.output_tensors()}
            if found:
                length = int(found["sequence_length"].reshape(-1)[0])
                yield [int(token) for token in found["output_ids"].reshape(-1)[:length]]

    def _guessed(self, made, guesses, passed):
        """Rounds of guessing and keeping: after each, the prompt is longer by what was kept."""
        left, end = int(made["request_output_len"].as_numpy().item()), int(made["end_id"].as_numpy().item())
        prompt = made["input_ids"].as_numpy().reshape(-1).tolist()
        while left > 0:
            ahead = min(guesses, left - 1)
            draft = self._once("draft", made, prompt, ahead, passed) if ahead else []
            more = [pb_utils.Tensor("draft_input_ids", np.array([draft], np.int32))] if draft else []
            kept = self._once("engine", made, prompt, len(draft) + 1, passed, *more)[:left]
            yield kept
            left -= len(kept)
            prompt += kept
            if not kept or end in kept:
                return

    def _once(self, model, made, prompt, count, passed, *more):
        """All tokens that a model generates for a prompt."""
        asked = {
            **made,
            "input_ids": pb_utils.Tensor("input_ids", np.array([prompt], np.int32)),
            "input_lengths": pb_utils.Tensor("input_lengths", np.array([[len(prompt)]], np.int32)),
            "request_output_len": pb_utils.Tensor("request_output_len", np.array([[count]], np.int32)),
        }
        return [token for new in self._generated(model, asked, passed, False, *more) for token in new]

    def _decoded(self, tokens):
        ids = pb_utils.Tensor("output_ids", np.array([[tokens]], np.int32))
        length = pb_utils.Tensor("sequence_length", np.array([[len(tokens)]], np.int32))
        text = self._call("postprocessing", [ids, length])["text_output"]
        return text.as_numpy().reshape(-1)[0].decode("utf-8")

    def _call(self, model, inputs):
        names = {"preprocessing": _MADE, "postprocessing": ["text_output"]}[model]
        call = pb_utils.InferenceRequest(
            model_name=self._names[model],
            inputs=inputs,
            requested_output_names=names,
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
        )
        answer = call.exec()
        if answer.has_error():
            raise RuntimeError(answer.error().message())
        return {tensor.name(): tensor for tensor in answer.output_tensors()}


_MADE = ["input_ids", "input_lengths", "request_output_len", "end_id", "pad_id"]


def _text(text):
    return np.array([[text.encode("utf-8")]], np.object_)
