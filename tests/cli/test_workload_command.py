"""`tritune workload`, and the commands that take its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.lengths import token_lengths
from perf.workload_file import read_workload


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "some texts.txt"
    path.write_text("a short one\n" * 3 + "and one that is quite a bit longer than the others\n")
    return path


def test_texts_give_their_lengths(run_cli, tmp_path, texts, minilm_dir):
    out = tmp_path / "w.yaml"
    options = ("--request-rate", 5, "--distribution", "poisson", "--duration", "20s")
    done = run_cli("workload", "from-texts", texts, "--tokenizer", minilm_dir, *options, "-o", out, "--json")
    assert done.code == 0, done.err
    lengths = token_lengths(texts.read_text().splitlines(), minilm_dir)
    assert done.json["data"]["lengths"]["max"] == max(lengths)
    workload = read_workload(out)
    assert (workload.request_rate, workload.distribution, workload.duration_s) == (5, "poisson", 20)
    assert sorted(workload.lengths) == sorted(lengths)
    assert out.read_text().startswith("# 4 texts of some texts.txt.\n# Lengths in tokens: mean ")


def test_texts_themselves_are_kept_by_the_name_of_their_file(run_cli, tmp_path, texts):
    out = tmp_path / "deep" / "w.yaml"
    assert run_cli("workload", "from-texts", texts, "--keep-texts", "--output", out).code == 0
    assert read_workload(out).texts == tuple(texts.read_text().splitlines())
    assert read_workload(out).concurrency == 8


def test_a_log_gives_a_trace_or_its_rate(run_cli, tmp_path):
    log, out = tmp_path / "log.csv", tmp_path / "w.yaml"
    log.write_text("time,tokens\n1,5\n3,7\n2,6\n")
    done = run_cli("workload", "from-log", log, "--output", out)
    assert done.code == 0 and "a trace of 3 requests at 1 requests/s" in done.out
    workload = read_workload(out)
    assert (workload.timestamps, workload.lengths) == ((0, 1, 2), (5, 6, 7))
    assert run_cli("workload", "from-log", log, "--arrivals", "poisson", "--output", out).code == 0
    assert (read_workload(out).request_rate, sorted(read_workload(out).lengths)) == (1, [5, 6, 7])


@pytest.mark.parametrize(
    ("log", "options", "message"),
    [
        ("time,tokens\n1,5\n3,7\n", ("--tokenizer", "."), "log.csv with a length for each request"),
        ("time\n1\n3\n", ("--tokenizer", "."), "log.csv with nothing but a time for each request"),
        ("time,tokens\n2026-05-01,5\n2026-05-02,7\n", ("--time-unit", "ms"), "a unit is for times that are numbers"),
    ],
)
def test_options_that_a_log_has_no_use_for_are_refused(run_cli, tmp_path, log, options, message):
    (tmp_path / "log.csv").write_text(log)
    done = run_cli("workload", "from-log", tmp_path / "log.csv", *options, "--output", tmp_path / "w.yaml")
    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--tokenizer: the lengths of texts are counted in tokens"),
        (("--tokenizer", "/nowhere"), "the tokenizer is missing"),
        (("--keep-texts", "--concurrency", 2, "--request-rate", 2), "exclude each other"),
        (("--keep-texts", "--burst", 2), "--distribution and --burst need a --request-rate"),
        (("--keep-texts", "--duration", "soon"), "--duration: not a duration"),
        (("--keep-texts", "--output", "/proc/w.yaml"), "cannot be written"),
        (("--keep-texts", "--text-column", "x"), "cannot go with --text-column"),
        (("--text-column", "x"), "a file with a text a line has no columns (got `x`"),
    ],
)
def test_what_no_workload_is_made_of(run_cli, texts, options, message):
    done = run_cli("workload", "from-texts", texts, *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.parametrize(
    ("command", "option"), [("tune", ("--concurrency", 3)), ("tune", ("--lengths", 3)), ("profile", ("--traffic", 3))]
)
def test_a_workload_file_excludes_the_options_for_it(run_cli, tmp_path, command, option):
    (tmp_path / "w.yaml").write_text("concurrency: 2\n")
    done = run_cli(command, tmp_path, "--workload", tmp_path / "w.yaml", *option)
    assert done.code == 2
    assert f"--workload and {option[0]} exclude each other" in done.err


@pytest.mark.live
def test_requests_of_one_s_own_are_checked_before_a_server_starts(run_cli, tmp_path, minilm_repository):
    (tmp_path / "in.json").write_text('{"data": [1]}')
    done = run_cli("tune", minilm_repository / "minilm", "--input-data", tmp_path / "in.json")
    assert (done.code, done.out) == (2, "")
    assert "in.json: `data` is not a list of steps" in done.err


@pytest.mark.live
def test_rows_beyond_the_model_s_are_refused_before_a_server_starts(run_cli, tmp_path, minilm_repository):
    (tmp_path / "w.yaml").write_text("concurrency: 2\nbatch: 4096\nlengths: 5\n")
    done = run_cli("tune", minilm_repository / "minilm", "--workload", tmp_path / "w.yaml")
    assert (done.code, done.out) == (2, "")
    assert "batch 4096 > max_batch_size" in done.err


def test_lengths_of_a_log_stand_alone(run_cli, tmp_path):
    (tmp_path / "log.csv").write_text("time,tokens,text\n1,5,a\n2,6,b\n")
    done = run_cli("workload", "from-log", tmp_path / "log.csv", "--length-column", "tokens", "--text-column", "text")
    assert (done.code, done.out) == (2, "")
    assert "--length-column and --text-column exclude each other" in done.err


@pytest.mark.parametrize("command", ["tune", "bottleneck"])
def test_requests_of_a_file_exclude_what_makes_them(run_cli, tmp_path, command):
    (tmp_path / "tokenizer.json").touch()
    options = ("--lengths", "5", "--tokenizer", tmp_path, "--vocab-size", "99")
    done = run_cli(command, tmp_path / "m", "--input-data", "own.json", *options)
    assert (done.code, done.out) == (2, "")
    assert "--input-data and --lengths, --tokenizer, --vocab-size exclude each other" in done.err
