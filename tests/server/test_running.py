"""What is said of a server that is reached and does not answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tooling.errors import BUSY, ExternalError, MissingError
from tooling.server.running import RunningServer


@pytest.fixture
def silent() -> Iterator[str]:
    """A place that takes connections and says nothing, as a server that gets no core does for a while."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        yield f"127.0.0.1:{place.getsockname()[1]}"


def test_a_time_limit_is_told_and_what_may_have_used_it_up(silent: str) -> None:
    server = RunningServer(silent, 0.2)
    with pytest.raises(MissingError, match=r"no Triton server answers here \(got nothing within 0\.2 s"):
        server.identity()
    with pytest.raises(ExternalError, match=r"did not answer within 0\.2 s while asking for the models") as raised:
        server.models()
    assert raised.value.problems[0].hint == f"see its log; {BUSY}"
