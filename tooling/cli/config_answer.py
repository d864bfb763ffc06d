"""What gen-config does with a finished draft: write, show or compare it. Layer: cli."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tooling.cli.config_draft import Draft
from tooling.console import Console
from tooling.errors import UsageError

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig


def _summary(config: ModelConfig) -> tuple[dict[str, Any] | None, str]:
    """The knobs as JSON, where they can say it, and the config in one line."""
    from tooling.config.knobs import describe, read, to_dict

    if config.platform == "ensemble":
        return None, f"ensemble of {len(config.ensemble_scheduling.step)} models, batch ≤ {config.max_batch_size}"
    if len(config.instance_group) > 1:
        return None, f"{len(config.instance_group)} instance groups, batch ≤ {config.max_batch_size}"
    knobs = read(config)
    return to_dict(knobs), "vLLM batches by itself" if config.backend == "vllm" else describe(knobs)


def answer(console: Console, mode: str, path: Path | None, draft: Draft, *, force: bool) -> None:
    """Show or write a draft, or say how it differs from what is there: `mode` is `write` or the option given."""
    if mode == "client-sample":
        from tooling.config.samples import client_sample

        text = client_sample(draft.config)
        console.result({"client": text}, text)
        return
    knobs, summary = _summary(draft.config)
    data = {
        "path": path and str(path),
        "config": _shown(draft.text),
        "edited": draft.edited is not None,
        "knobs": knobs,
        "files": [str(file) for file in draft.files],
        "commands": list(draft.commands),
    }
    if path is None:
        console.result(data, _shown(draft.text))
    elif mode == "write":
        changed = _write(path, draft, force=force)
        verb = "unchanged" if not changed else "edited" if draft.edited else "wrote"
        console.result({**data, "changed": changed}, "\n".join([f"{verb} {path}: {summary}", *draft.commands]))
    else:
        _compare(console, mode, path, draft, data)


def _shown(text: str) -> str:
    """A config's text for a terminal: bytes that are no UTF-8, which comments may hold, are replaced."""
    from tooling.repository import encode

    return encode(text).decode("utf-8", "replace")


def _write(path: Path, draft: Draft, *, force: bool) -> bool:
    """Write the config and the files it names, all or none; whether anything changed."""
    from tooling.repository import alone_in, encode, guard_overwrite, write_all

    wanted: dict[Path, bytes] = {**draft.files, path: encode(draft.text)}
    with alone_in(path.parent):
        if not (force or draft.edited):
            guard_overwrite(path, draft.text)
        present = {file: _present(file) for file in wanted}
        if draft.edited and present[path] not in (encode(draft.edited.text), wanted[path]):
            raise UsageError(
                "it was changed while this command ran",
                where=path,
                hint="run the command again: it changes what stands there now",
            )
        changed: dict[Path, bytes | str] = {file: data for file, data in wanted.items() if present[file] != data}
        write_all(changed)
    return bool(changed)


def _compare(console: Console, mode: str, path: Path, draft: Draft, data: dict[str, Any]) -> None:
    """Show how the config, and the files it comes with, differ from what is there; exit code 1 when they do."""
    from tooling.repository import encode

    word, wanted = ("edited", "as asked") if draft.edited else ("generated", "as generated")
    differences: list[str] = []
    verdicts: list[str] = []
    for file, content in {path: encode(draft.text), **draft.files}.items():
        present = _present(file)
        differences += _differences(present or b"", content, str(file), word)
        state = wanted if present == content else "missing" if present is None else f"not {wanted} (see --diff)"
        verdicts += [f"{file}: {state}"] if file == path or state != wanted else []
    difference, same = "".join(differences), verdicts == [f"{path}: {wanted}"]
    shown = difference if mode == "diff" else "\n".join(verdicts)
    console.result({**data, "changed": not same, "diff": difference}, shown)
    if not same:
        raise typer.Exit(1)


def _differences(before: bytes, after: bytes, file: str, word: str) -> Iterator[str]:
    """A unified diff of two texts; of what is no text, that it differs."""
    if before == after:
        return
    if b"\0" in before + after:
        yield f"{file} differs\n"
        return
    old, new = (text.decode("utf-8", "replace").splitlines(True) for text in (before, after))
    yield from difflib.unified_diff(old, new, file, word)


def _present(file: Path) -> bytes | None:
    """What stands there; None where nothing does. Raises UsageError for what is no file, or cannot be read."""
    from tooling.repository import encode, read_text

    return encode(read_text(file)) if file.exists() else None
