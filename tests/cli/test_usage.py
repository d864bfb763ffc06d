"""Values that an option cannot have: told by where they stand, what was got, and what is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.exceptions import TyperException

from tooling.cli.usage import usage_error
from tooling.errors import Problem, UsageError

from ..every_command import every_command

ODD = ("x", "nan", "-1e999", "9" * 5_000)


def refusal(words: list[str], command: Any, context: Any, args: list[str]) -> tuple[Problem, ...]:
    """What is wrong with these arguments, as far as a command says it before it does anything."""
    try:
        command.make_context(context.info_name, args, parent=context.parent)
    except UsageError as error:
        return error.problems
    except TyperException as error:
        return usage_error(error, words, command).problems
    return ()


def test_every_odd_value_of_every_option_is_told_in_full() -> None:
    seen = set()
    for words, command, context in every_command():
        for param in command.params:
            option = max(param.opts, key=len)
            if param.param_type_name != "option" or param.is_flag:
                continue
            for odd in ODD:
                for problem in refusal(words, command, context, [f"{option}={odd}"]):
                    if problem.what == "it is missing":  # another one, as this one takes any word
                        assert problem.where and problem.where != option, (words, problem)
                        continue
                    assert problem.where == option, (words, odd, problem)
                    assert problem.got and odd[:60] in problem.got, (words, odd, problem)
                    assert problem.expected, (words, odd, problem)
                    assert "nput should" not in str(problem), (words, odd, problem)
                    seen.add((*words, option))
    assert {("deploy", "kubernetes", "--gpus"), ("deploy", "split", "--percent"), ("promote", "--percent")} <= seen
    assert len(seen) > 100


def test_nan_is_no_number() -> None:
    """It is neither above a bound nor below it."""
    numbers = 0
    for words, command, context in every_command():
        for option in (max(one.opts, key=len) for one in command.params if one.param_type_name == "option"):
            if any(problem.what == "not a number" for problem in refusal(words, command, context, [f"{option}=x"])):
                numbers += 1
                (told,) = refusal(words, command, context, [f"{option}=nan"])
                assert (told.where, told.got) == (option, "`nan`"), words
    assert numbers > 10


def test_every_number_has_a_least_and_a_most() -> None:
    """Without one a slip of the keyboard ends in a library's words, or never."""
    numbers = 0
    for words, command, context in every_command():
        for option in (max(one.opts, key=len) for one in command.params if one.param_type_name == "option"):
            told = refusal(words, command, context, [f"{option}=x"])
            if any(one.what == "not a whole number" for one in told):
                for odd in ("-1", str(2**32)):
                    (told,) = refusal(words, command, context, [f"{option}={odd}"])
                    assert told.where == option and odd in (told.got or "") and told.expected, (words, odd)
                numbers += 1
    assert numbers > 40


@pytest.mark.parametrize("option", ["--seed", "--buckets"])
def test_what_is_drawn_and_tried_has_its_bound(run_cli: Any, option: str) -> None:
    result = run_cli("simulate", "models/m", option, 2**32)
    most = {"--seed": "0 to 4294967295", "--buckets": "1 to 1000000"}[option]
    told = f"error: {option}: out of range (got `4294967296`; expected {most})\nhint: run `tritune simulate --help`\n"
    assert result == (2, "", told)


@pytest.mark.parametrize(
    ("argv", "error", "hint"),
    [
        (
            ["kubernetes", "models", "--gpus", "all"],
            "--gpus: not a whole number (got `all`; expected a whole number, 0 to 1000000)",
            "run `tritune deploy kubernetes --help`",
        ),
        (
            ["split", "--percent", "nan"],
            "--percent: not a whole number (got `nan`; expected a whole number, 0 to 100)",
            "run `tritune deploy split --help`",
        ),
        (
            ["split", "--percent", "2.5"],
            "--percent: not a whole number (got `2.5`; expected a whole number, 0 to 100)",
            "run `tritune deploy split --help`",
        ),
        (
            ["split", "--percent", "101"],
            "--percent: out of range (got `101`; expected 0 to 100)",
            "run `tritune deploy split --help`",
        ),
        (
            ["compose", "models", "--control", "explict"],
            "--control: no such choice (got `explict`; expected none, poll, explicit)",
            "did you mean `explicit`?",
        ),
        (
            ["compose", "models", "--control", "3"],
            "--control: no such choice (got `3`; expected none, poll, explicit)",
            "run `tritune deploy compose --help`",
        ),
        (
            ["kubernetes", "models", "--rate", "fast"],
            "--rate: not a number (got `fast`; expected a number, 0.001 to 1000000)",
            "run `tritune deploy kubernetes --help`",
        ),
        (["split", "--percent", "5"], "--name: it is missing", "run `tritune deploy split --help`"),
        (["compose", "models"], "--output: it is missing (expected DIR)", "run `tritune deploy compose --help`"),
        (["compose"], "REPO: it is missing", "run `tritune deploy compose --help`"),
        (
            ["split", "--percent"],
            "--percent: the value is missing (expected a whole number, 0 to 100)",
            "run `tritune deploy split --help`",
        ),
        (
            ["compose", "models", "--release", "--output", "out"],
            "--release: the value is missing (got `--output`; expected YY.MM)",
            "run `tritune deploy compose --help`",
        ),
        (["split", "--force=yes"], "--force: it takes no value", "run `tritune deploy split --help`"),
        (["nowhere"], "no such command 'nowhere'", "run `tritune deploy --help`"),
        (
            ["split", "--percnt", "5"],
            "--percnt: no such option",
            "did you mean `--percent`? Else run `tritune deploy split --help`",
        ),
    ],
)
def test_what_is_said_of_a_deployment_that_cannot_be(run_cli: Any, argv: list[str], error: str, hint: str) -> None:
    result = run_cli("deploy", *argv)
    assert result == (2, "", f"error: {error}\nhint: {hint}\n")


