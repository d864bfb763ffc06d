"""A language model behind an OpenAI endpoint, measured by the AIPerf that the user has. Layer: above llm_traffic.

AIPerf sends the traffic that `tritune tune` would send, and writes a record of each request; the figures are counted
from these records, under the names that every measurement of streams has.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from perf.llm_traffic import LlmTraffic, figures_of
from perf.process import run_until
from tooling.errors import ExternalError, MissingError, Refused, UsageError, suggest
from tooling.repository import write_atomic

Api = Literal["completions", "chat"]
VARIABLE: Final = "TRITUNE_AIPERF"
KEY: Final = "OPENAI_API_KEY"
RECORDS, REQUESTS = "profile_export.jsonl", "requests.jsonl"
"""What AIPerf writes of each request, and what it is to send."""
WORDS: Final = "tokenizer"
"""A tokenizer that counts nothing: AIPerf loads one also where the server counts, and would download its own."""
_INSTALL: Final = (
    f"`pip install aiperf` (Python 3.11 or newer) in an environment of its own; ${VARIABLE} names its program, like "
    "~/aiperf/bin/aiperf"
)
_US: Final[Mapping[str, float]] = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "sec": 1e6}
_ANSWERS_S: Final = 10.0
_NEWER: Final = "those of AIPerf 0.13 or newer"
_LOGS: Final = "--output DIR keeps its files and logs"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`model` at `url`, which is http://HOST:PORT; prompts go to `/v1/completions` or `/v1/chat/completions`.

    `tokenizer` counts tokens where the server does not tell how many it answered with. Answers have the number of
    tokens that the traffic says; with `own_ends` no more than that, and they end where the model ends them.
    """

    url: str
    model: str
    api: Api = "completions"
    tokenizer: str | None = None
    own_ends: bool = False


@dataclass(frozen=True, slots=True)
class Streams:
    """What a run has shown: the figures, how many requests they are of, tokens of a prompt and an answer on average."""

    figures: Mapping[str, float]
    requests: int
    prompt_tokens: float | None
    output_tokens: float
    argv: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        lengths = {"prompt_tokens": self.prompt_tokens, "output_tokens": self.output_tokens}
        return {"requests": self.requests, **lengths, **self.figures, "command": shlex.join(_without_key(self.argv))}


def find_aiperf() -> tuple[str, ...]:
    """The command line that starts AIPerf: that of $TRITUNE_AIPERF, else the program on the PATH.

    Raises MissingError where there is none.
    """
    named = os.environ.get(VARIABLE)
    try:
        words = tuple(shlex.split(named or "aiperf"))
    except ValueError as error:
        raise MissingError("not a command line", where=f"${VARIABLE}", got=error, hint=_INSTALL) from None
    if not words or shutil.which(words[0]) is None:
        where = f"${VARIABLE}" if named else "PATH"
        raise MissingError("AIPerf is not here", where=where, got=named or "no `aiperf`", hint=_INSTALL)
    return words


def require_served(endpoint: Endpoint) -> None:
    """Raise MissingError when nothing answers there, UsageError for a model that the endpoint does not list."""
    request = urllib.request.Request(f"{endpoint.url.rstrip('/')}/v1/models")
    if key := os.environ.get(KEY):
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=_ANSWERS_S) as answer:
            listed = [str(one["id"]) for one in json.loads(answer.read())["data"]]
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            hint = f"its key stands in ${KEY}"
            raise UsageError("the endpoint asks for a key", where=endpoint.url, got=error.code, hint=hint) from None
        return  # not every endpoint lists its models
    except OSError as error:
        hint = "is the server up, and is this its address?"
        raise MissingError("no server answers here", where=endpoint.url, got=error, hint=hint) from None
    except (ValueError, TypeError, LookupError):
        return
    if listed and endpoint.model not in listed:
        raise UsageError(
            "the endpoint does not serve the model",
            where=endpoint.url,
            got=f"`{endpoint.model}`",
            expected=", ".join(listed),
            hint=suggest(endpoint.model, listed),
        )


def write_requests(path: Path, traffic: LlmTraffic, *, own_ends: bool = False) -> None:
    """The requests as AIPerf reads them, one a line."""
    lines = []
    for ask in traffic.asks():
        exact = {} if own_ends else {"min_tokens": ask.tokens, "ignore_eos": True}
        sampling = {"temperature": 0, "max_tokens": ask.tokens, **exact}
        lines.append(json.dumps({"text": ask.prompt, "output_length": ask.tokens, "extra": sampling}))
    write_atomic(path, "\n".join(lines) + "\n")


def _write_tokenizer(folder: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}
    words = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "eos_token": "[UNK]"}
    folder.mkdir()
    write_atomic(folder / "tokenizer.json", json.dumps(words))
    write_atomic(folder / "tokenizer_config.json", json.dumps(config))


