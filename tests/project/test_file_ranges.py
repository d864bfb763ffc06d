"""Each key of a section of the project file: its range, and what the JSON schema makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tooling.cli import build
from tooling.cli.init import schema_text
from tooling.project.file import SECTIONS
from tooling.project.section import options_of

from .places import problems

WRONG = {
    "config": {
        "max_batch_size": "-3 1000001 1.5",
        "instances": "0 -1",
        "threads": "-1",
        "priority_levels": "-1",
        "queue_size": "-2",
        "max_queue_delay": "2 2sec -1ms",
        "queue_timeout": "soon",
        "preferred_batch_size": "[0] [x] [4,-8]",
        "gpus": "[-1]",
        "profile": "[a]",
        "versions": "newest 0.5 latest:0",
        "warmup": "[8] [0x3]",
        "input": "[x] ['x:FP99:1']",
        "output_tensor": "['y:FP32:0']",
        "control": "[x=BEGIN]",
        "state": "[a]",
        "batch_input": "[x=nonsense]",
        "resource": "[R=0]",
        "accelerator": "[rocm]",
        "gpu_memory": "80 1MiB",
        "llm_gpus": "0",
        "streams": "0",
        "context": "0",
        "mean_tokens": "-5",
        "token_budget": "0",
        "speculate": "ngram:0",
        "low_latency": "../x",
        "engine": "[x]",
        "parameter": "[x]",
    },
    "export": {
        "opset": "13 24",
        "task": "sing",
        "external_data": "3GB 5",
        "max_batch_size": "0",
        "buckets": "0 [8,x]",
        "concurrency": "0",
        "max_tokens": "0",
        "engine": "[colour=red] [opt]",
    },
    "tune": {
        "concurrency": "0",
        "request_rate": "0 .nan .inf",
        "burst": "0",
        "lengths": "0",
        "output_lengths": "[x]",
        "max_p99": "50",
        "instances": "0",
        "threads": "-1",
        "delay": "[2]",
        "max_batch_size": "-1",
        "budget": "1 3x",
        "for_rate": "0",
        "price_per_hour": "-1 .inf",
        "vocab_size": "7",
        "seed": "-1 4294967296",
    },
    "check": {"gpus": "-1"},
    "compose": {
        "http_port": "0 65536",
        "grpc_port": "70000",
        "metrics_port": "0",
        "host": "localhost",
        "gpus": "some",
        "shm_size": "1KiB 5",
        "cache_size": "5",
        "pinned_pool": "x",
        "cuda_pool": "-1MiB",
        "bucket": "http://x",
        "p99": "0 5",
        "queue_target": "0us",
        "output": "''",
    },
    "kubernetes": {
        "name": "Big",
        "rate": "0",
        "replicas": "0",
        "max_replicas": "0",
        "cpu": "0 many",
        "memory": "8Gb",
        "gpus": "-1",
        "load_timeout": "1s",
        "image": "a+b",
        "server_image": "a+b",
        "p99": "0",
        "queue_target": "5",
        "shm_size": "0MiB",
        "cache_size": "5",
        "pinned_pool": "x",
        "cuda_pool": "-1MiB",
        "bucket": "http://x",
    },
}
"""Of each key of a section, values (separated by blanks) that it cannot have."""
FREE = {
    "config": {"ragged", "set", "quantization"},
    "tune": {"also", "speculate"},
    "check": {"server_args", "config_name"},
    "compose": {"config_name", "sweep"},
    "kubernetes": {"config_name"},
}
"""Keys of a section for texts that only the step can judge."""


def in_section(section: str, entry: str) -> str:
    if section in ("compose", "kubernetes"):
        return f"models: {{m: {{}}}}\ndeploy: {{{section}: {{{entry}}}}}\n"
    if section == "check":
        return f"models: {{m: {{}}}}\ncheck: {{{entry}}}\n"
    return f"models: {{m: {{source: bundled:minilm, {section}: {{{entry}}}}}}}\n"


@pytest.mark.parametrize("section", WRONG)
def test_each_key_of_a_section_has_its_range(tmp_path: Path, section: str) -> None:
    for key, values in WRONG[section].items():
        for value in values.split(" "):
            found = problems(tmp_path, in_section(section, f"{key}: {value}"))
            assert len(found) == 1 and f".{key}`: " in found[0], (key, value, found)


@pytest.mark.parametrize("section", WRONG)
def test_no_key_of_a_section_was_forgotten(section: str) -> None:
    command, hidden = SECTIONS[section]
    options = options_of(build.all_commands()[command], {*hidden.split(), "release", "owner", "output"})
    ranged = {option.key for option in options if option.kind not in ("flag", "choice", "path")}
    assert ranged == (WRONG[section].keys() - {"output"}) | FREE.get(section, set())


def test_the_schema_refuses_what_is_out_of_range_and_takes_what_is_not(tmp_path: Path) -> None:
    import jsonschema
    import yaml

    validator = jsonschema.Draft202012Validator(json.loads(schema_text()))
    numbers = [
        (section, key, value)
        for section, keys in WRONG.items()
        for key, values in keys.items()
        for value in values.split(" ")
        if isinstance(yaml.safe_load(value), int)
    ]
    assert len(numbers) > 30
    known = {("tune", "budget", "1"), ("tune", "lengths", "0"), ("tune", "instances", "0")}
    known |= {("export", "buckets", "0"), ("compose", "p99", "0"), ("kubernetes", "p99", "0")}
    for section, key, value in numbers:
        data = yaml.safe_load(in_section(section, f"{key}: {value}"))
        assert ((section, key, value) in known) != bool(list(validator.iter_errors(data))), (section, key, value)
    (tmp_path / "model_repository" / "m").mkdir(parents=True)
    for section, entry in RIGHT:
        file = tmp_path / "tritune.yaml"
        file.write_text(in_section(section, entry))
        build.read(file)
        assert list(validator.iter_errors(yaml.safe_load(file.read_text()))) == [], entry


RIGHT = [
    ("config", "max_queue_delay: 1.5ms"),
    ("config", "max_queue_delay: 0"),
    ("config", "preferred_batch_size: [4, '8,16']"),
    ("config", "versions: [1, 3]"),
    ("config", "versions: latest:2"),
    ("config", "versions: '1,3'"),
    ("config", "control: {x: START}"),
    ("config", "accelerator: ['tensorrt:precision_mode=FP16', openvino]"),
    ("config", "warmup: [8x128]"),
    ("config", "input: ['x:FP32:-1,3', 'y:INT64:']"),
    ("config", "parameter: {a: 1, b: true}"),
    ("config", "gpu_memory: 80GiB"),
    ("config", "context: 1048576"),
    ("export", "buckets: [16, 64]"),
    ("export", "buckets: '16,64'"),
    ("export", "buckets: 16"),
    ("tune", "budget: 3m"),
    ("tune", "budget: 30"),
    ("tune", "delay: [0, 2ms]"),
    ("tune", "threads: [0, 1]"),
    ("tune", "delay: '0,2ms'"),
    ("compose", "gpus: 0"),
    ("compose", "gpus: '0,1'"),
    ("compose", "bucket: s3://host/models"),
    ("kubernetes", "cpu: 4"),
    ("kubernetes", "memory: 8Gi"),
]


def test_the_schema_knows_the_keys_of_a_workload() -> None:
    import jsonschema
    import yaml

    validator = jsonschema.Draft202012Validator(json.loads(schema_text()))
    for workload, right in (
        ("{concurrency: 8, texts: t.txt, duration: 20s}", True),
        ("{request_rate: 2.5, lengths: {12: 40, 128: 10}, batch: 2}", True),
        ("{request_rate: 40, lengths: [5, 6], texts: [a]}", True),
        ("load.yaml", True),
        ("{concurency: 8}", False),
        ("{concurrency: 0}", False),
        ("{concurrency: 8, lengths: [0]}", False),
        ("{concurrency: 8, duration: 20 sec}", False),
        ("{}", False),
    ):
        data = yaml.safe_load(f"models: {{m: {{workload: {workload}}}}}")
        assert (list(validator.iter_errors(json.loads(json.dumps(data)))) == []) is right, workload
