"""Doing the steps of a build: each a process of this tool, several at once where none measures. Layer: project."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tooling.console import Console
from tooling.errors import ExternalError, MissingError, Problem, Refused, Terminated, TrituneError, UsageError
from tooling.project import answers
from tooling.project.digests import Digests, files_of
from tooling.project.lock import Done, Lock
from tooling.project.plan import facts_of, judge, stale
from tooling.project.steps import Step
from tooling.repository import write_atomic

_PATIENCE_S = 60.0
_REBUILD = "run `tritune build` and commit what it changes, with tritune.lock"
_KINDS: Mapping[int, type[TrituneError]] = {
    kind.exit_code: kind for kind in (Refused, UsageError, MissingError, ExternalError)
}


@dataclass(slots=True)
class Answer:
    """How a step's process ended: its exit code, its JSON envelope if there is one, and how long it took."""

    code: int
    envelope: Mapping[str, Any] | None
    seconds: float


@dataclass(slots=True)
class Report:
    """What a build did: steps by name that ran, were unchanged, failed with their problems, or could not be tried."""

    ran: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    failed: dict[str, tuple[int, tuple[Problem, ...]]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def raise_failures(self) -> None:
        """Raise all failures as one error: of the first kind that is no plain "no", else Refused."""
        if not self.failed:
            return
        code = next((code for code, _ in self.failed.values() if code != Refused.exit_code), Refused.exit_code)
        problems = [
            Problem(p.what, f"{name}: {p.where}" if p.where else name, p.got, p.expected, p.hint)
            for name, (_, found) in self.failed.items()
            for p in found
        ]
        if self.skipped:
            problems.append(Problem(f"not done, as it comes after: {', '.join(self.skipped)}"))
        raise _KINDS.get(code, TrituneError)(problems=problems)


class _Begun(NamedTuple):
    """A step that runs, and what it followed from when it began."""

    step: Step
    facts: Mapping[str, str]


@dataclass(slots=True)
class Builder:
    """Does the steps of one project; `program` is the command line that starts this tool."""

    root: Path
    lock: Lock
    digests: Digests
    program: Sequence[str]
    console: Console
    prepare: Callable[[], None]
    _processes: list[subprocess.Popen[str]] = field(default_factory=list)
    _ending: int = 0

    def run(self, steps: Iterable[Step], jobs: int) -> Report:
        """Do what must be done, `jobs` steps at once. What is finished is kept whatever comes then."""
        report, waiting = Report(), list(steps)
        running: dict[Future[Answer], _Begun] = {}
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            try:
                while waiting or running:
                    self._start(waiting, running, report, pool, jobs)
                    for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                        self._finish(*running.pop(future), future.result(), report)
            except BaseException as error:
                self._stop(signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
                raise
        return report

    def forget(self, steps: Iterable[Step]) -> None:
        """Take the steps out of the lock that the project has no more."""
        gone = stale(self.lock, steps)
        for name in gone:
            del self.lock.steps[name]
        if gone:
            self.lock.write()

    def frozen(self, steps: Sequence[Step]) -> list[str]:
        """The steps whose inputs and outputs are as the lock says; those that check are done again, nothing else is.

        Raises Refused with everything that does not fit, and with what the check finds.
        """
        report = Report()
        for step in steps:
            planned = judge(step, self.lock.steps.get(step.name), self.digests, self.lock.hardware, committed=True)
            found = [Problem(why, hint=_REBUILD) for why in planned.why]
            if step.action == "check" and not found:
                answer = self._call(step, step.words)
                if answer.code:
                    found = list(_problems(step, answer, answer.envelope["data"] if answer.envelope else None))
            if found:
                report.failed[step.name] = (Refused.exit_code, tuple(found))
            else:
                report.unchanged.append(step.name)
        for name in stale(self.lock, steps):
            report.failed[name] = (Refused.exit_code, (Problem("it is no longer in the project", hint=_REBUILD),))
        report.raise_failures()
        return report.unchanged

    def _start(
        self,
        waiting: list[Step],
        running: dict[Future[Answer], _Begun],
        report: Report,
        pool: ThreadPoolExecutor,
        jobs: int,
    ) -> None:
        """Begin every step that may begin now."""
        ended = {*report.ran, *report.unchanged}
        for step in list(waiting):
            lost = {*report.failed, *report.skipped}.intersection(step.after)
            if lost:
                waiting.remove(step)
                report.skipped.append(step.name)
                continue
            busy = [begun.step for begun in running.values()]
            crowded = len(busy) >= jobs or any(other.alone for other in busy) or (step.alone and busy)
            if crowded or not ended.issuperset(step.after):
                continue
            waiting.remove(step)
            planned = judge(step, self.lock.steps.get(step.name), self.digests, self.lock.hardware)
            if not planned.must_run:
                report.unchanged.append(step.name)
                ended.add(step.name)
                continue
            if step.alone:
                self.prepare()
            self.console.info(f"{step.name}: {planned.why[0]}")
            for name, text in step.texts:
                write_atomic(self.root / name, text)
            facts = facts_of(step, self.digests, self.lock.hardware)
            running[pool.submit(self._call, step, self._words(step))] = _Begun(step, facts)

    def _words(self, step: Step) -> list[str]:
        """The step's command line, with the studies that it speaks of, where these tell what a server carries."""
        words = list(step.words)
        for model, study in self.lock.studies(sized=True).items():
            words = [word.replace(f"{{study:{model}}}", study) for word in words]
        words = [word for word in words if "{study:" not in word]
        return [*words, *(["--force"] if self._may_replace(step) else [])]

    def _may_replace(self, step: Step) -> bool:
        """Whether the files that would be replaced are all as this step left them."""
        done = self.lock.steps.get(step.name)
        replaces = step.action == "deploy" or (step.action == "export" and "config.pbtxt" in step.leaves)
        if done is None or not replaces:
            return False
        return all(self.digests.file(self.root / path) in (digest, None) for path, digest in done.outputs.items())

    def _call(self, step: Step, words: Sequence[str]) -> Answer:
        started = time.monotonic()
        with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
            with subprocess.Popen(
                [*self.program, *words, "--json"],
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="backslashreplace",
                start_new_session=True,  # so that a Ctrl-C reaches it once, from here
            ) as process:
                self._processes.append(process)
                if self._ending:  # it was about to start when all were ended
                    process.send_signal(self._ending)
                assert process.stderr is not None
                for line in process.stderr:
                    if not line.startswith(("error: ", "hint: ")):  # they come at the end, with all others
                        self.console.info(f"  {step.name}: {line.rstrip()}")
            self._processes.remove(process)
            out.seek(0)
            return Answer(process.returncode, _envelope(out.read()), time.monotonic() - started)

    def _finish(self, step: Step, facts: Mapping[str, str], answer: Answer, report: Report) -> None:
        data = answer.envelope["data"] if answer.envelope else None
        if answer.code != 0:
            report.failed[step.name] = (answer.code, tuple(_problems(step, answer, data)))
            self.console.warning(f"{step.name}: failed")
            return
        result = answers.result_of(step, data or {}, self.root)
        outputs = {
            os.path.relpath(path, self.root): digest
            for tree in answers.outputs_of(step, data or {})
            for path in files_of(self.root, tree)
            if (digest := self.digests.file(path)) is not None
        }
        self.lock.steps[step.name] = Done(facts, outputs, result)
        self.lock.write()
        report.ran.append(step.name)
        self.console.info(answers.said(step, result, answer.seconds))
        for note in (data or {}).get("notes", ()) if step.action == "deploy" else ():
            self.console.warning(f"{step.name}: {note}")

    def _stop(self, number: int) -> None:
        """End what still runs, each with the time to clean up behind itself."""
        self._ending = number
        for process in list(self._processes):
            with suppress(ProcessLookupError):
                process.send_signal(number)
        deadline = time.monotonic() + _PATIENCE_S
        for process in list(self._processes):
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _envelope(text: str) -> Mapping[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _problems(step: Step, answer: Answer, data: Mapping[str, Any] | None) -> Iterable[Problem]:
    error = answer.envelope.get("error") if answer.envelope else None
    if error:
        return [Problem(**problem) for problem in error["problems"]]
    if answer.code == Refused.exit_code:
        return list(answers.refusals(step, data))
    how = f"signal {-answer.code}" if answer.code < 0 else f"exit code {answer.code}"
    return [Problem("it ended without an answer", got=how, hint=f"run `tritune {shlex.join(step.words)}`")]
