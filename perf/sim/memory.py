"""The memory of a simulated run: records of integers in one array, and the names of their fields. Layer: bottom of sim.

Every thing (a stage, a request, a payload…) is known by the address of its record, and `m[r + LINK]` is its field. One
array of plain integers lets one code run on a memoryview (the readable reference) and compiled by numba, which passes
it between functions for next to nothing. Names follow the server: a *payload* is a batch being filled, the *staged*
ones wait for an instance, the *batcher* is the thread that fills them. All times are integer nanoseconds.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Memory: TypeAlias = Any
"""A one-dimensional int64 array, or a memoryview of one."""

NEVER = 1 << 62
NONE = -1
ONE_BITS = 16
ONE = 1 << ONE_BITS  # the number one in spread and slow-down factors
MISS_SCALE = 1 << 31  # the chance one of MISS

# The run itself stands at address 0.
FIRST_STAGE, STAGES, REQUEST_SIZE, ARRIVED, ISSUED, ISSUED_END, UNANSWERED, EXECUTED, THINK, RANDOM = range(10)
DEALT, SHAPES, SHAPES_END, RUN = range(10, 14)  # DEALT: clients that each walk through SHAPES, or 0

# A stage is one model: its settings, where its tables and records stand, and the variables of its batcher.
MAX_BATCH, MAX_PREFERRED, DELAY, INSTANCES, EQUAL, EVERY_WAKES, PREFETCH, PRIORITIES, DEFAULT_LEVEL = range(9)
ORDERED, CONTENDED, LATENESS, MISS, NEXT_STAGE, RAN_FIELD = range(9, 15)
PREFERRED, FOLLOWING, SERVICE, SERVICE_ROWS, KINDS, FACTORS, SLOWDOWN, DRAWS, DRAWS_END, DRAW = range(15, 25)
LINES, LINES_END, PAYLOADS, RING, WORKERS, WORKERS_END = range(25, 31)
FIRST, LAST, CURRENT, CLOSED, NEXT_PREFERRED, QUEUED, QUEUED_ROWS, PENDING = range(31, 39)
SLEEP, TIMER, IDLE, NEXT_END, NEXT_WORKER, ORDER_HEAD, ORDER_TAIL, SPINNING, STAGE = range(39, 48)
EMPTY_QUEUE, AWAITS_SLOT, AWAITS_DELAY, SPINS = range(4)  # SLEEP: why the batcher sleeps

# A line holds the fresh requests of a priority level, the next one its delayed requests.
HEAD, TAIL, LENGTH, REJECTS, TIMEOUT, OVERRIDE, MAX_QUEUE, LINE = range(8)

# A payload has HEAD and TAIL too.
ROWS, COUNT, REFERENCE, LONGEST, OLDEST, UNEQUAL, PAYLOAD = range(2, 9)

# A worker is an instance's thread; an idle one has END NEVER.
MEMBER, END, WORK, RATED, EXECUTION, WORKER = range(6)

# A request: what every run uses fills one cache line. RAN_FIELD of a stage tells where its execution is noted.
SENT, DONE, STATUS, WAITED, SIZE, SHAPE, SINCE, LINK, DEADLINE, PRIORITY, ALLOWED, ORDER, HELD, STEP, RAN = range(15)
ANSWERED, TIMED_OUT, REFUSED = 1, 2, 3  # STATUS

# What was executed, in order.
AT_STAGE, START, SPAN, BATCH, MEMBERS, EXECUTED_SIZE = range(6)
