"""Texts of requests as token tensors; stands beside `model.py` in the Python step of a text pipeline.

Layer: model data, no part of the tool's import graph. Its settings are in `text.json`, made by `tritune export`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

HERE = Path(__file__).parent


class BadText(Exception):
    """Why one request cannot be answered; its neighbours can."""


class Texts:
    """The tokenizer with the model's limits, from the settings beside this file.

    `tensors` are the inputs that the model takes, by name, and their numpy types. Texts of more than `max_tokens` are
    cut, special tokens counted. `buckets` are the lengths that requests are padded to; none: their own longest text.
    `invalid_utf8` says whether bytes that are no UTF-8 are replaced (by U+FFFD) or the request is refused.
    """

    def __init__(self):
        self.settings = json.loads((HERE / "text.json").read_text(encoding="utf-8"))
        self.edges = self.settings["buckets"]
        self.tensors = {name: pb_utils.triton_string_to_numpy(kind) for name, kind in self.settings["tensors"].items()}
        self._vocabulary = self.settings["vocabulary"]
        self._fill = {"input_ids": self.settings["pad_token"]}
        self._utf8_errors = "strict" if self.settings["invalid_utf8"] == "reject" else "replace"
        self._tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
        self._tokenizer.no_padding()
        direction = (self._tokenizer.truncation or {}).get("direction", "right")
        self._tokenizer.enable_truncation(self.settings["max_tokens"], direction=direction)

    def read(self, requests):
        """For each request the encodings of its texts, or the BadText that it ends with."""
        read = [self._strings(request) for request in requests]
        good = [texts for texts in read if not isinstance(texts, BadText)]
        try:
            encoded = iter(self._tokenizer.encode_batch_fast([text for texts in good for text in texts]))
        except Exception:  # the library raises no narrower class; one by one, so that the others are answered
            return [texts if isinstance(texts, BadText) else self._alone(texts) for texts in read]
        return [
            texts if isinstance(texts, BadText) else self._checked([next(encoded) for _ in texts]) for texts in read
        ]

    def _strings(self, request):
        """Each text is one element, whatever its length."""
        elements = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().ravel()
        try:
            return [element.decode("utf-8", self._utf8_errors) for element in elements]
        except UnicodeDecodeError as error:
            return BadText(f"the text is not UTF-8: {error.reason} at byte {error.start}")

    def _alone(self, texts):
        try:
            return self._checked(self._tokenizer.encode_batch_fast(texts))
        except Exception as error:  # as above
            return BadText(f"the text cannot be tokenized: {error}")

    def _checked(self, encodings):
        """A model fails on ids that it has no row for, and with it the whole batch; so they never reach it."""
        most = max((max(encoding.ids, default=0) for encoding in encodings), default=0)
        if most >= self._vocabulary:
            return BadText(
                f"the text has the token id {most}, outside the model's vocabulary of {self._vocabulary}: "
                "tokenizer.json does not fit the model"
            )
        return encodings

    def padded(self, encodings, length):
        """Arrays by name, [texts, length]; the mask is 1 on tokens and 0 on padding."""
        shape = (len(encodings), length)
        arrays = {name: np.full(shape, self._fill.get(name, 0), dtype) for name, dtype in self.tensors.items()}
        for row, encoding in enumerate(encodings):
            columns = {
                "input_ids": encoding.ids,
                "attention_mask": encoding.attention_mask,
                "token_type_ids": encoding.type_ids,
            }
            for name, array in arrays.items():
                array[row, : len(encoding.ids)] = columns[name]
        return arrays

    def longest(self, encodings):
        """At least 1: a text may have no token at all, a tensor may not."""
        return max((len(encoding.ids) for encoding in encodings), default=1) or 1

    def edge(self, encodings):
        """The length to pad to: the next edge, or that of the longest text where there are no edges."""
        longest = self.longest(encodings)
        return next((edge for edge in self.edges if edge >= longest), longest)


def counts(encodings):
    """The output `token_count`: tokens of each text after the cut, [texts, 1]."""
    return pb_utils.Tensor("token_count", np.array([[len(e.ids)] for e in encodings], dtype=np.int32))


def refused(error):
    """The answer to a request that ends alone; each has an error object of its own (a shared one kills the server)."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))
