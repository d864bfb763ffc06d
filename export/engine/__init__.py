"""TensorRT engines for the release that will serve them. Layer: export, beside the ONNX exporters."""
