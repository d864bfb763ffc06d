"""`tritune export --format tensorrt`: from any source to an engine in the repository. Layer: cli."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from export.options import ExportOptions
from tooling.cli.text_pipeline import OF_TEXTS
from tooling.console import Console
from tooling.errors import Problem, UsageError, suggest

if TYPE_CHECKING:
    from export.engine.build import EngineResult
    from export.engine.profiles import ShapeRange
    from export.engine.request import EngineRequest
    from tooling.releases import Release
    from tooling.signature.plan_manifest import HardwareCompatibility
    from tooling.signature.spec import ModelSignature, Profile

Builder = Literal["container", "trtexec", "python"]
_DEFAULT_BATCH = 8
_OF_ENGINES: Final = ("--max-batch-size", "--workload", "--builder", "--engine", "--print-command")
_OF_EXPORTERS: Final = ("--task", "--convert-io", "--opset", "--exporter", "--external-data", "--trust-remote-code")
"""Options of the export to ONNX, which a source that is an ONNX file has behind it."""
_LENGTHS: Final = ("--buckets", "--max-tokens")
"""Options of text pipelines that say the lengths of an engine."""


@dataclass(frozen=True, slots=True)
class EngineAsk:
    """The words of the command line, unread; what is None is decided from the model and the release.

    `export` says how a source that is no ONNX file becomes one, and the release and precision of the engine; `said` are
    the options that were given. `edges` are those of the profiles in tokens, `longest` is the longest sequence.
    `workload` is a file with the traffic to build for; with `bucketed` its lengths become a profile each bucket.
    `settings` are the KEY=VALUE of --engine.
    """

    export: ExportOptions
    said: Sequence[str] = ()
    max_batch_size: int | None = None
    edges: tuple[int, ...] = ()
    longest: int | None = None
    workload: Path | None = None
    bucketed: bool = False
    builder: Builder | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    print_command: bool = False

    @property
    def fp16(self) -> bool:
        return self.export.precision == "fp16"

    @property
    def target(self) -> Release:
        from tooling.releases import current_release, release_named

        return release_named(self.export.release, "--release") if self.export.release else current_release()

    def refuse_unfit(self) -> None:
        """UsageError for options that no engine has a use for, and for those that make operators of ONNX Runtime."""
        taken = (*_LENGTHS, *(["--padding"] if self.bucketed else []))
        texts = [option for option in self.said if option in ("--pipeline", *OF_TEXTS) and option not in taken]
        if texts:
            what, hint = "belongs to a text pipeline, and an engine has none", "leave it out, or `--format tensorrt`"
            raise UsageError(what, where=", ".join(texts), hint=hint)
        if self.export.precision == "int8":
            expected = "fp32 or fp16; a file that holds QuantizeLinear and DequantizeLinear is built as it is"
            raise UsageError("no precision of an engine", where="--precision", got="int8", expected=expected)
        if self.export.optimize:
            what, hint = "it makes operators that only ONNX Runtime has", "leave it out: TensorRT fuses by itself"
            raise UsageError(what, where="--optimize", expected="operators of ai.onnx", hint=hint)

    def onnx_options(self) -> ExportOptions:
        """Of the ONNX file that is exported first: TensorRT 11 takes types from it, 10 chooses FP16 kernels itself.

        Raises UsageError for half inputs where the file stays in single precision.
        """
        release = self.target
        if not self.fp16 or int((release.tensorrt or "0").partition(".")[0]) >= 11:
            return self.export
        if self.export.convert_io:
            raise UsageError(
                f"TensorRT {release.tensorrt} chooses half precision itself: inputs and outputs stay FP32",
                where="--convert-io",
                hint="leave it out, or export with --format onnx first and build that file without --precision",
            )
        return replace(self.export, precision="fp32")


def refuse_engine_options(said: Sequence[str]) -> None:
    """UsageError where options of engines are given without one being asked for."""
    unread = [option for option in said if option in _OF_ENGINES]
    if unread:
        raise UsageError("belongs to an engine", where=", ".join(unread), hint="add `--format tensorrt`")


SETTINGS: Final = {
    "opt": "4x64: the usual batch and length",
    "min_shapes": "x:1x8: a whole profile by hand, with opt_shapes and max_shapes",
    "opt_shapes": "",
    "max_shapes": "",
    "workspace": "4GiB: the builder's memory",
    "timing_cache": "FILE: makes later builds faster",
    "compatible": "version, ampere+ or same-compute-capability",
    "weight_streaming": "1: builds the ability in",
    "gpu": "0: the GPU to build on",
}
_LEVELS: Final[Mapping[str, HardwareCompatibility]] = {
    "ampere+": "ampere+",
    "same-compute-capability": "same-compute-capability",
}


def parse_settings(words: Sequence[str]) -> dict[str, str]:
    """`["opt=4x64", "gpu=1"]` as a mapping. Raises UsageError for keys that are unknown, repeated or without value."""
    found: dict[str, str] = {}
    problems = []
    for word in words:
        key, equals, value = word.partition("=")
        if key not in SETTINGS:
            expected = ", ".join(SETTINGS)
            problems.append(Problem("no engine setting", "--engine", key, expected, suggest(key, SETTINGS)))
        elif not equals or not value or key in found:
            got = "twice" if key in found else f"`{word}`"
            problems.append(Problem(f"{key} needs one value", "--engine", got, f"{key}=VALUE, such as {SETTINGS[key]}"))
        found[key] = value
    if problems:
        raise UsageError(problems=problems)
    return found


def export_engine(
    source: str,
    repository: Path,
    name: str | None,
    ask: EngineAsk,
    to_onnx: Callable[[ExportOptions], Path],
    console: Console,
) -> None:
    """Build `REPOSITORY/NAME/1/model.plan` from an ONNX file, an exported model directory, or what `to_onnx` exports.

    Raises as `build_engine` does, and UsageError for options that contradict each other.
    """
    from export.engine.build import build_engine, command_of, shell_line
    from export.engine.request import overflow_warning
    from export.source import file_digest

    ask.refuse_unfit()
    onnx = _file_of(Path(source))
    if onnx is None:
        onnx = to_onnx(ask.onnx_options())
    elif unread := [option for option in ask.said if option in _OF_EXPORTERS]:
        what, hint = "it is for the export to ONNX", "leave it out: this source is built as it is"
        raise UsageError(what, where=", ".join(unread), got=f"{onnx}, which is ONNX", hint=hint)
    request = _request(onnx, repository, name, ask)
    asked, own = max(ask.longest or 0, *ask.edges, 0), _own_length(onnx)
    if own and asked > own:
        console.warning(f"{onnx}: the profiles take {asked} tokens, and the model {own}: longer inputs may fail")
    if ask.print_command:
        if ask.builder == "python":
            hint = "leave --print-command out, or give --builder container or trtexec"
            raise UsageError("the Python builder has no command", where="--print-command", hint=hint)
        command = command_of(request, ask.builder)
        if warning := overflow_warning(request):
            console.warning(warning)
        console.result({"command": list(command), "plan": str(request.plan)}, shell_line(request, ask.builder))
        return
    result = build_engine(request, ask.builder, file_digest(onnx), console)
    console.result(_data(result), _text(result))


def _file_of(source: Path) -> Path | None:
    """The ONNX file that a source is, or the newest of a model directory; None for what is exported first."""
    from tooling.repository import CONFIG_FILE, locate_model

    exported = source.is_dir() and any(source.glob("*/model.onnx"))
    if exported or source.suffix == ".onnx":
        return locate_model(source, "onnxruntime").file
    if (source / CONFIG_FILE).is_file():
        expected = "REPO/NAME with 1/model.onnx in it, an ONNX file, or what `save_pretrained` wrote"
        raise UsageError("a model directory without an ONNX file", where=source, expected=expected)
    return None


def _request(onnx: Path, repository: Path, name: str | None, ask: EngineAsk) -> EngineRequest:
    from export.engine.request import EngineRequest, check_source
    from tooling.repository import check_model_name, locate_model

    graph = check_source(onnx)
    signature = graph.signature
    assert signature is not None
    name = name or locate_model(onnx, "onnxruntime").name
    check_model_name(name)
    settings = ask.settings
    compatible = settings["compatible"].split(",") if "compatible" in settings else []
    return EngineRequest(
        graph=graph,
        plan=repository.absolute() / name / "1" / "model.plan",
        profiles=_profiles(signature, onnx, ask),
        release=ask.target,
        fp16=ask.fp16,
        workspace_bytes=_workspace(settings["workspace"]) if "workspace" in settings else None,
        timing_cache=_cache_file(settings["timing_cache"]) if "timing_cache" in settings else None,
        hardware_compatibility=_hardware_level(compatible),
        version_compatible="version" in compatible,
        weight_streaming=_number(settings, "weight_streaming", 1) == 1,
        gpu=_number(settings, "gpu", 63),
    )


def _workspace(text: str) -> int:
    """Bytes; trtexec takes whole MiB."""
    from tooling.cli.options import size_bytes

    return size_bytes("--engine workspace", text, "1MiB")


def _cache_file(text: str) -> Path:
    """The file's directory is what a container may write to."""
    if (path := Path(text)).is_dir():
        raise UsageError("the timing cache is a directory", where="--engine timing_cache", got=text, expected="a file")
    return path


