"""A Triton server that somebody else runs: what it serves, and another configuration for it. Layer: server."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from tooling.errors import BUSY, ExternalError, Refused, UsageError, suggest
from tooling.server.client import Answer, TritonHttp, address, unreachable
from tooling.server.flags import CONTROL_HEADER, CONTROL_KEY
from tooling.server.log import plain_reason

_T = TypeVar("_T")
_TIMEOUT_S = 10.0
_LOAD_TIMEOUT_S = 300.0
_POLL_S = 0.05
_NO_CONTROL = "explicit model load / unload is not allowed"
"""What Triton answers to the load API in the control modes `none` and `poll` (HTTP 503)."""
_NO_VARIANTS = "server not in explicit mode: variants cannot be loaded"
_NO_MODEL = "tritune-asks-for-control"


class Identity(NamedTuple):
    """What a server says of itself."""

    name: str
    version: str


class RunningServer:
    """A running server at HOST:PORT of its HTTP endpoint. Each call raises ExternalError when nothing answers there
    within `limit_s`; loading a model may take longer."""

    def __init__(self, url: str, limit_s: float = _TIMEOUT_S) -> None:
        self.url, self._limit_s = address(url), limit_s

    def identity(self) -> Identity:
        """Raises MissingError when no Triton answers."""
        try:
            about = TritonHttp(self.url, self._limit_s).metadata()
            return Identity(str(about["name"]), str(about["version"]))
        except TimeoutError as error:
            raise unreachable(self.url, TimeoutError(f"nothing within {self._limit_s:g} s")) from error
        except (OSError, http.client.HTTPException, Answer, ValueError, LookupError, TypeError) as error:
            raise unreachable(self.url, error) from error

    def models(self) -> list[str]:
        """Names of the models that are ready."""
        return self._ask("asking for the models", lambda http: http.model_names())

    def model_config(self, name: str) -> dict[str, Any]:
        """The configuration in force, completed by Triton. Raises UsageError for a model that is not loaded."""
        try:
            return self._ask(f"asking for the config of `{name}`", lambda http: http.model_config(name))
        except Refused as refusal:
            known = self.models()
            raise UsageError(
                "the server has no such model loaded",
                where=self.url,
                got=f"`{name}`",
                expected=", ".join(known) or "a loaded model",
                hint=suggest(name, known) or refusal.problems[0].what,
            ) from refusal

    def stats(self, name: str) -> dict[str, Any]:
        """Triton's cumulative statistics of the newest version, in ns. Raises Refused when the model is not loaded."""
        return self._ask(f"asking for the statistics of `{name}`", lambda http: http.stats(name))

    def require_control(self, what: str = _NO_VARIANTS, instead: str = ", or leave --allow-reconfigure out") -> None:
        """Raise UsageError unless the server takes load calls; asked with the unloading of a model that is none.

        The message is `what`, and its hint to restart the server ends with `instead`.
        """
        try:
            self._ask("asking whether models may be loaded", lambda http: http.unload(_NO_MODEL))
        except Refused as refusal:
            if _NO_CONTROL not in refusal.problems[0].what:
                raise
            raise UsageError(
                what,
                where=self.url,
                got=refusal.problems[0].what,
                hint=f"restart with --model-control-mode=explicit --load-model=NAME{instead}",
            ) from None

    def versions(self, name: str) -> list[int]:
        """The versions of a model that are ready, ascending."""
        return self.readiness(name)[0]

    def under_way(self, name: str) -> bool:
        """Whether a version of a model is being loaded or unloaded."""
        return self.readiness(name)[1]

    def readiness(self, name: str) -> tuple[list[int], bool]:
        """`versions` and `under_way` as they are at one time."""
        index = self._ask(f"asking for the versions of `{name}`", lambda http: http.index())
        known = [one for one in index if one["name"] == name and "state" in one]
        ready = sorted(int(one["version"]) for one in known if one["state"] == "READY")
        return ready, not {one["state"] for one in known} <= {"READY", "UNAVAILABLE"}

    def unload(self, name: str) -> None:
        """Unload a model once its requests in flight are answered; not waited for."""
        self._ask(f"unloading `{name}`", lambda http: http.unload(name))

    def load(self, name: str, config: dict[str, Any] | None = None, *, settle: bool = True) -> None:
        """Load the model anew from its directory, or with `config` from the call, so that no directory need be shared.

        Requests in flight are answered first, and nothing is unloaded before the new one is ready. With
        `settle` it returns when the old one is gone. Raises Refused with Triton's reason; what was loaded before then
        keeps serving.
        """
        content = None if config is None else json.dumps(config)
        self._ask(f"loading `{name}`", lambda http: http.load(name, content), _LOAD_TIMEOUT_S)
        if not settle:
            return
        deadline = time.monotonic() + _LOAD_TIMEOUT_S
        while self.under_way(name):
            if time.monotonic() > deadline:
                what = f"the model does not become ready within {_LOAD_TIMEOUT_S:g} s"
                raise ExternalError(what, where=self.url, got=f"`{name}`", hint=f"see the server's log; {BUSY}")
            time.sleep(_POLL_S)

    def trace(self, name: str, settings: dict[str, Any] | None = None) -> dict[str, Any]:
        """The trace settings in force for a model, after changing some (see TritonHttp). Raises Refused."""
        return self._ask(f"asking for the trace of `{name}`", lambda http: http.trace(name, settings))

    def _ask(self, doing: str, call: Callable[[TritonHttp], _T], limit_s: float | None = None) -> _T:
        limit_s = self._limit_s if limit_s is None else limit_s
        try:
            return call(TritonHttp(self.url, limit_s))
        except Answer as answer:
            hint = f"set {CONTROL_KEY} to the key of this server" if CONTROL_HEADER in answer.reason else None
            raise Refused(plain_reason(answer.reason), where=f"{self.url}, {doing}", hint=hint) from None
        except TimeoutError:
            what = f"the server did not answer within {limit_s:g} s while {doing}"
            raise ExternalError(what, where=self.url, hint=f"see its log; {BUSY}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ExternalError(
                f"the server went away while {doing}",
                where=self.url,
                got=str(error) or type(error).__name__,
                hint="see its log",
            ) from error
