"""The HTML report: complete, self-contained, and safe against what stands in a study."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from perf.ab import Comparison
from perf.charts import Ratio, ratio_chart
from perf.compare import Verdict
from perf.findings import Wanted, findings
from perf.grid import Candidate
from perf.guided import Check, Guided
from perf.measurement import Measurement
from perf.report import write_report
from perf.result import TuneResult
from perf.study import Study
from perf.trial import Figures, Trial
from tooling.config.knobs import Knobs
from tooling.errors import UsageError

MANY = Knobs(instance_count=4, max_queue_delay_us=20_000, preferred_batch_size=(4,))
HOSTILE = "<script>alert(1)</script>\"'&"
VOID = {"meta", "link", "rect", "line", "circle", "path", "polyline"}


class Page(HTMLParser):
    """Tags and text of a page; fails on a tag that is closed in the wrong place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def point(rps: float) -> Measurement:
    figures = {
        "throughput_rps": rps,
        "p50_us": 8e6 / rps,
        "p99_us": 9e6 / rps,
        "foreign_cores": 0.1,
        "inference_count": 12,
    }
    return Measurement(status="ok", load={"mode": "concurrency", "value": 8}, execution_count=5, **figures)


def result(study: Path, model: str = "minilm") -> TuneResult:
    default = Trial(Candidate("default", Knobs()), "default", Figures.of([point(100.0), point(104.0)]))
    better = Verdict("better", 1.25, 1.2, 1.3, 6)
    trials = (
        Trial(Candidate("a", Knobs(instance_count=1)), "compared", Figures.of([point(125.0)]), 1.2, better),
        Trial(Candidate("b", MANY, edges=(17, 25, 46, 61, 90)), "screened out", Figures.of([point(50.0)]), 0.5),
        Trial(Candidate("c", Knobs(intra_op_threads=3)), "failed", reason=f"Triton refuses it: {HOSTILE}"),
        Trial(Candidate("d", Knobs(max_queue_delay_us=2_000)), "not explored", reason="budget used up"),
    )
    return TuneResult(
        model, "8 clients", "highest throughput", default, trials, trials[0], 20, 3, 61.2, "2026-01-02T03:04:05", study
    )


@pytest.fixture
def study(tmp_path: Path) -> Path:
    with Study(tmp_path / "study", {"model": {"name": HOSTILE}, "host": {"cores": 2}}) as study:
        for number, measured in enumerate((point(100.0), replace(point(1.0), status="crashed", throughput_rps=None))):
            run = {"candidate": "a", "stage": "screen", "pair": number, "side": "A", "attempt": 1}
            study.append({"record": "measurement", **run, "raw": f"raw/{number}", "measurement": measured.to_dict()})
        study.append({"record": "result", "result": result(tmp_path, HOSTILE).to_dict()})
    return tmp_path / "study"


def test_everything_is_told(study: Path) -> None:
    page = Page(write_report(study, study.parent / "report.html").read_text())
    for words in (
        "Chosen: 1 instance, batch ≤ 8, no delay: 1.25× [1.20–1.30] against the current config in 6 pairs.",
        "102 [100–104]",
        "≈0.50×",
        " 2.4 ",
        "screened out",
        "Not measured within the budget: default instances, batch ≤ 8, delay 2ms.",
        "during 3 of 20 runs",
        "host · cores 2",
        "crashed",
    ):
        assert words in page.text, words


def test_text_from_the_study_stays_text(study: Path) -> None:
    text = write_report(study, study.parent / "report.html").read_text()
    assert "script" not in Page(text).tags
    assert HOSTILE in Page(text).text
    assert HOSTILE not in text


def test_it_is_one_small_file_with_relative_links(study: Path) -> None:
    path = write_report(study, study.parent / "sub" / "report.html")
    page = Page(path.read_text())
    assert page.links == ["../study/study.jsonl", "../study/raw/0", "../study/raw/1"]
    assert (path.parent / page.links[0]).exists()
    assert "http" not in path.read_text()
    assert path.stat().st_size < 50_000


def test_it_reads_on_phones_and_in_the_dark(study: Path) -> None:
    text = write_report(study, study.parent / "report.html").read_text()
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text