def command(aiperf: Sequence[str], endpoint: Endpoint, traffic: LlmTraffic, folder: Path) -> list[str]:
    """The command line that measures `traffic`, whose requests stand in `folder`."""
    load = ["--concurrency", str(traffic.clients)]
    if traffic.rate_rps is not None:
        load = ["--request-rate", f"{traffic.rate_rps:g}", "--request-rate-mode", "poisson"]
    counted = ["--tokenizer", endpoint.tokenizer or str(folder / WORDS)]
    counted += [] if endpoint.tokenizer else ["--use-server-token-count"]
    key = os.environ.get(KEY)
    return [
        *(*aiperf, "profile", "--model", endpoint.model, "--url", endpoint.url, "--endpoint-type", endpoint.api),
        *("--streaming", "--use-legacy-max-tokens", *counted, *(["--api-key", key] if key else [])),
        *("--input-file", str(folder / REQUESTS), "--custom-dataset-type", "single_turn"),
        *("--request-count", str(traffic.count), "--random-seed", str(traffic.seed), *load),
        *("--artifact-dir", str(folder), "--export-level", "records", "--ui", "none"),
        *("--no-server-metrics", "--no-gpu-telemetry"),
    ]


def measure(endpoint: Endpoint, traffic: LlmTraffic, folder: Path, *, limit_s: float) -> Streams:
    """Send the traffic and count. AIPerf's own files stay in `folder`.

    Raises MissingError without AIPerf or a server, ExternalError when AIPerf fails or does not end within `limit_s`,
    Refused when a request failed.
    """
    aiperf = find_aiperf()
    require_served(endpoint)
    write_requests(folder / REQUESTS, traffic, own_ends=endpoint.own_ends)
    _write_tokenizer(folder / WORDS)
    argv = command(aiperf, endpoint, traffic, folder)
    out, err = folder / "aiperf.out", folder / "aiperf.err"
    run = run_until(argv, env=os.environ, cwd=folder, stdout=out, stderr=err, deadline_s=limit_s)
    if run.timed_out:
        raise ExternalError("AIPerf did not end in time", where=aiperf[0], got=f"{limit_s:g} s", hint=_LOGS)
    if run.rc != 0 or not (folder / RECORDS).is_file():
        last = next((line.strip() for file in (err, out) for line in reversed(_lines(file)) if line.strip()), "nothing")
        got = f"exit code {run.rc}: {last[:300]}"
        raise ExternalError("AIPerf failed", where=aiperf[0], got=got, hint=_LOGS)
    return read_streams(folder / RECORDS, tuple(argv))


def read_streams(path: Path, argv: tuple[str, ...] = ()) -> Streams:
    """The figures of the requests that AIPerf recorded.

    Raises Refused when one of them failed, ExternalError for records without what streams are measured by.
    """
    records = _records(path)
    failed = [one["error"] for one in records if one.get("error")]
    if failed or not records:
        got = f"{len(failed)} of {len(records)}"
        got += f": {failed[0].get('message') or failed[0].get('type')}" if failed else ""
        raise Refused("requests failed" if failed else "AIPerf recorded no request", where=path, got=got)
    ttft, latency = (_times_us(path, records, name) for name in ("time_to_first_token", "request_latency"))
    tokens = [_value(one, "output_sequence_length") for one in records]
    told = [count for count in tokens if count is not None]
    if len(told) < len(records):
        raise ExternalError(
            "the server does not tell how many tokens it answered with",
            where=path,
            got=f"{len(told)} of {len(records)} answers",
            hint="--tokenizer DIR counts them here",
        )
    spans = [one["metadata"] for one in records]
    begin, end = min(one["request_start_ns"] for one in spans), max(one["request_end_ns"] for one in spans)
    prompts = [count for one in records if (count := _value(one, "input_sequence_length")) is not None]
    return Streams(
        figures_of((end - begin) / 1e9, sum(told), ttft, _between_us(records), latency),
        len(records),
        sum(prompts) / len(prompts) if prompts else None,
        sum(told) / len(told),
        argv,
    )


def _records(path: Path) -> list[dict[str, Any]]:
    """The records of what was measured, each with its metadata and its metrics; warm-up aside."""
    try:
        found = [json.loads(line) for line in _lines(path) if line.strip()]
        return [{**one, "metrics": one["metrics"] or {}} for one in found if _measured(one["metadata"])]
    except (ValueError, TypeError, LookupError) as error:
        raise ExternalError("not the records of streams", where=path, got=repr(error), expected=_NEWER) from None


def _measured(metadata: Mapping[str, Any]) -> bool:
    """Whether a request is one of the run, with its times; warm-up is not."""
    begin, end = metadata["request_start_ns"], metadata["request_end_ns"]
    return bool(metadata["benchmark_phase"] == "profiling" and begin <= end)


def _times_us(path: Path, records: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """A time of every request; raises ExternalError where one has none."""
    found = [time for one in records if (time := _time_us(one, name)) is not None]
    if len(found) < len(records):
        got = f"{len(found)} of {len(records)} requests have `{name}`"
        raise ExternalError("not the records of streams", where=path, got=got, expected=_NEWER)
    return found


def _between_us(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """The mean times between tokens, of the answers that have more than one."""
    return [time for one in records if (time := _time_us(one, "inter_token_latency")) is not None]


def _time_us(record: Mapping[str, Any], name: str) -> float | None:
    value, unit = _value(record, name), str((record["metrics"].get(name) or {}).get("unit"))
    return None if value is None or unit not in _US else value * _US[unit]


def _value(record: Mapping[str, Any], name: str) -> float | None:
    value = (record["metrics"].get(name) or {}).get("value")
    return float(value) if isinstance(value, int | float) else None


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []


def _without_key(argv: Sequence[str]) -> list[str]:
    return [f"${KEY}" if before == "--api-key" else word for before, word in zip(("", *argv), argv, strict=False)]