def test_an_option_without_its_value_names_the_help_of_its_command(run_cli: Any) -> None:
    """Be it the last word, or followed by another option, which Typer would take for the value; a flag with one too."""
    seen = 0
    for words, command, _ in every_command():
        hint = f"run `tritune {' '.join(words)} --help`"
        options = [one for one in command.params if one.param_type_name == "option"]
        for one, other in zip(options, [*options[1:], *options[:1]], strict=True):
            for word in one.opts:
                if one.is_flag:
                    tries = [[f"{word}=yes"]] if word.startswith("--") else []
                else:
                    tries = [[word], [word, other.opts[0]]]
                for args in tries:
                    result = run_cli(*words, *args, "--json")
                    (problem,) = result.json["error"]["problems"]
                    assert (result.code, result.json["command"]) == (2, " ".join(words)), args
                    assert (problem["where"], problem["hint"]) == (word, hint), args
                    assert problem["what"] == ("it takes no value" if one.is_flag else "the value is missing"), args
                    assert one.is_flag or problem["expected"], args
                    assert problem["got"] == (f"`{args[1]}`" if len(args) > 1 else None), args
                    seen += 1
    assert seen > 400


def test_what_looks_like_an_option_may_be_a_value_where_it_is_meant(run_cli: Any, tmp_path: Path) -> None:
    result = run_cli("deploy", "split", "--name=--output", "--percent", "5", "--output", tmp_path / "out")
    assert result.err.startswith("error: --name: no name for Kubernetes (got `--output`; ")


def test_a_refused_line_names_its_command_in_json(run_cli: Any) -> None:
    """Whether Typer refuses it, a callback of an option, or what looks at all words before."""
    for args in (["models", "--bucket", "http://x", "--output", "out"], ["--output", ""], ["--no-such"], []):
        result = run_cli("deploy", "compose", *args, "--json")
        assert (result.code, result.json["command"]) == (2, "deploy compose"), args


def test_a_choice_that_is_an_argument(run_cli: Any) -> None:
    told = "error: SHELL: no such choice (got `csh`; expected bash, zsh, fish)\nhint: did you mean `zsh`?\n"
    assert run_cli("completion", "csh") == (2, "", told)
    missing = "error: SHELL: it is missing (expected bash, zsh, fish)\nhint: run `tritune completion --help`\n"
    assert run_cli("completion") == (2, "", missing)


def test_the_list_of_commands_holds_whole_sentences(run_cli) -> None:
    for argv in ([], ["deploy"], ["study"], ["workload"], ["runtime"]):
        shown = " ".join(run_cli(*argv, "--help").out.partition("Commands:")[2].split())
        assert shown and "..." not in shown
    assert "Find a setting that is surely better than the current config, or say that there is none." in " ".join(
        run_cli("--help").out.split()
    )


@pytest.mark.parametrize("argv", [["tune", "m"], ["compare", "m", "m"], ["profile", "m"], ["bottleneck", "m"]])
def test_a_tokenizer_that_is_not_there_is_told_whether_it_is_needed_or_not(run_cli, tmp_path, argv) -> None:
    said = run_cli(*argv, "--tokenizer", tmp_path)
    assert (said.code, said.out) == (2, "")
    told = f"error: --tokenizer: there is no tokenizer (got {tmp_path}; expected tokenizer.json in it)\n"
    assert said.err == told
