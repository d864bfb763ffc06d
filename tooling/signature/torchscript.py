"""The signature of a TorchScript archive: argument names from its code, shapes given by hand. Layer: signature.

Nothing is unpickled: the code is read as text, and of the pickle only the name of the class.
"""

from __future__ import annotations

import ast
import pickletools
import zipfile
from pathlib import Path
from typing import Final

from tooling.errors import Problem, UsageError
from tooling.signature.declared import Declared, need_declared
from tooling.signature.spec import ModelSignature

_TENSORS: Final = ("Tensor", "List[str]")
_LARGEST: Final = 64 * 2**20  # bytes of code or structure; weights are separate entries and stay untouched


def read_torchscript(path: Path, declared: Declared) -> ModelSignature:
    """The declared tensors, checked against the arguments of `forward`.

    A TorchScript file holds neither types nor shapes of its tensors. Raises UsageError for a file that is none, for an
    argument that is no tensor, and for another number of inputs than `forward` takes.
    """
    arguments, results = _forward(path)
    problems = [
        Problem(
            f"argument `{name}` of `forward` is no tensor",
            where=str(path),
            got=kind,
            expected="Tensor, List[str], or one Dict[str, Tensor]",
            hint="wrap the model so that `forward` takes tensors only",
        )
        for name, kind in arguments
        if kind not in (*_TENSORS, "Dict[str, Tensor]")
    ]
    if not all(kind in _TENSORS for kind in results):
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


def _forward(path: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """Arguments (name, type) and the types of the results of the outermost module's `forward`."""
    try:
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
    try:
        tree = ast.parse(code.decode())
    except (SyntaxError, ValueError, RecursionError) as error:
        raise _unusable(path, f"code that cannot be read: {error}") from error
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "forward":
                    arguments = item.args.args[1:]  # without self
                    return [(a.arg, _type(a.annotation)) for a in arguments], _results(item.returns)
    raise _unusable(path, f"class `{name}` without `forward`")


def _type(annotation: ast.expr | None) -> str:
    return "Tensor" if annotation is None else ast.unparse(annotation)


def _results(returns: ast.expr | None) -> list[str]:
    """The types of what is returned; a tuple returns several."""
    if isinstance(returns, ast.Subscript) and ast.unparse(returns.value) == "Tuple":
        inner = returns.slice
        return [_type(item) for item in (inner.elts if isinstance(inner, ast.Tuple) else [inner])]
    return [_type(returns)]


def _entry(path: Path, archive: zipfile.ZipFile, entries: dict[str, str], name: str) -> bytes:
    if name not in entries:
        raise _unusable(path, f"an archive without {name}")
    info = archive.getinfo(entries[name])
    if info.file_size > _LARGEST:
        raise _unusable(path, f"{name} of {info.file_size} bytes")
    return archive.read(info)


def _top_class(path: Path, pickle: bytes) -> tuple[str, str]:
    """Module and name of the class of the pickled object: the first global that the pickle mentions."""
    try:
        for operation, argument, _ in pickletools.genops(pickle):
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
