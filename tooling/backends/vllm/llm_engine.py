"""vLLM's engine on an event loop of its own: requests join it and leave it while it runs. Layer: backend."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import threading
from typing import Optional

import msgspec
import triton_python_backend_utils as pb_utils
import vllm
from llm_environment import Refusal
from llm_output import EngineOutput
from llm_tensors import Generation
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

DECLARED = {
    field.name: Optional[field.type] if field.default is None else field.type  # noqa: UP045  it may be a text
    for field in dataclasses.fields(AsyncEngineArgs)
}
"""The engine's arguments with the types that vLLM declares; it leaves out None where that is the default."""
NAME = f"vLLM {vllm.__version__} of the embedded server"

_STOP_S = 1
_CACHE_BYTES = 1 << 30
"""The KV cache of a config that names no size: `gpu_memory_utilization` is meant for a GPU, and a tenth less than all
memory of this machine is no share for a trial."""


class Engine:
    """One AsyncLLM. Its methods are called from Triton's thread; everything of vLLM runs on the loop's.

    Raises Refusal when the engine does not start.
    """

    def __init__(self, arguments, adapters, labels):
        self._adapters, self._ids = adapters, itertools.count()
        self._loop = asyncio.new_event_loop()
        self._tasks = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._thread.start()
        self._output = EngineOutput()
        try:
            with self._output.catching():
                self._llm = self._on_loop(self._create(arguments, labels))
        except Exception as error:
            self._end_loop()
            cause = self._output.cause(error) if "Engine core initialization failed" in str(error) else error
            raise Refusal(f"vLLM refuses these engine args or cannot start: {cause}") from error

    @property
    def death(self):
        """Why the engine has died, in words; None while it lives."""
        return self._output.cause("it was killed") if self._llm.errored else None

    def start(self, request, answer):
        """Begin to answer a request, whose tensors are only there until this returns."""
        try:
            generation = Generation(request)
            adapter, sampling = self._sampling(generation)
        except (ValueError, TypeError) as error:
            answer.fail(f"Error generating stream: {error}", pb_utils.TritonError.INVALID_ARG)
            return
        self._loop.call_soon_threadsafe(self._begin, generation, sampling, adapter, answer)

    def stop(self):
        self._on_loop(self._finish())
        self._end_loop()

    async def _create(self, arguments, labels):
        loggers = None
        if labels is not None and not arguments.get("disable_log_stats", False):
            from llm_metrics import stat_logger

            loggers = [stat_logger(labels)]
        if not os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
            arguments = {"kv_cache_memory_bytes": _CACHE_BYTES, **arguments}
        arguments = {"worker_extension_cls": "llm_worker.Extension", **arguments}
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=loggers)

    async def _finish(self):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._llm.shutdown, _STOP_S)

    def _begin(self, generation, sampling, adapter, answer):
        task = self._loop.create_task(self._answer(generation, sampling, adapter, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        answer.begin(lambda: self._loop.call_soon_threadsafe(task.cancel))

    async def _answer(self, generation, sampling, adapter, answer):
        number = str(next(self._ids))
        try:
            async for output in self._llm.generate(generation.prompt, sampling, number, lora_request=adapter):
                answer.send(generation.response(output), last=output.finished)
        except asyncio.CancelledError:
            answer.fail("Request was cancelled", pb_utils.TritonError.CANCELLED)
        except EngineDeadError:
            answer.fail(f"the vLLM engine died while it generated: {self.death}", pb_utils.TritonError.UNAVAILABLE)
        except Exception as error:
            answer.fail(f"Error generating stream: {error}")

    def _sampling(self, generation):
        """The LoRA adapter (or None) and vLLM's parameters; raises ValueError for unknown ones and wrong values."""
        values = dict(generation.sampling)
        adapter = self._adapter(values.pop("lora_name", None))
        if unknown := sorted(set(values) - set(SamplingParams.__struct_fields__)):
            raise ValueError(f"unknown sampling parameters: {', '.join(unknown)}")
        sampling = msgspec.convert(values, SamplingParams, strict=False)
        sampling.output_kind = RequestOutputKind.DELTA if generation.stream else RequestOutputKind.FINAL_ONLY
        return adapter, sampling

    def _adapter(self, name):
        if name is None:
            return None
        if not self._adapters:
            raise ValueError("LoRA feature is not enabled.")
        if name not in self._adapters:
            raise ValueError(f"LoRA {name} is not supported, we currently support {list(self._adapters)}")
        number = list(self._adapters).index(name) + 1
        return LoRARequest(str(number), number, self._adapters[name])

    def _on_loop(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _end_loop(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
