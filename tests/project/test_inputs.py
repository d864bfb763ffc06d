"""Each input of a project, changed by itself: exactly the steps that follow from it must be done again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tooling.cli.build import all_commands, read
from tooling.project import plan
from tooling.project.digests import Digests
from tooling.project.lock import Done, Lock
from tooling.project.steps import steps_of

PROJECT = """version: 1
release: "24.10"
owner: search
models:
  text:
    source: hf
    export: {pipeline: text, padding: buckets, texts: texts.txt}
    config: {max_batch_size: 16, from: more.yaml}
    workload: {concurrency: 8, texts: texts.txt}
    slo: p99<100ms,throughput
  plain:
    source: other
    export: {precision: fp32}
    config: {max_batch_size: 4}
    workload: load.yaml
    tune: {budget: 20s}
deploy:
  compose: {gpus: none}
  kubernetes: {replicas: 2}
"""
FILES = {
    "hf/config.json": "{}",
    "hf/model.safetensors": "weights",
    "other/config.json": "{}",
    "texts.txt": "a text\n",
    "more.yaml": "version_policy: {all: {}}\n",
    "load.yaml": "concurrency: 4\ntexts: sentences.txt\n",
    "sentences.txt": "a sentence\n",
    "model_repository/plain/1/model.onnx": "graph",
    "model_repository/plain/config.pbtxt": "max_batch_size: 4",
}
EXPORTS, CONFIGS = {"text export", "plain export"}, {"text config", "plain config"}
TUNES, DEPLOYS = {"text tune", "plain tune"}, {"deploy compose", "deploy kubernetes"}
ALL = EXPORTS | CONFIGS | TUNES | DEPLOYS | {"check", "check tuned"}

CHANGES: dict[str, tuple[str, str, set[str]]] = {
    "the weights of a source": ("hf/model.safetensors", "others", {"text export"}),
    "a new file in a source": ("other/tokenizer.json", "{}", {"plain export"}),
    "texts of the pipeline and of its traffic": ("texts.txt", "another text\n", {"text export", "text tune"}),
    "a file of settings": ("more.yaml", "version_policy: {latest: {}}\n", {"text config"}),
    "a workload": ("load.yaml", "concurrency: 5\ntexts: sentences.txt\n", {"plain tune"}),
    "the texts of a workload": ("sentences.txt", "another\n", {"plain tune"}),
    "an exported model": (
        "model_repository/plain/1/model.onnx",
        "another graph",
        {"plain config", "check", "plain tune", "check tuned", *DEPLOYS},
    ),
    "a config by hand": (
        "model_repository/plain/config.pbtxt",
        "max_batch_size: 2",
        {"check", "plain tune", "check tuned", *DEPLOYS},
    ),
}
EDITS: dict[str, tuple[str, str, set[str]]] = {
    "an option of an export": ("precision: fp32", "precision: int8", {"plain export"}),
    "a knob": ("max_batch_size: 16", "max_batch_size: 8", {"text config"}),
    "an inline workload": ("concurrency: 8", "concurrency: 9", {"text tune"}),
    "limits": ("p99<100ms", "p99<50ms", {"text tune"}),
    "a budget": ("budget: 20s", "budget: 30s", {"plain tune"}),
    "the owner": ("owner: search", "owner: ads", {*TUNES, *DEPLOYS}),
    "where it is deployed": ("replicas: 2", "replicas: 3", {"deploy kubernetes"}),
    "the release": ('"24.10"', '"25.01"', ALL - TUNES),
}
LIBRARIES: dict[str, set[str]] = {
    "torch": EXPORTS,
    "transformers": EXPORTS,
    "onnxruntime": EXPORTS,
    "perf-analyzer": TUNES,
    "tritune": ALL - TUNES,
}


def planner(root: Path, project: str, files: dict[str, str]) -> Callable[..., set[str]]:
    """Writes a project; the steps that must be done again after a change to what all of them were done from."""
    for name, text in {**files, "tritune.yaml": project}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    lock = Lock(root / "tritune.lock", "cpu-2")

    def planned(hardware: str = "cpu-2") -> set[str]:
        steps = steps_of(read(root / "tritune.yaml"), root, all_commands(), hardware)
        digests = Digests(root, root / "stamps.json")
        found = plan.plan(steps, lock, digests, hardware)
        for step in steps if not lock.steps else ():
            lock.steps[step.name] = Done(plan.facts_of(step, digests, hardware), {})
        return {one.step.name for one in found if one.must_run}

    return planned


@pytest.fixture
def again(tmp_path: Path) -> Callable[..., set[str]]:
    planned = planner(tmp_path, PROJECT, FILES)
    assert planned() == ALL
    assert planned() == set()
    return planned


@pytest.mark.parametrize("change", CHANGES)
def test_a_file(change: str, again: Callable[..., set[str]], tmp_path: Path) -> None:
    name, text, expected = CHANGES[change]
    (tmp_path / name).write_text(text)
    assert again() == expected


@pytest.mark.parametrize("change", EDITS)
def test_a_key_of_the_project(change: str, again: Callable[..., set[str]], tmp_path: Path) -> None:
    old, new, expected = EDITS[change]
    assert old in PROJECT
    (tmp_path / "tritune.yaml").write_text(PROJECT.replace(old, new))
    assert again() == expected


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library(library: str, again: Callable[..., set[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    real = plan.version
    monkeypatch.setattr(plan, "version", lambda name: "99" if name == library else real(name))
    assert again() == LIBRARIES[library]


def test_the_hardware(again: Callable[..., set[str]]) -> None:
    """What was measured, and what takes the configs that are named after it."""
    assert again("cpu-64") == {*TUNES, "check tuned", *DEPLOYS}


JOINED = """models:
  outer: {ensemble: 'inner,c', tune: false}
  inner: {ensemble: 'a,b', tune: false}
  all: {ensemble: auto, tune: false}
  a: {config: {max_batch_size: 4}, tune: {also: [form]}}
  b: {tune: false}
  c: {tune: false}
  chat: {llm: hf, config: {speculate: 'draft:4'}, tune: false}
