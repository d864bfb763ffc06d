"""The part of `tritune export` that writes a text pipeline: what is asked, which buckets, what was done. Layer: cli."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tooling.cli.options import CLIENTS, counts
from tooling.console import Console
from tooling.errors import UsageError

if TYPE_CHECKING:
    from export.text_pipeline import TextPipeline
    from perf.curve import ServiceCurve
    from perf.padding import Choice
    from tooling.config.proto import ModelConfig

Pipeline = Literal["text"]
Padding = Literal["none", "buckets", "models", "merged", "auto"]
Invalid = Literal["replace", "reject"]
OF_TEXTS: Final = ("--padding", "--buckets", "--texts", "--curve", "--concurrency", "--max-tokens", "--invalid-utf8")
"""Options of a text pipeline."""
_MOST_TEXTS = 100_000
_MOST_EDGES = 64
_FREE: Final = ("none", "merged")
"""Ways of padding that have no lengths of their own."""


def refuse_text_options(said: Sequence[str]) -> None:
    """UsageError where options of a text pipeline are given without one being asked for."""
    unread = [option for option in said if option in OF_TEXTS]
    if unread:
        raise UsageError("belongs to a text pipeline", where=", ".join(unread), hint="add `--pipeline text`")


@dataclass(frozen=True, slots=True)
class TextAsk:
    """The options of a text pipeline as they were given."""

    padding: Padding | None
    buckets: str
    texts: Path | None
    curve: Path | None
    concurrency: int | None
    max_tokens: int | None
    invalid_utf8: Invalid | None

    def entry_name(self, source: str, repository: Path, name: str | None, *, force: bool) -> str:
        """The name that takes texts: the one given, else the source's.

        Raises UsageError for options that disagree and for a name that is taken: better now than after an export.
        """
        from export.quiet import quiet
        from export.source import open_source
        from export.text_pipeline import require_free
        from tooling.repository import check_model_name

        ways = self.way()
        if self.buckets and self.texts:
            raise UsageError("--buckets and --texts exclude each other", hint="give one of them")
        if self.buckets and ways not in ("buckets", "models"):
            raise UsageError(
                "there are no lengths to pad to",
                where="--buckets",
                got=f"--padding {ways}",
                expected="buckets or models",
            )
        if self.concurrency and ways != "auto":
            raise UsageError("clients matter to `--padding auto` only", where="--concurrency", got=f"--padding {ways}")
        if self.texts and ways in _FREE:
            raise UsageError(
                "there are no lengths to find",
                where="--texts",
                got=f"--padding {ways}",
                expected="buckets, models or auto",
            )
        if self.curve and (self.buckets or ways in _FREE):
            raise UsageError(
                "there is nothing to decide with it",
                where="--curve",
                got="--buckets" if self.buckets else f"--padding {ways}",
                expected="--padding auto, or buckets or models without --buckets",
            )
        edges = counts("--buckets", self.buckets)
        if len(edges) > _MOST_EDGES:
            raise UsageError("too many lengths", where="--buckets", got=len(edges), expected=f"at most {_MOST_EDGES}")
        if name is None:
            with quiet(Console(quiet=True)):
                name = open_source(source).name
        check_model_name(name)
        require_free(repository / name, force)
        return name

    def way(self) -> Padding:
        """The padding asked for: buckets where there is something to find them with, else none."""
        return self.padding or ("buckets" if self.buckets or self.texts else "none")


def write_pipeline(
    model_dir: Path, name: str, ask: TextAsk, console: Console, *, force: bool
) -> tuple[dict[str, Any], str]:
    """Decide the buckets, write the models; what to answer, as JSON data and as text."""
    from export.text_pipeline import TextOptions, write_text_pipeline

    padding, edges, choice = _decide(model_dir, ask)
    options = TextOptions(padding, edges, ask.max_tokens, ask.invalid_utf8 or "replace")
    written = write_text_pipeline(model_dir, name, options, force=force, console=console)
    for edge in edges:
        if edge > written.max_tokens:
            console.warning(f"bucket {edge} is cut to the {written.max_tokens} tokens at which texts are cut")
    for path in written.stale:
        console.warning(f"{path} is no longer used: remove it, or Triton goes on to load it")
    data = {
        "entry": str(written.entry),
        "models": [str(path) for path in written.models],
        "padding": written.padding,
        "buckets": list(written.edges),
        "max_tokens": written.max_tokens,
        "padding_error": written.padding_error,
        "predicted": [way.to_dict() for way in choice.ways] if choice else [],
    }
    return data, "\n".join(_lines(written, choice))


def _lines(written: TextPipeline, choice: Choice | None) -> list[str]:
    how = {
        "none": "each request at the length of its longest text",
        "buckets": f"padded to {', '.join(map(str, written.edges))} tokens",
        "models": f"a model for each of {', '.join(map(str, written.edges))} tokens",
        "merged": "padded to the longest request of a batch",
    }[written.padding]
    names = ", ".join(path.name for path in written.models[1:])
    return [
        *(["", choice.text(), ""] if choice else []),
        f"{written.entry}  takes texts ({names})",
        f"  {how}, cut at {written.max_tokens}; padding changes an output by {written.padding_error:.1e} at most",
        f"  clients in {written.entry / 'clients'}, image in {written.entry / 'Dockerfile'}",
    ]


def _decide(model_dir: Path, ask: TextAsk) -> tuple[str, tuple[int, ...], Choice | None]:
    """The padding and its edges; from the texts and the service curve where they are not given."""
    way, edges = ask.way(), tuple(sorted(set(counts("--buckets", ask.buckets))))
    if way in _FREE or edges:
        return way, edges, None
    from perf.padding import choose_edges, choose_padding
    from perf.sim import BatcherConfig
    from tooling.config.knobs import read

    config = _config(model_dir)
    lengths = _lengths(model_dir, ask)
    curve = _curve(model_dir, ask, needed=way == "auto")
    if curve is None:
        batcher = BatcherConfig.from_model_config(config)
        return way, choose_edges(lengths, None, batcher, own_queues=way == "models"), None
    series, batcher = _measured(curve, config)
    if way != "auto":
        return way, choose_edges(lengths, series.service(), batcher, own_queues=way == "models"), None
    choice = choose_padding(
        lengths,
        series.service(),
        batcher,
        concurrency=ask.concurrency or CLIENTS,
        bucket_instances=read(config).instance_count or 1,
        machine=series.machine(),
    )
    return choice.chosen.padding, choice.chosen.edges, choice


def _config(model_dir: Path) -> ModelConfig:
    """The config in force here, else the one that the pipeline is about to write."""
    from tooling.repository import config_path, cpu_name, read_config

    return read_config(model_dir, cpu_name()) if config_path(model_dir).is_file() else _new_config(model_dir)


def _new_config(model_dir: Path) -> ModelConfig:
    from export.text_pipeline import MAX_BATCH_SIZE
    from tooling.config.build import build_config
    from tooling.config.knobs import Knobs
    from tooling.repository import locate_model
    from tooling.signature.onnx_file import read_onnx

    return build_config(read_onnx(locate_model(model_dir / "1").file), model_dir.name, Knobs(MAX_BATCH_SIZE))


def _measured(curve: ServiceCurve, config: ModelConfig) -> Any:
    """The curve's series for the config, and the batcher that goes with it."""
    from perf.sim import BatcherConfig
    from tooling.config.knobs import read

    knobs = read(config)
    setting = curve.setting(knobs)
    return curve.of(setting), BatcherConfig.from_model_config(config, instance_count=setting.instances)


