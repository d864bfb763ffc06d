"""The study file: resume, lock, torn lines, headers, disks that refuse."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perf.provenance import host_facts
from perf.study import FILE_NAME, SCHEMA_VERSION, Study, read_study, study_dir
from tooling.console import Console
from tooling.errors import UsageError

HEADER = {"model": {"sha256": "ab"}, "workload": {"concurrency": 8}, "grid": {"instances": [1, 2]}}


def test_resume_returns_what_was_written(tmp_path: Path) -> None:
    with Study(tmp_path / "deep" / "study", HEADER) as study:
        study.append({"record": "measurement", "n": 1, "name": "größe"})
    with Study(tmp_path / "deep" / "study", HEADER) as study:
        assert study.records == [{"record": "measurement", "n": 1, "name": "größe"}]
        study.append({"record": "measurement", "n": 2})
    header, records = read_study(tmp_path / "deep" / "study")
    assert header["workload"] == {"concurrency": 8}
    assert header["schema_version"] == SCHEMA_VERSION
    assert [r["n"] for r in records] == [1, 2]


@pytest.mark.parametrize("torn", ['{"record": "meas', '{"record": "measurement", "n": 2}'])
def test_torn_last_line_is_dropped(tmp_path: Path, torn: str) -> None:
    with Study(tmp_path, HEADER) as study:
        study.append({"record": "x", "n": 1})
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write(torn)
    assert read_study(tmp_path)[1] == [{"record": "x", "n": 1}]
    with Study(tmp_path, HEADER) as study:
        assert study.records == [{"record": "x", "n": 1}]
        study.append({"record": "x", "n": 3})
    assert read_study(tmp_path)[1] == [{"record": "x", "n": 1}, {"record": "x", "n": 3}]


def test_torn_header_starts_over(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"record": "hea')
    with Study(tmp_path, HEADER) as study:
        assert study.records == []
    assert read_study(tmp_path)[0]["record"] == "header"


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    with Study(tmp_path, HEADER) as study:
        study.append({"record": "x", "n": 1})
    path = tmp_path / FILE_NAME
    path.write_text(path.read_text().replace('{"record": "x", "n": 1}', "[1, 2]\n{}"))
    with pytest.raises(UsageError, match=rf"{FILE_NAME}:2: the study is damaged"), Study(tmp_path, HEADER):
        pass


def test_other_header_names_every_field_that_differs(tmp_path: Path) -> None:
    with Study(tmp_path, HEADER):
        pass
    before = (tmp_path / FILE_NAME).read_bytes()
    other = {"model": {"sha256": "cd"}, "workload": {"concurrency": 8}, "grid": {"instances": [1]}}
    with pytest.raises(UsageError) as caught, Study(tmp_path, other):
        pass
    assert [p.what for p in caught.value.problems] == [
        "the study was made with another `model.sha256`",
        "the study was made with another `grid.instances`",
    ]
    assert caught.value.problems[1].got == "[1]"
    assert caught.value.problems[1].expected == "[1, 2]"
    assert caught.value.problems[0].hint == "give a new --study directory"
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_tuples_in_the_header_equal_their_json(tmp_path: Path) -> None:
    header = {"lengths": (16, 32)}
    for _ in range(2):
        with Study(tmp_path, header) as study:
            assert study.records == []


def test_second_writer_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    with Study(tmp_path, HEADER) as study:
        code = (
            "import sys, json, pathlib\nfrom perf.study import Study\nfrom tooling.errors import UsageError\n"
            "try:\n    Study(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])).__enter__()\n"
            "except UsageError as error:\n    print(error); sys.exit(error.exit_code)\n"
        )

        def second(header: dict[str, Any]) -> str:
            argv = [sys.executable, "-c", code, str(tmp_path), json.dumps(header)]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert done.returncode == 2
            return done.stdout

        assert f"{tmp_path / FILE_NAME}: the study is in use by another process" in second(HEADER)
        assert "the study was made with another `workload.concurrency` (got 9; expected 8)" in second(
            {**HEADER, "workload": {"concurrency": 9}}
        )
        study.append({"record": "x", "n": 1})
    with Study(tmp_path, HEADER) as study:
        assert study.records == [{"record": "x", "n": 1}]


def test_lock_ends_with_a_killed_writer(tmp_path: Path) -> None:
    code = (
        "import sys, json, pathlib, time\nfrom perf.study import Study\n"
        "study = Study(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])).__enter__()\n"
        "study.append({'record': 'x', 'n': 1})\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path), json.dumps(HEADER)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        writer.send_signal(signal.SIGKILL)
    with Study(tmp_path, HEADER) as study:
        assert study.records == [{"record": "x", "n": 1}]


def test_each_session_that_measures_is_noted_once(tmp_path: Path) -> None:
    for argv in (["tune", "a"], ["tune", "a", "--budget", "5m"]):
        with Study(tmp_path, HEADER, {"argv": argv}) as study:
            study.append({"record": "x"})
            study.append({"record": "x"})
    with Study(tmp_path, HEADER, {"argv": ["only looks"]}):
        pass
    assert [r.get("argv") for r in read_study(tmp_path)[1]] == [
        ["tune", "a"],
        None,
        None,
        ["tune", "a", "--budget", "5m"],
        None,
        None,
    ]


def test_unwritable_place_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="the study cannot be written"), Study(tmp_path / "file" / "study", HEADER):
        pass


def test_full_disk_is_a_usage_error(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, resource\nfrom perf.study import Study\n"
        "with Study(pathlib.Path(sys.argv[1]), {}) as study:\n"
        "    study.append({'record': 'x'})\n    resource.setrlimit(resource.RLIMIT_FSIZE, (128, 128))\n"
        "    study.append({'record': 'y', 'text': 'x' * 100})\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "UsageError" in done.stderr
    assert "the study cannot be written (got File too large)" in done.stderr
    assert (tmp_path / FILE_NAME).read_bytes().endswith(b'{"record": "x"}\n'), "the part that fitted is taken back"


def test_reading_no_study_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no study here"):
        read_study(tmp_path)
    (tmp_path / FILE_NAME).write_text("")
    with pytest.raises(UsageError, match="the study has no header"):
        read_study(tmp_path)


def test_host_facts_are_filled() -> None:
    facts = host_facts()
    assert facts["cores"] >= 1
    assert all(facts.values())


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A study as tritune of 29 November 2026 wrote it, of a tuning of its own."""
    (tmp_path / "older").mkdir()
    shutil.copy(Path(__file__).parent / "samples" / "study_of_format_1.jsonl", tmp_path / "older" / FILE_NAME)
    return tmp_path / "older"


