"""The real server and `tritune check` give the same verdict, in the same words, with and without auto-complete."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tooling.check.finding import Evidence, Finding, Rule, Severity, Stage
from tooling.check.registry import rules
from tooling.check.runner import check, check_request
from tooling.check.target import Target
from tooling.errors import ExternalError, Refused
from tooling.releases import current_release
from tooling.runtime import Runtime
from tooling.server import EmbeddedServer, ServerOptions

# Random models: with or without auto-complete, the first seed, how many. `make fuzz` asks about 1,000.
DRAWN = {"strict": (True, 20_000, 70), "complete": (False, 70_000, 30)}
FUZZ = int(os.environ.get("TRITUNE_FUZZ", "300"))
LONG = {"strict": (True, 120_000, FUZZ // 2), "complete": (False, 170_000, FUZZ // 2)}

# The native ONNX Runtime backend is the judge of its rules, not the embedded server's own; see test_native_verdicts.
NATIVE = "onnxruntime backend"
# The server dies or hangs on these, on some of them only now and then.
FATAL = {
    "agents-empty",
    "config-unreadable",
    "metric-tag-name",
    "python-file-missing",
    "python-name-with-blank-or-quote",
    "warmup-batch-above-max",
    "warmup-input-not-in-model",
    "warmup-random-ids",
}
# The same for what is refused after the instances were made. The others belong to backends that are not here.
ELSEWHERE = (
    "initial-state-",
    "state-twice",
    "plan-",
    "vllm-",
    "profile-not",
    "non-linear-format-dims",
    "model-file-",
)


def _fits_the_embedded_server(rule: Rule) -> bool:
    special = [part for part in ("checked", "name", "repository", "request") if f"--- {part}\n" in rule.example]
    options = rule.example.partition("--- options\n")[2]
    return (
        rule.severity is Severity.ERROR
        and rule.stage not in (Stage.REQUEST, Stage.SERVING)
        and rule.evidence is Evidence.RUN
        and rule.id not in FATAL
        and NATIVE not in rule.source
        and not rule.id.startswith(ELSEWHERE)
        and not special
        and options in ("", "--gpus 0")
    )


EXAMPLES = [rule for rule in rules().values() if _fits_the_embedded_server(rule)]


@dataclass(frozen=True)
class Judged:
    """What both say to the models of one repository."""

    findings: dict[str, list[Finding]]
    said: dict[str, str]

    def disagreement(self, name: str) -> str | None:
        """How the two differ about a model; None where they agree."""
        errors, said = self.findings.get(name, []), self.said[name]
        if said == "ready":
            return f"{name} loads, and is said to break {errors[0].rule.id}" if errors else None
        if not errors:
            return f"{name} is refused ({said}), and nothing is said to be wrong"
        first = next(finding for finding in errors if finding.first)
        if first.says is None or first.says.strip() in said:
            return None
        return f"{name} is refused ({said}), and {first.rule.id} is said to be why: {first.says}"


def _judge(root: Path, strict: bool) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in check(root, Target(current_release(), strict=strict, gpus=0)).findings:
        if finding.severity is Severity.ERROR and finding.rule.stage is not Stage.REQUEST and finding.model:
            found.setdefault(finding.model, []).append(finding)
    return found


def _ask(root: Path, names: list[str], runtime: Runtime, strict: bool) -> dict[str, str]:
    def load(name: str) -> str:
        try:
            server.load(name)
        except Refused as refusal:
            return refusal.problems[0].what
        return "ready"

    with (
        EmbeddedServer(root, runtime, ServerOptions(strict_config=strict, load_timeout_s=60)) as server,
        ThreadPoolExecutor(4) as pool,
    ):
        return dict(zip(names, pool.map(load, names), strict=True))


def _place_example(root: Path, number: int, rule: Rule, write: ModuleType) -> str:
    """Write an example into a shared repository: every model of it under a name of its own."""
    name, text = f"example{number}", rule.example.replace('"example"', f'"example{number}"')
    for other in set(re.findall(r"--- \.\./(\w+)/", text)):
        text = text.replace(f'"{other}"', f'"{other}{number}"').replace(f"../{other}/", f"../{other}{number}/")
    write.write_example(root, f"{text}\n--- name\n{name}")
    return name


def _place_drawn(root: Path, seed: int, count: int, write: ModuleType) -> list[str]:
    drawing = _drawing()
    drawn = [*drawing.step_models(), *(drawing.draw_model(seed + n, f"drawn{n}") for n in range(count))]
    for model in drawn:
        files = {"config.pbtxt": model.config, **model.files}
        for file, content in files.items():
            path = root / model.name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".onnx":
                write.write_model(path, content)
            else:
                path.write_text(content, encoding="utf-8")
    return [model.name for model in drawn]


def _drawing() -> ModuleType:
    import importlib.util

    spec = importlib.util.spec_from_file_location("drawing", Path(__file__).with_name("drawing.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["drawing"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory, write: ModuleType, runtime: Runtime) -> Judged:
    """Both on every example, without auto-complete, which is quicker."""
    root = tmp_path_factory.mktemp("examples") / "repository"
    names = [_place_example(root, number, rule, write) for number, rule in enumerate(EXAMPLES)]
    return Judged(_judge(root, True), _ask(root, names, runtime, True))


@pytest.mark.live
def test_most_rules_are_put_to_the_server() -> None:
    assert len(EXAMPLES) >= 80


@pytest.mark.live
@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=[rule.id for rule in EXAMPLES])
def test_example(number: int, examples: Judged) -> None:
    name = f"example{number}"
    assert examples.disagreement(name) is None
    assert examples.said[name] != "ready"
    assert next(finding.rule for finding in examples.findings[name] if finding.first) is EXAMPLES[number]


def _draw(root: Path, part: tuple[bool, int, int], write: ModuleType, runtime: Runtime) -> Judged:
    """Both on random models, in one of the modes."""
    strict, seed, count = part
    names = _place_drawn(root, seed, count, write)
    return Judged(_judge(root, strict), _ask(root, names, runtime, strict))


def _refusing(judged: Judged) -> list[Rule]:
    """For each model that is refused, the rule that is said to be why."""
    firsts = (next(f for f in found if f.first) for name, found in judged.findings.items() if name in judged.said)
    return [finding.rule for finding in firsts]


@pytest.mark.live
@pytest.mark.parametrize("mode", DRAWN)
@pytest.mark.long
def test_random_models_get_the_same_verdict(mode: str, tmp_path: Path, write: ModuleType, runtime: Runtime) -> None:
    drawn = _draw(tmp_path / "repository", DRAWN[mode], write, runtime)
    assert [text for name in drawn.said if (text := drawn.disagreement(name))] == []
    stages = Counter(rule.stage for rule in _refusing(drawn))
    assert 0.4 <= stages.total() / len(drawn.said) <= 0.85
    assert stages[Stage.POLL] >= 5
    assert stages[Stage.LOAD] >= 5


@pytest.mark.live
@pytest.mark.long
def test_many_random_models_get_the_same_verdict(
    tmp_path: Path, write: ModuleType, runtime: Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    """Elsewhere than above; and enough to come across most rules of the core."""
    drawn = {mode: _draw(tmp_path / mode, part, write, runtime) for mode, part in LONG.items()}
    wrong = [(mode, text) for mode, one in drawn.items() for name in one.said if (text := one.disagreement(name))]
    refusing = [rule for one in drawn.values() for rule in _refusing(one)]
    asked, stages = sum(len(one.said) for one in drawn.values()), Counter(rule.stage.value for rule in refusing)
    rules_hit = {rule.id for rule in refusing}
    text = ", ".join(f"{stage} {count}" for stage, count in stages.items())
    with capsys.disabled():
        sys.stdout.write(
            f"\n{asked} random models, {len(refusing)} refused ({text}), {len(rules_hit)} different rules\n"
        )
    assert wrong == []
    assert 0.4 <= len(refusing) / asked <= 0.85
    assert min(stages[stage.value] for stage in (Stage.POLL, Stage.DEPENDENCY, Stage.LOAD)) >= asked // 40
    assert len(rules_hit) >= (80 if asked >= 1_000 else 50)


@pytest.mark.live
def test_what_kills_the_server_is_an_error(
    tmp_path: Path, write: ModuleType, runtime: Runtime, example: Callable[[str], object]
) -> None:
    root = tmp_path / "repository"
    made = [rules()["agents-empty"], rules()["metric-tag-name"]]
    names = [_place_example(root, number, rule, write) for number, rule in enumerate(made)]
    for name, rule in zip(names, made, strict=True):
        with (
            EmbeddedServer(root, runtime, ServerOptions(strict_config=rule.id == "agents-empty")) as server,
            pytest.raises(ExternalError),
        ):
            server.load(name)
    assert {name: found[0].rule.id for name, found in _judge(root, False).items()} == {
        name: rule.id for name, rule in zip(names, made, strict=True)
    }


REQUESTS = [
    rule
    for rule in rules().values()
    if rule.stage is Stage.REQUEST and "--- request\n" in rule.example and rule.evidence is Evidence.RUN
]


def _send(url: str, model: str, body: dict[str, Any]) -> str:
    """What the server answers to a request whose inputs are filled with zeros where they have no data."""
    for tensor in body["inputs"]:
        tensor.setdefault("data", [0] * math.prod(tensor["shape"]))
    connection = http.client.HTTPConnection(url, timeout=20)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body))
        return str(json.loads(connection.getresponse().read()).get("error", "answered"))
    finally:
        connection.close()


@pytest.mark.live
def test_requests_are_refused_in_the_same_words(tmp_path: Path, write: ModuleType, runtime: Runtime) -> None:
    """The examples of the rules about requests, each sent to its model."""
    root, models, wrong = tmp_path / "repository", dict[str, str](), []
    for rule in REQUESTS:
        config = rule.example.partition("--- request\n")[0]
        if config not in models:
            models[config] = f"model{len(models)}"
            write.write_example(root, f"{config}--- name\n{models[config]}")
    with EmbeddedServer(root, runtime, ServerOptions(strict_config=True)) as server:
        for name in models.values():
            server.load(name)
        for rule in REQUESTS:
            config, _, text = rule.example.partition("--- request\n")
            (tmp_path / "request.json").write_text(text, encoding="utf-8")
            target = Target(current_release(), strict=True, gpus=0)
            report = check_request(tmp_path / "request.json", root, target, [models[config]])
            says = next(finding.says for finding in report.findings if finding.first)
            said = _send(server.http_url, models[config], json.loads(text))
            wrong += [] if says and says.strip() in said else [f"{rule.id}: {said} against {says}"]
    assert wrong == []
