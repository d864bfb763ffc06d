"""The embedded server's own environment: where it is, what it holds, how it is made. Layer: runtime."""

from __future__ import annotations

from tooling.runtime.install import install_runtime
from tooling.runtime.location import Runtime, default_root, find_runtime

__all__ = ["Runtime", "default_root", "find_runtime", "install_runtime"]
