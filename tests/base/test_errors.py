"""The error tree: exit codes, the form of a message, several problems at once."""

import json
from pathlib import Path

import pytest

from tooling import errors
from tooling.errors import Problem, TrituneError, UsageError, json_fault, kind_of, suggest
from tooling.repository import read_config


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.TrituneError, 70), (errors.Refused, 1), (errors.UsageError, 2), (errors.MissingError, 3),
        (errors.ExternalError, 4),
    ],
)  # fmt: skip
def test_exit_codes_of_the_tree(kind: type[TrituneError], code: int) -> None:
    assert kind("x").exit_code == code


def test_a_message_says_where_what_got_expected() -> None:
    error = UsageError("preferred size is too large", where="config.pbtxt:4", got=16, expected="at most 8")
    assert str(error) == "config.pbtxt:4: preferred size is too large (got 16; expected at most 8)"


def test_zero_and_the_empty_text_are_values_too() -> None:
    assert str(UsageError("x", got=0)) == "x (got 0)"
    assert str(UsageError("x", got="")) == "x (got )"


def test_all_problems_of_a_file_at_once() -> None:
    error = UsageError(problems=[Problem("a is wrong", where="f:1"), Problem("b is wrong", where="f:2")])
    assert len(error.problems) == 2
    assert str(error) == "f:1: a is wrong; f:2: b is wrong"


def test_suggestions_are_close_or_absent() -> None:
    assert suggest("max_bach_size", ["max_batch_size", "name"]) == "did you mean `max_batch_size`?"
    assert suggest("zzz", ["max_batch_size"]) is None


def test_a_command_to_run_is_quoted(tmp_path: Path) -> None:
    model = tmp_path / "my models" / "m"
    model.mkdir(parents=True)
    with pytest.raises(UsageError) as caught:
        read_config(model)
    assert caught.value.problems[0].hint == f"write one with `tritune gen-config '{model}'`"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "nothing"),
        ({}, "a mapping"),
        ([], "a list"),
        ("", "a text"),
        (1, "a number"),
        (1.5, "a number"),
        (True, "true"),
    ],
)
def test_values_are_called_what_people_call_them(value: object, words: str) -> None:
    assert kind_of(value) == words


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (b" \n", "an empty file"),
        (b"[\xff]", "byte 0xff, which is no UTF-8, at 1"),
        (b"[" * 200_000, "brackets nested too deeply"),
        (b"{1}", "Expecting property name"),
    ],
)
def test_what_is_wrong_with_a_text_that_is_no_json(source: bytes, fault: str) -> None:
    try:
        json.loads(source)
    except (ValueError, RecursionError) as error:
        assert json_fault(error, source).startswith(fault)
    else:
        pytest.fail("it is JSON")
