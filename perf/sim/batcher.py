"""The batcher thread: when a payload is formed, of which requests, and when it waits. Layer: sim kernel.

After `dynamic_batch_scheduler.cc` of Triton 24.10 (the batching loop and `GetDynamicBatch`).
"""

from __future__ import annotations

from typing import NamedTuple

from perf.sim import memory as at
from perf.sim.lines import expire, remove
from perf.sim.memory import NEVER, NONE, Memory

POLL_NS = 500_000_000  # the batcher thread never sleeps longer
MICROSECOND_NS = 1_000


def slot_free(m: Memory, s: int) -> bool:
    """Whether a payload may be formed: up to two an instance ahead, with a queue policy only for an idle instance."""
    staged = m[s + at.LAST] - m[s + at.FIRST]
    if m[s + at.PREFETCH]:
        return bool(staged < 2 * m[s + at.INSTANCES])
    return bool(staged < m[s + at.IDLE])


def sleep(m: Memory, s: int, why: int, until: int) -> None:
    m[s + at.SLEEP] = why
    m[s + at.TIMER] = until


def batcher(m: Memory, s: int, now: int) -> None:
    """The batcher thread from a notification to its next sleep."""
    if m[s + at.SLEEP] == at.AWAITS_SLOT and not slot_free(m, s):
        return
    while True:
        if m[s + at.CLOSED] or m[s + at.CURRENT] == NONE:
            open_payload(m, s)
        queued = m[s + at.QUEUED]
        if queued == 0:
            sleep(m, s, at.EMPTY_QUEUE, now + POLL_NS)
            return
        if not slot_free(m, s):
            sleep(m, s, at.AWAITS_SLOT, now + POLL_NS)
            return
        wait = form(m, s, now)
        if wait > 0:
            sleep(m, s, at.AWAITS_DELAY, now + wait + m[s + at.LATENESS])
            return
        if m[s + at.PENDING] > 0:
            take(m, s)
        elif m[s + at.QUEUED] == queued and not m[s + at.CLOSED]:
            # The head has another shape than the staged payload: the server spins here until that executes.
            sleep(m, s, at.SPINS, NEVER)
            return


def payload_at(m: Memory, s: int, number: int) -> int:
    """The address of a payload of the ring, by its running number."""
    return int(m[s + at.PAYLOADS] + (number & m[s + at.RING]) * at.PAYLOAD)


def open_payload(m: Memory, s: int) -> None:
    """Begin a new payload behind the staged ones."""
    m[s + at.CURRENT] = m[s + at.LAST]
    m[s + at.CLOSED] = 0
    m[s + at.NEXT_PREFERRED] = 0
    p = payload_at(m, s, m[s + at.LAST])
    m[p + at.ROWS] = 0
    m[p + at.COUNT] = 0
    m[p + at.LONGEST] = 0
    m[p + at.OLDEST] = NEVER
    m[p + at.UNEQUAL] = 0


class Walk(NamedTuple):
    """What `walk` found in the queue; `best` and `mark` are the rows and requests up to Triton's cursor mark."""

    requests: int
    rows: int
    mark: int
    best: int
    oldest: int
    nearest: int
    full: bool


def walk(m: Memory, s: int, p: int, now: int) -> Walk:
    """Examine the queue in order as far as its requests fit payload `p`, dropping what has expired.

    Triton's quirk is kept that a mark of no rows counts as no mark, so that a later request moves it.
    """
    staged = m[p + at.ROWS]
    rows = count = best = mark = 0
    oldest = nearest = NEVER
    full = False
    for line in range(m[s + at.LINES], m[s + at.LINES_END], at.LINE):
        before, r = NONE, m[line + at.HEAD]
        while r != NONE:
            following = m[r + at.LINK]
            if not m[s + at.PREFETCH] and m[r + at.DEADLINE] <= now:
                expire(m, s, line, before, r, now)
                r = following
                continue
            joined = staged + rows + m[r + at.SIZE]
            if staged + rows == 0:
                m[p + at.REFERENCE] = m[r + at.SHAPE]
            else:
                if joined > m[s + at.MAX_PREFERRED] and best == 0:
                    best, mark = rows, count
                    m[s + at.CLOSED] = 1
                full = fits_not(m, s, p, r, joined)
                if full:
                    break
            rows = joined - staged
            count += 1
            oldest = min(oldest, m[r + at.SINCE])
            if not m[s + at.PREFETCH]:
                nearest = min(nearest, m[r + at.DEADLINE])
            if m[m[s + at.PREFERRED] + joined]:
                best, mark = rows, count
            before, r = r, following
        if full:
            break
    return Walk(count, rows, mark, best, oldest, nearest, full)


