"""The signature of a Python model from its `auto_complete_config`, read as text and never run. Layer: signature."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tooling.errors import Problem, UsageError
from tooling.signature.declared import DATA_TYPES, Declared, need_declared
from tooling.signature.spec import ModelSignature, TensorSpec

_CLASS: Final = "TritonPythonModel"
_KEYS: Final = ("name", "data_type", "dims", "optional")
_CALLS: Final = ("add_input", "add_output", "set_max_batch_size", "set_model_transaction_policy")
_Values = dict[str, Any]


class _Unreadable(Exception):
    """An argument that only running the code could tell."""

    def __init__(self, node: ast.AST, call: str) -> None:
        super().__init__(call)
        self.line, self.call = getattr(node, "lineno", 0), call


def read_python_model(path: Path, declared: Declared) -> ModelSignature:
    """What `auto_complete_config` adds with literal values, else the declared tensors.

    Raises UsageError for code that is no Python or has no TritonPythonModel, for values that are not literal, and
    without a word on the tensors.
    """
    try:
        return read_python_text(path.read_bytes(), path, declared)
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror, expected="a Python model") from error


def read_python_text(text: bytes, path: Path, declared: Declared) -> ModelSignature:
    """As `read_python_model`, for text that is not in its file yet."""
    module = _parse(text, path)
    model = _model_class(module, path)
    constants: _Values = {}
    list(_walk([node for node in module.body if isinstance(node, ast.Assign | ast.AnnAssign)], constants))
    function = next(
        (n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "auto_complete_config"), None
    )
    calls = _literal_calls(path, function, constants) if function else []
    tensors = [call for call in calls if call[0] in ("add_input", "add_output")]
    decoupled = any(name == "set_model_transaction_policy" and value.get("decoupled") is True for name, value in calls)
    if declared or not tensors:
        why = "auto_complete_config adds no tensors" if function else "the model has no auto_complete_config"
        if tensors:
            raise UsageError(
                "auto_complete_config says what the model takes",
                where=path,
                hint="leave --input and --output-tensor out",
            )
        need_declared(path, declared, why)
        return ModelSignature(path, "python", declared.inputs, declared.outputs, decoupled=decoupled)
    batch = next((value for name, value in reversed(calls) if name == "set_max_batch_size"), 0)
    problems: list[Problem] = []
    inputs, outputs = (
        tuple(_spec(path, kind, value, batch > 0, problems) for name, value in tensors if name == f"add_{kind}")
        for kind in ("input", "output")
    )
    if problems:
        raise UsageError(problems=problems)
    return ModelSignature(path, "python", inputs, outputs, max_batch_size=batch, decoupled=decoupled)


def _parse(text: bytes, path: Path) -> ast.Module:
    try:
        return ast.parse(text, str(path))
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise UsageError("not Python code", where=f"{path}:{line}" if line else path, got=str(error)) from error


def _model_class(tree: ast.Module, path: Path) -> ast.ClassDef:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == _CLASS:
            return node
    raise UsageError(
        f"no class {_CLASS}",
        where=path,
        expected=f"`class {_CLASS}` with `execute`, as Triton's Python backend looks for it",
        hint="start from the commented template: `tritune gen-config MODEL --template`",
    )


def _literal_calls(path: Path, function: ast.FunctionDef, constants: _Values) -> list[tuple[str, Any]]:
    """The calls that describe the model, with their argument as a value, in order; `constants` are the module's."""
    try:
        return list(_walk(function.body, dict(constants)))
    except _Unreadable as error:
        raise UsageError(
            f"the argument of `{error.call}` is not literal, and model code is never run",
            where=f"{path}:{error.line}",
            expected="a literal, or a name bound to one above",
            hint="write the values out, or give them with --input and --output-tensor after removing the call",
        ) from error


def _walk(body: list[ast.stmt], known: _Values) -> Iterator[tuple[str, Any]]:
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    _bind(known, target.id, statement.value)
        elif isinstance(statement, ast.For) and isinstance(statement.target, ast.Name):
            yield from _unroll(statement, known)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            yield from _call(statement.value, known)
        else:
            for inner in ("body", "orelse", "finalbody"):
                yield from _walk(getattr(statement, inner, []), known)


def _unroll(loop: ast.For, known: _Values) -> Iterator[tuple[str, Any]]:
    """A loop over literal values once for each; any other loop once, with its variable unknown."""
    assert isinstance(loop.target, ast.Name)
    try:
        items = list(_value(loop.iter, known))
    except (ValueError, TypeError):
        known.pop(loop.target.id, None)
        yield from _walk(loop.body, known)
        return
    for item in items:
        known[loop.target.id] = item
        yield from _walk(loop.body, known)


def _bind(known: _Values, name: str, value: ast.expr | None) -> None:
    try:
        known[name] = _value(value, known)
    except ValueError:
        known.pop(name, None)


def _call(call: ast.Call, known: _Values) -> Iterator[tuple[str, Any]]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name not in _CALLS:
        return
    try:
        (argument,) = [*call.args, *(keyword.value for keyword in call.keywords)]
        value = _value(argument, known)
    except ValueError as error:
        raise _Unreadable(call, name) from error
    if not isinstance(value, int if name == "set_max_batch_size" else dict):
        raise _Unreadable(call, name)
    yield name, value


def _value(node: ast.expr | None, known: _Values) -> Any:
    """The value of a literal, of `dict(a=1)`, or of lists and dicts of known names. Raises ValueError otherwise."""
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, known) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {_value(key, known): _value(value, known) for key, value in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        return {keyword.arg: _value(keyword.value, known) for keyword in node.keywords}
    if node is None:
        raise ValueError("nothing")
    return ast.literal_eval(node)


def _spec(path: Path, kind: str, value: _Values, batching: bool, problems: list[Problem]) -> TensorSpec:
    """A tensor as `auto_complete_config` gives it; its dims leave the batch axis out, as in a config."""
    name, dims, type_name = value.get("name"), value.get("dims"), value.get("data_type")
    where, what = f"{path}: auto_complete_config", f"{kind} `{name}`"
    wrong = [key for key in value if key not in _KEYS]
    if wrong or not isinstance(name, str) or not name:
        problems.append(
            Problem(
                f"{what} has other properties than Triton takes", where, ", ".join(map(str, value)), ", ".join(_KEYS)
            )
        )
    if type_name not in DATA_TYPES:
        problems.append(Problem(f"{what} has no data type of Triton", where, f"`{type_name}`", ", ".join(DATA_TYPES)))
    if not isinstance(dims, list) or not dims or not all(type(d) is int and (d == -1 or d > 0) for d in dims):
        problems.append(Problem(f"{what} has no usable dims", where, f"{dims}", "lengths of 1 or more, or -1"))
        dims = []
    return TensorSpec(
        str(name), str(type_name), (-1, *dims) if batching else tuple(dims), value.get("optional") is True
    )
