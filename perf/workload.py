"""What the traffic looks like: how requests arrive, how long and how large they are. Layer: bottom of perf."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from perf.mix import expand
from tooling.errors import UsageError
from tooling.units import DURATION_PATTERN, MOST, MOST_SEED, parse_duration_us

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Mode = Literal["concurrency", "request_rate"]
Mix = Annotated[tuple[Annotated[int, Field(ge=1, le=MOST)], ...], BeforeValidator(expand)]
"""Whole numbers, dealt out in turn; also written as one number, as shares, or as a distribution (perf.mix)."""

_FEWEST_STEPS = 31
_LAST_S = 1e10
"""In the 23rd century, where a trace counts from 1970."""


class Workload(BaseModel):
    """Traffic, closed-loop or open-loop, and what the requests hold.

    Exactly one of: `concurrency` clients that each wait for their answer; `request_rate`, in requests a second, that
    leave on schedule whether or not answers came, evenly spaced or at random, `burst` at a time; or `timestamps`, the
    sending times of a recorded trace in seconds from its start, played again from the start when it ends.

    `lengths` are token lengths (or the size of any other free dimension) and `batch` the rows of a request, both dealt
    out in this order; with timestamps, each belongs to the time at its place. `texts` are sent to inputs that take
    strings. `streams` is the number of gRPC streams the requests share (decoupled models need at least one); None sends
    each by itself. `duration_s` is how long a point is measured, where the measuring command does not say; `seed`
    fixes contents and random sending times.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    concurrency: int | None = Field(default=None, ge=1, le=MOST)
    request_rate: float | None = Field(default=None, gt=0, le=MOST, allow_inf_nan=False)
    timestamps: tuple[Annotated[float, Field(ge=0, le=_LAST_S, allow_inf_nan=False)], ...] = ()
    distribution: Literal["constant", "poisson"] = "constant"
    burst: int = Field(default=1, ge=1, le=MOST)
    lengths: Mix = ()
    batch: Mix = (1,)
    texts: tuple[str, ...] = ()
    streams: int | None = Field(default=None, ge=1, le=MOST)
    duration_s: float | None = Field(default=None, gt=0, le=MOST, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0, le=MOST_SEED)

    @model_validator(mode="before")
    @classmethod
    def _typed_duration(cls, data: Any) -> Any:
        """`duration: 20s`, as users write it, is `duration_s: 20`."""
        if not isinstance(data, dict) or "duration" not in data:
            return data
        if "duration_s" in data:
            raise ValueError("give `duration` once")
        written = data["duration"]
        try:
            seconds = parse_duration_us(written) / 1e6 if isinstance(written, str) else written
        except UsageError as error:
            raise ValueError(f"`duration` is {error.problems[0]}") from None
        return {**{key: value for key, value in data.items() if key != "duration"}, "duration_s": seconds}

    @model_validator(mode="after")
    def _consistent(self) -> Workload:
        given = [self.concurrency is not None, self.request_rate is not None, bool(self.timestamps)]
        if sum(given) != 1:
            raise ValueError("give one of `concurrency`, `request_rate` and `timestamps`")
        if self.request_rate is None and (self.distribution != "constant" or self.burst > 1):
            raise ValueError("`distribution` and `burst` belong to a `request_rate`")
        if not self.batch:
            raise ValueError("`batch` needs at least one size")
        times = self.timestamps
        if any(later < earlier for earlier, later in pairwise(times)):
            raise ValueError("`timestamps` must ascend")
        if times and (len(times) < 2 or times[-1] == times[0]):
            raise ValueError("`timestamps` need at least two different times")
        return self

    @property
    def mode(self) -> Mode:
        return "concurrency" if self.concurrency is not None else "request_rate"

    @property
    def level(self) -> float:
        """The number of clients, or requests a second on average."""
        if self.timestamps:
            return len(self.timestamps) / self.period_s
        level = self.concurrency if self.request_rate is None else self.request_rate
        assert level is not None
        return level

    @property
    def steps(self) -> int:
        """How many different requests are sent, again from the start at the end.

        perf_analyzer deals them out: client c of n sends the requests c, c + n, c + 2n … With a common divisor each
        client would send only a part of them, so their number is a prime above n. A trace has one for each time.
        """
        if self.timestamps:
            return len(self.timestamps)
        needed = max(len(self.lengths), len(self.batch), len(self.texts))
        return next(_primes(max(needed, (self.concurrency or 1) + 1, _FEWEST_STEPS)))

    @property
    def cycle(self) -> tuple[int, ...]:
        """The length of each of these requests; empty without lengths."""
        return tuple(self.lengths[i % len(self.lengths)] for i in range(self.steps)) if self.lengths else ()

    @property
    def period_s(self) -> float:
        """How long one pass of the trace takes, with a mean gap at its end; 0 without a trace."""
        times = self.timestamps
        return (times[-1] - times[0]) * len(times) / (len(times) - 1) if times else 0.0

    @property
    def random(self) -> bool:
        """Whether requests leave at random times."""
        return self.distribution == "poisson"

    def times_s(self, count: int) -> npt.NDArray[np.float64]:
        """The sending times of the first `count` requests of an open loop, in seconds; the same ones every time."""
        import numpy as np

        if self.timestamps:
            passes = np.arange(count) // len(self.timestamps)
            within = np.resize(np.asarray(self.timestamps) - self.timestamps[0], count)
            return np.asarray(within + passes * self.period_s, dtype=np.float64)
        groups = np.arange(count) // self.burst
        gap_s = self.burst / self.level
        if not self.random:
            return np.asarray(groups * gap_s, dtype=np.float64)
        gaps = np.random.default_rng(self.seed).exponential(gap_s, math.ceil(count / self.burst))
        return np.asarray(np.cumsum(gaps)[groups], dtype=np.float64)

    def __str__(self) -> str:
        sizes = f"{min(self.batch)}–{max(self.batch)}" if len(set(self.batch)) > 1 else str(self.batch[0])
        parts = [f" of {sizes} rows"] if sizes != "1" else []
        parts += [f" on {self.streams} stream{'s' * (self.streams != 1)}"] if self.streams else []
        return self._arrivals() + "".join(parts)

    def _arrivals(self) -> str:
        if self.concurrency is not None:
            return f"{self.concurrency} client{'s' * (self.concurrency != 1)}"
        if self.timestamps:
            return f"a trace of {len(self.timestamps)} requests at {self.level:.3g} requests/s"
        bursts = f" in bursts of {self.burst}" if self.burst > 1 else ""
        return f"{self.request_rate:g} requests/s ({self.distribution}){bursts}"


def keys_schema() -> dict[str, Any]:
    """The JSON schema of a workload as users write it: a mix also as one number, shares or a distribution, `texts` also
    as a file, `duration` with its unit."""
    written = Workload.model_json_schema()
    keys: dict[str, Any] = {name: {**key} for name, key in written["properties"].items()}
    for name in ("lengths", "batch"):
        keys[name] = {"anyOf": [keys[name], keys[name]["items"], {"type": "object"}]}
    keys["texts"] = {"anyOf": [keys["texts"], {"type": "string", "minLength": 1}]}
    positive = {"exclusiveMinimum": 0, "maximum": MOST}
    keys["duration"] = {"type": ["string", "number"], "pattern": f"^({DURATION_PATTERN})$", **positive}
    return {"type": "object", "properties": keys, "additionalProperties": False, "minProperties": 1}


def _primes(start: int) -> Iterator[int]:
    number = max(start, 2)
    while True:
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            yield number
        number += 1
