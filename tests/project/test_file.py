"""The project file: every problem at once with its place, the schema, the keys that are options of commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tooling.cli import build
from tooling.cli.init import schema_text
from tooling.errors import UsageError
from tooling.project.section import options_of

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "docs" / "tritune.schema.json"


def problems(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "tritune.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        build.read(file)
    return [f"{str(p).replace(str(tmp_path), '.')}{f' | {p.hint}' if p.hint else ''}" for p in caught.value.problems]


def test_every_problem_is_told_with_its_line_and_column(tmp_path: Path) -> None:
    text = """version: 1
release: 24.10
modles: {}
models:
  minilm:
    sorce: a
    slo: p99<50
    tune:
      budgt: 3m
      price_per_hour: much
    config:
      max_batch_size: -x
      kind: tpu
    workload: {concurency: 8}
"""
    found = "\n".join(problems(tmp_path, text))
    for part in (
        '2:1: `release`: YAML reads it as a number: put it in quotes, as in "24.10"',
        "3:1: unknown key `modles` | did you mean `models`?",
        "6:5: unknown key `sorce` | did you mean `source`?",
        "9:7: unknown key `budgt` | did you mean `budget`?",
        "10:7: `models.minilm.tune.price_per_hour`: expected a valid number",
        "12:7: `models.minilm.config.max_batch_size`: expected a valid integer",
        "13:7: `models.minilm.config.kind`: expected 'auto', 'cpu', 'gpu' or 'model'",
    ):
        assert part in found, found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("models: {m: {slo: p99<50}}", "./tritune.yaml:1:14: not a duration"),
        ("models: {m: {workload: {concurency: 8}}}", "./tritune.yaml:1:14: "),
        ("models: {'a b': {}}", "./tritune.yaml:1:10: "),
        ("models: {}", "`models`: expected at least 1 entry"),
        ("models: {m: {source: a, llm: b}}", "`source` and `llm` exclude each other"),
        ("models: {m: {export: {precision: fp16}}}", "nothing is exported without `source`"),
        ("models: {m: {tune: false, slo: p99<5ms}}", "nothing is measured for it"),
        ("models: {m: {}}\nrelease: '19.01'", "./tritune.yaml:2:1: "),
        ("models: {m: {config: {set: 3}}}", "expected a list, or a mapping"),
        ("models: {m: {tune: {lengths: [a, [1]]}}}", "expected a word, a number, or a list of them"),
        ("models: {m: {config: {dynamic_batching: 1}}}", "expected a valid boolean"),
        ("- a", "not a mapping"),
        ("models: {m: {tune: 3}}", "expected keys with values"),
        ("models: {m: {workload: none.yaml}}", "./tritune.yaml:1:14: `models.m.workload`: there is no such file"),
        ("models: {m: {config: {from: none.yaml}}}", "there is no such file"),
        ("models: {m: {}, m: {}}", "stands twice"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, told: str) -> None:
    assert any(told in problem for problem in problems(tmp_path, text)), problems(tmp_path, text)


def test_what_may_be_left_out(tmp_path: Path) -> None:
    """A model without a word is one that is there; a tokenizer may be what an export makes."""
    file = tmp_path / "tritune.yaml"
    file.write_text("repository: r\nmodels: {a: , b: {tune: true, config: {tokenizer: r/b/tokenizer}}}\n")
    models = build.read(file).models
    assert (models["a"].origin, models["b"].tune) == ("", True)


def test_a_file_that_is_not_there(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    missing = run_cli("build", "--file", tmp_path / "tritune.yaml")
    assert (missing.code, missing.out) == (2, "")
    assert "there is no project file" in missing.err and "tritune init" in missing.err


def test_each_section_has_the_options_of_its_command() -> None:
    commands = build.all_commands()
    fields = json.loads(schema_text())["$defs"]
    for section, command, apart in (
        ("Export", "export", {"name", "repository", "release", "workload", "curve", "print_command", "force"}),
        ("Compose", "deploy compose", {"release", "owner", "force", "study"}),
    ):
        options = {option.key for option in options_of(commands[command])}
        assert set(fields[section]["properties"]) == options - apart
        assert all(entry.get("description") for entry in fields[section]["properties"].values())


def test_the_schema_is_current(update_golden: bool) -> None:
    if update_golden:
        SCHEMA.write_text(schema_text() + "\n", encoding="utf-8")
    assert SCHEMA.read_text(encoding="utf-8") == schema_text() + "\n"


def test_the_bundled_project_and_the_schema_agree() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    import yaml

    schema = json.loads(schema_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for path in (ROOT / "tooling" / "data" / "quickstart.yaml", *ROOT.glob("examples/*/tritune.yaml")):
        assert list(validator.iter_errors(yaml.safe_load(path.read_text()))) == [], path
    wrong = yaml.safe_load("models: {m: {config: {max_batch_size: many}, other: 1}}")
    assert len(list(validator.iter_errors(wrong))) == 2


def test_the_page_tells_every_key(update_golden: bool) -> None:
    page = (ROOT / "docs" / "project.md").read_text(encoding="utf-8")
    head, mark, rest = page.partition("--update-golden` -->\n")
    _, end, tail = rest.partition("<!-- end of keys -->")
    wanted = f"{head}{mark}\n{_table()}\n{end}{tail}"
    if update_golden:
        (ROOT / "docs" / "project.md").write_text(wanted, encoding="utf-8")
        page = wanted
    assert page == wanted


def _table() -> str:
    """The keys of the file and of a model; those of a section are the options of its command."""
    schema = json.loads(schema_text())
    parts = [("", schema), ("models.NAME.", schema["$defs"]["Model"]), ("deploy.", schema["$defs"]["Deploy"])]
    rows = [
        f"| `{prefix}{key}` | {entry['description'].replace('|', chr(92) + '|')} |"
        for prefix, part in parts
        for key, entry in part["properties"].items()
        if "description" in entry
    ]
    return "\n".join(["| key | what it says |", "|---|---|", *rows])
