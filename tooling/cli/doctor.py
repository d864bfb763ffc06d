"""`tritune doctor`: what works on this machine, what is missing, and the command that fixes it. Layer: cli."""

from __future__ import annotations

import typer

from tooling.cli.app import console_of


def attach(app: typer.Typer) -> None:
    @app.command()
    def doctor(context: typer.Context) -> None:
        """Show what works on this machine, what is missing and how to fix it (exit 3: the main job cannot run)."""
        from tooling.cli.capabilities import examine

        console = console_of(context)
        found = examine()
        blocked = [c.name for c in found if c.blocks]
        width = max(len(c.name) for c in found)
        lines = [f"{c.name:<{width}}  {c.state:<7}  {c.detail}".rstrip() for c in found]
        lines += ["", *(f"fix {c.name}: {c.fix}" for c in found if c.fix)]
        lines.append(
            f"The main job cannot run here: {', '.join(blocked)}."
            if blocked
            else "The main job (export, serve, measure, tune) runs here."
        )
        console.result({"ready": not blocked, "capabilities": [c.as_dict() for c in found]}, "\n".join(lines))
        if blocked:
            raise typer.Exit(3)