def test_an_older_study_is_told_as_one(older: Path, run_cli) -> None:
    before = (older / FILE_NAME).read_bytes()
    said = f"error: {older / FILE_NAME}: the study is in an older format (got schema_version 1; expected 2)\n"
    for command in ("show", "rows", "best", "frontier"):
        told = run_cli("study", command, older)
        assert (told.code, told.out) == (2, "")
        assert told.err == f"{said}hint: measure again, into another directory where --study names this one\n"
    assert said in run_cli("report", older, "--output", older.parent / "report.html").err
    with pytest.raises(UsageError, match="the study is in an older format"), Study(older, HEADER):
        pass
    assert (older / FILE_NAME).read_bytes() == before


@pytest.mark.parametrize(
    ("version", "kind"), [("3", "a newer"), ("null", "another"), ('"2"', "another"), ("0", "another")]
)
def test_a_format_of_the_future_and_none_at_all(version: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(f'{{"record": "header", "schema_version": {version}}}\n')
    with pytest.raises(UsageError, match=f"the study is in {kind} format") as caught:
        read_study(tmp_path)
    assert (caught.value.problems[0].hint or "").startswith("update tritune") == (kind == "a newer")


@pytest.mark.parametrize(("content", "told"), [(None, "in an older format"), ("{}\n", "the study is damaged")])
def test_a_neighbour_that_cannot_be_read_stops_no_tuning(
    content: str | None, told: str, older: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last study of the same question is only read to tell what is another now."""
    studies = older.parent
    place = study_dir(studies, "one", {"asked": 1}, HEADER, Console())
    neighbour = place.with_name(f"{place.name[:-4]}0000")
    older.rename(neighbour)
    if content:
        (neighbour / FILE_NAME).write_text(content)
    assert study_dir(studies, "one", {"asked": 1}, HEADER, Console()) == place
    said = capsys.readouterr().err
    assert said.startswith("warning: a new study begins: of the last one, ") and told in said


def test_a_study_of_this_format_reads_whole(tmp_path: Path, run_cli) -> None:
    """Whatever changes the layout so that this one fails raises SCHEMA_VERSION and brings a study of its own."""
    shutil.copy(Path(__file__).parent / "samples" / f"study_of_format_{SCHEMA_VERSION}.jsonl", tmp_path / FILE_NAME)
    rows = run_cli("study", "rows", tmp_path, "--json").json["data"]["rows"]
    assert (len(rows), {row["status"] for row in rows}) == (25, {"ok"})
    assert "[2137–2366]" in run_cli("study", "show", tmp_path).out
    assert run_cli("study", "best", tmp_path).out.startswith("default instances, batch ≤ 4, no delay\n")
    assert len(run_cli("study", "frontier", tmp_path, "--json").json["data"]["settings"]) == 1
    report = tmp_path / "report.html"
    assert run_cli("report", tmp_path, "--output", report).code == 0
    assert "1.10" in report.read_text()


def test_names_that_are_no_utf8_come_back(tmp_path: Path) -> None:
    with Study(tmp_path, {"model": "gr\udcff"}) as study:
        study.append({"record": "x", "directory": "/nowhere/\udcc3"})
    header, records = read_study(tmp_path)
    assert (header["model"], records[0]["directory"]) == ("gr\udcff", "/nowhere/\udcc3")
