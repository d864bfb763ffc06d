"""The signature of a TorchScript archive: argument names from its code, shapes given by hand. Layer: signature.

Nothing is unpickled: the code is read as text, and of the pickle only the name of the class.
"""

from __future__ import annotations

import ast
import os
import pickletools
import re
import zipfile
from itertools import islice
from pathlib import Path
from typing import Final

from tooling.errors import Problem, UsageError
from tooling.signature.declared import Declared, need_declared
from tooling.signature.spec import ModelSignature

TENSORS: Final = ("Tensor", "List[str]")
"""What Triton can pass to `forward`, and take from it."""
BY_KEY: Final = "Dict[str, Tensor]"
"""A single argument of this type takes all inputs by their names."""
_LARGEST: Final = 16 * 2**20  # bytes of code or structure; weights are separate entries and stay untouched
_HEAD: Final = re.compile(rb"^ +(def forward\(.*?\)(?: -> [^\n]*?)?:)(?=\s|\Z)", re.MULTILINE | re.DOTALL)
_LONGEST_HEAD: Final = 2**16
_MOST_ENTRIES: Final = 0xFFFF  # what a plain archive counts to; a large model has some thousands
_OPERATIONS: Final = 1_000  # of the pickle; the class comes first


class TooLarge(UsageError):
    """The file may be right: nobody looks so far."""


def read_torchscript(path: Path, declared: Declared) -> ModelSignature:
    """The declared tensors, checked against the arguments of `forward`.

    A TorchScript file holds neither types nor shapes of its tensors. Raises UsageError for a file that is none, for an
    argument that is no tensor, and for another number of inputs than `forward` takes.
    """
    arguments, results = read_forward(path)
    problems = [
        Problem(
            f"argument `{name}` of `forward` is no tensor",
            where=str(path),
            got=kind,
            expected="Tensor, List[str], or one Dict[str, Tensor]",
            hint="wrap the model so that `forward` takes tensors only",
        )
        for name, kind in arguments
        if kind not in (*TENSORS, BY_KEY)
    ]
    if not all(kind in TENSORS for kind in results):
        problems.append(
            Problem(
                "`forward` returns more than tensors",
                where=str(path),
                got=", ".join(results),
                expected="a Tensor, a List[str], or a tuple of them",
                hint="wrap the model so that `forward` returns tensors only (`return_dict=False`)",
            )
        )
    if problems:
        raise UsageError(problems=problems)
    names = tuple(name for name, _ in arguments)
    need_declared(path, declared, f"TorchScript does not say the types and shapes of {_listed(names)}")
    by_key = any(kind.startswith("Dict") for _, kind in arguments)
    if not by_key and len(declared.inputs) != len(names):
        raise UsageError(
            "as many inputs as `forward` takes are needed",
            where=path,
            got=f"{len(declared.inputs)}",
            expected=f"{len(names)}: {_listed(names)}",
        )
    if len(declared.outputs) > len(results):
        raise UsageError(
            "`forward` returns fewer tensors", where=path, got=f"{len(declared.outputs)}", expected=f"{len(results)}"
        )
    return ModelSignature(path, "pytorch", declared.inputs, declared.outputs, arguments=() if by_key else names)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "its tensors"


def read_forward(path: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """Arguments (name, type) and the types of the results of the outermost module's `forward`.

    Raises UsageError for a file that is no TorchScript.
    """
    try:
        if _entries(path) >= _MOST_ENTRIES:
            raise TooLarge("an archive of too many entries", where=path, expected=f"fewer than {_MOST_ENTRIES}")
        with zipfile.ZipFile(path) as archive:
            entries = {name.partition("/")[2]: name for name in archive.namelist()}
            if not any(entry.startswith("code/") for entry in entries):
                raise _unusable(path, "an archive without code: a checkpoint (state_dict)")
            module, name = _top_class(path, _entry(path, archive, entries, "data.pkl"))
            code = _entry(path, archive, entries, f"code/{module.replace('.', '/')}.py")
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise _unusable(path, str(error)) from error
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror, expected="a TorchScript file") from error
    if len(code) > _LARGEST:
        raise TooLarge("code that is too large to be read", where=path, expected=f"{_LARGEST} bytes at most")
    return _declared(path, code, name)


def _declared(path: Path, code: bytes, name: str) -> tuple[list[tuple[str, str]], list[str]]:
    """What the `forward` of a class is declared to take and to return; its body, which can be long, is passed over."""
    own = re.search(rb"^class %s\b.*?(?=^class |\Z)" % re.escape(name.encode()), code, re.MULTILINE | re.DOTALL)
    head = _HEAD.search(own[0]) if own else None
    if head is None or len(head[1]) > _LONGEST_HEAD:
        raise _unusable(path, f"class `{name}` without `forward`")
    try:
        (function,) = ast.parse(head[1].decode() + " pass").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _unusable(path, f"code that cannot be read: {error}") from error
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args.args[1:]  # without self
    return [(argument.arg, _type(argument.annotation)) for argument in arguments], _results(function.returns)


def _type(annotation: ast.expr | None) -> str:
    return "Tensor" if annotation is None else ast.unparse(annotation)


def _results(returns: ast.expr | None) -> list[str]:
    """The types of what is returned; a tuple returns several."""
    if isinstance(returns, ast.Subscript) and ast.unparse(returns.value) == "Tuple":
        inner = returns.slice
        return [_type(item) for item in (inner.elts if isinstance(inner, ast.Tuple) else [inner])]
    return [_type(returns)]


def _entries(path: Path) -> int:
    """How many entries an archive says it has, from the record at its end; 0 for what is no archive."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2**16))
        end = file.read()
    at = end.rfind(b"PK\5\6")
    return int.from_bytes(end[at + 10 : at + 12], "little") if at >= 0 else 0


def _entry(path: Path, archive: zipfile.ZipFile, entries: dict[str, str], name: str) -> bytes:
    """The start of an entry, one byte more than is looked at where there is more."""
    if name not in entries:
        raise _unusable(path, f"an archive without {name}")
    with archive.open(entries[name]) as file:
        return file.read(_LARGEST + 1)


def _top_class(path: Path, pickle: bytes) -> tuple[str, str]:
    """Module and name of the class of the pickled object: the first global that the pickle mentions."""
    try:
        for operation, argument, _ in islice(pickletools.genops(pickle), _OPERATIONS):
            if operation.name == "GLOBAL":
                module, _, name = str(argument).partition(" ")
                return module, name
    except ValueError as error:
        raise _unusable(path, f"a broken data.pkl: {error}") from error
    raise _unusable(path, "a data.pkl without a class")


def _unusable(path: Path, got: str) -> UsageError:
    return UsageError(
        "not a TorchScript file",
        where=path,
        got=got,
        expected="what `torch.jit.save` writes",
        hint="save it as TorchScript: `torch.jit.save(torch.jit.trace(model, example), 'model.pt')`",
    )