def _hardware_level(words: Sequence[str]) -> HardwareCompatibility | None:
    unknown = [word for word in words if word != "version" and word not in _LEVELS]
    levels = [_LEVELS[word] for word in words if word in _LEVELS]
    if unknown or len(levels) > 1:
        expected = "version, and one of ampere+ and same-compute-capability"
        raise UsageError("no such compatibility", where="--engine", got=",".join(words), expected=expected)
    return levels[0] if levels else None


def _number(settings: Mapping[str, str], key: str, most: int) -> int:
    text = settings.get(key, "0")
    if not text.isdecimal() or int(text) > most:
        raise UsageError(f"{key} is out of range", where="--engine", got=f"`{text}`", expected=f"0 to {most}")
    return int(text)


def _profiles(signature: ModelSignature, onnx: Path, ask: EngineAsk) -> tuple[Profile, ...]:
    """From shapes given by hand, or from the largest batch and the lengths: given, else the model's own maximum."""
    from export.engine.profiles import parse_shapes, profile_from_shapes, profiles_of

    settings = ask.settings
    given = [settings[key] for key in ("min_shapes", "opt_shapes", "max_shapes") if key in settings]
    if given:
        sizes = (ask.max_batch_size, ask.longest, ask.workload, settings.get("opt"))
        if len(given) < 3 or ask.edges or any(size is not None for size in sizes):
            raise UsageError(
                "shapes by hand are a whole profile",
                where="--engine",
                got=f"{len(given)} of the three shapes, or other words about sizes beside them",
                expected="min_shapes, opt_shapes and max_shapes, without --max-batch-size, --workload, lengths and opt",
            )
        return (profile_from_shapes(signature, *map(parse_shapes, given)),)
    return profiles_of(signature, _range(signature, onnx, ask))


