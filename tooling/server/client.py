"""A small client of Triton's HTTP interface, on the standard library. Layer: server."""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import quote

from tooling.errors import MissingError, UsageError
from tooling.server.flags import CONTROL_HEADER, CONTROL_KEY

_ADDRESS: Final = re.compile(r"(?:http://)?([^\s/:@\[\]]+:\d{1,5}|\[[0-9A-Fa-f:.]+\]:\d{1,5})/?")
_CONNECT_S: Final = 10.0
"""A server that is there takes connections at once, however busy it is: its kernel does."""


class Answer(Exception):
    """The server answered an HTTP error; `reason` is its own text."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status, self.reason = status, reason


HTTP_ENDPOINT: Final = "the HTTP endpoint of a Triton server, such as localhost:8000"


def address(url: str, where: str = "--url", expected: str = HTTP_ENDPOINT) -> str:
    """HOST:PORT of an endpoint, which may be written as a URL. Raises UsageError for anything else."""
    found = _ADDRESS.fullmatch(url)
    if found is None or not 1 <= int(found[1].rpartition(":")[2]) <= 65_535:
        raise UsageError("not HOST:PORT", where=where, got=f"`{url}`", expected=expected)
    return found[1]


def on_this_machine(url: str) -> bool:
    """Whether HOST:PORT is an address of this very machine: loopback, by name or by number."""
    host = url.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def unreachable(url: str, error: Exception) -> MissingError:
    """The error for a place where no Triton server answers."""
    return MissingError(
        "no Triton server answers here",
        where=url,
        got=str(error) or type(error).__name__,
        expected="HOST:PORT of its HTTP endpoint, such as localhost:8000",
    )


class TritonHttp:
    """Calls to one server, each with the same deadline.

    Each raises Answer for an HTTP error, TimeoutError after the deadline, and another OSError or HTTPException when
    the connection fails.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s

    def server_name(self) -> str:
        """The server's `--id`, which tells a left-over server on the same port from ours."""
        return str(self.metadata()["name"])

    def metadata(self) -> dict[str, Any]:
        """What the server says of itself: name, version, extensions."""
        return dict(self._call("GET", "/v2"))

    def version(self) -> str:
        """The version of tritonserver, such as `2.51.0`."""
        return str(self.metadata()["version"])

    def load(self, name: str, config_json: str | None) -> None:
        """Load a model, with another configuration than the one on disk when `config_json` is given."""
        parameters = {} if config_json is None else {"config": config_json}
        self._call("POST", f"/v2/repository/models/{quote(name)}/load", {"parameters": parameters})

    def unload(self, name: str) -> None:
        self._call("POST", f"/v2/repository/models/{quote(name)}/unload", {})

    def states(self, name: str) -> list[str]:
        """The state of each version of a model that the server knows (READY, LOADING, UNLOADING, UNAVAILABLE)."""
        return [str(entry["state"]) for entry in self.index() if entry["name"] == name and "state" in entry]

    def index(self) -> list[dict[str, Any]]:
        """Every version of every model: name; version, state and reason where it was ever loaded."""
        return [dict(entry) for entry in self._call("POST", "/v2/repository/index", {})]

    def model_names(self) -> list[str]:
        """The models that are ready to serve."""
        index = self._call("POST", "/v2/repository/index", {"ready": True})
        return sorted({str(entry["name"]) for entry in index})

    def model_config(self, name: str) -> dict[str, Any]:
        return dict(self._call("GET", f"/v2/models/{quote(name)}/config"))

    def stats(self, name: str) -> dict[str, Any]:
        """Statistics of the newest version, as Triton gives them (durations in nanoseconds, cumulative)."""
        versions = self._call("GET", f"/v2/models/{quote(name)}/stats")["model_stats"]
        return dict(max(versions, key=lambda entry: int(entry["version"])))

    def trace(self, name: str, settings: dict[str, Any] | None = None) -> dict[str, Any]:
        """The trace settings in force for a model, after changing some; a setting of None is the server's own again."""
        path = f"/v2/models/{quote(name)}/trace/setting"
        return dict(self._call("GET" if settings is None else "POST", path, settings))

    def generate(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """The one answer of a model to values by the names of its inputs; outputs by name, texts as texts."""
        return dict(self._call("POST", f"/v2/models/{quote(name)}/generate", body))

    def _call(self, method: str, path: str, body: object = None) -> Any:
        host, _, port = self._url.rpartition(":")
        connect_s = min(self._timeout_s, _CONNECT_S)
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=connect_s)
        key = os.environ.get(CONTROL_KEY) if path.startswith("/v2/repository/") else None
        try:
            headers = {CONTROL_HEADER: key} if key else {}
            with _in_time(connect_s):
                connection.connect()
            connection.sock.settimeout(self._timeout_s)
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise Answer(response.status, _reason(text))
        return json.loads(text) if text else None


@contextmanager
def _in_time(connect_s: float) -> Iterator[None]:
    """A connection that does not come about is none; a server that does not answer is another matter."""
    try:
        yield
    except TimeoutError as error:
        raise ConnectionError(f"no connection within {connect_s:g} s") from error


def read_metrics(url: str, timeout_s: float) -> str:
    """The text of the metrics endpoint at HOST:PORT. Raises OSError or HTTPException without an answer."""
    host, _, port = url.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout_s)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode(errors="replace")
    finally:
        connection.close()


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text.strip()
