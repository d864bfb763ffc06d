"""Every command under odd conditions: as another user, in a read-only directory, on a full disk, in another language or
place, twice at once. What reads answers as ever; what writes says where it cannot, and leaves nothing behind."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from perf.curve import ServiceCurve, write_curve

from ..perf.test_simulate_command import lone_run
from ..project.conftest import PROJECT, _write_onnx

SAMPLES = Path(__file__).parents[1] / "perf" / "samples"
TRITUNE = (sys.executable, "-c", "from tooling.cli import entry; entry()")
LISTED = "== these files are there now\n"
AND_LIST = f"""code=0; "$@" || code=$?; printf '{LISTED}' >&2; find . -mindepth 1 -printf '%P\\n' >&2; exit $code"""
HELD = {".tritune", ".tritune/build", ".tritune/build/running"}  # what a build holds, empty
NOWHERE = "127.0.0.1:9"
CODES = {0, 1, 2, 3, 4}
Kind = Literal[
    "reads",  # the same answer everywhere
    "writes",  # new files
    "changes",  # files that are there
    "begins",  # as `writes`, but it would take minutes: only where it cannot write
    "looks",  # at the machine and at servers too: the exit code is one of the table
]

COMMANDS: dict[str, Kind] = {
    "init --source bundled:minilm --no-tune --file new.yaml": "writes",
    "build": "writes",
    "build --dry-run": "reads",
    "build --frozen": "reads",
    "export bundled:minilm --repository new --name m": "begins",
    "quickstart --directory new": "begins",
    "gen-config models/one --max-batch-size 2 --force": "changes",
    "gen-config models/one --output new/config.pbtxt": "writes",
    "gen-config models/one --max-batch-size 2 --diff": "reads",
    "gen-config parts/joined --ensemble one,two": "writes",
    "gen-config models/llm --llm llm --gpu-memory 24GiB": "writes",
    "check models": "reads",
    "check fixable --fix": "changes",
    "simulate models/one --curve curve.json --requests 300": "reads",
    "study show study": "reads",
    "study rows study --csv": "reads",
    "study best study": "reads",
    "study frontier study": "reads",
    "report study --output new/report.html": "writes",
    "workload from-texts texts.txt --tokenizer tokenizer --output new.yaml": "writes",
    "workload from-log log.csv --output new.yaml": "writes",
    "deploy compose models --gpus none --output new": "writes",
    "deploy kubernetes models --output new": "writes",
    "deploy split --name one --percent 10 --output new": "writes",
    "completion bash": "reads",
    f"promote models/one instances=2 --url {NOWHERE}": "looks",
    f"rollback models/one --url {NOWHERE}": "looks",
    f"drift models/one --url {NOWHERE}": "looks",
    f"quality reference.json --url {NOWHERE}": "looks",
    f"quality new.json --record --model one --url {NOWHERE}": "begins",
    f"bottleneck one --url {NOWHERE}": "looks",
    f"openai one --url http://{NOWHERE}": "looks",
    "profile models/one": "begins",
    "profile models/two": "looks",
    "tune models/one --apply": "begins",
    "tune models/one": "looks",
    "compare models/one instances=2": "looks",
    "serve models": "looks",
    "restore": "looks",
    "doctor": "looks",
    "runtime show": "looks",
    "runtime install": "looks",
}


CONFIG = """name: "%s"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
dynamic_batching { }
"""


@dataclass(frozen=True)
class Condition:
    """`shell` runs in the directory before the command; without `writable` nothing can be written below it."""

    shell: str = ""
    writable: bool = True
    user: bool = False
    own: bool = False
    place: str = "desk"
    namespace: bool = False
    same: bool = True
    environment: dict[str, str] = field(default_factory=dict)


CONDITIONS = {
    "as another user": Condition(user=True, writable=False),
    "on a full disk": Condition(
        "cp -a . ../full && cd ../full && (cat /dev/zero > filler 2>/dev/null || true)", writable=False, namespace=True
    ),
    "in a read-only directory": Condition(
        'mount --bind . . && mount -o remount,bind,ro . && cd "$PWD"', writable=False, namespace=True
    ),
    "with no file allowed to grow": Condition("ulimit -f 0", writable=False),
    "as another user in a directory of theirs": Condition(user=True, own=True),
    "in a place with blanks and umlauts with LANG=C and no stdin": Condition(
        "exec <&-", place="ein Ordner – größer \"als\" $HOME", environment={"LANG": "C", "LC_ALL": "C"}
    ),
    "with ASCII alone": Condition(
        environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, place="größe", same=False
    ),
}  # fmt: skip
QUICK = ("as another user", "on a full disk")
SET_USER = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),  # as the interpreter may be root's
)


class Done(NamedTuple):
    code: int
    out: str
    err: str
    left: set[str]
    """What is below the directory now that was not before."""


def namespace() -> tuple[str, ...] | None:
    """The command that gives a process mounts of its own; None where that is not allowed."""
    for command in (("unshare", "-m"), ("unshare", "-rm")):
        try:
            subprocess.run([*command, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return command
    return None


NAMESPACE = namespace()


@pytest.fixture(scope="module")
def shelf() -> Iterator[Path]:
    """Files of all kinds, below a directory that every user may enter."""
    root = Path(tempfile.mkdtemp(prefix="tritune-conditions-"))
    root.chmod(0o755)
    desk = root / "shelf"
    for repository, name in (
        ("model_repository", "one"),
        ("model_repository", "two"),
        ("models", "one"),
        ("models", "two"),
        ("fixable", "one"),
    ):
        _write_onnx(desk / repository / name / "1" / "model.onnx", 2.0)
        if repository != "model_repository":
            (desk / repository / name / "config.pbtxt").write_text(
                CONFIG % ("other" if repository == "fixable" else name)
            )
    for name, tensors in (("one", "xy"), ("two", "yz")):
        (desk / "parts" / name).mkdir(parents=True)
        config = (CONFIG % name).replace('"y"', f'"{tensors[1]}"').replace('"x"', f'"{tensors[0]}"')
        (desk / "parts" / name / "config.pbtxt").write_text(config)
    (desk / "tritune.yaml").write_text(PROJECT)
    (desk / "more.yaml").write_text("version_policy: {all: {}}\n")
    (desk / "texts.txt").write_text("ein Text\nzwei größere Texte\n")
    (desk / "log.csv").write_text("time,tokens\n1,5\n3,7\n2,6\n")
    (desk / "study").mkdir()
    shutil.copy(SAMPLES / "study_of_format_2.jsonl", desk / "study" / "study.jsonl")
    answers: list[Any] = [{"prompt": "a", "text": "b", "steps": []}]
    (desk / "reference.json").write_text(
        json.dumps({"schema_version": 1, "model": "one", "max_tokens": 1, "answers": answers})
    )
    (desk / "tokenizer").mkdir()
    Tokenizer(WordLevel({"[UNK]": 0, "ein": 1}, unk_token="[UNK]")).save(str(desk / "tokenizer" / "tokenizer.json"))
    (desk / "llm").mkdir()
    facts = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    facts |= {"intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 256}
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", **facts}
    (desk / "llm" / "config.json").write_text(json.dumps(llama))
    grid = [lone_run(count, 1, rows, 8) for count in (1, 2) for rows in (1, 4, 8)]
    write_curve(
        ServiceCurve(
            tool={"tritune": "0"}, server={"tritonserver": "2.51.0"}, host={"cores": 2, "cpu": "some CPU"},
            model={"name": "one", "sha256": "ab"}, started="2025-01-01T00:00:00+00:00", wall_s=1.0, lengths=(8,),
            runs=(*grid, lone_run(2, 2, 1, 8)),
        ),
        desk / "curve.json",
    )  # fmt: skip
    (root / "full").mkdir()
    yield desk
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def usual(shelf: Path) -> Any:
    """What a command does where nothing is odd."""
    return functools.cache(lambda name: run(shelf, name, Condition()))


def files_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def run(shelf: Path, name: str, condition: Condition) -> Done:
    """Run a command of the table in a copy of the shelf."""
    desk = shelf.parent / condition.place
    shutil.copytree(shelf, desk)
    try:
        before = files_below(desk)
        command = [*TRITUNE, *name.split()]
        if condition.namespace:
            assert NAMESPACE
            full = "mount -t tmpfs -o size=512k tmpfs ../full && " if "full" in condition.shell else ""
            command = [*NAMESPACE, "bash", "-c", f"set -e; {full}{condition.shell}; {AND_LIST}", "bash", *command]
        elif condition.shell:
            command = ["bash", "-c", f"set -e; {condition.shell}; {AND_LIST}", "bash", *command]
        if condition.user and os.geteuid() == 0:
            command = [*SET_USER, *command]
            for path in [desk, *desk.rglob("*")] if condition.own else ():
                os.chown(path, 65534, 65534)
        elif condition.user and not condition.own:
            for path in [desk, *desk.rglob("*")]:
                path.chmod(path.stat().st_mode & ~0o222)
        done = subprocess.run(
            command, cwd=desk, capture_output=True, stdin=subprocess.DEVNULL, timeout=120, start_new_session=True,
            env=environment(desk) | condition.environment,
        )  # fmt: skip
        out, err = (
            stream.decode(errors="surrogateescape")
            .replace(str(desk), "DESK")
            .replace(str(shelf.parent / "full"), "DESK")
            for stream in (done.stdout, done.stderr)
        )
        err, _, listed = err.partition(LISTED)
        after = set(listed.splitlines()) - {"filler"} if condition.namespace else files_below(desk)
        return Done(done.returncode, out, err, after - before)
    finally:
        for path in [desk, *desk.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(desk)


def environment(desk: Path) -> dict[str, str]:
    """Nothing is found outside the directory: no home, no cache, no runtime, no package index, no hub."""
    return {
        **os.environ, "HOME": str(desk), "XDG_CACHE_HOME": str(desk / "cache"), "TRITUNE_RUNTIME": "nowhere/runtime",
        "TRITUNE_EXPORT_CACHE": str(desk / "cache"), "HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1",
        "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "80",
    }  # fmt: skip


def rows() -> Iterator[Any]:
    for condition, given in CONDITIONS.items():
        for name, kind in COMMANDS.items():
            if (NAMESPACE or not given.namespace) and (kind != "begins" or not given.writable):
                yield pytest.param(name, condition, marks=[] if condition in QUICK else [pytest.mark.long])


@pytest.mark.parametrize(("name", "condition"), [*rows()])
def test_every_command_under_every_condition(name: str, condition: str, shelf: Path, usual: Any) -> None:
    kind, given = COMMANDS[name], CONDITIONS[condition]
    done = run(shelf, name, given)
    told = f"{condition}: tritune {name}\n{done.out}{done.err}"
    assert done.code in CODES and "Traceback" not in done.out + done.err, told
    assert done.code in (0, 1) or "error: " in done.err or name == "doctor", told
    if kind == "looks":
        return
    if kind != "reads" and not given.writable:
        assert (done.code, done.out) == (2, ""), told
        assert "cannot be written" in done.err or "cannot be made" in done.err, told
        assert done.left <= HELD, told
        return
    before = usual(name)
    assert done.code == before.code, told
    assert done.left == before.left, told
    if given.same:
        assert done.out.replace("'", "") == before.out.replace("'", ""), told  # a path with blanks is quoted


def together(shelf: Path, *names: str) -> tuple[list[tuple[int, str]], set[str], dict[str, str]]:
    """Run commands of the table at once: the exit code and the messages of each, the files they left, all configs."""
    desk = shelf.parent / "twice"
    shutil.copytree(shelf, desk)
    before = files_below(desk)
    running = [
        subprocess.Popen(
            [*TRITUNE, *name.split()], cwd=desk, env=environment(desk), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in names
    ]  # fmt: skip
    told = [process.communicate(timeout=120)[1] for process in running]
    left = files_below(desk) - before
    configs = {str(path.relative_to(desk)): path.read_text() for path in desk.rglob("config.pbtxt")}
    shutil.rmtree(desk)
    assert "Traceback" not in str(told)
    done = [(process.returncode, text) for process, text in zip(running, told, strict=True)]
    assert all(code in (0, 1) or "error: " in text for code, text in done), done
    return done, left, configs


@pytest.mark.parametrize("name", [name for name, kind in COMMANDS.items() if kind in ("writes", "changes")])
@pytest.mark.long
def test_two_at_once(name: str, shelf: Path, usual: Any) -> None:
    """One of them is done; the other one too, or it says why not. No file is half written or left beside its place."""
    done, left, _ = together(shelf, name, name)
    assert sorted(code for code, _ in done) in ([0, 0], [0, 2]), done
    assert left == usual(name).left


@pytest.mark.parametrize(
    ("one", "other", "meanwhile"),
    [
        ("build", "check model_repository", {0, 1}),  # before there is a config too
        ("build", "build --frozen", {0, 1}),
        ("build", "gen-config model_repository/two", {0, 2}),
        ("build", "deploy compose model_repository --gpus none --output deploy/compose", {0, 1, 2}),
        ("gen-config models/one --output models/one/config.pbtxt --max-batch-size 2", "check models", {0}),
        ("check fixable --fix", "check fixable", {0, 1}),
    ],
)
@pytest.mark.long
def test_one_beside_another(one: str, other: str, meanwhile: set[int], shelf: Path, usual: Any) -> None:
    """What changes a repository is done whatever else looks at it or writes the same; that is done, or says why not."""
    (first, second), left, _ = together(shelf, one, other)
    assert first[0] == 0 or (first[0] == 2 and second[0] == 0), (first, second)
    assert second[0] in meanwhile, second
    assert left >= usual(one).left
    assert not [name for name in left if Path(name).name.startswith(".") and "." in Path(name).name[1:]], left


@pytest.mark.long
def test_two_edits_at_once(shelf: Path) -> None:
    """Each is in the file, or its command says that it is not."""
    edits = {
        "--max-batch-size 2": "max_batch_size: 2",
        "--instances 3": "count: 3",
        "--queue-size 9": "max_queue_size: 9",
    }
    done, _, configs = together(shelf, *(f"gen-config models/one {options}" for options in edits))
    config = configs["models/one/config.pbtxt"]
    assert [code == 0 for code, _ in done] == [text in config for text in edits.values()], (done, config)
    assert any(code == 0 for code, _ in done)


def test_the_table_has_every_command() -> None:
    from tooling.cli.app import app
    from tooling.cli.commands import register

    register(app)
    top = {one.name or one.callback.__name__.replace("_", "-") for one in app.registered_commands if one.callback}
    groups = {
        f"{group.name} {one.name or one.callback.__name__.replace('_', '-')}"
        for group in app.registered_groups
        if group.typer_instance
        for one in group.typer_instance.registered_commands
        if one.callback
    }
    assert {*top, *groups} <= {" ".join(name.split()[:count]) for name in COMMANDS for count in (1, 2)}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_kinds_of_the_table(name: str, shelf: Path, usual: Any) -> None:
    """Else a condition in which nothing can be written would say nothing of what writes."""
    kind = COMMANDS[name]
    if kind in ("begins", "looks"):
        return
    done = usual(name)
    assert done.code == 0 or kind == "reads", done
    assert bool(done.left) == (kind == "writes"), done
