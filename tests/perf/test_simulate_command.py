"""`tritune simulate`: from a config and a stored curve to predictions that are never called measurements."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf.curve import Batch, CurveRun, ServiceCurve, read_curve, write_curve

CONFIG = """
name: "m"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
dynamic_batching { EXTRA }
"""


def ms_of(rows: int, length: int) -> float:
    """Mostly fixed, as on a GPU: merging pays."""
    return 4 + 0.2 * rows + 0.002 * rows * length


def lone_run(instances: int, clients: int, rows: int, length: int) -> CurveRun:
    us = ms_of(rows, length) * 1e3
    batch = Batch(rows=rows, executions=2, compute_us=us)
    times = {"sent_us": (0.0, us), "latency_us": (us, us), "batches": (batch,)}
    return CurveRun(threads=1, instances=instances, clients=clients, rows=rows, lengths=(length,), **times)


@pytest.fixture
def curve(tmp_path: Path) -> Path:
    """One and two instances of one thread, which do not slow each other down; lengths 8 to 64."""
    grid = [lone_run(count, 1, rows, length) for count in (1, 2) for rows in (1, 4, 8) for length in (8, 32, 64)]
    made = ServiceCurve(
        tool={"tritune": "0"},
        server={"tritonserver": "2.51.0"},
        host={"cores": 2, "cpu": "some CPU"},
        model={"name": "m", "sha256": "ab"},
        started="2025-01-01T00:00:00+00:00",
        wall_s=1.0,
        lengths=(32,),
        runs=(*grid, lone_run(2, 2, 1, 8)),
    )
    write_curve(made, tmp_path / "curve.json")
    return tmp_path / "curve.json"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "m"
    directory.mkdir()
    (directory / "config.pbtxt").write_text(CONFIG.replace("EXTRA", ""))
    return directory


@pytest.fixture
def ask(run_cli: Callable[..., Any], model: Path, curve: Path) -> Callable[..., dict[str, Any]]:
    """The data of `tritune simulate MODEL --curve CURVE …`."""

    def call(*options: object) -> dict[str, Any]:
        result = run_cli("simulate", model, "--curve", curve, "--requests", 2_000, "--json", *options)
        assert result.code == 0, result.err
        return dict(result.json["data"])

    return call


def rates(data: dict[str, Any]) -> list[float]:
    return [answer["throughput_rps"] for answer in data["predicted"]]


def test_a_prediction_is_called_one(run_cli: Callable[..., Any], model: Path, curve: Path) -> None:
    text = run_cli("simulate", model, "--curve", curve, "--requests", 500).out
    assert text.startswith("predicted, not measured: 8 clients, length 32\n")
    assert "\npredicted " in text
    assert "measured 2025-01-01 on some CPU" in text


def test_the_json_holds_a_prediction(ask: Callable[..., dict[str, Any]]) -> None:
    data = ask("--concurrency", 1)
    assert data["kind"] == "prediction"
    assert "measurement" not in json.dumps(data)
    (answer,) = data["predicted"]
    assert answer["avg_us"] == pytest.approx(ms_of(1, 32) * 1e3, rel=0.001)
    assert answer["knobs"]["instance_count"] == 1


def test_settings_are_combined(ask: Callable[..., dict[str, Any]]) -> None:
    data = ask("--instances", "1,2", "--delay", "0,3ms", "--max-batch-size", "4,8", "--concurrency", 2)
    labels = [answer["setting"] for answer in data["predicted"]]
    assert len(set(labels)) == len(labels) == 8
    assert labels[0] == "1 CPU instance × 1 thread, batch ≤ 8, no delay"
    found = dict(zip(labels, rates(data), strict=True))
    without, delayed = (found[f"2 CPU instances × 1 thread, batch ≤ 8, {d}"] for d in ("no delay", "delay 3ms"))
    assert delayed < 0.7 * without


def test_a_config_that_was_not_measured_is_left_out(ask: Callable[..., dict[str, Any]], model: Path) -> None:
    text = CONFIG.replace('string_value: "1"', 'string_value: "2"').replace("EXTRA", "")
    (model / "config.pbtxt").write_text(text)
    (answer,) = ask("--threads", 1)["predicted"]
    assert answer["knobs"]["intra_op_threads"] == 1


def test_combinations_that_were_not_measured_are_left_out(ask: Callable[..., dict[str, Any]]) -> None:
    data = ask("--instances", "1,2", "--threads", "1,3")
    splits = {(k["instance_count"], k["intra_op_threads"]) for k in (p["knobs"] for p in data["predicted"])}
    assert splits == {(1, 1), (2, 1)}
    assert data["notes"] == [
        f"left out, as the curve does not hold {setting} × 3 threads: "
        f"`tritune profile MODEL_DIR --instances {setting[0]} --threads 3` measures it"
        for setting in ("1 instance", "2 instances")
    ]


def test_preferred_sizes_are_taken(ask: Callable[..., dict[str, Any]]) -> None:
    plain, preferred = ask("--preferred-batch-size", "2", "--concurrency", 8)["predicted"]
    assert preferred["knobs"]["preferred_batch_size"] == [2]
    assert max(plain["stages"][0]["batch_histogram"]) > "2"
    assert max(preferred["stages"][0]["batch_histogram"]) == "2"


def test_lengths_that_differ_do_not_merge(ask: Callable[..., dict[str, Any]]) -> None:
    (alike,), (mixed,) = rates(ask("--lengths", "32")), rates(ask("--lengths", "31,32,33"))
    assert mixed < 0.5 * alike


def test_a_rate_beyond_the_capacity_saturates(
    ask: Callable[..., dict[str, Any]], run_cli: Callable[..., Any], model: Path, curve: Path
) -> None:
    options = ("--max-batch-size", "1", "--request-rate", 500, "--distribution", "poisson")
    fine, behind = ask(*options)["predicted"]
    assert (fine["saturated"], behind["saturated"]) == (False, True)
    text = run_cli("simulate", model, "--curve", curve, "--requests", 2_000, *options).out
    assert text.count("saturated") == 4


def test_a_rate_is_spread_over_servers(
    run_cli: Callable[..., Any], ask: Callable[..., dict[str, Any]], model: Path, curve: Path
) -> None:
    """Each of n answers its nth part as a server alone answers that rate."""
    rate = ("--distribution", "poisson", "--request-rate")
    spread = ask(*rate, 1500, "--replicas", "1,2,6")["predicted"]
    assert [answer["replicas"] for answer in spread] == [1, 2, 6]
    for answer in spread:
        (alone,) = ask(*rate, 1500 / answer["replicas"])["predicted"]
        assert {**alone, "replicas": answer["replicas"]} == answer
    assert [answer["saturated"] for answer in spread] == [True, False, False]
    assert spread[1]["p99_us"] > spread[2]["p99_us"]
    for options, said in ((("--concurrency", "4"), "only a rate can be spread"), (("--buckets", "2"), "exclude each")):
        refused = run_cli("simulate", model, "--curve", curve, "--replicas", "2", *options)
        assert (refused.code, said in refused.err) == (2, True)


def test_a_workload_file_says_what_the_options_say(ask: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text("request_rate: 40\nburst: 20\nlengths: [20, 40]\n")
    options = ("--request-rate", 40, "--burst", 20, "--lengths", "20,40")
    assert ask("--workload", file)["predicted"] == ask(*options)["predicted"]
    file.write_text("timestamps: [0, 0.1, 0.2]\nlengths: [20, 20, 40]\n")
    assert ask("--workload", file)["predicted"][0]["throughput_rps"] == pytest.approx(10, rel=0.01)


def test_bursts_wait_for_each_other(ask: Callable[..., dict[str, Any]]) -> None:
    spread, burst = (ask("--request-rate", 40, *more)["predicted"][0] for more in ((), ("--burst", 20)))
    assert burst["p99_us"] > 2 * spread["p99_us"]


def test_buckets_are_judged_beside_free_lengths(
    ask: Callable[..., dict[str, Any]], run_cli: Callable[..., Any], model: Path, curve: Path
) -> None:
    lengths = ",".join(str(n) for n in range(8, 64, 3))
    found = ask("--lengths", lengths, "--buckets", 3)["predicted"]
    assert [len(answer["plan"]["edges"]) for answer in found[:-1]] == [1, 2, 3]
    *padded, free = found
    assert free["plan"]["free"]
    assert free["plan"]["padding_waste"] == 0
    assert padded[0]["plan"]["batchability"] == pytest.approx(1)
    assert padded[0]["throughput_rps"] > 1.5 * free["throughput_rps"]
    text = run_cli("simulate", model, "--curve", curve, "--requests", 500, "--lengths", lengths, "--buckets", 2).out
    assert "padded to 62" in text
    assert "free lengths" in text


def test_the_same_seed_gives_the_same_answer(ask: Callable[..., dict[str, Any]]) -> None:
    options = ("--request-rate", 100, "--distribution", "poisson")
    assert ask(*options, "--seed", 1) == ask(*options, "--seed", 1) != ask(*options, "--seed", 2)


@pytest.mark.parametrize(
    ("options", "extra", "note"),
    [
        (("--lengths", "100"), "", "lengths 100–100 reach beyond the measured 8–64"),
        (("--max-batch-size", "16"), "", "batches of 16 reach beyond the measured 8 rows"),
        ((), "default_queue_policy { max_queue_size: 9 }", "stall for up to 500 ms"),
        ((), "} response_cache { enable: true", "response cache"),
        ((), "", None),
    ],
)
def test_what_makes_it_uncertain_is_said(
    ask: Callable[..., dict[str, Any]], model: Path, options: tuple[str, ...], extra: str, note: str | None
) -> None:
    (model / "config.pbtxt").write_text(CONFIG.replace("EXTRA", extra))
    notes = ask(*options)["notes"]
    assert note in " ".join(notes) if note else notes == []


def test_a_curve_of_another_model_file_is_marked(ask: Callable[..., dict[str, Any]], model: Path, curve: Path) -> None:
    (model / "1").mkdir()
    (model / "1" / "model.onnx").write_bytes(b"a model")
    (note,) = ask()["notes"]
    assert "another model file" in note
    digest = hashlib.sha256(b"a model").hexdigest()
    write_curve(read_curve(curve).model_copy(update={"model": {"name": "m", "sha256": digest}}), curve)
    assert ask()["notes"] == []


def test_a_curve_from_a_busy_machine_is_marked(ask: Callable[..., dict[str, Any]], curve: Path) -> None:
    write_curve(read_curve(curve).model_copy(update={"foreign_cores": 1.2}), curve)
    assert ask()["notes"] == ["other programs used 1.2 cores while the curve was measured"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--threads", "2"), "not measured for this setting"),
        (("--instances", "4"), "tritune profile MODEL_DIR --instances 4 --threads 1"),
        (("--instances", "1,2", "--threads", "2"), "tritune profile MODEL_DIR --instances 1 --threads 2"),
        (("--concurrency", "4", "--request-rate", "4"), "exclude each other"),
        (("--burst", "4"), "--burst: it needs a --request-rate"),
        (("--instances", "1,2,x"), "--instances"),
        (("--instances", "1,2", "--buckets", "2"), "one setting"),
        (("--preferred-batch-size", "4,9"), "above the largest batch"),
        (("--seed", "-1"), "--seed"),
        (("--requests", "100000000"), "--requests"),
        (("--request-rate", "nan"), "--request-rate"),
        (("--request-rate", "inf"), "--request-rate"),
    ],
)
def test_what_cannot_be_simulated_is_told(
    run_cli: Callable[..., Any], model: Path, curve: Path, options: tuple[str, ...], message: str
) -> None:
    code, out, err = run_cli("simulate", model, "--curve", curve, *options)
    assert (code, out) == (2, "")
    assert message in err


def test_without_a_curve_the_way_to_one_is_told(
    run_cli: Callable[..., Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run_cli("simulate", model)
    assert code == 2
    assert ".tritune/curves/m-" in err
    assert "tritune profile" in err


def test_a_config_file_will_do(run_cli: Callable[..., Any], model: Path, curve: Path) -> None:
    assert run_cli("simulate", model / "config.pbtxt", "--curve", curve, "--requests", 500).code == 0
    code, _, err = run_cli("simulate")
    assert code == 2
    assert "nothing to simulate" in err


SCENARIO = {
    "id": "s",
    "max_batch_size": 4,
    "max_queue_delay_us": 0,
    "instances": 1,
    "a_ms": 10,
    "c_ms": 1,
    "arrivals": [[0.0, 4], [0.001, 4], [0.002, 4], [0.1, 4]],
    "execution_overhead_ms": 1,
    "client_overhead_ms": 0.5,
}


def test_a_scenario_gives_exactly_its_figures(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(SCENARIO))
    data = run_cli("simulate", "--scenario", file, "--json").json["data"]
    assert set(data) == {"mean_ms", "p50_ms", "p90_ms", "p99_ms", "executions", "batch_histogram"}
    assert (data["executions"], data["batch_histogram"]) == (3, {"1": 2, "2": 1})
    # Alone 10 + 1 + 1 ms; the pair waits for the first and takes 13 ms.
    assert data["mean_ms"] == pytest.approx((12.5 + 24.5 + 23.5 + 12.5) / 4)
    text = run_cli("simulate", "--scenario", file).out
    assert text.startswith("predicted")
    assert "2 of 1, 1 of 2" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "scenario"),
        ("{}", "`arrivals`"),
        ({"rows": 3}, "`rows`"),
        ({"max_batch_size": "four"}, "`max_batch_size`"),
        ({"max_batch_size": None}, "`max_batch_size`"),
        ({"max_batch_size": 10**30}, "`max_batch_size`"),
        ({"max_batch_size": -1}, "`max_batch_size`"),
        ({"preferred_batch_sizes": [9]}, "`preferred_batch_size`"),
        ({"instances": 0}, "`instances`"),
        ({"instances": 10**9}, "`instances`"),
        ({"instances": 10**6}, "limit of the simulator"),
        ({"a_ms": math.nan}, "NaN is no figure"),
        ({"a_ms": -1}, "`a_ms`"),
        ({"a_ms": 0, "c_ms": 0, "execution_overhead_ms": 0}, "must be positive"),
        ({"a_ms": 1e6}, "too long to be simulated"),
        ({"client_overhead_ms": 1e300}, "`client_overhead_ms`"),
        ({"arrivals": []}, "`arrivals`"),
        ({"arrivals": [[0]]}, "`arrivals.0"),
        ({"arrivals": [[-1, 4]]}, "`arrivals.0.0`"),
        ({"arrivals": [[1e300, 4]]}, "`arrivals.0.0`"),
        ({"arrivals": [[0, 0]]}, "`arrivals.0.1`"),
        ({"arrivals": [[0, 10**30]]}, "`arrivals.0.1`"),
        ({"max_batch_size": 4_000, "arrivals": [[0, n] for n in range(1, 4_000)]}, "too many combinations"),
    ],
)
def test_a_bad_scenario_is_refused(
    run_cli: Callable[..., Any], tmp_path: Path, content: str | dict[str, Any], message: str
) -> None:
    text = content if isinstance(content, str) else json.dumps({**SCENARIO, **content})
    (tmp_path / "s.json").write_text(text)
    code, out, err = run_cli("simulate", "--scenario", tmp_path / "s.json")
    assert (code, out) == (2, "")
    assert message in err


def test_the_longest_delay_is_waited_for_all_the_same(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps({**SCENARIO, "max_queue_delay_us": 2**64 - 1}))
    data = run_cli("simulate", "--scenario", file, "--json").json["data"]
    assert data["batch_histogram"] == {"4": 1}
    assert data["mean_ms"] == pytest.approx(100 + 15.5 - 25.75)


def test_a_scenario_stands_alone(run_cli: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(SCENARIO))
    code, _, err = run_cli("simulate", model, "--scenario", tmp_path / "s.json", "--lengths", "4", "--seed", 1)
    assert code == 2
    assert all(word in err for word in ("MODEL_DIR", "--lengths", "--seed"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"host": {"cpu": "a"}}, "`host.cores` is missing"),
        ({"model": {}}, "`model.name` is missing"),
        ({"lengths": []}, "`lengths`"),
        ({"runs": []}, "`runs`"),
        ({"wall_s": "NaN"}, "`wall_s`"),
    ],
)
def test_a_damaged_curve_is_refused(
    run_cli: Callable[..., Any], model: Path, curve: Path, damage: dict[str, Any], message: str
) -> None:
    curve.write_text(json.dumps({**json.loads(curve.read_text()), **damage}))
    code, out, err = run_cli("simulate", model, "--curve", curve)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"latency_us": [1.0]}, "equally long"),
        ({"latency_us": [1.0, -1.0]}, "`runs.0.latency_us.1`"),
        ({"sent_us": [0.0, 1e300]}, "`runs.0.sent_us.1`"),
        ({"rows": 10**12}, "`runs.0.rows`"),
        ({"rows": 2}, "no execution with the rows of a request"),
        ({"lengths": [9]}, "some pair of rows and length"),
        ({"instances": 2, "clients": 2}, "some pair of rows and length"),
        ({"batches": [{"rows": 1, "executions": 1, "compute_us": 1e12}]}, "`runs.0.batches.0.compute_us`"),
    ],
)
def test_a_curve_with_a_damaged_run_is_refused(
    run_cli: Callable[..., Any], model: Path, curve: Path, damage: dict[str, Any], message: str
) -> None:
    data = json.loads(curve.read_text())
    data["runs"][0] |= damage
    curve.write_text(json.dumps(data))
    code, out, err = run_cli("simulate", model, "--curve", curve)
    assert (code, out) == (2, "")
    assert message in err
