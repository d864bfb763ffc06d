"""The list of commands; each module imports only typer at the top and its libraries inside. Layer: cli."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Attach every command to the root, once."""
    from tooling.cli import (
        bottleneck,
        build,
        check,
        compare,
        completion,
        deploy,
        doctor,
        export,
        gen_config,
        init,
        profile,
        quality,
        quickstart,
        report,
        restore,
        rollout,
        runtime,
        serve,
        simulate,
        study,
        tune,
        workload,
    )

    if app.registered_commands:
        return
    for module in (
        quickstart,
        init,
        build,
        export,
        gen_config,
        check,
        serve,
        tune,
        compare,
        bottleneck,
        profile,
        quality,
        simulate,
        report,
        rollout,
        restore,
        doctor,
        completion,
    ):
        module.attach(app)
    app.add_typer(deploy.app, name="deploy")
    app.add_typer(study.app, name="study")
    app.add_typer(workload.app, name="workload")
    app.add_typer(runtime.app, name="runtime")
