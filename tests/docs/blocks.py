"""The code blocks of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ ", re.MULTILINE)


class Block(NamedTuple):
    """`code` without its fences and with continued lines joined; `context` is the page from the heading above on."""

    language: str
    code: str
    context: str


def blocks(page: Path) -> Iterator[Block]:
    """Every one, in order."""
    text = page.read_text(encoding="utf-8")
    ends = 0
    headings = [0]
    for found in FENCE.finditer(text):
        headings += [ends + heading.start() for heading in HEADING.finditer(text[ends : found.start()])]
        ends = found.end()
        yield Block(found[1], found[2].replace("\\\n", " "), text[headings[-1] : ends])


def commands(page: Path) -> Iterator[Block]:
    """The blocks that a shell is to read: those without a language too, which may also be what something prints."""
    return (block for block in blocks(page) if block.language in ("console", "sh", ""))
