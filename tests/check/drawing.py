"""Random model directories, about half of which Triton refuses: configs × signatures × layouts, from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

PYTHON_MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
TYPES = ["TYPE_FP32", "TYPE_INT64", "TYPE_INT32", "TYPE_BOOL", "TYPE_STRING", "TYPE_FP16", "TYPE_UINT8"]
SIGNATURES = [
    "x: FP32 [batch, 8] -> y: FP32 [batch, 8]",
    "x: FP32 [1, 8] -> y: FP32 [1, 8]",
    "ids: INT64 [batch, n], mask: INT64 [batch, n] -> hidden: FP32 [batch, n, 4], pooled: FP32 [batch, 4]",
    "x: FP32 [batch] -> y: FP32 [batch]",
    "x: INT32 [4, n] -> y: INT64 [n]",
    "x: FP32 [] -> y: FP32 [1]",
]
STEPS = {"one": ("x", "y"), "two": ("x", "y")}


@dataclass
class Drawn:
    """A model directory: its config, its files (ONNX models by their text), and the name it must have."""

    name: str
    config: str
    files: dict[str, str] = field(default_factory=dict)


class Draw:
    """One seeded source of choices: `seldom` for a defect, `often` for what may be there or not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def seldom(self) -> bool:
        return self.random.random() < 0.035

    def often(self) -> bool:
        return self.random.random() < 0.5

    def one(self, *choices: object) -> object:
        return self.random.choice(choices)

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)


def draw_model(seed: int, name: str) -> Drawn:
    """A model directory; the same for the same seed and name."""
    draw = Draw(seed)
    kind = draw.random.choices(["python", "onnx", "ensemble", "odd"], [6, 3, 2, 1])[0]
    drawn = {"python": _python, "onnx": _onnx, "ensemble": _ensemble, "odd": _odd}[kind](draw, name)
    if draw.seldom():
        drawn.config += f'name: "{draw.one(name, "other")}"\n'
    return drawn


def _odd(draw: Draw, name: str) -> Drawn:
    """Backends and platforms that do not belong together, files that tell nothing, syntax errors, broken parts."""
    if draw.often():
        return _odd_python(draw, name)
    config = str(
        draw.one(
            'platform: "onnx"\n',
            'backend: "python"\nplatform: "ensemble"\n',
            'platform: "tensorrt_plan"\nbackend: "onnxruntime"\n',
            "max_batch_size = 8\n",
            "max_batch_size: 8 max_batch_size: 4\n",
            'platform: "ensemble"\n',
            "",
            'backend: "nosuch"\n',
            "instance_group [ { kind: KIND_TPU } ]\n",
            "dynamic_batching { }\nsequence_batching { }\n",
            "max_batch_size: ${batch}\n",
            'input { name: "x" dims: [ "8" ] }\n',
            'backend: "python"\nruntime: "libtriton_none.so"\n',
            "ensemble_scheduling { }\n",
        )
    )
    return Drawn(name, config, {"1/readme.txt": "nothing"})


def _odd_python(draw: Draw, name: str) -> Drawn:
    """A sound Python model with one part that is seldom written, and wrong more often than not."""
    steps = 'ensemble_scheduling { step { model_name: "one" } }'
    file, other = "labels.txt", 'output { name: "o" data_type: TYPE_FP32 dims: [1] label_filename: "labels.txt" }'
    start, corrid = "kind: CONTROL_SEQUENCE_START", "kind: CONTROL_SEQUENCE_CORRID"
    odd = draw.one(
        steps,
        f"{other} {other}",
        'output { name: "o" data_type: TYPE_FP32 dims: [1] label_filename: "none.txt" }',
        "instance_group { kind: KIND_MODEL gpus: [0] }",
        "instance_group { kind: KIND_AUTO gpus: [0] }",
        "response_cache { enable: true } model_transaction_policy { decoupled: true }",
        "response_cache { enable: true } sequence_batching { }",
        "sequence_batching { oldest { preferred_batch_size: [0] } }",
        "sequence_batching { direct { minimum_slot_utilization: -0.5 } }",
        f"sequence_batching {{ control_input {{ control {{ {start} int32_false_true: [0, 1] }} }} }}",
        f'sequence_batching {{ control_input {{ name: "c" control {{ {start} }} }} }}',
        f'sequence_batching {{ control_input {{ name: "c" control {{ {start} bool_false_true: [true] }} }} }}',
        f'sequence_batching {{ control_input {{ name: "c" control {{ {corrid} int32_false_true: [0, 1] '
        "data_type: TYPE_UINT64 } } }",
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } } }",
        "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY "
        "default_timeout_microseconds: 5 } }",
        'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_INT64 source_input: "i" }',
        'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_INT32 source_input: "z" }',
        'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_INT32 }',
        "input { data_type: TYPE_FP32 dims: [1] }",
        'input { name: "j" dims: [1] }',
        'input { name: "j" data_type: TYPE_FP32 }',
        'input { name: "j" data_type: TYPE_FP32 dims: [4] reshape { shape: [0, 4] } }',
        'input { name: "j" data_type: TYPE_FP32 dims: [-1, 4] reshape { shape: [4] } }',
        'input { name: "j" data_type: TYPE_FP32 dims: [-1, 4] reshape { shape: [-1, -1] } }',
        'input { name: "j" data_type: TYPE_FP32 dims: [4, 4] format: FORMAT_NCHW }',
        "version_policy { specific { versions: [1, 9] } }",
        'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/none.tar.gz" } }',
        'metric_tags { key: "team" value: "a" }',
        f'name: "{name}"',
    )
    config = f'backend: "python"\nmax_batch_size: 4\ninput {{ name: "i" data_type: TYPE_FP32 dims: [2] }}\n{odd}\n'
    return Drawn(name, config, {"1/model.py": PYTHON_MODEL, file: "a"})


