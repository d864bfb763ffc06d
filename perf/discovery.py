"""Find a perf_analyzer that runs on this machine, and say why others do not. Layer: above the runtime."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tooling.runtime import Runtime

VARIABLE = "TRITUNE_PERF_ANALYZER"
INSTALL = "run `tritune runtime install`: it brings a perf_analyzer that runs here"

_DISTRIBUTION = "perf-analyzer"
_OLDEST = (2, 58)
_NEEDED_GLIBC = "2.38"
_PROBE_S = 5


@dataclass(frozen=True, slots=True)
class Candidate:
    """One place where a perf_analyzer may be. `problem` and `hint` say why it cannot be used, None when it can."""

    source: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    version: str | None = None
    problem: str | None = None
    hint: str | None = None


def candidates(runtime: Runtime | None) -> Iterator[Candidate]:
    """Every place in the order of preference; a program is started, with `--version`, when it is asked for."""
    if chosen := os.environ.get(VARIABLE):
        yield _chosen(chosen)
    yield _installed()
    yield from _on_path()
    yield _bundled(runtime)


def _chosen(line: str) -> Candidate:
    """The command line of the variable; its hint is about the variable, as it is never passed over."""
    try:
        found = _probe(f"${VARIABLE}", tuple(shlex.split(line)))
    except ValueError as error:
        found = Candidate(f"${VARIABLE}", problem=f"not a command line: {error}")
    if found.problem is None or found.hint not in (None, INSTALL):
        return found
    return replace(found, hint=f"correct {VARIABLE} (now `{line}`) or unset it")


def _installed() -> Candidate:
    """The binary inside the `perf-analyzer` distribution. Its console script is no use: it always exits 0."""
    source = f"the {_DISTRIBUTION} distribution"
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return Candidate(source, problem="not installed", hint=INSTALL)
    version = distribution.version
    if version == "0.1.0":
        found = platform.libc_ver()[1] or "another C library"
        return Candidate(
            source,
            version=version,
            problem=f"0.1.0 is a placeholder without a program: the real one needs glibc {_NEEDED_GLIBC}, "
            f"this system has {found}",
            hint=INSTALL,
        )
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        hint = f"pip install --upgrade '{_DISTRIBUTION}>={oldest}'"
        return Candidate(source, version=version, problem=f"{version} is older than {oldest}", hint=hint)
    binary = next((f for f in distribution.files or () if f.match("perf_analyzer/bin/perf_analyzer")), None)
    if binary is None:
        return Candidate(source, version=version, problem=f"{version} holds no program", hint=INSTALL)
    return _probe(source, (str(binary.locate()),), version=version)


def _on_path() -> Iterator[Candidate]:
    directories = os.environ.get("PATH", os.defpath).split(os.pathsep)
    files = [Path(directory or ".").absolute() / "perf_analyzer" for directory in directories]
    for file in dict.fromkeys(f for f in files if os.access(f, os.X_OK) and f.is_file()):
        if _is_python_script(file):
            problem = f"{file} is a Python console script, which exits 0 even when perf_analyzer fails"
            yield Candidate("PATH", (str(file),), problem=problem, hint=f"name the program itself in ${VARIABLE}")
        else:
            yield _probe("PATH", (str(file),))


def _is_python_script(file: Path) -> bool:
    """Whether pip wrote this script; a long or odd interpreter path hides in the second line of a shell script."""
    with file.open("rb") as opened:
        head = opened.read(1024)
    return head.startswith(b"#!") and b"python" in b"".join(head.splitlines()[:2])


def _bundled(runtime: Runtime | None) -> Candidate:
    source = "the runtime"
    if runtime is None:
        return Candidate(source, problem="not installed", hint=INSTALL)
    if runtime.perf_analyzer is None:
        problem = f"its perf_analyzer does not run here (it needs glibc 2.34, found {platform.libc_ver()[1] or 'none'})"
        return Candidate(source, problem=problem, hint=f"name another perf_analyzer in ${VARIABLE}")
    return _probe(source, (str(runtime.perf_analyzer),), env=runtime.perf_analyzer_env())


def _probe(
    source: str, command: tuple[str, ...], *, env: Mapping[str, str] | None = None, version: str | None = None
) -> Candidate:
    """Start `command --version`. Its wheel prints 0.0.0 there, so the version of a distribution is passed in."""
    env = dict(os.environ if env is None else env)

    def unusable(problem: str, hint: str) -> Candidate:
        return Candidate(source, command, env, version, f"{shlex.join(command)}: {problem}", hint)

    try:
        probe = subprocess.run(
            [*command, "--version"], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S
        )
    except PermissionError:
        return unusable("may not be executed", f"chmod +x {shlex.quote(command[0])}")
    except OSError as error:
        return unusable(f"cannot be started ({error.strerror})", INSTALL)
    except subprocess.TimeoutExpired:
        return unusable(f"did not answer `--version` within {_PROBE_S} s", INSTALL)
    text = probe.stderr.decode(errors="replace")
    if probe.returncode == 0 and (printed := re.search(r"^Perf Analyzer Version (\S+)", text, re.MULTILINE)):
        return Candidate(source, command, env, version or printed[1])
    return unusable(*_explain(probe.returncode, text))


def _explain(rc: int, stderr: str) -> tuple[str, str]:
    """Problem and fix of a program that started and failed."""
    if needed := re.search(r"version [`'](\S+)' not found", stderr):
        return f"needs {needed[1]}, which this system (glibc {platform.libc_ver()[1]}) lacks", INSTALL
    if library := re.search(r"error while loading shared libraries: (\S+?):", stderr):
        return f"needs {library[1]}, which is not on this system", INSTALL
    last = stderr.strip().splitlines()[-1:] or ["nothing on stderr"]
    return f"`--version` ended with exit code {rc}: {last[0]}", f"check the command in ${VARIABLE}"
