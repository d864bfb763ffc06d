"""The command line as a whole: exit codes, streams, the JSON envelope, global options, what start-up imports."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from tooling.cli import app as boundary
from tooling.errors import ExternalError, MissingError, Refused, UsageError

TRITUNE = [str(Path(sys.executable).parent / "tritune")]

HEAVY = {
    "torch", "transformers", "onnx", "onnxruntime", "tensorrt", "grpc", "numba", "plotly", "numpy", "pydantic",
    "jinja2", "tritonclient", "google", "yaml", "scipy",
}  # fmt: skip


@pytest.fixture
def command_that(monkeypatch: pytest.MonkeyPatch):
    """Register a command `probe` on a fresh root that runs the given function."""

    def make(body):
        root = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)
        root.callback()(boundary._root)

        @root.command()
        def probe(context: typer.Context, number: int = 1) -> None:
            console = boundary.console_of(context)
            body(console)

        monkeypatch.setattr(boundary, "app", root)
        monkeypatch.setattr("tooling.cli.commands.register", lambda app, name: None)

    return make


@pytest.mark.parametrize("kind", [Refused, UsageError, MissingError, ExternalError])
def test_an_error_is_its_exit_code_and_one_line_on_stderr(command_that, run_cli, kind) -> None:
    def body(console):
        raise kind("broken", where="here", got=1, expected="2", hint="mend it")

    command_that(body)
    result = run_cli("probe")
    assert result.code == kind.exit_code
    assert result.out == ""
    assert result.err == "error: here: broken (got 1; expected 2)\nhint: mend it\n"


def test_json_is_one_object_for_results_and_errors(command_that, run_cli) -> None:
    command_that(lambda console: console.result({"answer": 42}, "forty-two"))
    for argv in (("--json", "probe"), ("probe", "--json")):
        result = run_cli(*argv)
        assert result.json == {
            "schema_version": 1, "command": "probe", "exit_code": 0, "data": {"answer": 42}, "error": None,
        }  # fmt: skip
    assert run_cli("probe").out == "forty-two\n"

    def refuse(console):
        raise UsageError("wrong", where="f")

    command_that(refuse)
    assert run_cli("probe", "--number", "x", "--json").json["command"] == "probe"
    failed = run_cli("probe", "--json")
    assert failed.code == 2
    assert failed.json["error"]["problems"][0]["what"] == "wrong"
    assert failed.json["data"] is None


def test_a_bug_is_exit_70_with_its_traceback(command_that, run_cli) -> None:
    command_that(lambda console: {}["absent"])
    result = run_cli("probe", "--json")
    assert result.code == 70
    assert "KeyError" in result.err
    assert result.json["error"]["kind"] == "internal"


def test_ctrl_c_is_130(command_that, run_cli) -> None:
    def interrupt(console):
        raise KeyboardInterrupt

    def interrupt_a_class(console):
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    for body in (interrupt, interrupt_a_class):
        command_that(body)
        assert run_cli("probe") == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["nosuch"], "nosuch"), (["probe", "--nope"], "--nope"), (["probe", "--number", "x"], "got `x`"),
        (["probe", "extra"], "extra"),
    ],
)  # fmt: skip
def test_wrong_usage_is_2_and_points_to_help(command_that, run_cli, argv, says) -> None:
    command_that(lambda console: None)
    result = run_cli(*argv)
    assert result.code == 2
    assert result.out == ""
    assert says in result.err
    assert "--help`" in result.err


def test_quiet_hides_messages_but_not_results(command_that, run_cli) -> None:
    def body(console):
        console.info("working")
        with console.progress("steps", 2) as progress:
            progress.step("one")
        console.result({}, "done")

    command_that(body)
    loud, quiet, plain = run_cli("probe"), run_cli("-q", "probe"), run_cli("probe", "--no-progress")
    assert "working" in loud.err
    assert "steps [1/2]" in loud.err
    assert "ETA" in loud.err
    assert quiet == (0, "done\n", "")
    assert plain.err == "working\n"


def test_version(run_cli) -> None:
    from importlib.metadata import version

    assert run_cli("--version").out == f"tritune {version('tritune')}\n"
    assert run_cli("--version", "--json").json["data"] == {"version": version("tritune")}


def test_no_arguments_show_the_commands(run_cli) -> None:
    result = run_cli()
    assert result.code == 2
    assert "quickstart" in result.err


def test_start_up_imports_nothing_heavy() -> None:
    """Start-up time is guarded by what is imported, not by a clock."""
    code = (
        "import sys, json; from tooling.cli import main; main(['--help']);"
        "print('\\n' + json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not HEAVY & set(json.loads(out.splitlines()[-1]))


def test_a_closed_pipe_is_silent() -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {TRITUNE[0]} --help | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == "0"
    assert "Traceback" not in done.stderr


def test_sigterm_is_143() -> None:
    """SIGTERM unwinds the stack: the handler is in place before the command runs."""
    code = (
        "import time, sys; from tooling.cli import app;"
        "app._run = lambda *a: (sys.stderr.write('ready\\n'), sys.stderr.flush(), time.sleep(30));"
        "from tooling.cli import entry; entry()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, "doctor"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    assert process.wait(timeout=10) == 143
    assert time.monotonic() - started < 5
    process.stderr.close()


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_the_libraries_load_is_silent(number: str, code: int) -> None:
    program = f"""