def _range(signature: ModelSignature, onnx: Path, ask: EngineAsk) -> ShapeRange:
    """Batches and lengths as asked for, else as the traffic has them, else as the model can take them."""
    from export.engine.profiles import ShapeRange

    if ask.workload and ask.edges:
        raise UsageError("--workload and --buckets exclude each other", hint="--padding buckets finds them in the file")
    if ask.longest and ask.edges:
        raise UsageError("--max-tokens and --buckets exclude each other", hint="the last bucket is the longest input")
    if ask.bucketed and not (ask.workload or ask.edges):
        raise UsageError("no lengths to make buckets of", where="--padding", hint="give --workload FILE or --buckets")
    sent, rows = _traffic(signature, onnx, ask.workload) if ask.workload else ((), 1)
    longest = ask.longest or _own_length(onnx) or max(sent, default=None)
    free = [tensor.name for tensor in signature.inputs if -1 in tensor.dims[1:]]
    if free and not (ask.edges or longest):
        raise UsageError(
            f"dynamic inputs {', '.join(free)} need min/opt/max shapes",
            where=onnx,
            got="neither lengths nor a manifest that says the longest input",
            hint="give the longest input with --max-tokens 512, bucket edges with --buckets 64,128,256, traffic with "
            "--workload, or --engine min_shapes=…, opt_shapes=… and max_shapes=…",
        )
    most = max(_DEFAULT_BATCH, rows) if ask.max_batch_size is None else ask.max_batch_size
    if rows > most:
        expected = f"at least the {rows} rows of the largest request"
        raise UsageError("no batch holds a whole request", where="--max-batch-size", got=str(most), expected=expected)
    edges = ask.edges or (longest or 1,)
    if ask.bucketed and sent:
        edges = _bucket_edges(sent, most, edges[-1])
    batch, by, length = ask.settings.get("opt", str(most)).partition("x")
    if not batch.isdecimal() or (by and not length.isdecimal()):
        got = f"opt={ask.settings['opt']}"
        raise UsageError("no usual size", where="--engine", got=got, expected="BATCH or BATCHxLENGTH, such as 4x64")
    usual = int(length) if length else _usual(sent, edges)
    return ShapeRange(most, edges, int(batch), usual)


