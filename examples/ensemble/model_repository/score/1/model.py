"""Counts good words against bad ones: from -1 to 1."""

import numpy as np
import triton_python_backend_utils as pb_utils

GOOD, BAD = {"good", "great", "friendly"}, {"bad", "slow", "late"}


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "words", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "score", "data_type": "TYPE_FP32", "dims": [1]})
        config.set_max_batch_size(8)
        return config

    def execute(self, requests):
        answers = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "words").as_numpy()
            scores = np.array([[_score(text.decode().split())] for [text] in texts], dtype=np.float32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("score", scores)]))
        return answers


def _score(words):
    good, bad = sum(word in GOOD for word in words), sum(word in BAD for word in words)
    return (good - bad) / (good + bad) if good + bad else 0.0
