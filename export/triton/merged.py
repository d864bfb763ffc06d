"""Texts in, embeddings out: requests that wait together are padded to the longest of them and go to the model as one
batch. Layer: model data.
"""

from __future__ import annotations

import triton_python_backend_utils as pb_utils
from calls import Answers, outputs_of
from texts import BadText, Texts, refused


class TritonPythonModel:
    def initialize(self, args):
        self._texts = Texts()
        self._model = self._texts.settings["model"]
        self._answers = Answers(args, self._texts)

    def execute(self, requests):
        """Every good request in one call; should that fail, each by itself, so that only the bad ones fail."""
        read = self._texts.read(requests)
        good = [encodings for encodings in read if not isinstance(encodings, BadText)]
        answers = iter(self._run(good))
        return [refused(one) if isinstance(one, BadText) else next(answers) for one in read]

    def _run(self, good):
        rows = [encoding for encodings in good for encoding in encodings]
        if not rows:
            return []
        call = self._answers.call(self._model, rows, self._texts.longest(rows))
        answer = call.exec()
        if answer.has_error() and len(good) > 1:
            return [one for encodings in good for one in self._run([encodings])]
        if answer.has_error():
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(answer.error().message()))]
        outputs, responses, begin = outputs_of(answer), [], 0
        for encodings in good:
            end = begin + len(encodings)
            responses.append(self._answers.response(outputs, encodings, begin, end))
            begin = end
        return responses
