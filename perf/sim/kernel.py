"""The events of a simulated server: arrivals, executions, the batcher's timers. Layer: sim kernel, pure.

Plain functions on one array of integers: they are the readable reference, and numba compiles them as they are.
"""

from __future__ import annotations

from perf.sim import memory as at
from perf.sim.batcher import POLL_NS, batcher, payload_at, slot_free
from perf.sim.lines import answer, append, sweep
from perf.sim.memory import MISS_SCALE, NEVER, NONE, ONE_BITS, Memory

WORK_BITS = 8  # fraction of a ns kept in the work left of an execution


def run(m: Memory) -> None:
    """Play events in order until every request is answered: at one moment ends first, then arrivals, then timers.

    Raises RuntimeError when nothing can happen any more, which no rule of the batcher allows.
    """
    while m[at.UNANSWERED] > 0:
        r = m[at.ARRIVED]
        arrival = m[r + at.SENT] if r < m[at.ISSUED] else NEVER
        end = timer = NEVER
        ender = timed = s = m[at.FIRST_STAGE]
        for _ in range(m[at.STAGES]):
            if m[s + at.NEXT_END] < end:
                end, ender = m[s + at.NEXT_END], s
            if m[s + at.TIMER] < timer:
                timer, timed = m[s + at.TIMER], s
            s = m[s + at.NEXT_STAGE]
        if min(end, arrival, timer) == NEVER:
            raise RuntimeError("requests wait and nothing happens")
        if end <= arrival and end <= timer:
            finish(m, ender, end)
        elif arrival <= timer:
            m[at.ARRIVED] = r + m[at.REQUEST_SIZE]
            enqueue(m, m[at.FIRST_STAGE], r, arrival)
        else:
            tick(m, timed, timer)


def enqueue(m: Memory, s: int, r: int, now: int) -> None:
    """A request reaches the scheduler of a stage; the batcher is woken only if that may matter."""
    m[r + at.SINCE] = now
    m[s + at.QUEUED_ROWS] += m[r + at.SIZE]  # not taken back on a refusal, as in the server
    line = m[s + at.LINES]
    if not m[s + at.PREFETCH]:
        line = line_of(m, s, r)
        limit = m[line + at.MAX_QUEUE]
        if limit > 0 and m[line + at.LENGTH] + m[line + at.LINE + at.LENGTH] >= limit:
            answer(m, r, now, at.REFUSED)
            return
        timeout = m[line + at.TIMEOUT]
        if m[line + at.OVERRIDE] and 0 < m[r + at.ALLOWED] < timeout:
            timeout = m[r + at.ALLOWED]
        m[r + at.DEADLINE] = now + timeout if timeout > 0 else NEVER
    append(m, s, line, r)
    if slot_free(m, s) and (
        m[s + at.EVERY_WAKES]
        or m[s + at.CLOSED]
        or m[s + at.CURRENT] == NONE
        or m[s + at.QUEUED_ROWS] >= m[s + at.NEXT_PREFERRED]
    ):
        settle(m, s, now)


def line_of(m: Memory, s: int, r: int) -> int:
    """The fresh line of a request's priority level; a level that does not exist means the default one."""
    level = m[r + at.PRIORITY] - 1
    if level < 0 or level >= m[s + at.PRIORITIES]:
        level = m[s + at.DEFAULT_LEVEL]
    return int(m[s + at.LINES] + 2 * level * at.LINE)


def pass_on(m: Memory, s: int, r: int, now: int) -> None:
    """A response leaves a stage: to the next stage of the ensemble, or to the client."""
    if m[s + at.NEXT_STAGE] != NONE:
        enqueue(m, m[s + at.NEXT_STAGE], r, now)
    else:
        answer(m, r, now, at.ANSWERED)


