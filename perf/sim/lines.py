"""The scheduler's queue: a fresh and a delayed line of each priority level, and what times out. Layer: sim kernel."""

from __future__ import annotations

from perf.sim import memory as at
from perf.sim.memory import NEVER, NONE, Memory


def answer(m: Memory, r: int, now: int, status: int) -> None:
    """The client has its answer; in a closed loop it sends its next request after its thinking time."""
    m[r + at.DONE] = now
    m[r + at.STATUS] = status
    m[at.UNANSWERED] -= 1
    following = m[at.ISSUED]
    if following < m[at.ISSUED_END]:
        m[following + at.SENT] = now + m[at.THINK]
        m[at.ISSUED] = following + m[at.REQUEST_SIZE]
        if m[at.DEALT] > 0:
            first = m[at.SHAPES]
            step = first + (m[r + at.STEP] - first + m[at.DEALT]) % (m[at.SHAPES_END] - first)
            m[following + at.STEP] = step
            m[following + at.SHAPE] = m[step]


def append(m: Memory, s: int, line: int, r: int) -> None:
    """Put a request at the end of a line."""
    tail = m[line + at.TAIL]
    m[r + at.LINK] = NONE
    if tail == NONE:
        m[line + at.HEAD] = r
    else:
        m[tail + at.LINK] = r
    m[line + at.TAIL] = r
    m[line + at.LENGTH] += 1
    m[s + at.QUEUED] += 1


def remove(m: Memory, s: int, line: int, before: int, r: int) -> None:
    """Take a request out of its line, where `before` is its predecessor or NONE."""
    following = m[r + at.LINK]
    if before == NONE:
        m[line + at.HEAD] = following
    else:
        m[before + at.LINK] = following
    if following == NONE:
        m[line + at.TAIL] = before
    m[line + at.LENGTH] -= 1
    m[s + at.QUEUED] -= 1


def expire(m: Memory, s: int, line: int, before: int, r: int, now: int) -> None:
    """The deadline of a fresh request has passed: reject it, or put it behind all fresh ones of its level."""
    remove(m, s, line, before, r)
    if m[line + at.REJECTS]:
        m[s + at.QUEUED_ROWS] -= m[r + at.SIZE]
        answer(m, r, now, at.TIMED_OUT)
    else:
        m[r + at.DEADLINE] = NEVER
        append(m, s, line + at.LINE, r)


def sweep(m: Memory, s: int, now: int) -> None:
    """Reject what has expired, after 500 ms without a slot. The server does not correct the queued rows here."""
    for line in range(m[s + at.LINES], m[s + at.LINES_END], at.LINE):
        if m[line + at.REJECTS]:
            before, r = NONE, m[line + at.HEAD]
            while r != NONE:
                following = m[r + at.LINK]
                if m[r + at.DEADLINE] <= now:
                    remove(m, s, line, before, r)
                    answer(m, r, now, at.TIMED_OUT)
                else:
                    before = r
                r = following
