"""Where engines look for the models that their arguments name: what is refused before one starts, and what is told of
one that asked Hugging Face in vain. The tool and the backend, which has no part of it, say the same."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tooling.errors import UsageError
from tooling.llm import model_place
from tooling.llm.model_facts import read_facts
from tooling.llm.model_place import hub_cache, misread, require_models
from tooling.runtime.location import BACKENDS_SOURCE

VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As far as variables say, with an empty cache."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the arguments stand."""
    (tmp_path / "llm" / "1").mkdir(parents=True)
    return tmp_path / "llm" / "1" / "model.json"


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the vLLM backend."""
    monkeypatch.syspath_prepend(str(BACKENDS_SOURCE / "vllm"))
    return importlib.import_module("llm_models")


def keep(hub: Path, name: str) -> Path:
    """Put the directory of a model into Hugging Face's cache."""
    snapshot = hub / name / "snapshots" / "0a1b"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    return snapshot


def test_a_directory_that_is_taken_for_an_id(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`llama` stands in the working directory; the engine asks Hugging Face, unless this machine holds that one."""
    monkeypatch.chdir(tmp_path)
    arguments = {"model": "llama"}
    require_models(arguments, file)
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"`model` is taken for a Hugging Face id, and no directory \(got `llama`"):
        require_models(arguments, file)
    assert misread(arguments, file) == f"write {tmp_path / 'llama'}"
    keep(tmp_path / "hub", "models--llama")
    require_models(arguments, file)
    assert misread(arguments, file) is None


def test_the_directory_that_was_meant_is_told(file: Path) -> None:
    weights = file.parent / "weights"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    with pytest.raises(UsageError) as error:
        require_models({"model": "./weights"}, file)
    assert error.value.problems[0].hint == f"write {weights}"
    require_models({"model": str(weights), "tokenizer": "org/words"}, file)


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_an_id_that_must_not_be_fetched(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    arguments = {"model": "org/llm", "tokenizer": "org/words"}
    keep(tmp_path / "hub", "models--org--words")
    said = r"`model` is a Hugging Face id that must not be fetched .* \(got `org/llm`, looked for in .*/hub;"
    with pytest.raises(UsageError, match=said) as error:
        require_models(arguments, file)
    (problem,) = error.value.problems
    assert problem.hint is not None and "`hf download org/llm` into the cache" in problem.hint
    assert misread(arguments, file) == problem.hint
    keep(tmp_path / "hub", "models--org--llm")
    require_models(arguments, file)


def test_the_cache_stands_where_the_variables_of_its_client_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ann")
    assert str(hub_cache()) == "/home/ann/.cache/huggingface/hub"
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert str(hub_cache()) == "/caches/huggingface/hub"
    monkeypatch.setenv("HF_HOME", "~/hf")
    assert str(hub_cache()) == "/home/ann/hf/hub"
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", "$HOME/old")
    assert str(hub_cache()) == "/home/ann/old"
    monkeypatch.setenv("HF_HUB_CACHE", "/new")
    assert str(hub_cache()) == "/new"


@pytest.mark.parametrize(
    ("named", "got", "hint"),
    [
        ("org/llm", "no such directory", "as a Hugging Face id, where there is a network: `hf download org/llm` into"),
        ("./a/b/c", "no such directory", "check the path, or download the model first"),
        ("kept/llm", "no such directory", "the cache has it as a Hugging Face id: copy it (`cp -rL "),
        ("file.json", "a file", "name its directory, "),
    ],
)
def test_a_directory_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, got: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    keep(tmp_path / "hub", "models--kept--llm")
    Path("file.json").write_text("{}")
    with pytest.raises(UsageError) as error:
        read_facts(Path(named).absolute())
    (problem,) = error.value.problems
    assert (problem.what, problem.got) == ("not a language model's directory", got)
    assert problem.hint is not None and hint in problem.hint


NAMED: tuple[dict[str, Any], ...] = (
    {"model": "org/llm", "tokenizer": "/words", "hf_config_path": "", "speculative_model": "[ngram]"},
    {"model": 3, "tokenizer": ["a"], "speculative_config": {"model": "org/draft", "method": "draft_model"}},
    {"model": "a", "speculative_config": {"model": "ngram", "speculative_model_dir": "./b"}, "hf_config_path": "c"},
    {"model": "a", "speculative_config": "ngram", "speculative_model": "b"},
)
NAMES = (
    *("llama", "org/llm", "org/llm:Q4_K_M", "org/llm-GGUF/llm.Q4.gguf", "a/b/c", "./a", "../a", "/a", "~/a", "a b"),
    *("s3://b/llm", "a--b", "a..b", "x" * 97, "org/", "-a"),
)


def test_the_backend_reads_names_as_the_tool_does(backend: Any) -> None:
    for arguments in NAMED:
        assert list(backend.named_models(arguments)) == list(model_place.named_models(arguments))
    for name in NAMES:
        assert (backend._ID.fullmatch(name) is None and "://" not in name) == model_place.is_path(name), name


@pytest.fixture(params=[(), *((name,) for name in VARIABLES), VARIABLES])
def variables(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.delenv("HF_HUB_CACHE")
    for name in request.param:
        monkeypatch.setenv(name, str(tmp_path / name))
    yield


@pytest.mark.usefixtures("variables")
def test_the_backend_looks_into_the_same_cache(backend: Any) -> None:
    assert backend.hub_cache() == hub_cache()
    for name in ("org/llm", "org/llm:Q4_K_M", "org/llm-GGUF/llm.Q4.gguf"):
        assert backend._repository(name) == model_place._repository(name)


@pytest.mark.parametrize("said", ["", "0", "1", "true", "YES", "on", "no"])
def test_the_backend_knows_when_it_must_not_ask(backend: Any, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", said)
    assert backend.offline() == model_place.is_offline() == (said in ("1", "true", "YES", "on"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "names no model: it has no `model`, and should be a Hugging Face id or an absolute path"),
        ({"model": 3}, "names no model: `model` is 3, and should be"),
        ({"model": ""}, 'names no model: `model` is "", and should be'),
        ({"model": "/no/such"}, "is the path '/no/such', and nothing stands there: write the absolute path, or"),
        ({"model": "a/b/c"}, "where the server was started: write the absolute path, or a Hugging Face id"),
        ({"model": "org/llm", "tokenizer": "/no"}, "`tokenizer` of "),
        ({"model": "org/llm", "speculative_config": {"model": "/no"}}, "`speculative_config.model` of "),
        ({"model": "EMPTY"}, "which holds no config.json (nor params.json, nor a GGUF file)"),
    ],
)
def test_the_backend_refuses_what_no_engine_finds(
    backend: Any, file: Path, tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    (tmp_path / "empty").mkdir()
    if arguments.get("model") == "EMPTY":
        arguments = {"model": str(tmp_path / "empty")}
    with pytest.raises(backend.Refusal) as error:
        backend.require_models(file.parent, arguments)
    assert said in str(error.value)
    assert str(file) in str(error.value)


def test_the_backend_takes_what_an_engine_may_find(backend: Any, file: Path, tmp_path: Path) -> None:
    snapshot = keep(tmp_path / "hub", "models--org--llm")
    (tmp_path / "llm.gguf").touch()
    for model in ("org/llm", "org/other", "s3://b/llm", str(snapshot), str(tmp_path), str(snapshot / "config.json")):
        backend.require_models(file.parent, {"model": model})
    backend.require_models(file.parent, {"model": str(file.parent), "hf_config_path": str(snapshot)})


def test_the_backend_asks_nobody_that_it_must_not_ask(
    backend: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(backend.Refusal) as error:
        backend.require_models(file.parent, {"model": "org/llm"})
    assert str(error.value) == (
        f"'{file}' names by a Hugging Face id what the engine did not get: `model` 'org/llm'. The cache "
        f"'{tmp_path}/hub' does not hold it whole, and HF_HUB_OFFLINE forbids to ask Hugging Face: write the absolute "
        "path of a directory that holds the model, or fill it where there is a network (`hf download org/llm`)"
    )
    keep(tmp_path / "hub", "models--org--llm")
    backend.require_models(file.parent, {"model": "org/llm"})


BEGIN = "vLLM refuses these engine args or cannot start: "
AWAY = "We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files."
CLOSED = "org/llm is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{AWAY}\nCheck your internet connection", "Hugging Face cannot be reached from here"),
        ("Cannot find an appropriate cached snapshot folder for the specified revision", "cannot be reached"),
        (f"{CLOSED}\nIf this is a private repository", "Hugging Face knows no such model, or gives it only to those"),
        ("You are trying to access a gated repo.\nMake sure", "gives it only to those who log in (`hf auth login`"),
    ],
)
def test_an_engine_that_asked_in_vain(backend: Any, file: Path, tmp_path: Path, text: str, reason: str) -> None:
    keep(tmp_path / "hub", "models--org--words")
    arguments = {"model": "org/llm", "tokenizer": "org/words", "hf_config_path": str(tmp_path)}
    said = backend.in_plain_words(BEGIN + text, file.parent, arguments)
    assert "`model` 'org/llm'." in said
    assert "org/words" not in said, "the cache holds it"
    assert reason in said
    assert "(`hf download org/llm`)" in said
    assert said.endswith(f". {BEGIN}{text.splitlines()[0]}"), "its own words too, without those on how to go on"


def test_an_engine_that_asks_although_the_cache_holds_the_model(
    backend: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path / "hub", "models--org--llm")
    text = f"{BEGIN}[Errno -2] Name or service not known"
    said = backend.in_plain_words(text, file.parent, {"model": "org/llm"})
    assert f"asks although the cache '{tmp_path}/hub' holds files of it: start the server with HF_HUB_OFFLINE=1" in said
    assert "does not hold it whole" not in said
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = backend.in_plain_words(text, file.parent, {"model": "org/llm"})
    assert "does not hold it whole" in said and "start the server" not in said


def test_other_words_of_an_engine_stay_as_they_are(backend: Any, file: Path, tmp_path: Path) -> None:
    other = "contains custom code; inspect it at https://hf.co/org/llm and pass trust_remote_code=True"
    assert backend.in_plain_words(other, file.parent, {"model": "org/llm"}) == other
    assert backend.in_plain_words(AWAY, file.parent, {"model": str(tmp_path)}) == AWAY, "no id was asked for"


def test_a_directory_without_a_model_is_refused_before_an_engine_starts(file: Path, tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "tokenizer.json").write_text("{}")
    arguments = {"model": str(tmp_path / "words"), "tokenizer": str(tmp_path / "words")}
    with pytest.raises(UsageError, match=r"`model` is a directory without a model \(got .*; expected config\.json"):
        require_models(arguments, file)
    require_models({**arguments, "hf_config_path": str(tmp_path)}, file)


WRAPPED = "1 validation error for ModelConfig\n  Value error, {} [type=value_error, input_value=ArgsKwargs((), {{}})]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WRAPPED.format("max_model_len must be a positive integer"), "max_model_len must be a positive integer"),
        (WRAPPED.format("type `foo` is unknown.\n\nYou can update"), "type `foo` is unknown."),
        (
            WRAPPED.format(
                "Model architectures ['Foo'] are not supported for now. Supported architectures: dict_keys(['A'])"
            ),
            "Model architectures ['Foo'] are not supported for now.",
        ),
        (
            "1 validation error for ModelConfig\nseed\n  Input should be an integer [type=int",
            "seed Input should be an integer",
        ),
        ("No available memory for the cache blocks.\nTry more", "No available memory for the cache blocks. Try more"),
    ],
)
def test_an_engine_speaks_of_this_model_only(backend: Any, file: Path, text: str, said: str) -> None:
    assert backend.in_plain_words(BEGIN + text, file.parent, {"model": "/llama"}) == BEGIN + said


def test_an_engine_that_asked_in_vain_says_it_in_the_words_of_pydantic_too(backend: Any, file: Path) -> None:
    said = backend.in_plain_words(BEGIN + WRAPPED.format(AWAY), file.parent, {"model": "org/llm"})
    assert said.endswith(f". {BEGIN}{AWAY}")


def test_a_directory_without_a_tokenizer(backend: Any, file: Path) -> None:
    text = "Couldn't instantiate the backend tokenizer from one of: \n(1) a `tokenizers` library serialization file"
    said = backend.in_plain_words(BEGIN + text, file.parent, {"model": "/llama"})
    assert said.startswith(
        f"'/llama', which '{file}' names, holds no tokenizer that the engine can read: put tokenizer.json"
    )
    assert said.endswith(f". {BEGIN}Couldn't instantiate the backend tokenizer")
    assert "'/words', which" in backend.in_plain_words(text, file.parent, {"model": "/llama", "tokenizer": "/words"})


def test_a_cache_that_holds_a_model_in_part(backend: Any, file: Path, tmp_path: Path) -> None:
    """Where the engine finds no weights or no tokenizer, an id is to be fetched once more, a directory to be filled."""
    weights = "RuntimeError: Cannot find any model weights with `{}`"
    words = "Couldn't instantiate the backend tokenizer from one of:"
    hub = tmp_path / "hub"
    for text, lack in ((weights.format(hub / "snapshots" / "0a"), "no weights"), (words, "no tokenizer")):
        said = backend.in_plain_words(BEGIN + text, file.parent, {"model": "org/llm"})
        assert said.startswith(f"`model` 'org/llm', which '{file}' names, holds {lack} that the engine can read: put ")
        assert f"The cache '{hub}' does not hold it whole: `hf download org/llm` fills it" in said
    said = backend.in_plain_words(BEGIN + weights.format("/llama"), file.parent, {"model": "/llama"})
    assert said.startswith(
        f"'/llama', which '{file}' names, holds no weights that the engine can read: put the model's"
    )
    assert said.endswith(f". {BEGIN}{weights.format('/llama')}")


def test_what_the_engine_says_of_single_fields(backend: Any, file: Path) -> None:
    text = (
        "2 validation errors for SpeculativeConfig\nnum_speculative_tokens\n  Input should be a valid integer "
        "[type=int_type, input_value=[4], input_type=list]\n    For further information visit https://errors\n"
        "prompt_lookup_mx\n  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=4, "
        "input_type=int]\n    For further information visit https://errors"
    )
    assert backend.in_plain_words(BEGIN + text, file.parent, {"model": "/llama"}) == (
        f"vLLM does not take what '{file}' holds: `num_speculative_tokens` is [4]: Input should be a valid integer; "
        "`prompt_lookup_mx` is 4: Unexpected keyword argument"
    )


def test_an_engine_that_does_not_say_why_it_got_none(backend: Any, file: Path, tmp_path: Path) -> None:
    text = WRAPPED.format("Invalid repository ID or local directory specified: 'org/draft'.\nPlease verify")
    arguments = {"model": "org/llm", "speculative_config": {"model": "org/draft"}}
    said = backend.in_plain_words(BEGIN + text, file.parent, arguments)
    assert "did not get: `speculative_config.model` 'org/draft'." in said
    assert "cannot be reached from here, or knows no such model" in said
    assert said.endswith("Invalid repository ID or local directory specified: 'org/draft'.")
    here = BEGIN + WRAPPED.format(f"Invalid repository ID or local directory specified: '{tmp_path}'.")
    assert "Hugging Face id" not in backend.in_plain_words(here, file.parent, {"model": str(tmp_path)})
