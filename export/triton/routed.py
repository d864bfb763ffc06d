"""Texts in, embeddings out: each request goes to the model of its length bucket, which has a queue of its own, and is
answered as soon as that is done. Layer: model data.
"""

from __future__ import annotations

import asyncio
import threading

import triton_python_backend_utils as pb_utils
from calls import Answers, outputs_of
from texts import BadText, Texts, refused


class TritonPythonModel:
    def initialize(self, args):
        self._texts = Texts()
        self._models = dict(zip(self._texts.edges, self._texts.settings["models"], strict=True))
        self._answers = Answers(args, self._texts)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def execute(self, requests):
        """Start every request and return: short texts are answered while long ones still wait."""
        for request, read in zip(requests, self._texts.read(requests), strict=True):
            sender = request.get_response_sender()
            if isinstance(read, BadText):
                sender.send(refused(read), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            else:
                asyncio.run_coroutine_threadsafe(self._answer(sender, read), self._loop)

    async def _answer(self, sender, encodings):
        try:
            response = await self._ask(encodings)
        except Exception as error:  # whatever it is, the client must hear of it
            response = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    async def _ask(self, encodings):
        edge = self._texts.edge(encodings)
        answer = await self._answers.call(self._models[edge], encodings, edge).async_exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(answer.error().message()))
        return self._answers.response(outputs_of(answer), encodings, 0, len(encodings))

    def finalize(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
