"""Triton's config text: parsed by the rules of its own parser, printed, edited in place. Layer: pbtxt."""
