"""The list of commands; each module imports only typer at the top and its libraries inside. Layer: cli."""

from __future__ import annotations

from tooling.cli.app import app

_registered = False


def register() -> None:
    """Attach every command to the root once."""
    global _registered
    if _registered:
        return
    _registered = True
    from tooling.cli import doctor, export, gen_config, quickstart, runtime, serve, tune

    for module in (quickstart, export, gen_config, serve, tune, doctor):
        module.attach(app)
    app.add_typer(runtime.app, name="runtime")
