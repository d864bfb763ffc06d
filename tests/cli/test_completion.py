"""Completion as a shell asks for it: a real bash at a terminal, and what zsh and fish are answered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


@pytest.fixture
def press_tab(tmp_path: Path):
    """What a line has become after TAB in an interactive bash that stands in `tmp_path`."""
    script = tmp_path / "rc"
    script.write_text("source <(tritune completion bash)\nset +o history\n")
    terminal, shell_side = os.openpty()
    bash = subprocess.Popen(
        ["bash", "--noprofile", "--rcfile", str(script), "-i"],
        stdin=shell_side, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path,
        start_new_session=True,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "INPUTRC": os.devnull, "TERM": "dumb"},
    )  # fmt: skip

    def press(line: str) -> str:
        go_to_start = "\x01"
        os.write(terminal, f"{line}\t{go_to_start}echo \n".encode())
        assert bash.stdout is not None
        return bash.stdout.readline().rstrip("\n")

    yield press
    bash.kill()
    bash.communicate()
    os.close(terminal)
    os.close(shell_side)


def test_bash_completes_commands_options_values_and_paths(press_tab, tmp_path: Path) -> None:
    (tmp_path / "model_repository" / "minilm").mkdir(parents=True)
    assert press_tab("tritune exp") == "tritune export"
    assert press_tab("tritune export --prec") == "tritune export --precision"
    assert press_tab("tritune --json export model --precision i") == "tritune --json export model --precision int8"
    assert press_tab("tritune export --precision=i") == "tritune export --precision=int8"
    assert press_tab("tritune export --precision=int8 --form") == "tritune export --precision=int8 --format"
    assert press_tab("tritune gen-config m --set a=b --rel") == "tritune gen-config m --set a=b --release"
    assert press_tab("tritune check model_repository/mi") == "tritune check model_repository/minilm/"
    assert press_tab("tritune check --output=model_repository/mi") == "tritune check --output=model_repository/minilm/"
    assert press_tab("tritune gen-config --json --verb") == "tritune gen-config --json --verbose"


@pytest.mark.parametrize(
    ("shell", "words", "code", "answer"),
    [
        ("zsh", "tritune deploy kub", 0, "\"kubernetes\""),
        ("zsh", "tritune check mod", 0, "_files"),
        ("fish", "tritune export -q --precision ", 0, "fp32\nfp16\nint8"),
        ("zsh", "tritune export --precision=i", 0, "_arguments '*: :((\"--precision=int8\"))'"),
        ("zsh", "tritune check --compose=mod", 0, "compset -P '*='; _files\n"),
        ("fish", "tritune export --precision=", 0, "--precision=fp32\n--precision=fp16\n--precision=int8\n"),
        ("fish", "tritune export --precision=int8 --form", 0, "--format"),
        ("fish", "tritune nosuch --", 0, "--version"),
        ("tcsh", "tritune exp", 1, "Shell tcsh not supported."),
    ],
)  # fmt: skip
def test_other_shells_are_answered(shell: str, words: str, code: int, answer: str) -> None:
    environment = {
        "_TRITUNE_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [BIN / "tritune"], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code
    assert answer in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_script_is_for_a_known_shell(run_cli) -> None:
    assert "complete -o default -F _tritune_completion tritune" in run_cli("completion", "bash").out
    assert run_cli("completion", "zsh", "--json").json["data"]["script"].startswith("#compdef tritune")
    refused = run_cli("completion", "tcsh")
    assert (refused.code, refused.out) == (2, "")
    assert "SHELL: no such choice (got `tcsh`; expected bash, zsh, fish)" in refused.err
