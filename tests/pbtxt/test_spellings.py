"""The verdict on config texts is the real server's, down to its words, its lines and its columns.

`spellings.yaml` holds what tritonserver 2.51.0 said to each text. A new text needs an id only: `pytest -m live
tests/pbtxt/test_spellings.py --update-golden` asks the server and writes down its answers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path
from typing import Any

import pytest
import yaml

from tooling.config.proto import pb
from tooling.errors import Refused
from tooling.pbtxt.message import load
from tooling.pbtxt.parser import parse
from tooling.server import EmbeddedServer, ServerOptions

FILE = Path(__file__).with_name("spellings.yaml")
FAULT = re.compile(rb"Error parsing text-format inference\.ModelConfig: (.*)")
FILLED_IN = re.compile(rb'^(name: "m\d+\.none"|default_model_filename: "model\.none"|backend: "none")(\n|\Z)|^ +', re.M)
PRINTED = re.compile(rb'auto-completed config: "\n(.*?)\n\n', re.DOTALL)
FRAGMENTS = [
    *(bytes([byte]) for byte in b"\"'\\{}<>[]:,;-+.#\n\r\t\0\x01\x0b\x7f\xa0\xff 0_ex/="),
    *b'name|dims: 1|08|0x|1e|1.|.5|1f|inf|true|\\x4|\\777|\\U0001f600|2147483648|- 1|"a" "b"|: {|{}|[]|# c\n'.split(
        b"|"
    ),
]


@dataclass(frozen=True)
class Spelling:
    """A text (in the file one character per byte) and the server's answer to it.

    `reads` is the message as the server prints it, without what it fills in; None where it does not come that far.
    """

    id: str
    text: bytes
    accepted: bool
    says: list[str]
    reads: str | None

    @classmethod
    def from_file(cls, entry: dict[str, Any]) -> Spelling:
        verdict = [entry.get("accepted", False), entry.get("says", []), entry.get("reads")]
        return cls(entry["id"], entry["text"].encode("latin-1"), *verdict)

    def as_entry(self) -> dict[str, Any]:
        entry = {"id": self.id, "text": self.text.decode("latin-1"), "accepted": self.accepted}
        return (
            entry
            | ({"says": self.says} if self.says else {})
            | ({"reads": self.reads} if self.reads is not None else {})
        )


def recorded() -> list[Spelling]:
    return [Spelling.from_file(entry) for entry in yaml.safe_load(FILE.read_text())]


@pytest.fixture
def ask(runtime, tmp_path: Path):
    """Ask the server about texts: each becomes a model whose name ends in a backend that there is not."""

    def ask(texts: Sequence[bytes]) -> list[Spelling]:
        for number, text in enumerate(texts):
            (tmp_path / f"m{number}.none" / "1").mkdir(parents=True)
            (tmp_path / f"m{number}.none" / "config.pbtxt").write_bytes(text)
        answers = []
        options = ServerOptions(log_verbose=1)
        with EmbeddedServer(tmp_path, runtime, options) as server, server.log_path.open("rb") as lines:
            for number, text in enumerate(texts):
                lines.seek(0, SEEK_END)
                with pytest.raises(Refused) as refusal:
                    server.load(f"m{number}.none")
                log = lines.read()
                says = [fault.decode("utf-8", "backslashreplace") for fault in FAULT.findall(log)]
                printed = PRINTED.search(log)
                reads = " ".join(FILLED_IN.sub(b"", printed[1]).decode().split("\n")).strip() if printed else None
                accepted = "failed to read text proto" not in str(refusal.value)
                answers.append(Spelling("", text, accepted, says, reads))
        return answers

    return ask


def ours(text: bytes) -> tuple[bool, list[str]]:
    document = parse(text, pb().ModelConfig.DESCRIPTOR)
    return document.accepted, [str(fault) for fault in document.faults if fault.server]


def differs(text: bytes, reads: str) -> bool:
    """Whether our message of a text is another one than the server's."""
    messages = (load(source, pb().ModelConfig(), "text") for source in (text, reads.encode()))
    return len({message.SerializeToString(deterministic=True) for message in messages}) == 2


@pytest.mark.parametrize("spelling", recorded(), ids=lambda spelling: spelling.id)
def test_verdict_is_the_recorded_one(spelling: Spelling) -> None:
    assert ours(spelling.text) == (spelling.accepted, spelling.says)
    faults = parse(spelling.text, pb().ModelConfig.DESCRIPTOR).faults
    if spelling.reads is not None and not faults:
        assert not differs(spelling.text, spelling.reads)


def test_both_verdicts_are_well_covered() -> None:
    verdicts = [spelling.accepted for spelling in recorded()]
    assert verdicts.count(True) >= 60 and verdicts.count(False) >= 60


@pytest.mark.live
def test_the_server_still_says_what_is_recorded(ask, update_golden: bool) -> None:
    known = recorded()
    answers = [
        Spelling(spelling.id, spelling.text, answer.accepted, answer.says, answer.reads)
        for spelling, answer in zip(known, ask([spelling.text for spelling in known]), strict=True)
    ]
    if update_golden:
        entries = [answer.as_entry() for answer in answers]
        FILE.write_text(yaml.safe_dump(entries, sort_keys=False, width=120))
    assert answers == recorded()


@pytest.mark.live
def test_the_server_agrees_on_damaged_texts(ask) -> None:
    chance = random.Random(2451)
    texts = []
    for spelling in recorded() * 2:
        text = spelling.text
        for _ in range(chance.randint(1, 3)):
            at = chance.randint(0, len(text))
            text = text[:at] + chance.choice(FRAGMENTS) + text[at + chance.choice([0, 0, 1, 4]) :]
        texts.append(text)
    for text, answer in zip(texts, ask(texts), strict=True):
        assert ours(text) == (answer.accepted, answer.says), text
        if answer.reads is not None and not parse(text, pb().ModelConfig.DESCRIPTOR).faults:
            assert not differs(text, answer.reads), text
