"""The one thread that speaks with Triton about answers: it sends them, and asks who gave up. Layer: backend."""

from __future__ import annotations

import queue
import threading
import time

import triton_python_backend_utils as pb_utils

_LOOK_S = 0.03


class Answer:
    """The answers to one request, in order; none may follow the last."""

    def __init__(self, answers, sender):
        self._answers, self.sender = answers, sender

    def begin(self, give_up):
        """From now on `give_up` is called when the client no longer wants the answers."""
        self._answers.put((self.sender, None, False, give_up))

    def send(self, response, last):
        self._answers.put((self.sender, response, last, None))

    def fail(self, text, code=None):
        """End with an error; the code is one of TritonError's (which the stub adds late), INTERNAL by default."""
        error = pb_utils.TritonError(text, pb_utils.TritonError.INTERNAL if code is None else code)
        self.send(pb_utils.InferenceResponse(error=error), last=True)


class Answers:
    """Sends from a queue, so that the engine never waits for Triton.

    Only this thread uses a sender, and never after its last answer: Triton then takes it apart, and asking it whether
    its request was cancelled would read freed memory.
    """

    def __init__(self, log):
        self._log = log
        self._queue = queue.SimpleQueue()
        self._open = {}
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
        self._thread.start()

    def of(self, sender):
        return Answer(self, sender)

    def put(self, item):
        self._queue.put(item)

    def stop(self):
        self._queue.put(None)
        self._thread.join()

    def _run(self):
        look = time.monotonic()
        while True:
            try:
                item = self._queue.get(timeout=max(0.0, look - time.monotonic()) if self._open else None)
            except queue.Empty:
                pass
            else:
                if item is None:
                    return
                self._handle(*item)
            if time.monotonic() >= look:
                self._ask_who_gave_up()
                look = time.monotonic() + _LOOK_S

    def _handle(self, sender, response, last, give_up):
        if give_up is not None:
            self._open[sender] = give_up
            return
        if last:
            self._open.pop(sender, None)
        try:
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0)
        except Exception as error:  # the thread must outlive a response that Triton refuses
            self._log(f"a response could not be sent: {error}")

    def _ask_who_gave_up(self):
        for sender, give_up in list(self._open.items()):
            if sender.is_cancelled():
                del self._open[sender]
                give_up()