def test_unfinished_study_has_no_report(tmp_path: Path) -> None:
    with Study(tmp_path, {}):
        pass
    with pytest.raises(UsageError, match="the study is not finished"):
        write_report(tmp_path, tmp_path / "report.html")


def test_result_survives_the_study(study: Path) -> None:
    made = result(study)
    assert TuneResult.from_dict(made.to_dict(), study) == made


def test_table_marks_the_choice(study: Path) -> None:
    made = result(study)
    lines = made.text().splitlines()
    assert lines[0] == "minilm · 8 clients · highest throughput · 0 points in 20 runs, 61 s"
    assert [line.startswith("→ 1 instance, batch ≤ 8, no delay") for line in lines].count(True) == 1
    assert "Failed: default instances × 3 threads, batch ≤ 8, no delay: Triton refuses it:" in made.text()
    assert made.summary().splitlines()[2:4] == [
        "default config  102 [100–104]  78.5 [76.9–80.0]  88.3 [86.5–90.0]",
        "chosen          125 [125–125]  64.0 [64.0–64.0]  72.0 [72.0–72.0]",
    ]


def test_the_table_comes_with_the_words_that_it_uses_and_the_summary_with_its_own(study: Path) -> None:
    made = result(study)
    screened, default = "Screened out: clearly slower", "Default instances: Triton's own number, two of an ONNX model"
    assert screened in made.text() and default in made.text()
    assert screened not in made.summary() and default not in made.summary()
    assert screened in Page(write_report(study, study.parent / "report.html").read_text()).text
    unsaid = Trial(Candidate("e", Knobs(intra_op_threads=1)), "compared", verdict=Verdict("better", 1.2, 1.1, 1.3, 6))
    assert default in replace(made, trials=(unsaid,), chosen=unsaid).summary()


def test_default_or_nothing_chosen_says_so(study: Path) -> None:
    made = result(study)
    stays, nothing = replace(made, chosen=made.default), replace(made, chosen=None)
    assert (stays.met, nothing.met) == (True, False)
    assert stays.conclusion == "The current config stays: no setting measured is surely better."
    unmet = "No setting measured keeps the limits; nothing is chosen."
    assert nothing.conclusion == f"{unmet} Left out for want of time: 1; give a larger --budget."
    assert replace(nothing, trials=nothing.trials[:3]).conclusion == unmet
    assert "chosen  " not in stays.summary()
    alone = replace(stays, trials=())
    assert alone.conclusion == "The current config stays: no setting was compared with it; give a larger --budget."
    assert TuneResult.from_dict(nothing.to_dict(), study) == nothing


def test_chart_is_symmetric_around_one_and_inside_its_box() -> None:
    ratios = [Ratio("a", "better", "", 1.5, 2.0, 3.0), Ratio("b", "worse", "", 1 / 3, 0.5, 1 / 1.5)]
    chart = ratio_chart(ratios, margin=0.03)
    up, down = chart.bars
    assert up.middle - chart.one == pytest.approx(chart.one - down.middle, abs=0.2)
    assert 0 < down.low < down.middle < down.high < chart.one < up.low < up.middle < up.high < chart.width
    assert chart.tie_low < chart.one < chart.tie_high
    assert len(chart.ticks) <= 16
    assert "1×" in [t.text for t in chart.ticks]


def test_chart_without_ratios_is_empty() -> None:
    chart = ratio_chart([], margin=0.03)
    assert (chart.bars, chart.height) == ((), 0)


