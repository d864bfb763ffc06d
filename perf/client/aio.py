"""An asyncio client of one model over gRPC: it pads, retries, keeps deadlines and follows a trial. Layer: bottom of
perf."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from perf.client.split import Split, SplitFile
from perf.client.wire import (
    Array,
    Tensor,
    array_of,
    content_head,
    cut,
    from_bytes,
    grown,
    request_head,
    tensors,
    to_bytes,
)
from tooling.errors import ExternalError, Refused, UsageError, suggest
from tooling.server.client import address

_SERVICE = "/inference.GRPCInferenceService/"
_ENDPOINT = "the gRPC endpoint of a Triton server, such as localhost:8001"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


@dataclass(slots=True)  # not frozen: that would cost more than all the rest of it
class Answer:
    """The outputs of one request by name, and the model and version that made them."""

    model: str
    version: str
    outputs: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.outputs[name]


class _Model(NamedTuple):
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


_Request = tuple[tuple[tuple[str, str, tuple[int, ...]], ...], bytes, int, int]
"""What is sent, whichever model it goes to: names, types and shapes; contents; the longest row, and what it was padded
to. A plain tuple, as all that is done for each request is kept plain: beside gRPC's own work every step shows."""


class Client:
    """Requests to the model `model` at `url`, HOST:PORT of the gRPC endpoint; an async context manager.

    `edges` are the lengths that requests are padded to, ascending: the last free axis of every input grows to the next
    edge with the value in `pad` (0 by default), and outputs with that axis are cut back. Rows of unequal length are
    padded to a common one in any case. While Triton answers that it is not available (a full queue, HTTP 503) a
    request is sent up to `attempts` times, with random pauses that grow. `split` is a trial of another version, or the
    file in which `tritune promote --percent` says so. Raises UsageError for a URL that is none, and edges below 1.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        edges: Sequence[int] = (),
        pad: Mapping[str, float | str] | None = None,
        attempts: int = 4,
        split: Split | Path | str | None = None,
    ) -> None:
        self.url, self.model = address(url, "Client, `url`", _ENDPOINT), model
        self._edges, self._pad = _lengths(edges), dict(pad or {})
        self._attempts = max(1, _count(attempts, "Client, `attempts`"))
        self._split = SplitFile(Path(split)) if isinstance(split, Path | str) else split
        self._known: _Model | None = None
        self._channel: Any = None
        self._call: Any = None
        self._failure: type[Any] = Exception

    async def __aenter__(self) -> Client:
        from grpc import aio
        from tritonclient.grpc import service_pb2 as pb

        size = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        self._channel, self._failure = aio.insecure_channel(self.url, options=size), aio.AioRpcError
        decode = pb.ModelInferResponse.FromString
        self._call = self._channel.unary_unary(f"{_SERVICE}ModelInfer", response_deserializer=decode)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        channel, self._channel, self._known = self._channel, None, None
        await channel.close()

    async def infer(
        self,
        inputs: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        priority: int = 0,
        queue_timeout_us: int = 0,
        key: str | None = None,
    ) -> Answer:
        """The answer to one request; `inputs` are arrays, or rows of numbers or texts that need not be equally long.

        `timeout_s` is the deadline for the whole call, pauses included. `priority` (1 is the highest) and
        `queue_timeout_us` are for Triton's queue, and act where the model's config has levels and timeouts. `key` keeps
        a user on one side of a trial. Raises TimeoutError at the deadline, Refused with Triton's own words,
        ExternalError when the server is not available, UsageError for inputs that the model does not have.
        """
        if priority or queue_timeout_us:
            _count(priority, "`priority`")
            _count(queue_timeout_us, "`queue_timeout_us`")
        if timeout_s is not None and not math.isfinite(timeout_s):
            expected = "seconds, or None for no deadline"
            raise UsageError("no time", where="`timeout_s`", got=timeout_s, expected=expected)
        begun_s, left_s, known = time.monotonic(), timeout_s, self._known
        if known is None:
            known = await self._learn(timeout_s)
            left_s = None if timeout_s is None else begun_s + timeout_s - time.monotonic()
        request = self._request(inputs, known)
        model = self.model if self._split is None else self._chosen(key)
        queue = priority, queue_timeout_us
        try:
            reply = await self._call(request_head(model, request[0], queue) + request[1], timeout=left_s)
        except self._failure as error:
            model, reply = await self._again(error, model, request, queue, timeout_s, begun_s)
        return Answer(model, reply.model_version, _outputs(reply, known, *request[2:]))

    def _chosen(self, key: str | None) -> str:
        split = self._split.current() if isinstance(self._split, SplitFile) else self._split
        return split.choose(key) if split and split.model == self.model else self.model

    def _request(self, inputs: Mapping[str, Any], known: _Model) -> _Request:
        shapes: list[tuple[str, str, tuple[int, ...]]] = []
        contents: list[bytes] = []
        longest = -1  # no input has a length
        for name, value in inputs.items():
            tensor = known.inputs.get(name) or self._no_input(name, known)
            pad = self._pad.get(name, "" if tensor.dtype is None else 0)
            try:
                array = array_of(value, tensor, pad)
                if tensor.free and tensor.free[-1] < array.ndim:
                    length = array.shape[tensor.free[-1]]
                    longest = max(longest, length)
                    if self._edges:
                        array = grown(array, tensor.free[-1], self._edge(length), pad)
                content = to_bytes(array, tensor)
            except (TypeError, ValueError, OverflowError) as error:
                self._no_values(name, tensor, error)
            shapes.append((name, tensor.datatype, array.shape))
            contents += (content_head(len(content)), content)
        edge = self._edge(longest) if self._edges and longest >= 0 else longest
        return tuple(shapes), b"".join(contents), longest, edge

    def _no_input(self, name: str, known: _Model) -> NoReturn:
        raise UsageError(
            "the model has no such input",
            where=f"`{self.model}`",
            got=f"`{name}`",
            expected=", ".join(known.inputs),
            hint=suggest(name, known.inputs),
        )

    def _no_values(self, name: str, tensor: Tensor, error: Exception) -> NoReturn:
        raise UsageError(
            "an input cannot take these values",
            where=f"`{self.model}`, input `{name}`",
            got=str(error).partition("\n")[0],
            expected=f"an array of {tensor.datatype}, or rows of such values",
        ) from error

    def _edge(self, length: int) -> int:
        place = bisect_left(self._edges, length)
        if place == len(self._edges):
            most = f"at most {self._edges[-1]}"
            raise UsageError("longer than the last edge", where=f"`{self.model}`", got=length, expected=most)
        return self._edges[place]

    async def _again(
        self, error: Any, model: str, request: _Request, queue: tuple[int, int], timeout_s: float | None, begun_s: float
    ) -> tuple[str, Any]:
        """The model that answered at last, and its reply; a candidate that is gone hands its requests to the model."""
        ends_s = math.inf if timeout_s is None else begun_s + timeout_s
        for attempt in itertools.count(1):
            code, words = error.code().name, error.details() or error.code().name
            if code == "DEADLINE_EXCEEDED":
                raise self._late(model, timeout_s)
            if model != self.model and code in ("NOT_FOUND", "UNAVAILABLE"):
                model, pause_s = self.model, 0.0
            elif code != "UNAVAILABLE":
                raise Refused(words, where=f"Triton, `{model}` at {self.url}")
            else:
                pause_s = random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt))
                if attempt >= self._attempts or time.monotonic() + pause_s >= ends_s:
                    hint = "send less, or add a replica" if "queue" in words else "see the server's log"
                    raise ExternalError(words, where=f"`{model}` at {self.url}", got=f"{attempt} attempts", hint=hint)
            await asyncio.sleep(pause_s)
            left_s = None if timeout_s is None else ends_s - time.monotonic()
            try:
                return model, await self._call(request_head(model, request[0], queue) + request[1], timeout=left_s)
            except self._failure as failure:
                error = failure
        raise AssertionError("attempts are counted without end")

    def _late(self, model: str, timeout_s: float | None) -> TimeoutError:
        return TimeoutError(f"{self.url}, `{model}`: no answer within {timeout_s} s")

    async def _learn(self, timeout_s: float | None) -> _Model:
        """Names, types and shapes of the model's tensors, asked once."""
        from tritonclient.grpc import service_pb2 as pb

        if self._channel is None:
            hint = "ask inside of `async with Client(…) as client:`"
            raise UsageError("the client is not open", where=f"`{self.model}` at {self.url}", hint=hint)
        ask = self._channel.unary_unary(
            f"{_SERVICE}ModelMetadata",
            request_serializer=pb.ModelMetadataRequest.SerializeToString,
            response_deserializer=pb.ModelMetadataResponse.FromString,
        )
        try:
            told = await ask(pb.ModelMetadataRequest(name=self.model), timeout=timeout_s)
        except self._failure as error:
            if error.code().name == "DEADLINE_EXCEEDED":
                raise self._late(self.model, timeout_s) from None
            words = error.details() or error.code().name
            hint = f"give {_ENDPOINT}" if "connect" in words.lower() else "is the model loaded?"
            raise ExternalError(words, where=f"`{self.model}` at {self.url}", hint=hint) from None
        known = _Model(tensors(told.inputs), tensors(told.outputs))
        for name, value in self._pad.items():
            tensor = known.inputs.get(name) or self._no_input(name, known)
            try:
                array_of([[value]], tensor, value)
            except (TypeError, ValueError, OverflowError) as error:
                self._no_values(name, tensor, error)
        self._known = known
        return known


