"""`tritune gen-config`: the config.pbtxt of a model, written, edited, shown or compared. Layer: cli."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from tooling.cli.app import console_of
from tooling.cli.config_answer import answer
from tooling.cli.config_draft import Ask, Present, make_draft
from tooling.cli.config_options import (
    accelerator_blocks,
    batch_sizes,
    gpu_numbers,
    of_fed,
    of_instances,
    of_model,
    of_queue,
    pairs,
    profile_numbers,
    read_inputs,
    read_outputs,
    read_samples,
    version_policy,
)
from tooling.cli.config_source import Source, from_file, from_models, from_server, from_template
from tooling.cli.llm_source import (
    LARGEST,
    Form,
    LlmAsk,
    check_beside,
    engine_value,
    from_llm,
    gpu_bytes,
    speculation,
)
from tooling.cli.options import MOST, duration_us, heeding, repeated, timed
from tooling.errors import UsageError

if TYPE_CHECKING:
    from tooling.config.changes import Changes
    from tooling.config.fed import Fed

_Backend = Literal["onnxruntime", "tensorrt", "pytorch", "openvino", "python", "vllm", "tensorrtllm"]
_Kind = Literal["auto", "cpu", "gpu", "model"]
_Strategy = Literal["direct", "oldest"]
_Cache = Literal["auto", "fp8"]
_LLM = "Language models"


def attach(app: typer.Typer) -> None:
    app.command("gen-config")(gen_config)


def _count(help: str, *names: str) -> Any:
    """A number of what an engine has room for."""
    return typer.Option(None, *names, min=1, max=LARGEST, help=help, rich_help_panel=_LLM)


def gen_config(
    context: typer.Context,
    model: Path | None = typer.Argument(None, help="A model directory REPO/NAME, or a model file of any format."),
    name: str | None = typer.Option(None, help="Model name. Default: the name of the model directory or file."),
    backend: _Backend | None = typer.Option(None, help="Default: by the file, in Triton's own order."),
    inputs: list[str] = repeated("--input", "NAME:TYPE:DIMS", read_inputs, "An input, such as x:FP32:-1,3."),
    outputs: list[str] = repeated("--output-tensor", "NAME:TYPE:DIMS", read_outputs, "An output, likewise."),
    template: bool = typer.Option(False, "--template", help="Write a Python model to fill in, and its config."),
    url: str | None = typer.Option(None, metavar="HOST:PORT", help="Read the model from a running server (HTTP)."),
    remote: str | None = typer.Option(None, "--model", metavar="NAME", help="The model's name on that server."),
    ensemble: str | None = typer.Option(None, metavar="GRAPH.yaml|A,B|auto", help="Join models that stand beside."),
    max_batch_size: int | None = typer.Option(
        None, min=0, max=MOST, help="Largest batch; 0: none. Default: 8 where possible."
    ),
    preferred_batch_size: list[str] = repeated(
        "--preferred-batch-size", "N[,N…]", batch_sizes, "Close a batch early at these sizes."
    ),
    max_queue_delay: str | None = timed("--max-queue-delay", "How long a request waits for others, like 2ms."),
    dynamic_batching: bool | None = typer.Option(None, help="Merge waiting requests into batches. Default: yes."),
    preserve_ordering: bool | None = typer.Option(None, help="Answer in the order of the requests."),
    priority_levels: int | None = typer.Option(
        None, min=0, max=MOST, metavar="N", help="Priorities, 1 first; the last is the default."
    ),
    queue_timeout: str | None = timed("--queue-timeout", "Refuse what has waited so long, like 500ms."),
    queue_size: int | None = typer.Option(
        None, min=0, max=MOST, metavar="N", help="Refuse requests while so many wait."
    ),
    sequence: _Strategy | None = typer.Option(None, help="Keep the requests of a sequence on one instance."),
    controls: list[str] = pairs(
        "--control", "NAME=KIND", "An input that takes START, READY, END or CORRID of sequences."
    ),
    states: list[str] = pairs("--state", "INPUT=OUTPUT", "Tensors that Triton keeps between."),
    iterative: bool | None = typer.Option(None, help="Sequences that the model itself continues."),
    ragged: list[str] = typer.Option([], "--ragged", metavar="NAME", help="An input whose requests have any length."),
    batch_inputs: list[str] = pairs("--batch-input", "NAME=KIND:SOURCE", "An input with the lengths of a ragged one."),
    instances: int | None = typer.Option(
        None, min=1, max=MOST, help="Copies of the model (on each GPU). Default: left to Triton."
    ),
    kind: _Kind | None = typer.Option(None, help="Where instances run. Default: auto, which is portable."),
    gpus: list[str] = repeated("--gpus", "N[,N…]", gpu_numbers, "GPUs that get instances. Default: all."),
    profiles: list[str] = repeated("--profile", "N[,N…]", profile_numbers, "Profiles of a plan. Default: all."),
    resources: list[str] = pairs("--resource", "NAME=N", "What the rate limiter shares out."),
    threads: int | None = typer.Option(
        None, min=0, max=MOST, help="Threads of each instance on the CPU; 0: every core."
    ),
    warmup: list[str] = repeated(
        "--warmup", "BATCHxLENGTH", read_samples, "Run such a batch of real tokens at the start."
    ),
    tokenizer: Path | None = typer.Option(None, help="Directory of its tokenizer.json. Default: that of the model."),
    parameters: list[str] = pairs("--parameter", "KEY=VALUE", "A parameter of the backend."),
    accelerators: list[str] = repeated(
        "--accelerator",
        "NAME[:KEY=VALUE,…]",
        accelerator_blocks,
        "tensorrt, cuda or openvino inside ONNX Runtime.",
    ),
    versions: str | None = typer.Option(
        None, metavar="all|latest:N|N,N…", callback=heeding(version_policy), help="Versions to load. Default: newest."
    ),
    response_cache: bool | None = typer.Option(None, help="Answer repeated requests from the server's cache."),
    decoupled: bool | None = typer.Option(None, help="Any number of responses to a request."),
    settings: Path | None = typer.Option(None, "--from", metavar="FILE", help="YAML with any other field of Triton's."),
    assignments: list[str] = typer.Option(
        [], "--set", metavar="PATH=VALUE", help="Any field; PATH+= adds, -PATH clears."
    ),
    llm: Path | None = typer.Option(
        None, metavar="DIR", help="A Hugging Face directory: write its engine too.", rich_help_panel=_LLM
    ),
    gpu_memory: str | None = typer.Option(
        None,
        metavar="SIZE",
        callback=heeding(gpu_bytes),
        help="Memory of a GPU, like 80GiB. Default: this machine's.",
        rich_help_panel=_LLM,
    ),
    llm_gpus: int | None = _count("GPUs it may be spread over. Default: 1."),
    streams: int | None = _count("Answers generated at once."),
    longest: int | None = _count("Tokens of the longest prompt and its answer.", "--context"),
    mean_tokens: int | None = _count("Tokens of a usual one."),
    token_budget: int | None = _count("Tokens computed in one step. Default: 2048."),
    kv_cache: _Cache | None = typer.Option(None, help="Type of the cache. Default: the model's.", rich_help_panel=_LLM),
    quantization: str | None = typer.Option(
        None, metavar="METHOD", help="Quantise the weights at load, like fp8.", rich_help_panel=_LLM
    ),
    speculate: str | None = typer.Option(
        None,
        metavar="ngram[:N]|DIR[:N]",
        callback=heeding(speculation),
        help="Guess N tokens ahead, by n-grams or a draft.",
        rich_help_panel=_LLM,
    ),
    prefix_caching: bool | None = typer.Option(
        None, help="Compute equal beginnings once. Default: yes.", rich_help_panel=_LLM
    ),
    low_latency: str | None = typer.Option(
        None,
        metavar="NAME",
        callback=heeding(check_beside),
        help="A second model for urgent requests.",
        rich_help_panel=_LLM,
    ),
    form: Form | None = typer.Option(
        None, help="How TensorRT-LLM is served. Default: by the release.", rich_help_panel=_LLM
    ),
    engine: list[str] = typer.Option(
        [],
        metavar="KEY=VALUE",
        callback=heeding(engine_value),
        help="Any other argument of the engine.",
        rich_help_panel=_LLM,
    ),
    release: str | None = typer.Option(None, metavar="YY.MM", help="The Triton it is for, like 24.10."),
    hardware: str | None = typer.Option(None, help="Write configs/HARDWARE.pbtxt; `auto` names this machine."),
    output: Path | None = typer.Option(None, help="Write this file instead."),
    stdout: bool = typer.Option(False, "--stdout", help="Show the config; write nothing."),
    diff: bool = typer.Option(False, "--diff", help="Show what would change (exit 1 if anything); write nothing."),
    check: bool = typer.Option(False, "--check", help="Exit 1 if the file is not as generated; write nothing."),
    client_sample: bool = typer.Option(False, "--client-sample", help="Show a client for the model; write nothing."),
    force: bool = typer.Option(False, "--force", help="Generate anew what was edited, written by hand or measured."),
) -> None:
    """Write the config.pbtxt of a model from the model file itself, or change one that was written by hand.

    Of a file that was edited or written by hand, only the lines of the fields that options name are changed.
    """
    console = console_of(context)
    mode = _mode(stdout=stdout, diff=diff, check=check, client_sample=client_sample)
    _exclude(mode, output=output, hardware=hardware)
    origin = _origin(url=url, ensemble=ensemble, template=template, llm=llm)
    asked: dict[str, Any] = {
        "gpu_memory": gpu_memory,
        "gpus": llm_gpus,
        "streams": streams,
        "context": longest,
        "mean_tokens": mean_tokens,
        "token_budget": token_budget,
        "kv_cache": kv_cache,
        "quantization": quantization,
        "speculate": speculate,
        "prefix_caching": prefix_caching,
        "low_latency": low_latency,
        "form": form,
        "engine": tuple(engine),
    }
    if llm is None:
        _refuse_llm(asked, backend)
    other = None if template and backend == "python" else backend
    _refuse_unread(origin, {"backend": other, "input": inputs, "output-tensor": outputs, "model": remote})
    if tokenizer and not warmup:
        raise UsageError("--tokenizer is for --warmup", hint="give both, or leave it out")
    knobs = {
        "max_batch_size": max_batch_size,
        "dynamic_batching": dynamic_batching,
        "preferred_batch_size": _sizes(preferred_batch_size),
        "max_queue_delay_us": _delay_us(max_queue_delay),
        "instance_count": instances,
        "instance_kind": kind,
        "intra_op_threads": threads,
    }
    fed = of_fed(sequence, iterative, controls, states, batch_inputs, ragged)
    fields = [
        *of_queue(
            preserve_ordering,
            priority_levels,
            queue_timeout,
            queue_size,
            batching=dynamic_batching is not False and not fed.sequences,
        ),
        *of_instances(gpus, profiles, resources),
        *of_model(parameters, accelerators, versions, response_cache, decoupled),
        *assignments,
    ]
    used = profile_numbers(profiles)
    ask = Ask(_changes(settings, knobs, fields, fed), name, release, tuple(warmup), tokenizer, used)
    if llm:
        model_dir = _directory(model, "--llm")
        source = from_llm(model_dir, LlmAsk(llm, **asked), backend, ask.triton(), force=force)
    elif ensemble:
        source = from_models(_directory(model, "--ensemble"), ensemble)
    elif template:
        source = _template(model, (inputs, outputs), max_batch_size, decoupled=bool(decoupled), force=force)
    else:
        source = _source(model, backend, (inputs, outputs), url, remote)
    shown = mode in ("stdout", "client-sample")
    path = None if shown and source.model_dir is None else _target(source, name, hardware, output)
    present = _present(path) if path and not force else None
    portable = path is not None and hardware is None and output is None
    draft = make_draft(source, ask, present, console, portable=portable)
    for line in dict.fromkeys(draft.advice):
        console.warning(line)
    answer(console, mode, None if shown else path, draft, force=force)


def _changes(file: Path | None, knobs: dict[str, Any], assignments: list[str], fed: Fed) -> Changes:
    from tooling.config.changes import Changes
    from tooling.config.yaml_file import read_yaml

    given = {name: value for name, value in knobs.items() if value is not None}
    batching = [name for name in ("dynamic_batching", "preferred_batch_size", "max_queue_delay_us") if given.get(name)]
    if fed.sequences and batching:
        option = batching[0].removesuffix("_us").replace("_", "-")
        raise UsageError(
            f"--{option} is for dynamic batching, and sequences have a batcher of their own",
            hint="--set sequence_batching.oldest.… has its settings",
        )
    return Changes(read_yaml(file) if file else {}, str(file), given, tuple(assignments), fed)


def _sizes(words: list[str]) -> tuple[int, ...] | None:
    return batch_sizes(words) if words else None


def _delay_us(text: str | None) -> int | None:
    return None if text is None else duration_us("--max-queue-delay", text)


def _present(path: Path) -> Present | None:
    from tooling.repository import read_text

    return Present(path, read_text(path)) if path.exists() else None


def _template(
    model: Path | None, tensors: tuple[list[str], list[str]], batch: int | None, *, decoupled: bool, force: bool
) -> Source:
    from tooling.signature.declared import declare

    return from_template(_directory(model, "--template"), declare(*tensors), batch, decoupled=decoupled, force=force)


def _source(
    model: Path | None, backend: str | None, tensors: tuple[list[str], list[str]], url: str | None, remote: str | None
) -> Source:
    from tooling.signature.declared import declare

    if url is not None:
        return from_server(url, remote, model)
    return from_file(_directory(model, "MODEL"), backend, declare(*tensors))


def _directory(model: Path | None, what: str) -> Path:
    if model is None:
        raise UsageError("the model is missing", where=what, expected="a model directory REPO/NAME or a model file")
    return model


def _mode(**flags: bool) -> str:
    """Which of the read-only modes is asked for, or `write`."""
    given = [name.replace("_", "-") for name, on in flags.items() if on]
    _one_of(given)
    return given[0] if given else "write"


def _exclude(mode: str, **targets: object) -> None:
    """Refuse two targets, and a target for what is only shown."""
    _one_of([mode] * (mode in ("stdout", "client-sample")) + [name for name, given in targets.items() if given])


def _one_of(options: list[str]) -> None:
    if len(options) > 1:
        raise UsageError(f"--{' and --'.join(options)} exclude each other", hint="give one of them")


def _refuse_llm(asked: dict[str, Any], backend: str | None) -> None:
    """Refuse what means nothing without a language model."""
    given = [name for name, value in asked.items() if value not in (None, ())]
    option = {"gpus": "llm-gpus"}.get(given[0], given[0].replace("_", "-")) if given else "backend tensorrtllm"
    if given or backend == "tensorrtllm":
        raise UsageError(f"--{option} is for --llm", hint="name the model's Hugging Face directory with --llm")


def _origin(**origins: object) -> str:
    """What the config is made from, where that is no model file; else ""."""
    given = [name for name, value in origins.items() if value]
    _one_of(given)
    return given[0] if given else ""


def _refuse_unread(origin: str, options: dict[str, object]) -> None:
    """Refuse options about the model that this origin does not read."""
    unread = {
        "": ("model",),
        "url": ("backend", "input", "output-tensor"),
        "ensemble": ("backend", "input", "output-tensor", "model"),
        "template": ("backend", "model"),
        "llm": ("input", "output-tensor", "model"),
    }
    for name in unread[origin]:
        if options[name]:
            why = f"has no meaning with --{origin}" if origin else "is for --url"
            raise UsageError(f"--{name} {why}", hint="leave it out")


def _target(source: Source, name: str | None, hardware: str | None, output: Path | None) -> Path:
    from tooling.repository import config_path, hardware_name

    if output is not None:
        return output
    if source.model_dir is None:
        raise UsageError(
            "the model stands in no model directory, so there is no place for its config",
            where=source.where,
            expected="REPO/NAME/VERSION/FILE",
            hint="name the file to write with --output, or show the config with --stdout",
        )
    if name not in (None, source.model_dir.name):
        raise UsageError(
            "a model must have the name of its directory",
            where=source.model_dir,
            got=f"`{name}`",
            expected=f"`{source.model_dir.name}`",
            hint="leave --name out, or rename the directory",
        )
    return config_path(source.model_dir, hardware_name() if hardware == "auto" else hardware)
