"""`tritune restore`: give a running server back the configuration that a killed run took from it. Layer: cli."""

from __future__ import annotations

import typer

from tooling.cli.app import console_of


def attach(app: typer.Typer) -> None:
    app.command()(restore)


def restore(
    context: typer.Context,
    force: bool = typer.Option(False, "--force", help="Also where somebody else has changed the configuration since."),
) -> None:
    """Load again what a model on a running server had before a killed `--allow-reconfigure` run changed it."""
    from tooling.server.journal import outcome
    from tooling.server.journal import restore as give_back

    console = console_of(context)
    found = give_back(force=force, tell=console.info)
    text = "\n".join(outcome(*one) for one in found) or "nothing to give back"
    console.result({"restored": [{"model": where, "loaded": changed} for where, changed in found]}, text)
