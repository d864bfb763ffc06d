"""Rules about the config file as a text: its syntax, placeholders, a missing or misspelt file. Layer: check."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator
from typing import Final

from tooling.check.finding import Evidence, Finding, Place, Stage
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, note, poll
from tooling.check.text import LARGEST, ConfigText
from tooling.pbtxt.faults import Fault
from tooling.pbtxt.tree import Body
from tooling.releases import fields_since
from tooling.repository import CONFIG_FILE

_TEMPLATE_SUFFIXES: Final = (".j2", ".jinja", ".jinja2", ".template", ".tmpl", ".tpl", ".in")
_ONEOF: Final = re.compile(
    r'Field "(\w+)" is specified along with field "(\w+)", another member of oneof "scheduling_choice"'
)
_UNKNOWN: Final = re.compile(r'has no field named "(\w+)"')
_NESTED_VALUE: Final = re.compile(rb"\{\s*string_value\s*:\s*(\"[^\"\n]*\"|'[^'\n]*')")

SYNTAX = poll(
    "syntax",
    "The config is not protobuf text that Triton's parser reads.",
    "One wrong character, one unknown field or one field written twice makes the whole file unreadable: the server "
    "logs "
    "`failed to read text proto` and the parser's line and column on stderr. It stops at the first fault; here all are "
    "listed, those that only a later reading would find too.",
    "max_batch_size = 8",
    "ReadTextProto (core) over protobuf's text parser",
)
PLACEHOLDER = poll(
    "unfilled-placeholder",
    "A template's placeholder was not filled in.",
    "`${name}`, `{{ name }}` and `{% … %}` mean nothing to Triton; its parser stops at the first of them with "
    "`Expected integer, got: $` or the like.",
    "max_batch_size: ${max_batch_size}",
    "protobuf's text parser",
)
PLACEHOLDER_VALUE = advice(
    "placeholder-in-string",
    "A quoted value still holds a placeholder.",
    "The text parses, so the server starts and hands the literal `${name}` to the backend, which fails later or uses a "
    "directory of that name. TensorRT-LLM's own configs leave optional ones like this on purpose.",
    'parameters { key: "engine_dir" value: { string_value: "${engine_dir}" } }',
    "parameters are plain strings for the core",
    stage=Stage.POLL,
)
TEMPLATE = note(
    "template",
    "The file is a template, to be filled in before Triton reads it.",
    "Its name says so, and its placeholders are where the parser stops; it is not judged any further.",
    "max_batch_size: ${max_batch_size}\n--- config.pbtxt.template\nmax_batch_size: ${max_batch_size}\n--- "
    "checked\nconfig.pbtxt.template",
    "file name",
    stage=Stage.POLL,
)
MISSING = poll(
    "config-missing",
    "There is no config.pbtxt, and auto-complete is off.",
    "With `--disable-auto-complete-config` the file must be there; without that option an empty config is assumed.",
    "--- config.pbtxt\nabsent\n--- options\n--strict",
    "GetModelConfig (core)",
)
MISSING_COMPLETED = advice(
    "config-missing-completed",
    "There is no config.pbtxt: Triton makes one up.",
    "The ONNX Runtime backend then takes names, types and shapes from the file, `max_batch_size` 4 (its default) "
    "where the "
    "model can batch, and two CPU instances. No other setting can be made.",
    "--- config.pbtxt\nabsent",
    "auto-complete of the onnxruntime backend",
    evidence=Evidence.RUN,
    stage=Stage.POLL,
)
MISSPELT = advice(
    "config-misspelt",
    "A file that is almost called config.pbtxt is ignored.",
    "Triton looks for exactly `config.pbtxt`; everything in the other file is without effect, and nothing is logged.",
    "--- config.pbtxt\nabsent\n--- config.pbtx\nmax_batch_size: 8",
    "GetModelConfig (core)",
    evidence=Evidence.RUN,
    stage=Stage.POLL,
)
UNREADABLE = poll(
    "config-unreadable",
    "The config, or a directory of the model, is there but cannot be read.",
    "A directory, a pipe, a broken link or a file without permission is no config; and without permission nobody can "
    "say what a directory holds.",
    "--- config.pbtxt/file\nx",
    "ReadTextProto (core)",
    evidence=Evidence.READ,
)
NOT_UTF8 = advice(
    "string-not-utf-8",
    "A string of the config is not UTF-8.",
    "Triton's parser takes it, and it reaches the backend and clients as other characters.",
    'metric_tags { key: "team" value: "\\377" }',
    "protobuf's text parser",
    evidence=Evidence.RUN,
    stage=Stage.POLL,
)
TOO_LARGE = advice(
    "config-too-large",
    "The config is too large to be judged.",
    f"Configs have some kilobytes; one of more than {LARGEST // 1024} KiB is no person's, and is not looked at.",
    "max_batch_size: 8\n--- config.pbtxt\nzeros 300000",
    "tritune",
    evidence=Evidence.DOCUMENTED,
    stage=Stage.POLL,
)
FIELD_TOO_NEW = poll(
    "field-newer-than-release",
    "The release does not know this field.",
    "A field that a later release brought makes the whole config unreadable for an earlier one.",
    "max_batch_size: 8\nmodel_metrics { }\n--- options\n--release 24.10",
    "model_config.proto, release by release",
    evidence=Evidence.READ,
)
RULES = (
    SYNTAX,
    FIELD_TOO_NEW,
    PLACEHOLDER,
    PLACEHOLDER_VALUE,
    TEMPLATE,
    MISSING,
    MISSING_COMPLETED,
    MISSPELT,
    UNREADABLE,
    NOT_UTF8,
    TOO_LARGE,
)


def text(model: Model) -> Iterator[Finding]:
    """Everything about the file itself; when its text is unreadable, nothing else of the model can be judged."""
    config = model.text
    if model.too_large:
        yield model.find(TOO_LARGE, f"{CONFIG_FILE} has more than {LARGEST // 1024} KiB: it is not judged")
    elif model.unreadable is not None:
        yield model.find(
            UNREADABLE,
            model.unreadable,
            hint="put a text file in its place: tritonserver 2.51 dies on a directory"
            if CONFIG_FILE in model.unreadable
            else "give the server, and yourself, the right to read it",
        )
    elif config is None:
        yield from _missing(model)
    elif any(not mark.in_string for mark in config.placeholders()):
        yield from _placeholders(model, config)
    else:
        for fault in config.document.faults:
            yield _fault(model, config, fault)
        yield from _newer_fields(model, config)
    if config is not None:
        for mark in config.placeholders():
            if mark.in_string:
                yield model.find(
                    PLACEHOLDER_VALUE,
                    f"line {mark.place.line}: the value still holds the placeholder {mark.text}",
                    place=mark.place,
                    hint="run the template filler, or take the entry out",
                )


def _newer_fields(model: Model, config: ConfigText) -> Iterator[Finding]:
    """Every field that the release is too old for, once."""
    since, tag, told = fields_since(), model.target.release.tag, set[str]()
    pending = [config.document.root]
    while pending:
        body = pending.pop()
        owner = body.descriptor.full_name.partition(".")[2]
        for entry in body.entries:
            name = f"{owner}.{entry.field.name}"
            first = since.get(name)
            if first is not None and tag < first and name not in told:
                told.add(name)
                yield model.find(
                    FIELD_TOO_NEW,
                    f"Triton {tag} does not know the field {entry.field.name}: it came with {first}",
                    place=config.at(entry.start),
                    says=f"failed to read text proto from {config.name}",
                    hint=f"leave it out, or use Triton {first} or later",
                )
            pending += [value.value for value in entry.values if isinstance(value.value, Body)]


def _missing(model: Model) -> Iterator[Finding]:
    close = difflib.get_close_matches(CONFIG_FILE, [name for name, is_dir in model.entries.items() if not is_dir], n=1)
    if model.target.strict:
        yield model.find(
            MISSING,
            f"{model.name} has no {CONFIG_FILE}, and auto-complete is off",
            says=f"failed to open text file for read {model.config_name}: No such file or directory",
            hint=f"rename {close[0]}" if close else f"write one with `tritune gen-config {shlex.quote(model.shown)}`",
        )
        return
    if close:
        yield model.find(
            MISSPELT,
            f"found {close[0]} - misspelled? Triton reads only {CONFIG_FILE}",
            place=Place(f"{model.shown}/{close[0]}"),
            hint=f"rename it to {CONFIG_FILE}",
        )
    if model.config.backend == "onnxruntime":
        batch = model.completed.max_batch_size
        yield model.find(
            MISSING_COMPLETED,
            f"{model.name} has no {CONFIG_FILE}: the server would auto-complete with max_batch_size {batch}"
            " and two CPU instances",
            hint=f"write one with `tritune gen-config {shlex.quote(model.shown)}`",
        )


def _placeholders(model: Model, config: ConfigText) -> Iterator[Finding]:
    marks = [mark for mark in config.placeholders() if not mark.in_string]
    if config.path.suffix in _TEMPLATE_SUFFIXES:
        names = ", ".join(dict.fromkeys(mark.text for mark in marks))
        yield model.find(TEMPLATE, f"a template with {len(marks)} placeholders: {names}", place=Place(config.name))
        return
    for mark in marks:
        yield model.find(
            PLACEHOLDER,
            f"line {mark.place.line}: unfilled placeholder {mark.text}",
            place=mark.place,
            says=f"failed to read text proto from {config.name}",
            hint="run the template filler",
        )


def _fault(model: Model, config: ConfigText, fault: Fault) -> Finding:
    place = Place(config.name, fault.line, fault.column)
    if fault.message == "String is not valid UTF-8.":
        return model.find(NOT_UTF8, "the string is not valid UTF-8", place=place, hint=fault.hint)
    return model.find(
        SYNTAX,
        f"line {fault.line}, column {fault.column}: {fault.message}",
        place=place,
        says=f"failed to read text proto from {config.name}" if fault.server else None,
        hint=_hint(config, fault),
    )


def _hint(config: ConfigText, fault: Fault) -> str | None:
    """What to do: for the slips that need more than the parser's own hint, how it should be written."""
    if match := _ONEOF.search(fault.message):
        pair = f"{match[1]} and {match[2]} exclude each other"
        if "ensemble_scheduling" in match.groups():
            other = match[1] if match[2] == "ensemble_scheduling" else match[2]
            return f"{pair}: put {other} into the step models"
        return f"{pair}: keep one"
    if fault.message.startswith("Expected string, got: {"):
        nested = _NESTED_VALUE.match(config.source, fault.offset)
        value = nested[1].decode(errors="replace") if nested else '"…"'
        return f"accelerator parameter values are plain strings: value: {value}"
    if fault.message.startswith('Expected "{", found ""'):
        return 'parameters hold messages: value: { string_value: "…" }'
    if match := _UNKNOWN.search(fault.message):
        return (
            f"unknown field {match[1]}: {fault.hint.replace('belongs into', 'belongs inside')}" if fault.hint else None
        )
    return fault.hint
