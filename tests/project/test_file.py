"""The project file: every problem at once with its place, the schema, the keys that are options of commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tooling.cli import build
from tooling.cli.init import schema_text
from tooling.project.section import options_of

from .places import problems

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "docs" / "tritune.schema.json"


def test_every_problem_is_told_with_its_line_and_column(tmp_path: Path) -> None:
    text = """version: 2
release: 24.10
modles: {}
models:
  minilm:
    sorce: a
    slo: p99<50
    tune:
      budgt: 3m
      price_per_hour: much
      slo: p99<5ms
    config:
      max_batch_size: -x
      kind: tpu
      instances: 0
    workload: {concurency: 8, seed: -1}
  other:
    source: ./nowhere
    llm: no-model
    export: {opset: 9}
"""
    expected = """
./tritune.yaml:1:1: `version`: the file is for a newer tritune (got 2; expected 1)\
 | update tritune, or write the keys that `tritune init` writes and `version: 1`
./tritune.yaml:2:1: `release`: YAML reads it as a number: put it in quotes, as in "24.10" (got 24.1)
./tritune.yaml:3:1: unknown key `modles` | did you mean `models`?
./tritune.yaml:6:5: unknown key `sorce` | did you mean `source`?
./tritune.yaml:7:5: `models.minilm.slo`: not a duration (got `50`; expected a number with a unit\
 (us, µs, ms, s, m, min, h), like `2ms`) | `p99<50ms`?
./tritune.yaml:9:7: unknown key `budgt` | did you mean `budget`?
./tritune.yaml:10:7: `models.minilm.tune.price_per_hour`: not a number (got 'much'; expected a number)
./tritune.yaml:11:7: unknown key `slo` | it is a key of `models.minilm`
./tritune.yaml:13:7: `models.minilm.config.max_batch_size`: not a whole number (got '-x'; expected a whole number)
./tritune.yaml:14:7: `models.minilm.config.kind`: no such choice (got 'tpu'; expected 'auto', 'cpu', 'gpu' or 'model')
./tritune.yaml:15:7: `models.minilm.config.instances`: out of range (got 0; expected 1 or more)
./tritune.yaml:16:16: unknown key `concurency` | did you mean `concurrency`?
./tritune.yaml:16:31: `models.minilm.workload.seed`: out of range (got -1; expected 0 or more)
./tritune.yaml:18:5: `models.other.source`: no such directory (expected a Hugging Face model directory, a hub id,\
 or bundled:minilm) | check the path; a hub id looks like `sentence-transformers/all-MiniLM-L6-v2`
