"""What the traffic looks like: how requests arrive and how long they are. Layer: bottom of perf."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

_FEWEST_STEPS = 31


class Workload(BaseModel):
    """Traffic of batch-1 requests: either `concurrency` clients that each wait for their answer, or `request_rate`.

    `request_rate` is in requests a second and open-loop: requests leave on schedule whether or not answers came.
    `lengths` are token lengths (or the size of any other free dimension), one a request in this order; `seed` fixes
    the contents.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    concurrency: int | None = Field(default=None, ge=1)
    request_rate: float | None = Field(default=None, gt=0)
    distribution: Literal["constant", "poisson"] = "constant"
    lengths: tuple[int, ...] = ()
    seed: int = 0

    @model_validator(mode="after")
    def _consistent(self) -> Workload:
        if (self.concurrency is None) == (self.request_rate is None):
            raise ValueError("give either `concurrency` or `request_rate`")
        if any(length < 1 for length in self.lengths):
            raise ValueError("every length must be at least 1")
        return self

    @property
    def mode(self) -> Literal["concurrency", "request_rate"]:
        return "request_rate" if self.concurrency is None else "concurrency"

    @property
    def level(self) -> float:
        """The number of clients, or requests a second."""
        level = self.concurrency if self.request_rate is None else self.request_rate
        assert level is not None
        return level

    @property
    def steps(self) -> int:
        """How many different requests are sent, again from the start at the end.

        perf_analyzer deals them out: client c of n sends the requests c, c + n, c + 2n … With a common divisor each
        client would send only a part of them, so their number is a prime above n.
        """
        return next(_primes(max(len(self.lengths), (self.concurrency or 1) + 1, _FEWEST_STEPS)))

    @property
    def cycle(self) -> tuple[int, ...]:
        """The length of each of these requests; empty without lengths."""
        return tuple(self.lengths[i % len(self.lengths)] for i in range(self.steps)) if self.lengths else ()

    def __str__(self) -> str:
        if self.concurrency is not None:
            return f"{self.concurrency} client{'s' * (self.concurrency != 1)}"
        return f"{self.request_rate:g} requests/s ({self.distribution})"


def _primes(start: int) -> Iterator[int]:
    number = max(start, 2)
    while True:
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            yield number
        number += 1
