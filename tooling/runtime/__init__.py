"""The embedded server's own environment: where it is, what it holds, how it is made. Layer: runtime."""

from __future__ import annotations

from tooling.runtime.install import install_runtime
from tooling.runtime.llm import find_llm, has_llm, install_llm, installed_vllm
from tooling.runtime.location import Runtime, default_root, find_runtime

__all__ = [
    "Runtime",
    "default_root",
    "find_llm",
    "find_runtime",
    "has_llm",
    "install_llm",
    "install_runtime",
    "installed_vllm",
]
