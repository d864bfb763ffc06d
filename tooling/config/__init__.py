"""Triton's ModelConfig: knobs, building, rendering and parsing. Layer: config."""