def _python(draw: Draw, name: str) -> Drawn:
    batch = draw.one(0, 0, 1, 4, 8, 8)
    batch = -1 if draw.seldom() and draw.seldom() else batch
    lines = ['backend: "python"', f"max_batch_size: {batch}"]
    tensors = [f"input {{ {_tensor(draw, f'i{n}')} }}" for n in range(draw.number(1, 3))]
    tensors += [f"output {{ {_tensor(draw, f'o{n}', output=True)} }}" for n in range(draw.number(1, 2))]
    files = {"1/model.py": PYTHON_MODEL, "labels.txt": "a"}
    lines += tensors
    for part in (_scheduler, _instances, _policy, _batch_io, _features, _warmup):
        lines += part(draw, int(str(batch)), files)
    return Drawn(name, "\n".join(lines) + "\n", files)


def _tensor(draw: Draw, name: str, *, output: bool = False) -> str:
    dims = [int(str(draw.one(1, 2, 4, 8, -1))) for _ in range(draw.number(1, 3))]
    if draw.seldom():
        dims[0] = int(str(draw.one(0, -2)))
    parts = [] if draw.seldom() and draw.seldom() else [f'name: "{name}"']
    parts += [] if draw.seldom() and draw.seldom() else [f"data_type: {draw.one(*TYPES)}"]
    parts += [] if draw.seldom() and draw.seldom() else [f"dims: {dims}"]
    if draw.random.random() < 0.15:
        shape = draw.one(dims, dims, [*dims, 1], [1, *dims], [*dims, 1], [], [2, 4], [-1])
        parts.append(f"reshape {{ shape: {shape} }}")
    if draw.seldom():
        parts.append("is_shape_tensor: true")
    if not output and draw.seldom():
        parts.append(f"format: {draw.one('FORMAT_NHWC', 'FORMAT_NCHW')}")
    if not output and draw.seldom():
        parts.append("is_non_linear_format_io: true")
    if not output and draw.seldom():
        parts.append("optional: true")
    if output and draw.seldom():
        parts.append(f'label_filename: "{draw.one("labels.txt", "missing.txt")}"')
    return " ".join(parts)


def _policy_text(draw: Draw) -> str:
    parts = [f"timeout_action: {draw.one('REJECT', 'DELAY')}"] if draw.often() else []
    parts += [f"default_timeout_microseconds: {draw.one(0, 1000)}"] if draw.often() else []
    parts += ["allow_timeout_override: true"] if draw.often() else []
    return " ".join(parts)


def _scheduler(draw: Draw, batch: int, files: dict[str, str]) -> list[str]:
    kind = draw.random.choices(["none", "dynamic", "sequence"], [3, 4, 3])[0]
    if kind == "none":
        return []
    if kind == "sequence":
        return _sequence(draw, batch)
    parts = []
    if draw.random.random() < 0.3:
        parts.append(
            f"preferred_batch_size: {draw.one([batch or 1], [batch or 1], [1], [1, batch or 1], [0], [batch + 1])}"
        )
    if draw.random.random() < 0.25:
        levels = draw.number(0, 3)
        parts.append(f"priority_levels: {levels} default_priority_level: {draw.one(levels, levels, 1, 0, levels + 1)}")
        if draw.often():
            key = draw.one(levels, 1, levels + 1)
            parts.append(f"priority_queue_policy {{ key: {key} value {{ {_policy_text(draw)} }} }}")
    if draw.random.random() < 0.2:
        parts.append("preserve_ordering: true")
    if draw.random.random() < 0.2:
        parts.append(f"default_queue_policy {{ {_policy_text(draw)} }}")
    return [f"dynamic_batching {{ {' '.join(parts)} }}"]