def _traffic(signature: ModelSignature, onnx: Path, file: Path) -> tuple[tuple[int, ...], int]:
    """The lengths of a workload in tokens, as the model can take them, and the most rows of a request."""
    from perf.lengths import fit_to_model, traffic_lengths
    from perf.workload_file import read_workload

    workload, model_dir = read_workload(file), onnx.parent.parent
    lengths = traffic_lengths(workload.lengths, signature, model_dir / "tokenizer", batching=True, texts=workload.texts)
    return fit_to_model(lengths, model_dir, asked=bool(workload.lengths)), max(workload.batch)


def _bucket_edges(sent: tuple[int, ...], most: int, longest: int) -> tuple[int, ...]:
    """Edges that pad this traffic least, and one for what else the model can take."""
    from perf.padding import choose_edges
    from perf.sim import BatcherConfig

    found = choose_edges([min(length, longest) for length in sent], None, BatcherConfig(most), own_queues=False)
    return found if found[-1] == longest else (*found, longest)


def _usual(sent: tuple[int, ...], edges: tuple[int, ...]) -> int | None:
    """The length that nine in ten requests do not exceed; several profiles are each best at their edge."""
    if not sent or len(edges) > 1:
        return None
    return min(sorted(sent)[(len(sent) * 9 - 1) // 10], edges[0])


def _own_length(onnx: Path) -> int | None:
    """The most tokens that an exported model takes, by its manifest; None where nothing says it."""
    from export.manifest import MANIFEST_FILE, read_manifest

    model_dir = onnx.parent.parent
    return read_manifest(model_dir).max_tokens if (model_dir / MANIFEST_FILE).is_file() else None


def _data(result: EngineResult) -> dict[str, object]:
    manifest = result.manifest.model_dump(mode="json")
    return {"plan": str(result.plan), "builder": result.builder, "manifest": manifest}


def _text(result: EngineResult) -> str:
    manifest = result.manifest
    built = f"TensorRT {manifest.tensorrt}, compute capability {manifest.compute_capability}, {result.builder}"
    lines = [f"{result.plan}  (built in {manifest.build_s:.0f}s: {built})"]
    for number, profile in enumerate(manifest.profiles):
        first = next(iter(profile.values()))
        shapes = " to ".join("x".join(map(str, shape)) for shape in (first.min, first.max))
        lines.append(f"  profile {number}: {shapes}, best at {'x'.join(map(str, first.opt))}")
    return "\n".join(lines)