"""
PARTS = {
    **{f"model_repository/{name}/config.pbtxt": "max_batch_size: 4" for name in "abc"},
    "model_repository/a/1/model.onnx": "graph",
    "form/config.pbtxt": "max_batch_size: 4",
    "hf/config.json": "{}",
    "draft/config.json": "{}",
}


def test_ensembles_follow_from_the_configs_that_they_join(tmp_path: Path) -> None:
    """And each comes after those that it joins, in whatever order they stand in the file."""
    planned = planner(tmp_path, JOINED, PARTS)
    assert {"inner config", "outer config", "all config"} < planned()
    steps = {step.name: step for step in steps_of(read(tmp_path / "tritune.yaml"), tmp_path, all_commands(), "cpu-2")}
    assert list(steps).index("inner config") < list(steps).index("outer config")
    assert "inner config" in steps["outer config"].after
    for change, expected in {
        "a/config.pbtxt": {"inner config", "all config", "check", "a tune", "check tuned"},
        "a/1/model.onnx": {"a config", "check", "a tune", "check tuned"},
        "c/config.pbtxt": {"outer config", "all config", "check", "check tuned"},
        "inner/config.pbtxt": {"outer config", "check", "check tuned"},
        "outer/config.pbtxt": {"check", "check tuned"},
    }.items():
        path = tmp_path / "model_repository" / change
        before = path.read_bytes() if path.exists() else b""
        path.parent.mkdir(exist_ok=True)
        path.write_text("max_batch_size: 2")
        assert planned() == expected, change
        if before:
            path.write_bytes(before)
        else:
            path.unlink()
    assert planned() == set()


@pytest.mark.parametrize(("name", "expected"), [("form/config.pbtxt", "a tune"), ("draft/config.json", "chat config")])
def test_a_directory_that_a_word_names(tmp_path: Path, name: str, expected: str) -> None:
    planned = planner(tmp_path, JOINED, PARTS)
    planned()
    (tmp_path / name).write_text("another")
    assert planned() == {expected}