import os, signal, sys
from tooling.cli import entry

signal.signal(signal.SIGINT, signal.default_int_handler)  # the suite may run in the background, where it is ignored

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.{number})

sys.meta_path.insert(0, Finder())
entry()
"""
    done = subprocess.run([sys.executable, "-c", program, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize(
    ("argv", "where"),
    [
        (["gen-config", ""], "a word of the command line"), (["gen-config", "m", "--output", ""], "--output"),
        (["check", ""], "a word of the command line"), (["serve", "--metrics-port="], "--metrics-port"),
        (["export", "m", "-r", ""], "-r"), (["gen-config", "m", "--name="], "--name"),
    ],
)  # fmt: skip
def test_an_empty_word_is_refused(run_cli, argv: list[str], where: str) -> None:
    """As a path it would be the directory one is in; as any other value it would count as not given."""
    result = run_cli(*argv)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {where}: empty (expected a value)\nhint: ")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{tritune} --version >/dev/full", 2),
        ("{tritune} --json --version >/dev/full", 2),
        ("{tritune} --help >/dev/full", 2),
        ("{tritune} --version >&-", 0),
        ("{tritune} gen-config nowhere 2>&-", 2),
        ("{tritune} gen-config nowhere 2>/dev/full", 2),
        ("{tritune} gen-config {long}", 2),
        ("{tritune} gen-config nowhere --max-queue-delay 1{long}us", 2),
        ("PYTHONIOENCODING=ascii {tritune} gen-config ≤", 2),
    ],
)  # fmt: skip
def test_a_stream_or_a_name_that_cannot_be_used_is_no_bug(line: str, code: int) -> None:
    shell = line.format(tritune=TRITUNE[0], long="1" * 5000)
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_names_that_are_no_utf8_come_out_as_json() -> None:
    done = subprocess.run([TRITUNE[0], "--json", "gen-config", b"/nowhere/\xff"], capture_output=True, timeout=60)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["problems"][0]["where"] == "/nowhere/\udcff"


def test_a_broken_stderr_does_not_end_the_command(command_that, run_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def write(self, text: str) -> None:
            raise BrokenPipeError

    def body(console):
        console.info("working")
        console.result({"answer": 42}, "forty-two")

    command_that(body)
    monkeypatch.setattr(sys, "stderr", Broken())
    assert run_cli("probe").out == "forty-two\n"


def test_a_path_that_cannot_be_looked_at_is_a_usage_error(command_that, run_cli) -> None:
    """Whichever call meets it: a directory without the right to enter, a name too long, a loop of links."""
    command_that(lambda console: Path("/nowhere/at/all").read_text())
    result = run_cli("probe")
    assert (result.code, result.err) == (2, "error: /nowhere/at/all: cannot be used (got No such file or directory)\n")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), OSError(errno.EFBIG, os.strerror(errno.EFBIG)),
        FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']"),
    ],
)  # fmt: skip
def test_a_disk_that_takes_no_temporary_file_is_a_usage_error(command_that, run_cli, error: OSError) -> None:
    def body(console):
        raise error

    command_that(body)
    result = run_cli("probe")
    assert result.code == 2
    assert result.err.startswith(f"error: a temporary file cannot be written (got {error.strerror})\nhint: make room")


def test_only_the_command_that_is_named_is_loaded() -> None:
    code = (
        "import sys, json; from tooling.cli import main; main(['study', '--help']);"
        "print('\\n' + json.dumps(sorted(m for m in sys.modules if m.startswith('tooling.cli.'))))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(out.splitlines()[-1]) == [
        f"tooling.cli.{name}" for name in ("app", "commands", "completion", "study", "usage")
    ]


def test_every_name_loads_its_command(run_cli) -> None:
    listed = re.findall(r"^  ([a-z][a-z-]+)  ", run_cli("--help").out.partition("Commands:")[2], re.MULTILINE)
    assert len(listed) > 20
    for name in listed:
        assert run_cli(name, "--help").out.startswith(f"Usage: tritune {name} ")


@pytest.mark.parametrize("argv", [["tune", "m"], ["compare", "instances=1", "instances=2"], ["profile", "m"]])
def test_another_configuration_is_allowed_on_a_running_server_only(run_cli, argv: list[str]) -> None:
    result = run_cli(*argv, "--allow-reconfigure")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: --allow-reconfigure is for --url\nhint: leave it out")