./tritune.yaml:19:5: `models.other.llm`: there is no such file or directory (got `no-model`; expected a path from .)
./tritune.yaml:19:5: `source` and `llm` exclude each other | keep one of them
./tritune.yaml:20:14: `models.other.export.opset`: out of range (got 9; expected 14 or more)
"""
    assert problems(tmp_path, text) == expected.strip().splitlines()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("models: {m: {slo: p99<50}}", "./tritune.yaml:1:14: `models.m.slo`: not a duration"),
        ("models: {m: {workload: {concurency: 8}}}", "./tritune.yaml:1:25: unknown key `concurency`"),
        ("models: {m: {workload: {concurrency: 8, texts: none.txt}}}", "./tritune.yaml:1:41: "),
        ("models: {'a b': {}}", "./tritune.yaml:1:10: `models.a b`: not a usable model name"),
        ("models: {}", "`models`: too short (got {}; expected 1 entry or more)"),
        ("models: {m: {source: a, llm: b}}", "`source` and `llm` exclude each other"),
        ("models: {m: {export: {precision: fp16}}}", "nothing is exported without `source`"),
        ("models: {m: {tune: false, slo: p99<5ms}}", "nothing is measured for it"),
        (
            "models: {m: {slo: [ttft<1s]}}",
            "./tritune.yaml:1:14: `models.m.slo`: no limit or goal for a model that answers",
        ),
        ("models: {m: {slo: cosine>0.9}}", "`tritune tune --also FORM` takes this one"),
        ("models: {m: {}}\nrelease: '19.01'", "./tritune.yaml:2:1: `release`: no known release of Triton"),
        ("models: {m: {config: {set: 3}}}", "expected a list, or a mapping"),
        ("models: {m: {tune: {lengths: [a, [1]]}}}", "expected a word, a number, or a list of them"),
        ("models: {m: {config: {dynamic_batching: 1}}}", "not true or false (got 1; expected true or false)"),
        ("- a", "not a mapping"),
        ("models: {m: {tune: 3}}", "expected keys with values"),
        ("models: {m: {workload: none.yaml}}", "./tritune.yaml:1:14: `models.m.workload`: there is no such file"),
        ("models: {m: {config: {from: none.yaml}}}", "there is no such file"),
        ("models: {m: {ensemble: none.yaml}}", "there is no such file"),
        ("models: {m: {}, m: {}}", "stands twice"),
        ("models: {m: {}}\nversion: 0", "`version`: no format of this file (got 0; expected 1) | write `version: 1`"),
        ("models: {m: {}}\nversion: true", "write `version: 1`"),
        ("models: {m: {}}\nrepository: tritune.yaml", "`repository`: not a directory"),
        ("models: {m: {source: 'bundled:minlm'}}", "did you mean `bundled:minilm`?"),
        ("models: {m: {owner: ''}}", "`models.m.owner`: too short (got ''; expected 1 letter or more)"),
        ("models: {m: {}}\nowner: x\nchek: {}", "did you mean `check`?"),
        ("models: {m: {config: {owner: x}}}", "unknown key `owner` | it is a key of `models.m`"),
        ("models: {n: {}}", "./tritune.yaml:1:10: `models.n`: it is not in the repository"),
        ("models: {m: {ensemble: 'm,m'}}", "an ensemble of itself (got `m`)"),
        ("models: {m: {config: {speculate: draft}}}", "there is no such file or directory (got `draft`"),
        ("models: {m: {llm: ., workload: {concurrency: 8}}}", "1:22: `models.m.workload`: not for a vLLM model"),
        (
            "models: {m: {llm: ., tune: {budget: 3m}}}",
            "`models.m.tune.budget`: not for a vLLM model (expected concurrency",
        ),
        (
            "models: {m: {llm: ., slo: p99<100ms}}",
            "1:22: `models.m.slo`: no limit or goal for a language model (got `p99<",
        ),
        ("models: {m: {llm: ., config: {backend: tensorrtllm}}}", "`models.m`: a TensorRT-LLM model is not tuned"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, told: str) -> None:
    assert any(told in problem for problem in problems(tmp_path, text)), problems(tmp_path, text)


NAMED = """
models:
  here: {config: {max_batch_size: 4}, tune: false}
  gone: {tune: false}
  text: {source: hf, export: {pipeline: text}, tune: false}
  review: {ensemble: 'here,her', tune: false}
  alone: {ensemble: aut, tune: false}
  graph: {ensemble: graph.yaml, tune: false}
  odd: {ensemble: odd.yaml, tune: false}
  one: {ensemble: 'here,two', tune: false}
  two: {ensemble: 'one,text_tokenizer,text_model_16', tune: false}
  text_model: {tune: {also: [precision=fp16, elsewhere, model_repository/later, instances=2]}}
  chat:
    llm: hf
    config: {low_latency: here, speculate: 'draft:4'}
    tune: {speculate: 'ngram:4'}
  load: {source: hf, workload: load.yaml, tune: false}
check: {config_name: cpu}
deploy:
  compose: {sweep: revew, config_name: gpu-x1, output: model_repository/deploy}
  kubernetes: {rate: 200, output: ./model_repository/deploy, config_name: ../x}
"""
FILES = {
    "hf/config.json": "{}",
    "graph.yaml": "steps: [here, {model: score}]\n",
    "odd.yaml": "steps: [{model: 3}]\nstep: 1\n",
    "load.yaml": "concurency: 8\ntexts: none.txt\n",
    "model_repository/here/config.pbtxt": "",
    "model_repository/here/configs/gpu-x2.pbtxt": "",
    "model_repository/plain/1/model.onnx": "",
}
EXPECTED = """
./tritune.yaml:3:3: `models.gone`: it is not in the repository, and nothing says what it is made from\
 (expected a directory model_repository/gone, or one of the keys source, llm, ensemble)
./tritune.yaml:4:3: `models.text`: a model `text_model` is made for it, which is in the file too\
 | leave one of them out, or give it another name
./tritune.yaml:5:12: `models.review.ensemble`: no such model\
 (got `her`; expected a model of the file, or one with a config.pbtxt in model_repository) | did you mean `here`?
./tritune.yaml:6:11: `models.alone.ensemble`: an ensemble joins several models\
 (got `aut`; expected their names with commas between, `auto`, or a graph file such as graph.yaml)\
 | did you mean `auto`?
./tritune.yaml:7:11: `models.graph.ensemble`: no such model\
 (got `score`; expected a model of the file, or one with a config.pbtxt in model_repository)
./tritune.yaml:8:9: `models.odd.ensemble`: odd.yaml: step 0: names no model (expected `model: NAME`)
./tritune.yaml:8:9: `models.odd.ensemble`: odd.yaml: unknown key `step`\
 (expected steps, outputs, max_batch_size) | did you mean `steps`?
./tritune.yaml:9:9: `models.one.ensemble`: ensembles that are made of each other (got `one`, `two`)
./tritune.yaml:11:23: `models.text_model.tune.also`: there is no such file or directory\
 (got `elsewhere`; expected a path from .)