def _curve(model_dir: Path, ask: TextAsk, *, needed: bool) -> ServiceCurve | None:
    from perf.curve import curve_path, read_curve
    from tooling.repository import cpu_name

    path = ask.curve or curve_path(model_dir.name, cpu_name())
    if not (needed or ask.curve) and not path.is_file():
        return None
    if not path.exists():
        quoted = shlex.quote(str(model_dir))
        raise UsageError(
            "there is no service curve to decide with",
            where=path,
            hint=f"export without --padding auto, measure one with `tritune profile {quoted}`, and export again",
        )
    return read_curve(path)


def _lengths(model_dir: Path, ask: TextAsk) -> tuple[int, ...]:
    """Tokens of the texts, or of the bundled sentences, cut where the pipeline cuts them."""
    from export.manifest import read_manifest
    from perf.lengths import sentences, token_lengths

    limit = ask.max_tokens or read_manifest(model_dir).max_tokens
    texts = read_texts(ask.texts) if ask.texts else sentences()
    return tuple(max(1, min(length, limit or length)) for length in token_lengths(texts, model_dir / "tokenizer"))


def read_texts(path: Path) -> tuple[str, ...]:
    """The lines of a UTF-8 file that are not blank, the first 100,000 of them.

    Raises UsageError when it cannot be read, holds bytes that are no UTF-8, or no text.
    """
    from tooling.repository import read_text

    content = read_text(path)
    try:
        content.encode("utf-8")
    except UnicodeEncodeError as error:
        line = content.count("\n", 0, error.start) + 1
        raise UsageError("not UTF-8", where=f"{path}:{line}", expected="real texts, one a line") from None
    texts = tuple(line for line in content.splitlines() if line.strip())[:_MOST_TEXTS]
    if not texts:
        raise UsageError("no texts", where=path, expected="real texts, one a line")
    return texts


def write_clients_of(model_dir: Path) -> None:
    """The clients of a model that was exported by itself, for its tensors: a config may not fit them yet."""
    from export.clients import write_clients

    write_clients(model_dir, _new_config(model_dir))
