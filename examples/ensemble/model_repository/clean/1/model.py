"""Lower-cases texts and takes the punctuation out of them."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "text", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "words", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(8)
        return config

    def execute(self, requests):
        answers = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            cleaned = [[_clean(text).encode()] for [text] in texts]
            tensor = pb_utils.Tensor("words", np.array(cleaned, dtype=np.object_))
            answers.append(pb_utils.InferenceResponse([tensor]))
        return answers


def _clean(text):
    return "".join(c for c in text.decode().lower() if c.isalnum() or c.isspace())
