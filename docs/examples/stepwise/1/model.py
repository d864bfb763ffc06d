"""Text by the most frequent next letter, a letter a step: continuous batching without an engine for it.

Triton calls `execute` once for each step, with every sequence that is under way. A sequence that is not done is put
back with the flag RESCHEDULE and comes again in the next step, together with whoever joined meanwhile.
"""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils

TEXT = (
    "a sequence joins the batch between two steps and leaves it when the last of its letters is written, "
    "so that a short one never waits for the end of a long one."
)


def next_letters(text):
    """For each letter the one that follows it most often: the smallest language model there is."""
    counts = np.zeros((256, 256), np.int32)
    letters = np.frombuffer(text.encode(), np.uint8)
    np.add.at(counts, (letters[:-1], letters[1:]), 1)
    return np.where(counts.any(axis=1), counts.argmax(axis=1), ord(" ")).astype(np.uint8)


class TritonPythonModel:
    def initialize(self, args):
        self._pause_s = int(json.loads(args["model_config"])["parameters"]["step_ms"]["string_value"]) / 1000
        self._following = next_letters(TEXT)
        self._states = {}  # by correlation id: the last letter, and how many are still to come
        self._step = 0

    def execute(self, requests):
        """One step: one more letter for every sequence, computed together."""
        self._step += 1
        ids = [int(scalar(request, "CORRID")) for request in requests]
        for request, sequence in zip(requests, ids, strict=True):
            if scalar(request, "START"):
                prompt = scalar(request, "PROMPT") or b" "
                self._states[sequence] = (prompt[-1], int(scalar(request, "MAX_TOKENS")))
        letters = self._following[[self._states[sequence][0] for sequence in ids]]  # what a real model would compute
        time.sleep(self._pause_s)
        for request, sequence, letter in zip(requests, ids, letters, strict=True):
            self._answer(request, sequence, int(letter), len(requests))

    def _answer(self, request, sequence, letter, shared):
        left = self._states[sequence][1] - 1
        sender = request.get_response_sender()
        if not request.is_cancelled():
            sender.send(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("TOKEN", np.array([[bytes([letter])]], np.object_)),
                        pb_utils.Tensor("STEP", np.array([[self._step]], np.int32)),
                        pb_utils.Tensor("SHARED", np.array([[shared]], np.int32)),
                    ]
                )
            )
        if left > 0 and not request.is_cancelled():
            self._states[sequence] = (letter, left)
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        else:  # its place is free for the next step
            del self._states[sequence]
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def scalar(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]
