"""The engine arguments of a vLLM, read from its source without running it. Layer: llm."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tooling.errors import MissingError

_CLASSES: Final = ("EngineArgs", "AsyncEngineArgs")
_PLAIN: Final = {"int": "int", "float": "float", "bool": "bool", "str": "str"}
_LISTS: Final = ("list", "tuple", "set", "sequence", "iterable")
_WRAPPERS: Final = ("Optional", "Union", "Annotated")
_VERIFIED: Final = ("dtype", "kv_cache_dtype", "tokenizer_mode", "scheduling_policy", "device")
ANY: Final = "any"
"""A type that says nothing: a class of vLLM's own, or none that is known here."""


@cache
def read_arguments(package: Path) -> Mapping[str, tuple[str, ...]]:
    """What each argument takes, by its name, for the package directory of a vLLM.

    A type is one of int, float, bool, str, list, dict and `any`, or a value in quotes where only certain texts are
    taken. None is left out: every argument may be null. Raises MissingError where no arguments can be read.
    """
    source = package / "engine" / "arg_utils.py"
    if not source.is_file():
        raise MissingError("no vLLM stands here", where=package, expected="a directory with engine/arg_utils.py")
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
        aliases = _aliases([tree, *_configs(package)])
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        raise MissingError("the source of vLLM cannot be read", where=package, got=str(error)[:120]) from None
    choices = _command_line_choices(tree)
    found: dict[str, tuple[str, ...]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name in _CLASSES:
            for field in statement.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    name = field.target.id
                    types = _simple(set(_types(field.annotation, aliases)))
                    found[name] = choices.get(name, types) if types == ("str",) else types
    return {name: types for name, types in found.items() if not name.startswith("_")}


def _simple(types: set[str]) -> tuple[str, ...]:
    """The types without those that say no more than others beside them."""
    named = {kind for kind in types if kind != "none" and not ("str" in types and kind.startswith("'"))}
    return (ANY,) if ANY in named or not named else tuple(sorted(named))


def _configs(package: Path) -> Iterator[ast.Module]:
    """The modules that define the types which arguments name."""
    files = [package / "config.py", *sorted((package / "config").glob("*.py"))]
    for file in files:
        if file.is_file():
            yield ast.parse(file.read_text(encoding="utf-8"))


def _aliases(trees: list[ast.Module]) -> dict[str, ast.expr]:
    """Names that stand for a Literal or a union of types."""
    found: dict[str, ast.expr] = {}
    for tree in trees:
        for statement in tree.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                value = statement.value
                if isinstance(value, ast.Subscript | ast.BinOp | ast.Name):
                    found.setdefault(statement.targets[0].id, value)
    return found


def _types(node: ast.expr, aliases: Mapping[str, ast.expr], depth: int = 0) -> Iterator[str]:
    """The types of an annotation; what cannot be told is `any`."""
    name = _name(node)
    if depth > 8:
        yield ANY
    elif isinstance(node, ast.Constant):
        yield from _constant(node, aliases, depth)
    elif isinstance(node, ast.BinOp):
        yield from _types(node.left, aliases, depth + 1)
        yield from _types(node.right, aliases, depth + 1)
    elif isinstance(node, ast.Subscript):
        yield from _subscript(node, aliases, depth)
    elif name in _PLAIN:
        yield _PLAIN[name]
    elif name.lower() in _LISTS:
        yield "list"
    elif name.lower() in ("dict", "mapping"):
        yield "dict"
    elif name in aliases:
        yield from _types(aliases[name], aliases, depth + 1)
    else:
        yield ANY


def _constant(node: ast.Constant, aliases: Mapping[str, ast.expr], depth: int) -> Iterator[str]:
    """None, or an annotation in quotes."""
    if node.value is None:
        yield "none"
    elif isinstance(node.value, str):
        yield from _types(ast.parse(node.value, mode="eval").body, aliases, depth + 1)
    else:
        yield ANY


def _subscript(node: ast.Subscript, aliases: Mapping[str, ast.expr], depth: int) -> Iterator[str]:
    name = _name(node.value)
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Literal":
        yield from _literals(inner, aliases)
    elif name in _WRAPPERS:
        for part in inner[:1] if name == "Annotated" else inner:
            yield from _types(part, aliases, depth + 1)
        if name == "Optional":
            yield "none"
    else:
        yield from _types(node.value, aliases, depth + 1)


def _literals(parts: list[ast.expr], aliases: Mapping[str, ast.expr]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield repr(part.value)
        elif isinstance(part, ast.Constant) and isinstance(part.value, bool | int):
            yield "bool" if isinstance(part.value, bool) else "int"
        elif isinstance(part, ast.Name | ast.Subscript):
            yield from _types(part, aliases)
        else:
            yield ANY


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _command_line_choices(tree: ast.Module) -> dict[str, tuple[str, ...]]:
    """Older versions state the values of a text only where they declare the option; these the engine verifies too."""
    found: dict[str, tuple[str, ...]] = {}
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and _name(call.func) == "add_argument" and call.args):
            continue
        first, keywords = call.args[0], {keyword.arg: keyword.value for keyword in call.keywords}
        listed = keywords.get("choices")
        if isinstance(first, ast.Constant) and isinstance(listed, ast.List | ast.Tuple) and "nargs" not in keywords:
            values = [item.value for item in listed.elts if isinstance(item, ast.Constant)]
            if len(values) == len(listed.elts) and all(isinstance(value, str) for value in values):
                found[str(first.value).lstrip("-").replace("-", "_")] = tuple(sorted(map(repr, values)))
    return {name: values for name, values in found.items() if name in _VERIFIED}