@pytest.fixture
def guided_study(tmp_path: Path, machine: Any) -> Path:
    """A finished study of a guided search, with a name that tries to break out of the page."""
    sweep = machine("p99<500ms", instances=(1,), threads=(2,), delays_us=(0, 5_000))
    made = result(tmp_path / "study", HOSTILE)
    split = {"avg_us": 80_000.0, "queue_us": 50_000.0, "compute_infer_us": 25_000.0}
    trials = tuple(
        replace(t, figures=Figures.of([replace(point(99.0), **split)])) if t.figures else t for t in made.trials
    )
    check = Check("a", HOSTILE, 100.0, 90.0, 2e5, 3e5, 1.5, 1.4)
    guided = Guided(made.default, trials, sweep, (check,), 1)
    shown = findings(guided, trials[0].candidate, Wanted(500, 0.5)).to_dict()
    made = replace(made, trials=trials, chosen=trials[0], findings=shown, config_diff="-a\n+b <i>", points=3)
    with Study(tmp_path / "study", {}) as study:
        study.append({"record": "curve", "file": "curve.json", "spent_s": 20.0})
        for side in "AB":
            run = {"candidate": "a", "stage": "paired", "pair": 0, "side": side, "attempt": 1, "spent_s": 1.5}
            study.append({"record": "measurement", **run, "raw": f"raw/{side}", "measurement": point(90.0).to_dict()})
        study.append({"record": "result", "result": made.to_dict()})
    return tmp_path / "study"


def test_a_guided_search_shows_why(guided_study: Path) -> None:
    page = Page(write_report(guided_study, guided_study.parent / "report.html").read_text())
    for words in (
        "What changes in the config",
        "+b <i>",
        "Latency and throughput",
        "Settings that no other beats",
        "On the diagonal both are equal. The curve was corrected 1 time by what was measured.",
        "no batching",
        "only batches of 8",
        "for a million requests",
        "such servers for 500 requests a second",
        "The knee of the curve",
        "Batches, predicted",
        "not at all",
        "50 + 25 + 5 ms",
        "service curve 20 s",
        "batches above 64 rows",
    ):
        assert words in page.text, words
    assert "script" not in page.tags and "i" not in page.tags
    assert page.text.count(HOSTILE) >= 3
    assert (guided_study.parent / "report.html").stat().st_size < 120_000


@pytest.mark.long
@pytest.mark.parametrize("width", [500, 1200])  # headless Chromium goes no narrower
def test_a_browser_shows_all_of_it_without_scrolling_sideways(guided_study: Path, width: int) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        pytest.fail("this test needs a browser: install Debian's package `chromium`", pytrace=False)
    path = write_report(guided_study, guided_study.parent / "report.html")
    probe = """<script>
      const cut = [...document.querySelectorAll("svg text")].filter(text => {
        const box = text.getBBox(), drawing = text.ownerSVGElement.viewBox.baseVal;
        return box.x + box.width > drawing.x + drawing.width + 1;
      });
      document.title = [document.documentElement.scrollWidth, innerWidth, cut.length].join()</script>"""
    path.write_text(path.read_text().replace("</body>", f"{probe}</body>"))
    argv = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom"]
    shown = subprocess.run([chromium, *argv, path.as_uri()], capture_output=True, text=True, timeout=120).stdout
    wide, window, cut = re.search(r"<title>(\d+),(\d+),(\d+)</title>", shown).groups()  # type: ignore[union-attr]
    assert int(wide) <= int(window)
    assert int(cut) == 0, "texts that reach out of their drawing"


def test_the_command_writes_it(study: Path, tmp_path: Path, run_cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".tritune" / "studies").mkdir(parents=True)
    study.rename(tmp_path / ".tritune" / "studies" / "newest")
    monkeypatch.chdir(tmp_path)
    done = run_cli("report", "--json")
    assert done.code == 0, done.err
    assert done.json["data"]["report"] == str(tmp_path / "report.html") and (tmp_path / "report.html").stat().st_size
    assert run_cli("report", "-o", tmp_path / "no" / "such" / "report.html").code in (0, 2)
    nothing = run_cli("report", tmp_path / "nowhere")
    assert (nothing.code, nothing.out) == (2, "") and "no study here" in nothing.err


def test_a_comparison_has_no_report(tmp_path: Path, run_cli: Any) -> None:
    with Study(tmp_path / "study", {"command": "compare"}) as study:
        answer = Comparison("m", "8 clients", "highest throughput", "A", (), 0, 0, None, 2, 1.0, tmp_path)
        study.append({"record": "result", "kind": "compare", "result": answer.to_dict()})
    done = run_cli("report", tmp_path / "study", "-o", tmp_path / "report.html")
    assert done.code == 2 and "a study of `compare`" in done.err and not (tmp_path / "report.html").exists()