def respond(m: Memory, s: int, r: int, now: int) -> None:
    """A response is ready; with preserve_ordering it waits for all that left the queue before it."""
    if not m[s + at.ORDERED]:
        pass_on(m, s, r, now)
        return
    m[r + at.HELD] = 1
    head = m[s + at.ORDER_HEAD]
    while head != NONE and m[head + at.HELD]:
        m[head + at.HELD] = 0
        following = m[head + at.ORDER]
        m[s + at.ORDER_HEAD] = following
        if following == NONE:
            m[s + at.ORDER_TAIL] = NONE
        pass_on(m, s, head, now)
        head = following


def settle(m: Memory, s: int, now: int) -> None:
    """Let the batcher run until it sleeps and idle instances take what is staged, until nothing moves."""
    batcher(m, s, now)
    while m[s + at.IDLE] > 0 and m[s + at.FIRST] < m[s + at.LAST]:
        start(m, s, now)
        batcher(m, s, now)
    if m[s + at.CONTENDED]:
        notice_spin(m, s, now)


def notice_spin(m: Memory, s: int, now: int) -> None:
    """While the batcher spins it takes a core from the executions, which go by the second half of the slowdowns."""
    spinning = m[s + at.INSTANCES] + 1 if m[s + at.SLEEP] == at.SPINS else 0
    if spinning != m[s + at.SPINNING]:
        progress(m, s, now)
        m[s + at.SPINNING] = spinning
        schedule(m, s, now)


def tick(m: Memory, s: int, now: int) -> None:
    """The batcher's sleep is over without a notification."""
    if m[s + at.SLEEP] == at.AWAITS_SLOT and not slot_free(m, s):
        sweep(m, s, now)
        m[s + at.TIMER] = now + POLL_NS
    else:
        settle(m, s, now)


def start(m: Memory, s: int, now: int) -> None:
    """An idle instance takes the first staged payload and begins to execute it."""
    p = dequeue(m, s)
    if m[s + at.DELAY] > 0 and m[s + at.MAX_BATCH] > 1 and not m[p + at.UNEQUAL]:
        merge(m, s, p, now)
    x = m[at.EXECUTED]
    m[at.EXECUTED] = x + at.EXECUTED_SIZE
    span = service_ns(m, s, p)
    m[x + at.AT_STAGE] = s
    m[x + at.START] = now
    m[x + at.SPAN] = span
    m[x + at.BATCH] = m[p + at.ROWS]
    m[x + at.MEMBERS] = m[p + at.COUNT]
    if m[s + at.CONTENDED]:
        progress(m, s, now)
    i = m[s + at.WORKERS]
    while m[i + at.END] < NEVER:
        i += at.WORKER
    m[i + at.MEMBER] = m[p + at.HEAD]
    m[i + at.EXECUTION] = x
    m[i + at.WORK] = span << WORK_BITS
    m[i + at.RATED] = now
    m[i + at.END] = now + span
    m[s + at.IDLE] -= 1
    schedule(m, s, now)


def dequeue(m: Memory, s: int) -> int:
    """Take the first staged payload; nothing joins it any more."""
    number = m[s + at.FIRST]
    if m[s + at.CURRENT] == number:
        m[s + at.CURRENT] = NONE
    m[s + at.FIRST] = number + 1
    return payload_at(m, s, number)


def merge(m: Memory, s: int, p: int, now: int) -> None:
    """Add the staged payloads that are older than the delay, as far as they fit (Triton merges them at dequeue)."""
    while m[s + at.FIRST] < m[s + at.LAST]:
        q = payload_at(m, s, m[s + at.FIRST])
        if m[q + at.UNEQUAL] or now - m[q + at.OLDEST] <= m[s + at.DELAY]:
            return
        if m[s + at.CURRENT] == m[s + at.FIRST]:
            m[s + at.CURRENT] = NONE  # nothing joins it any more, even if it is not merged
        if m[p + at.ROWS] + m[q + at.ROWS] > m[s + at.MAX_BATCH]:
            return
        if m[s + at.EQUAL] and m[q + at.REFERENCE] != m[p + at.REFERENCE]:
            return
        dequeue(m, s)
        m[m[p + at.TAIL] + at.LINK] = m[q + at.HEAD]
        m[p + at.TAIL] = m[q + at.TAIL]
        m[p + at.ROWS] += m[q + at.ROWS]
        m[p + at.COUNT] += m[q + at.COUNT]
        m[p + at.LONGEST] = max(m[p + at.LONGEST], m[q + at.LONGEST])


