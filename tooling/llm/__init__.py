"""Engines for language models: what their settings are, and which to choose. Layer: above config."""