def _lengths(edges: object) -> tuple[int, ...]:
    """The edges, ascending. Raises UsageError unless they are lengths."""
    where, expected = "Client, `edges`", "whole numbers of 1 or more"
    if not isinstance(edges, Iterable):
        raise UsageError("no lengths to pad to", where=where, got=repr(edges), expected=expected)
    found = tuple(sorted(_count(edge, where) for edge in edges))
    if found and found[0] < 1:
        raise UsageError("no length to pad to", where=where, got=found[0], expected=expected)
    return found


def _count(value: object, where: str) -> int:
    """A whole number of 0 or more, as protobuf holds it. Raises UsageError for anything else."""
    try:
        found = index(value)  # type: ignore[arg-type]
    except TypeError:
        found = -1
    if not 0 <= found < 2**63:
        expected = "a whole number of 0 or more"
        raise UsageError("no count", where=where, got=repr(value), expected=expected)
    return found


def _outputs(reply: Any, known: _Model, longest: int, edge: int) -> dict[str, Array]:
    """The tensors of a reply; an axis that was padded is as long again as the longest row."""
    found = {}
    for output, raw in zip(reply.outputs, reply.raw_output_contents, strict=True):
        tensor = known.outputs.get(output.name) or Tensor.of(output.datatype, ())
        array = from_bytes(raw, tensor).reshape(tuple(output.shape))
        found[output.name] = array if edge == longest else cut(array, tensor, edge, longest)
    return found
