"""Text by the most frequent next letter, a letter a step: continuous batching without an engine for it.

Triton calls `execute` once for each step, with every sequence that is under way. A sequence that is not done is put
back with the flag RESCHEDULE and comes again in the next step, together with whoever joined meanwhile.
"""

import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

LAST_LETTER_S = 0.01

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
        config = json.loads(args["model_config"])
        self._pause_s = int(config["parameters"]["step_ms"]["string_value"]) / 1000
        self._following = next_letters(TEXT)
        self._rows = [(0, 0)] * config["max_batch_size"]  # of each place: the last letter, how many are still to come
        self._step = 0

    def execute(self, requests):
        """One step: one more letter for every sequence, computed together."""
        self._step += 1
        taken = [row for row, request in enumerate(requests) if scalar(request, "READY")]
        for row in taken:
            if scalar(requests[row], "START"):
                prompt = scalar(requests[row], "PROMPT") or b" "
                self._rows[row] = prompt[-1], int(scalar(requests[row], "MAX_TOKENS"))
        letters = self._following[[self._rows[row][0] for row in taken]]  # what a real model would compute
        time.sleep(self._pause_s)
        for row, letter in zip(taken, letters, strict=True):
            self._answer(requests[row], row, int(letter), len(taken))
        for row in set(range(len(requests))) - set(taken):
            requests[row].get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _answer(self, request, row, letter, shared):
        left = self._rows[row][1] - 1
        self._rows[row] = letter, left
        if request.is_cancelled():  # the core ends what is put back, and frees its place: done here, it would be held
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return
        sender = request.get_response_sender()
        answer = pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("TOKEN", np.array([[bytes([letter])]], np.object_)),
                pb_utils.Tensor("STEP", np.array([[self._step]], np.int32)),
                pb_utils.Tensor("SHARED", np.array([[shared]], np.int32)),
            ]
        )
        if left > 0:
            sender.send(answer)
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        else:  # the place is free once `execute` is left; a client that hangs up at its last letter must not be earlier
            last = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            threading.Timer(LAST_LETTER_S, sender.send, (answer, last)).start()


def scalar(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]