def _sequence(draw: Draw, batch: int) -> list[str]:
    parts = []
    kinds = ["CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_CORRID"]
    for number in range(draw.number(0, 3)):
        kind = draw.one(*kinds)
        values = draw.one("int32_false_true: [0, 1]", "fp32_false_true: [0, 1]", "bool_false_true: [false, true]")
        if kind == "CONTROL_SEQUENCE_CORRID":
            values = f"data_type: {draw.one('TYPE_UINT64', 'TYPE_STRING', 'TYPE_UINT64', 'TYPE_FP32')}"
        if draw.seldom():
            values = draw.one("", "int32_false_true: [0, 1, 2]", "int32_false_true: [0, 1] fp32_false_true: [0, 1]")
        name = "c0" if draw.seldom() else "" if draw.seldom() and draw.seldom() else f"c{number}"
        parts.append(f'control_input {{ name: "{name}" control {{ kind: {kind} {values} }} }}')
    strategy = draw.one("", "direct", "oldest")
    if strategy == "direct":
        parts.append(f"direct {{ minimum_slot_utilization: {draw.one(0, 0.5, 1, 0.25, 0.75, 1.5)} }}")
    elif strategy == "oldest":
        parts.append(f"oldest {{ preferred_batch_size: {draw.one([], [], [], [batch or 1], [batch + 1])} }}")
    if draw.random.random() < 0.25:
        parts.append(f"state {{ {_state(draw)} }}")
    return [f"sequence_batching {{ {' '.join(parts)} }}"]


def _state(draw: Draw) -> str:
    """A sound state: one that is refused can end the server, because its instances are there by then."""
    initial = 'initial_state { name: "n" data_type: TYPE_FP32 dims: [2] zero_data: true }' if draw.often() else ""
    return f'input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: [2] {initial}'


def _instances(draw: Draw, batch: int, files: dict[str, str]) -> list[str]:
    if draw.random.random() < 0.5:
        return ["instance_group { kind: KIND_CPU count: 1 }"]
    groups = []
    for _ in range(draw.number(0, 2)):
        kind = "KIND_GPU" if draw.seldom() else draw.one("KIND_CPU", "KIND_AUTO", "KIND_MODEL")
        gpus = "gpus: [0]" if draw.seldom() else ""
        profile = 'profile: ["0"]' if draw.seldom() else ""
        groups.append(f"instance_group {{ kind: {kind} count: {draw.one(1, 1, 0, -1)} {gpus} {profile} }}")
    return groups


def _policy(draw: Draw, batch: int, files: dict[str, str]) -> list[str]:
    if draw.random.random() < 0.85:
        return []
    if draw.often():
        files["2/model.py"] = PYTHON_MODEL
    choices = ["latest { num_versions: 1 }", "all { }", "specific { versions: [1] }", "specific { versions: [7] }"]
    return [f"version_policy {{ {draw.one(*choices, 'latest { num_versions: 0 }', '', 'specific { }')} }}"]


def _batch_io(draw: Draw, batch: int, files: dict[str, str]) -> list[str]:
    lines = []
    if draw.seldom():
        source = draw.one('"i0"', '"i0"', '"zz"', '[ "i0", "i0" ]')
        kind = draw.one("TYPE_FP32", "TYPE_INT32", "TYPE_INT64")
        lines.append(
            f'batch_input {{ kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: {kind} source_input: {source} }}'
        )
    if draw.seldom():
        target = draw.one('"o0"', '"zz"', '[ "o0", "o0" ]')
        lines.append(
            f'batch_output {{ kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: {target} source_input: "i0" }}'
        )
    return lines


def _features(draw: Draw, batch: int, files: dict[str, str]) -> list[str]:
    lines = ["response_cache { enable: true }"] if draw.seldom() else []
    lines += ["model_transaction_policy { decoupled: true }"] if draw.seldom() else []
    if draw.seldom():
        value = draw.one("yes", "no", "maybe")
        lines.append(f'parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value {{ string_value: "{value}" }} }}')
    if draw.seldom():
        lines.append('parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "/nowhere/b.so" } }')
    return lines


def _warmup(draw: Draw, batch: int, files: dict[str, str]) -> list[str]:
    """Samples whose data is wrong, so that they are refused before they run."""
    if draw.random.random() < 0.9:
        return []
    value = draw.one("zero_data: true", "", 'input_data_file: "w.bin"', 'input_data_file: "none.bin"')
    files["warmup/w.bin"] = "1234"
    dims = draw.one([-1], [64], [64, 64])
    tensor = f"data_type: TYPE_FP64 dims: {dims} {value}"
    return [f'model_warmup {{ name: "w" batch_size: 1 inputs {{ key: "i0" value {{ {tensor} }} }} }}']


