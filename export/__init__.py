"""Models to verified artefacts (ONNX)."""
