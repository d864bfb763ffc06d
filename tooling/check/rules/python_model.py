"""Rules about Python models, whose code is read and never run. Layer: check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from tooling.check.files import exists, is_file, read_limited
from tooling.check.finding import Evidence, Finding, Place
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load, request

_SOURCE: Final = "Python backend"
_LARGEST: Final = 2**18
_CALLS_LOOKED_AT: Final = 20
_SENDER: Final = ("get_response_sender", "send")
_DIRECTORY: Final = "$$TRITON_MODEL_DIRECTORY"
_ENVIRONMENT: Final = "EXECUTION_ENV_PATH"
_CPU_ONLY: Final = "FORCE_CPU_ONLY_INPUT_TENSORS"
_CLASS: Final = "TritonPythonModel"
_SHELL: Final = re.compile(r"""[\s'"\\$`&|;<>()*?!{}]""")


def _example(
    config: str, code: str = "class TritonPythonModel:\n    def execute(self, requests):\n        return []"
) -> str:
    return f'backend: "python"\n{config}\n--- 1/model.onnx\nabsent\n--- 1/model.py\n{code}'


MISSING = load(
    "python-file-missing",
    "A version has no model.py.",
    "The Python backend of 2.51 waits for ever for a process that never starts: the load hangs, and with it the "
    "server.",
    'backend: "python"\n--- 1/model.onnx\nabsent',
    _SOURCE,
)
NAME = load(
    "python-file-name",
    "The file of a Python model must end in `.py`.",
    "default_model_filename is imported as a module.",
    _example('default_model_filename: "model.txt"') + "\n--- 1/model.txt\nx",
    _SOURCE,
    evidence=Evidence.READ,
)
BROKEN = load(
    "python-file-broken",
    "The file of a Python model is no Python code with a class TritonPythonModel.",
    "Triton imports the file and makes an instance of that class.",
    _example("", "def execute(requests):\n    return []"),
    _SOURCE,
    evidence=Evidence.READ,
)
ENVIRONMENT_MISSING = load(
    "python-environment-missing",
    "The execution environment is not there.",
    f"{_ENVIRONMENT} is a conda-pack archive or an unpacked environment, as a path on the server; `{_DIRECTORY}` at "
    "its "
    "beginning stands for the model directory.",
    _example(f'parameters {{ key: "{_ENVIRONMENT}" value: {{ string_value: "{_DIRECTORY}/env.tar.gz" }} }}'),
    _SOURCE,
)
ENVIRONMENT_ELSEWHERE = advice(
    "python-environment-elsewhere",
    "The path of the execution environment is one of the server's.",
    "A relative path is looked for below the directory the server was started in, an absolute one on the server: not "
    "where "
    "the model lies. The load fails when it is not there.",
    _example(f'parameters {{ key: "{_ENVIRONMENT}" value: {{ string_value: "env.tar.gz" }} }}') + "\n--- env.tar.gz\nx",
    _SOURCE,
)
CPU_ONLY = load(
    "python-cpu-only-value",
    f"{_CPU_ONLY} is neither yes nor no.",
    "The two words are taken in lower case only.",
    _example(f'parameters {{ key: "{_CPU_ONLY}" value: {{ string_value: "true" }} }}'),
    _SOURCE,
    evidence=Evidence.READ,
)
NOT_DECOUPLED = request(
    "python-not-decoupled",
    "The model sends several responses, and is not decoupled.",
    "Without `model_transaction_policy { decoupled: true }` a request has exactly one answer; the client gets the "
    "first, and "
    "`expected a single response`.",
    _example(
        "",
        "class TritonPythonModel:\n    def execute(self, requests):\n        for request in requests:\n"
        "            sender = request.get_response_sender()\n            for part in range(2):\n"
        "                sender.send(part)",
    ),
    _SOURCE,
)
NAME_HANGS = load(
    "python-name-with-blank-or-quote",
    "A blank, a quote or another sign of the shell in a name makes the load of a Python model hang.",
    "The Python backend starts its processes through a shell, with the names of the model, its file and its "
    "instances in the "
    "command: on 2.51 the server then waits for ever.",
    _example('instance_group { name: "it\'s" kind: KIND_CPU }'),
    "Python backend of 2.51",
)
PATH_HANGS = advice(
    "python-path-with-blank-or-quote",
    "A blank, a quote or another sign of the shell in the path of a repository makes Python models hang.",
    "This is about the path on the server, which may be another: `tritune serve` and containers use plain ones.",
    _example("") + "\n--- repository\nmy models",
    "Python backend of 2.51",
    evidence=Evidence.RUN,
)
RULES = (
    NAME_HANGS,
    PATH_HANGS,
    MISSING,
    NAME,
    BROKEN,
    ENVIRONMENT_MISSING,
    ENVIRONMENT_ELSEWHERE,
    CPU_ONLY,
    NOT_DECOUPLED,
)


def names(model: Model) -> Iterator[Finding]:
    """Names that end up in a command of the shell."""
    if model.config.backend != "python":
        return
    named: list[tuple[str, str, tuple[str | int, ...]]] = [
        ("model", model.name, ()),
        ("file", model.config.default_model_filename, ("default_model_filename",)),
    ]
    named += [
        ("instance group", group.name, ("instance_group", index))
        for index, group in enumerate(model.written.instance_group)
    ]
    for what, name, path in named:
        if _SHELL.search(name):
            yield model.find(
                NAME_HANGS,
                f"the {what} `{name}` has a sign of the shell in its name: the load hangs on 2.51",
                *path,
                hint="use letters, digits, `_`, `-` and `.`",
            )
    parent = str(model.directory.absolute().parent)
    if _SHELL.search(parent):
        yield model.find(
            PATH_HANGS,
            f"`{parent}` has a sign of the shell in it: served from there, the load hangs on 2.51",
            place=Place(model.shown),
            hint="serve it from a plain path; `tritune serve` does",
        )


def python_model(model: Model) -> Iterator[Finding]:
    """The code of a Python model."""
    if model.config.backend != "python":
        return
    name = model.config.default_model_filename
    if not name.endswith(".py"):
        yield model.find(
            NAME,
            f"default_model_filename {name} does not end in .py",
            "default_model_filename",
            says=f"Model name must end with '.py'. Model name is \"{name}\".",
        )
        return
    for version in model.served:
        path = model.version_dir(version) / name
        if is_file(path):
            yield from _code(model, path)
        else:
            yield model.find(
                MISSING,
                f"{model.name}/{version.number}/{name} not found: the load hangs on 2.51",
                "default_model_filename",
                hint="put the model's code there",
            )


def parameters(model: Model) -> Iterator[Finding]:
    """What the Python backend reads of `parameters`."""
    if model.config.backend != "python":
        return
    given = {key: value.string_value for key, value in model.config.parameters.items()}
    if _CPU_ONLY in given and given[_CPU_ONLY] not in ("yes", "no"):
        yield model.find(
            CPU_ONLY,
            f"{_CPU_ONLY} is `{given[_CPU_ONLY]}`",
            "parameters",
            _CPU_ONLY,
            says=f"Incorrect value for {_CPU_ONLY}: {given[_CPU_ONLY]}'",
            hint="yes or no",
        )
    if _ENVIRONMENT not in given:
        return
    text, where = given[_ENVIRONMENT], ("parameters", _ENVIRONMENT)
    inside = text.startswith(_DIRECTORY)
    path = Path(f"{model.directory}{text.removeprefix(_DIRECTORY)}") if inside else Path(text)
    shown = f"{model.name}{text.removeprefix(_DIRECTORY)}" if inside else text
    if not inside and not (path.is_absolute() and exists(path)):
        yield model.find(
            ENVIRONMENT_ELSEWHERE,
            f"{_ENVIRONMENT}: {text} must be there on the server",
            *where,
            hint=f"use {_DIRECTORY}/...",
        )
    elif inside and not exists(path):
        yield model.find(
            ENVIRONMENT_MISSING,
            f"{_ENVIRONMENT}: {shown} does not exist",
            *where,
            says=f"Failed to get the canonical path for {path}.",
            hint=f"ship the archive, or install the packages in the image; use {_DIRECTORY}/... for paths in the model",
        )


def _code(model: Model, path: Path) -> Iterator[Finding]:
    shown = model.shown_path(path)
    try:
        source = read_limited(path, _LARGEST)
        if source is None:
            return
        tree = ast.parse(source)
    except OSError as error:
        yield model.find(BROKEN, f"cannot be read: {error.strerror or error}", place=Place(shown))
        return
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        yield model.find(BROKEN, f"no Python code: {error}", place=Place(shown, line, 1 if line else None))
        return
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    imported = any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))
    if _CLASS not in names and not imported and _CLASS not in source.decode(errors="replace"):
        yield model.find(
            BROKEN, f"no class {_CLASS}", place=Place(shown), hint=f"class {_CLASS} with execute(self, requests)"
        )
    sending = _sends_several(tree)
    if sending is not None and not model.config.model_transaction_policy.decoupled:
        completes = any(
            isinstance(node, ast.FunctionDef) and node.name == "auto_complete_config" for node in ast.walk(tree)
        )
        if not completes or model.target.strict:
            yield model.find(
                NOT_DECOUPLED,
                f"{path.name} uses get_response_sender and sends more than one response but decoupled is not set",
                place=Place(shown, sending, 1),
                hint="model_transaction_policy { decoupled: true }",
            )


def _sends_several(tree: ast.Module) -> int | None:
    """The line where a response sender sends responses in a loop of its own, or a second time; None without one."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
        calls = list(islice(_calls(function), _CALLS_LOOKED_AT))
        made = [depth for name, depth, _ in calls if name == "get_response_sender"]
        # `send` with flags alone sends no response.
        sent = [(depth, call.lineno) for name, depth, call in calls if name == "send" and call.args]
        if not made or not sent:
            continue
        if len(sent) > 1 and len({depth for depth, _ in sent}) == 1:
            return sent[1][1]
        for depth, line in sent:
            if depth > max(made):
                return line
    return None


def _calls(function: ast.AST) -> Iterator[tuple[str, int, ast.Call]]:
    """The calls that make a response sender or use it, in order, with the number of loops around each."""
    pending = [(function, 0)]
    while pending:
        node, depth = pending.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SENDER:
            yield node.func.attr, depth, node
        deeper = depth + isinstance(node, ast.For | ast.While | ast.AsyncFor)
        pending += [(child, deeper) for child in reversed(list(ast.iter_child_nodes(node)))]
