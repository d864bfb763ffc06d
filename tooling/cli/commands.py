"""The list of commands; each module imports only typer at the top and its libraries inside. Layer: cli."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import typer

_COMMANDS: Final = {
    "quickstart": "quickstart",
    "init": "init",
    "build": "build",
    "export": "export",
    "gen-config": "gen_config",
    "check": "check",
    "serve": "serve",
    "tune": "tune",
    "compare": "compare",
    "bottleneck": "bottleneck",
    "profile": "profile",
    "quality": "quality",
    "openai": "openai",
    "simulate": "simulate",
    "report": "report",
    "promote": "rollout",
    "rollback": "rollout",
    "drift": "rollout",
    "restore": "restore",
    "doctor": "doctor",
    "completion": "completion",
}
"""Their names as the help lists them, and the module of each."""
_GROUPS: Final[tuple[str, ...]] = ("deploy", "study", "workload", "runtime")


def register(app: typer.Typer, name: str | None = None) -> None:
    """Attach every command to the root; of a known `name` only what is needed to run that, which starts sooner."""
    modules, groups = dict.fromkeys(_COMMANDS.values()), _GROUPS
    if name in _COMMANDS:
        modules, groups = {_COMMANDS[name]: None}, ()
    elif name in _GROUPS:
        modules, groups = {}, (name,)
    app.registered_commands, app.registered_groups = [], []
    for module in modules:
        import_module(f"tooling.cli.{module}").attach(app)
    for group in groups:
        app.add_typer(import_module(f"tooling.cli.{group}").app, name=group)
