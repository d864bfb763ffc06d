"""Two models that a running server has loaded already, measured side by side. Layer: bottom of rollout."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from perf.target import OnServer, Served, Variant
from tooling.errors import ExternalError
from tooling.server.running import RunningServer


class Pair(OnServer):
    """The first variant asked for is the model `current`, every other one is `candidate`. Nothing is loaded."""

    side_by_side = True

    def __init__(self, server: RunningServer, current: str, candidate: str) -> None:
        self.server, self._current, self._candidate = server, current, candidate
        self._identity = server.identity()
        self._base: Variant | None = None
        self._warm: set[str] = set()

    def __enter__(self) -> Pair:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def facts(self) -> dict[str, Any]:
        versions = {name: self.server.versions(name) for name in (self._current, self._candidate)}
        return {"url": self.url, "name": self._identity.name, "tritonserver": self._identity.version, **versions}

    def serve(self, variant: Variant) -> Served:
        self._base = self._base or variant
        name = self._current if variant == self._base else self._candidate
        fresh = name not in self._warm
        self._warm.add(name)
        return Served(name, fresh)

    def check(self, name: str) -> None:
        if self.server.identity() != self._identity or not self.server.versions(name):
            raise ExternalError("the model is gone, or another server answers here now", where=f"{self.url}, `{name}`")