./tritune.yaml:12:3: `models.chat`: a model `here` is made for it, which is in the file too\
 | leave one of them out, or give it another name
./tritune.yaml:14:33: `models.chat.config.speculate`: there is no such file or directory\
 (got `draft`; expected a path from .)
./tritune.yaml:16:22: `models.load.workload`: ./load.yaml: `concurency`: unknown key\
 (got 8) | did you mean `concurrency`?
./tritune.yaml:17:9: `check.config_name`: no model has a config of this name\
 (got `cpu`; expected a file model_repository/NAME/configs/cpu.pbtxt)
./tritune.yaml:19:13: `deploy.compose.sweep`: no such model\
 (got `revew`; expected a model of the file, or one in model_repository) | did you mean `review`?
./tritune.yaml:19:27: `deploy.compose.config_name`: no model has a config of this name\
 (got `gpu-x1`; expected a file model_repository/NAME/configs/gpu-x1.pbtxt) | did you mean `gpu-x2`?
./tritune.yaml:19:48: `deploy.compose.output`: the files would stand in the model repository, where Triton takes\
 every directory for a model (got ./model_repository/deploy; expected a directory beside ./model_repository)
./tritune.yaml:20:16: `deploy.kubernetes.rate`: what a server carries is known where one model is tuned\
 (got 2 of them) | say with `replicas` how many servers there are, and leave `rate` out
./tritune.yaml:20:27: `deploy.kubernetes.output`: the files of the other deployment go there too\
 (got `./model_repository/deploy`; expected a directory for each)
./tritune.yaml:20:27: `deploy.kubernetes.output`: the files would stand in the model repository, where Triton takes\
 every directory for a model (got ./model_repository/deploy; expected a directory beside ./model_repository)
./tritune.yaml:20:62: `deploy.kubernetes.config_name`: not a usable hardware name (got `../x`; expected ASCII letters,\
 digits, `_`, `-` and single `.`, starting with a letter, a digit or `_`) | for example `x`
"""


def test_every_name_must_stand_for_something_and_for_one_thing(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert problems(tmp_path, NAMED.lstrip()) == EXPECTED.strip().splitlines()
    assert build.read(tmp_path / "tritune.yaml", files=False).models["review"].ensemble == "here,her"


def test_names_of_what_a_build_makes_are_right(tmp_path: Path) -> None:
    """A config of this machine's hardware is written by the tuning, models beside a text pipeline by its export."""
    from tooling.repository import cpu_name

    file = tmp_path / "tritune.yaml"
    (tmp_path / "hf").mkdir()
    file.write_text(
        "models:\n"
        "  text: {source: hf, export: {pipeline: text}}\n"
        "  both: {ensemble: 'text_tokenizer, text_model', tune: false}\n"
        "  more: {ensemble: 'both,text', tune: false}\n"
        "  chat: {llm: hf, config: {low_latency: quick}, tune: false}\n"
        f"check: {{config_name: {cpu_name()}}}\n"
        "deploy: {compose: {sweep: text_model}, kubernetes: {rate: 10}}\n"
    )
    assert list(build.read(file).models) == ["text", "both", "more", "chat"]


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    long = "x" * 5000
    for text in (
        f"models: {{m: {{source: ./{long}}}}}",
        f"models: {{{long}: {{}}}}",
        f"models: {{m: {{ensemble: 'm,{long}'}}}}",
        f"models: {{m: {{workload: {long}.yaml}}}}",
        f"repository: {long}\nmodels: {{m: {{}}}}",
        f"models: {{m: {{tune: {{also: [{long}]}}}}}}",
    ):
        assert problems(tmp_path, text), text[:40]


def test_a_source_that_is_not_there_stops_a_build_but_not_a_server(
    run_cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tritune.yaml").write_text("models: {m: {source: ./nowhere}}\n")
    monkeypatch.chdir(tmp_path)
    for more in ((), ("--dry-run",), ("--frozen",)):
        refused = run_cli("build", *more)
        assert (refused.code, refused.out) == (2, "")
        assert "tritune.yaml:1:14: `models.m.source`: no such directory" in refused.err
    assert build.read(tmp_path / "tritune.yaml", files=False).models["m"].source == "./nowhere"
    (tmp_path / "nowhere").mkdir()
    assert run_cli("build", "--dry-run").code == 0


def test_what_may_be_left_out(tmp_path: Path) -> None:
    """A model without a word is one that is there; a tokenizer may be what an export makes."""
    file = tmp_path / "tritune.yaml"
    file.write_text("repository: r\nmodels: {a: , b: {tune: true, config: {tokenizer: r/b/tokenizer}}}\n")
    for name in "ab":
        (tmp_path / "r" / name).mkdir(parents=True)
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
    import jsonschema
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