def service_ns(m: Memory, s: int, p: int) -> int:
    """The service time of a payload alone on the machine: by its longest request and its rows, times a factor at the
    drawn place of those for its kind."""
    draw = m[s + at.DRAW]
    m[s + at.DRAW] = draw + 1 if draw + 1 < m[s + at.DRAWS_END] else m[s + at.DRAWS]
    cell = m[p + at.LONGEST] * m[s + at.SERVICE_ROWS] + m[p + at.ROWS]
    factor = m[m[s + at.FACTORS] + m[m[s + at.KINDS] + cell] + m[draw]]
    return max(1, int(m[m[s + at.SERVICE] + cell] * factor >> ONE_BITS))


def finish(m: Memory, s: int, now: int) -> None:
    """The next execution of a stage ends: answer its requests, wake the batcher, be idle."""
    i = m[s + at.NEXT_WORKER]
    x = m[i + at.EXECUTION]
    began = m[x + at.START]
    if m[s + at.CONTENDED]:
        progress(m, s, now)
        m[x + at.SPAN] = now - began
    m[i + at.END] = NEVER
    r = m[i + at.MEMBER]
    while r != NONE:
        following = m[r + at.LINK]
        m[r + at.WAITED] += began - m[r + at.SINCE]
        m[r + m[s + at.RAN_FIELD]] = x
        respond(m, s, r, now)
        r = following
    if wake_lost(m, s):
        settle(m, s, now)  # by the instances that were idle before
        m[s + at.IDLE] += 1
        schedule(m, s, now)
        if m[s + at.CONTENDED]:
            notice_spin(m, s, now)
        return
    m[s + at.IDLE] += 1
    if m[s + at.FIRST] < m[s + at.LAST]:
        start(m, s, now)  # its thread runs already, while the batcher's has yet to wake up
    else:
        schedule(m, s, now)
    settle(m, s, now)


def wake_lost(m: Memory, s: int) -> bool:
    """Whether the batcher, without prefetch, looks for an idle instance before this one counts as idle."""
    if m[s + at.MISS] == 0 or m[s + at.PREFETCH]:
        return False
    m[at.RANDOM] = (m[at.RANDOM] * 1_103_515_245 + 12_345) & (MISS_SCALE - 1)
    return bool(m[at.RANDOM] < m[s + at.MISS])


def progress(m: Memory, s: int, now: int) -> None:
    """Book the work done since the pace last changed."""
    slowdown = pace(m, s)
    for i in range(m[s + at.WORKERS], m[s + at.WORKERS_END], at.WORKER):
        if m[i + at.END] < NEVER:
            m[i + at.WORK] -= ((now - m[i + at.RATED]) << (WORK_BITS + ONE_BITS)) // slowdown
            m[i + at.RATED] = now


def pace(m: Memory, s: int) -> int:
    """How much slower an execution is now than alone on the machine, in units of ONE."""
    return int(m[m[s + at.SLOWDOWN] + m[s + at.SPINNING] + m[s + at.INSTANCES] - m[s + at.IDLE]])


def schedule(m: Memory, s: int, now: int) -> None:
    """Find the execution that ends next; where instances slow each other down, at the speed of now."""
    contended = m[s + at.CONTENDED]
    slowdown = pace(m, s)
    end, worker = NEVER, 0
    for i in range(m[s + at.WORKERS], m[s + at.WORKERS_END], at.WORKER):
        if contended and m[i + at.END] < NEVER:
            m[i + at.END] = now + (max(0, m[i + at.WORK]) * slowdown >> (WORK_BITS + ONE_BITS))
        if m[i + at.END] < end:
            end, worker = m[i + at.END], i
    m[s + at.NEXT_END] = end
    m[s + at.NEXT_WORKER] = worker
