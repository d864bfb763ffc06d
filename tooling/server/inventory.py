"""What a running server has loaded: models, versions and the configs in force. Layer: server."""

from __future__ import annotations

import http.client
from typing import Any, Final

from tooling.check.rules.served import READY, Served, State
from tooling.check.served import Server
from tooling.config.proto import ModelConfig, pb
from tooling.server.client import Answer, TritonHttp, unreachable

_TIMEOUT_S: Final = 10


def read_server(url: str) -> Server:
    """Everything that the server at `url` (HOST:PORT of its HTTP endpoint) has ever loaded.

    Raises MissingError when no Triton server answers there.
    """
    client = TritonHttp(url, _TIMEOUT_S)
    try:
        version = client.version()
        listed: dict[str, dict[int, State]] = {}
        for entry in client.index():
            states = listed.setdefault(str(entry["name"]), {})
            if "version" in entry:
                state = State(str(entry.get("state", "not loaded")), str(entry.get("reason", "")))
                states[int(entry["version"])] = state
        models = {name: Served(states, _config(client, name, states)) for name, states in listed.items()}
    except (Answer, OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise unreachable(url, error) from error
    return Server(url, version, models)


def _config(client: TritonHttp, name: str, states: dict[int, State]) -> ModelConfig | None:
    if not any(state.state == READY for state in states.values()):
        return None
    try:
        return config_message(client.model_config(name))
    except Answer:  # unloaded meanwhile, or a server that does not tell
        return None


def config_message(content: dict[str, Any]) -> ModelConfig:
    """The config of Triton's JSON; fields of a newer server that the schema does not know are left out. Raises
    ValueError for what is none."""
    from google.protobuf.json_format import ParseDict, ParseError

    try:
        return ParseDict(content, pb().ModelConfig(), ignore_unknown_fields=True)
    except ParseError as error:
        raise ValueError(f"a config that is none: {error}") from error