def _onnx(draw: Draw, name: str) -> Drawn:
    signature = str(draw.one(*SIGNATURES))
    files = {"1/model.onnx": signature, "labels.txt": "a"}
    if draw.seldom():
        files = {"1/other.onnx": signature}
    elif draw.seldom():
        files = {"01/model.onnx": signature}
    lines = [str(draw.one('backend: "onnxruntime"', 'platform: "onnxruntime_onnx"', ""))]
    batch = draw.one(0, 0, 1, 4, 8)
    lines += [f"max_batch_size: {batch}"] if draw.often() else []
    if draw.often():
        for field_name, side in zip(("input", "output"), signature.split(" -> "), strict=True):
            lines += _declared(draw, field_name, side, int(str(batch)) > 0)
    lines.append("instance_group { kind: KIND_CPU count: 1 }")
    if draw.seldom():
        lines.append("dynamic_batching { preferred_batch_size: [ 8 ] }")
    if draw.seldom():
        value = draw.one("1", "many")
        lines.append(f'parameters {{ key: "intra_op_thread_count" value {{ string_value: "{value}" }} }}')
    return Drawn(name, "\n".join(lines) + "\n", files)


def _declared(draw: Draw, field_name: str, side: str, batching: bool) -> list[str]:
    lines = []
    for tensor in side.split("], "):
        name, _, rest = tensor.partition(": ")
        kind, _, shape = rest.rstrip("]").partition(" [")
        dims = [int(d) if d.isdecimal() else -1 for d in shape.split(", ") if d]
        dims = dims[1:] if batching else dims
        if draw.seldom():
            dims = [*dims, int(str(draw.one(1, -1, 8)))]
        if draw.seldom() and draw.often():
            name = name.upper()
        data_type = draw.one("TYPE_INT32", "TYPE_FP64") if draw.seldom() else f"TYPE_{kind}"
        reshape = " reshape { }" if not dims and batching else ""
        lines.append(f'{field_name} {{ name: "{name}" data_type: {data_type} dims: {dims or [1]}{reshape} }}')
    return lines


def _ensemble(draw: Draw, name: str) -> Drawn:
    """Steps over the two Python models `one` and `two`, which take x and give y, FP32 [8], batch up to 4."""
    batch = draw.one(4, 4, 4, 4, 0, 8)
    kind = draw.one(*["TYPE_FP32"] * 7, "TYPE_INT32")
    dims = draw.one([8], [8], [8], [-1], [-1], [4])
    version = draw.one(-1, -1, -1, -1, 1, 3)
    first, second = draw.one(*["one"] * 7, "none"), draw.one(*["two"] * 7, name)
    middle = draw.one(*["m"] * 7, "mm")
    key = draw.one(*["x"] * 7, "X")
    maps = (
        f'model_version: {version} input_map {{ key: "{key}" value: "a" }} output_map {{ key: "y" value: "m" }}',
        f'model_version: -1 input_map {{ key: "x" value: "{middle}" }} output_map {{ key: "y" value: "b" }}',
    )
    steps = [f'step {{ model_name: "{step}" {text} }}' for step, text in zip((first, second), maps, strict=True)]
    defect = draw.number(0, 19)
    if defect < 3:
        steps = steps[:defect]  # without the second step, without any, or as they are
    elif defect < 11:
        old, new = (
            (' model_name: "two"', ""),
            ('input_map { key: "x" value: "m" }', ""),
            ('output_map { key: "y" value: "b" }', ""),
            ('output_map { key: "y" value: "b" }', 'output_map { key: "y" value: "m" }'),
            ('output_map { key: "y" value: "b" }', 'output_map { key: "y" value: "c" }'),
            ('output_map { key: "y"', 'output_map { key: "Y"'),
            ('value: "a"', 'value: "m"'),
            (
                'output_map { key: "y" value: "b" }',
                'output_map { key: "y" value: "b" } output_map { key: "y" value: "d" }',
            ),
        )[defect - 3]
        steps = [step.replace(old, new) for step in steps]
    lines = [
        'platform: "ensemble"',
        f"max_batch_size: {batch}",
        f'input {{ name: "a" data_type: {kind} dims: {dims} }}',
        'output { name: "b" data_type: TYPE_FP32 dims: [8] }',
        f"ensemble_scheduling {{ {' '.join(steps)} }}",
    ]
    for text in ("instance_group { kind: KIND_CPU }", "optimization { }", 'model_warmup { name: "w" }'):
        lines += [text] if draw.seldom() else []
    return Drawn(name, "\n".join(lines) + "\n", {} if draw.seldom() else {"1/.keep": ""})


def step_models() -> list[Drawn]:
    """The models of the ensembles' steps."""
    config = (
        'backend: "python"\nmax_batch_size: 4\ninput { name: "x" data_type: TYPE_FP32 dims: [8] }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [8] }\ninstance_group { kind: KIND_CPU count: 1 }\n'
    )
    return [Drawn(name, config, {"1/model.py": PYTHON_MODEL}) for name in STEPS]
