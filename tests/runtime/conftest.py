"""A directory with the files of an installed runtime, for tests of finding and installing it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tooling.runtime.location import PINS


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runtime of this test belongs; nothing is there yet."""
    monkeypatch.setenv("TRITUNE_RUNTIME", str(tmp_path / "runtime"))
    return tmp_path / "runtime"


@pytest.fixture
def finish(root: Path) -> Callable[[], Path]:
    """Put all files of an installed runtime there, empty but for the marker."""

    def write() -> Path:
        packages = root / "venv" / "lib" / "python3.11" / "site-packages"
        libpython = root / "lib" / "libpython3.11.so.1.0"
        files = [
            root / "venv" / "bin" / "python",
            root / "venv" / "bin" / "perf_analyzer",
            root / "python" / "triton_python_backend_stub",
            root / "python" / "libtriton_python.so",
            libpython,
            packages / "pytriton" / "tritonserver" / "bin" / "tritonserver",
        ]
        for name, version in PINS.items():
            files.append(packages / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA")
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        marker = {"pins": PINS, "python": "3.11", "libpython": str(libpython), "perf_analyzer": True}
        (root / "runtime.json").write_text(json.dumps(marker))
        return root

    return write


@pytest.fixture
def installed(finish: Callable[[], Path]) -> Path:
    return finish()
