"""What no server says: batching that cannot happen, threads that fight, answers that are too large. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tooling.check.finding import Evidence, Finding, Stage
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, note
from tooling.check.sizes import element_bytes

_THREADS: Final = "intra_op_thread_count"
_GRPC_LIMIT: Final = 4 * 2**20
_ASSUMED_LENGTH: Final = 512

FREE_LENGTHS = note(
    "free-lengths-batch-apart",
    "Requests of different lengths are not batched together.",
    "An input with an axis of any length, and without allow_ragged_batch, makes Triton batch only requests of equal "
    "shape. "
    "With mixed lengths most requests then run alone, and the batcher can spin on a whole core while they wait. Pad "
    "to a few "
    "lengths, or measure whether batching pays at all.",
    "max_batch_size: 8\ndynamic_batching { }\n--- 1/model.onnx\nx: FP32 [batch, n] -> y: FP32 [batch, n]",
    "DynamicBatchScheduler (core)",
    evidence=Evidence.RUN,
    stage=Stage.REQUEST,
)
OPTIONAL_BATCHES = note(
    "optional-inputs-batch-apart",
    "Requests with different optional inputs are not batched together.",
    "All requests of a batch have the same set of inputs.",
    'backend: "python"\nmax_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] optional: true }\n'
    "dynamic_batching { }\n--- 1/model.onnx\nabsent\n--- 1/model.py\nclass TritonPythonModel:\n    def execute(self, "
    "requests):\n        return []",
    "DynamicBatchScheduler (core)",
    evidence=Evidence.RUN,
    stage=Stage.REQUEST,
)
BATCH_STAYS_ZERO = advice(
    "batching-left-out",
    "The model can batch, and max_batch_size is left out: it stays 0.",
    "A config that lists inputs and outputs is not completed, so neither max_batch_size nor dynamic_batching is added.",
    'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 8 ] }\noutput { name: "y" data_type: TYPE_FP32 dims: [ -1, 8 '
    "] }",
    "AutoCompleteConfig of the onnxruntime backend",
    evidence=Evidence.RUN,
)
NOT_MERGED = note(
    "requests-not-merged",
    "max_batch_size without dynamic_batching: requests are not merged.",
    "Only a client that sends batches gets them; each request runs on its own.",
    'max_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }',
    "DynamicBatchScheduler (core)",
    evidence=Evidence.RUN,
)
BATCH_COMPLETED = note(
    "batch-size-completed",
    "max_batch_size is left to Triton: it becomes 4.",
    "The ONNX Runtime backend takes `default-max-batch-size`, which is 4 unless the server is started with another.",
    "dynamic_batching { }",
    "AutoCompleteConfig of the onnxruntime backend",
    evidence=Evidence.RUN,
)
THREADS = advice(
    "threads-fight",
    "Several CPU instances, each with a thread on every core.",
    "Each instance has an ONNX Runtime session of its own, whose threads take all cores unless they are limited.",
    "max_batch_size: 8\ninstance_group { kind: KIND_CPU count: 4 }",
    "onnxruntime backend",
    evidence=Evidence.RUN,
)
TWO_INSTANCES = note(
    "two-cpu-instances",
    "On the CPU Triton runs two instances, each with the weights and a thread on every core.",
    "That is its default for the ONNX Runtime backend; write count to choose.",
    "max_batch_size: 8\ninstance_group { kind: KIND_CPU }",
    "NormalizeInstanceGroup (core)",
    evidence=Evidence.RUN,
)
GRPC_LIMIT = note(
    "answer-above-grpc-limit",
    "A full batch can be larger than gRPC clients accept.",
    "gRPC libraries cap a message at 4 MiB unless they are told otherwise. tritonclient is; others are not.",
    "max_batch_size: 8\n--- 1/model.onnx\nx: FP32 [batch, n, 1024] -> y: FP32 [batch, n, 1024]",
    "gRPC's default",
    evidence=Evidence.DOCUMENTED,
    stage=Stage.REQUEST,
)
PYTHON_OUTPUTS = note(
    "python-outputs-unchecked",
    "Triton does not compare what a Python model returns with its config.",
    "Another type or shape reaches the client as it is; cast and check in the model.",
    'backend: "python"\noutput { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }\n--- 1/model.onnx\nabsent\n--- '
    "1/model.py\n"
    "class TritonPythonModel:\n    def execute(self, requests):\n        return []",
    "Python backend",
    evidence=Evidence.RUN,
    stage=Stage.REQUEST,
)
RULES = (
    *(
        FREE_LENGTHS,
        OPTIONAL_BATCHES,
        BATCH_STAYS_ZERO,
        NOT_MERGED,
        BATCH_COMPLETED,
        THREADS,
        TWO_INSTANCES,
        GRPC_LIMIT,
    ),
    PYTHON_OUTPUTS,
)


def batching(model: Model) -> Iterator[Finding]:
    """Whether requests can be batched at all."""
    config, written = model.completed, model.written
    if model.is_ensemble or config.HasField("sequence_batching"):
        return
    if config.HasField("dynamic_batching") and config.max_batch_size > 1:
        free = [(index, t) for index, t in enumerate(config.input) if -1 in t.dims and not t.allow_ragged_batch]
        if free:
            names = ", ".join(tensor.name for _, tensor in free)
            yield model.find(
                FREE_LENGTHS,
                f"only requests of equal shape are batched: {names} may have any length",
                "input",
                free[0][0],
                "dims",
                hint="pad to a few lengths, or measure whether batching pays",
            )
        optional = [tensor.name for tensor in config.input if tensor.optional]
        if optional:
            yield model.find(
                OPTIONAL_BATCHES,
                f"only requests with the same inputs are batched: {', '.join(optional)} may be left out",
                "input",
            )
    elif config.max_batch_size > 1:
        yield model.find(
            NOT_MERGED,
            f"max_batch_size {config.max_batch_size} without dynamic_batching: requests are not merged",
            "max_batch_size",
            hint="add dynamic_batching { }",
        )
    signature = model.signature
    if signature is None or not signature.can_batch or model.text is None or model.target.strict:
        return
    if "max_batch_size" not in [entry.field.name for entry in model.text.document.root.entries]:
        if config.max_batch_size == 0:
            yield model.find(
                BATCH_STAYS_ZERO,
                "this model is batchable, and max_batch_size is left out: it stays 0",
                hint="write max_batch_size: 8 and dims without the batch axis, or max_batch_size: 0 to say it is meant",
            )
        elif written.max_batch_size == 0:
            yield model.find(BATCH_COMPLETED, f"max_batch_size is left out: Triton makes it {config.max_batch_size}")


def threads(model: Model) -> Iterator[Finding]:
    """CPU instances and their threads."""
    if model.config.backend != "onnxruntime" or _THREADS in model.config.parameters:
        return
    for group in model.instances:
        if group.kind != "KIND_CPU" or not group.written:
            continue
        counted = model.written.instance_group[group.index].count > 0
        if counted and group.count > 1:
            yield model.find(
                THREADS,
                f"{group.count} instances x all cores: set {_THREADS} to cores/instances",
                "instance_group",
                group.index,
                hint=f'parameters {{ key: "{_THREADS}" value: {{ string_value: "1" }} }}',
            )
        elif not counted:
            yield model.find(
                TWO_INSTANCES,
                f"{group.count} instances x all cores, as count is left out",
                "instance_group",
                group.index,
            )


def answers(model: Model) -> Iterator[Finding]:
    """Answers that some clients cannot take, or that nobody checks."""
    config = model.completed
    batch = max(config.max_batch_size, 1)
    for index, tensor in enumerate(config.output):
        size = element_bytes(tensor.data_type) * batch
        for dim in tensor.dims:
            size *= _ASSUMED_LENGTH if dim == -1 else dim
        if size > _GRPC_LIMIT and -1 in tensor.dims:
            yield model.find(
                GRPC_LIMIT,
                f"output {tensor.name}: a full batch can return more than 4 MiB over gRPC ({size / 2**20:.0f} MiB for "
                f"{batch} requests of length {_ASSUMED_LENGTH})",
                "output",
                index,
                hint="return a pooled vector, or raise the client's limit",
            )
    if config.backend == "python" and config.output:
        names = ", ".join(tensor.name for tensor in config.output)
        yield model.find(PYTHON_OUTPUTS, f"Python backend outputs are not validated by the server: {names}", "output")