def fits_not(m: Memory, s: int, p: int, r: int, joined: int) -> bool:
    """Whether a request cannot join payload `p`, with which it would have `joined` rows."""
    if joined > m[s + at.MAX_BATCH]:
        return True
    if m[s + at.EQUAL] and m[r + at.SHAPE] != m[p + at.REFERENCE]:
        m[p + at.UNEQUAL] = 1
        return True
    return False


def form(m: Memory, s: int, now: int) -> int:
    """Choose how many requests at the head of the queue join the current payload (PENDING).

    Returns 0 when they join now, else the ns to wait for more.
    """
    p = payload_at(m, s, m[s + at.CURRENT])
    seen = walk(m, s, p, now)
    staged = m[p + at.ROWS]
    total = staged + seen.rows
    delay = m[s + at.DELAY]
    late = delay > 0 and now - seen.oldest >= delay
    m[s + at.PENDING] = seen.requests
    if seen.best > 0 and not late:
        m[s + at.PENDING] = seen.mark
        if delay == 0:
            m[s + at.CLOSED] = 1
        return 0
    if seen.requests == 0:
        return 0
    if seen.full or total >= m[s + at.MAX_PREFERRED]:
        m[s + at.CLOSED] = 1
        return 0
    if late or delay == 0:
        return 0
    m[s + at.NEXT_PREFERRED] = m[m[s + at.FOLLOWING] + total] - staged
    if not m[s + at.CLOSED] and staged > 0 and not m[m[s + at.PREFERRED] + staged]:
        return 0  # staged with an odd size: grow it at once
    wait = seen.oldest + delay - now
    if seen.nearest < NEVER:
        wait = min(wait, max(seen.nearest - now, MICROSECOND_NS))
    return int(wait)


def take(m: Memory, s: int) -> None:
    """Move the chosen requests to the end of the current payload, and stage it if it is not yet."""
    p = payload_at(m, s, m[s + at.CURRENT])
    line = m[s + at.LINES]
    for _ in range(m[s + at.PENDING]):
        while m[line + at.HEAD] == NONE:
            line += at.LINE
        r = m[line + at.HEAD]
        remove(m, s, line, NONE, r)
        m[r + at.LINK] = NONE
        if m[p + at.COUNT] == 0:
            m[p + at.HEAD] = r
        else:
            m[m[p + at.TAIL] + at.LINK] = r
        m[p + at.TAIL] = r
        m[p + at.COUNT] += 1
        m[p + at.ROWS] += m[r + at.SIZE]
        m[p + at.LONGEST] = max(m[p + at.LONGEST], m[r + at.SHAPE])
        m[p + at.OLDEST] = min(m[p + at.OLDEST], m[r + at.SINCE])
        m[s + at.QUEUED_ROWS] -= m[r + at.SIZE]
        if m[s + at.ORDERED]:
            keep_order(m, s, r)
    if m[s + at.CURRENT] == m[s + at.LAST]:
        m[s + at.LAST] += 1


def keep_order(m: Memory, s: int, r: int) -> None:
    """Reserve the place of a response, in the order in which requests leave the queue."""
    m[r + at.ORDER] = NONE
    if m[s + at.ORDER_TAIL] == NONE:
        m[s + at.ORDER_HEAD] = r
    else:
        m[m[s + at.ORDER_TAIL] + at.ORDER] = r
    m[s + at.ORDER_TAIL] = r
