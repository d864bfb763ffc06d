"""`tritune profile`: the service curve of a model, measured on the embedded server and stored. Layer: cli."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tooling.cli.app import console_of
from tooling.cli.options import MOST, TOKENIZER, counts, duration_us, grid_of, require_url, workload_of
from tooling.console import table
from tooling.errors import UsageError
from tooling.units import format_duration_us

if TYPE_CHECKING:
    from perf.curve import Series, ServiceCurve, Setting


def attach(app: typer.Typer) -> None:
    app.command()(profile)


def profile(
    context: typer.Context,
    model: Path = typer.Argument(metavar="MODEL_DIR|NAME", help="REPO/NAME, or with --url the name of a model."),
    url: str = typer.Option("", metavar="HOST:PORT", help="A Triton that runs already, by its HTTP address."),
    allow_reconfigure: bool = typer.Option(
        False, "--allow-reconfigure", help="Load other settings there; its own come back. Else only those it has."
    ),
    instances: str = typer.Option("", metavar="N,…", help="Instance counts. Default: those that `tune` would try."),
    threads: str = typer.Option(
        "", metavar="N,…", help="Threads per instance; 0: left to ONNX Runtime. Default: those that `tune` would try."
    ),
    rows: str = typer.Option("", metavar="N,…", help="Rows of an execution. Default: 1, the middle, max_batch_size."),
    lengths: str = typer.Option("", metavar="N,…", help="Lengths. Default: shortest, middle, longest of the traffic."),
    traffic: str = typer.Option("", metavar="N,…", help="Token lengths of the traffic. Default: real sentences."),
    workload: Path | None = typer.Option(None, metavar="FILE", help="Take the lengths from this workload."),
    budget: str = typer.Option(
        "", metavar="TIME", help="End after this time, the start of the server aside; refused if too small [90s]."
    ),
    curve: Path | None = typer.Option(None, metavar="FILE", help="Where to store it [.tritune/curves/…]."),
    plot: Path | None = typer.Option(None, metavar="FILE", help="Draw it, with the law, as an SVG file."),
    tokenizer: Path | None = TOKENIZER,
    vocab_size: int | None = typer.Option(
        None, min=8, max=MOST, help="Size of the vocabulary, where there is no tokenizer."
    ),
) -> None:
    """Measure how long executions take, by rows, length and busy instances, for `tritune simulate`."""
    from perf.curve import curve_path, write_curve
    from perf.curve_plot import write_plot
    from perf.profile import profile as measure
    from perf.profile_request import ProfileRequest
    from perf.target import RunningTarget
    from tooling.repository import cpu_name, require_writable
    from tooling.runtime import find_runtime

    console = console_of(context)
    require_url(url, reconfigure=allow_reconfigure)
    if workload and traffic:
        raise UsageError("--workload and --traffic exclude each other", hint="give one of them")
    sent = workload_of(file=workload) if workload else None
    for file in (curve or curve_path(model.absolute().name, cpu_name()), plot):
        if file:
            require_writable(file)
    request = ProfileRequest(
        model_dir=model,
        grid=grid_of(instances, threads, "", ""),
        rows=counts("--rows", rows),
        lengths=counts("--lengths", lengths),
        traffic=sent.lengths if sent else counts("--traffic", traffic),
        texts=sent.texts if sent else (),
        tokenizer_dir=tokenizer,
        vocab_size=vocab_size,
        budget_s=duration_us("--budget", budget or "90s") / 1e6,
        strict=bool(budget),
    )
    running = RunningTarget(url, str(model), reconfigure=allow_reconfigure) if url else None
    measured = measure(request, runtime=find_runtime(), console=console, running=running)
    path = curve or curve_path(measured.model["name"], cpu_name())
    write_curve(measured, path)
    drawn = write_plot(measured, plot) if plot else None
    series = {setting: measured.of(setting) for setting in measured.settings}
    data = {
        "curve": str(path.absolute()),
        "plot": str(drawn.absolute()) if drawn else None,
        "left_out": measured.left_out,
        "series": [_as_dict(setting, one) for setting, one in series.items()],
    }
    shown = f"\nplot    {drawn}" if drawn else ""
    text = "\n\n".join(_as_text(setting, one) for setting, one in series.items())
    console.result(data, f"{text}\n\n{_footer(measured)}\ncurve   {path}{shown}")


def _as_dict(setting: Setting, series: Series) -> dict[str, object]:
    return {
        **setting._asdict(),
        "points": [
            {
                "rows": point[0],
                "length": point[1],
                "ms": time,
                "uncertainty": series.uncertainty(point),
                "residual": series.fit.residuals[point],
            }
            for point, time in series.points.items()
        ],
        "slowdown": list(series.slowdown),
        "spin": series.spin,
        "dispatch_us": series.dispatch_us,
        "merge_us": series.merge_us,
        "client_us": series.client_us,
        "law": {"terms": list(series.fit.terms), "worst_residual": series.fit.worst, "good": series.fit.good},
    }


def _as_text(setting: Setting, series: Series) -> str:
    rows = [
        [f"{point[0]} × {point[1]}", f"{time:.2f}", f"{series.uncertainty(point):.0%}", f"{residual:+.0%}"]
        for (point, time), residual in zip(series.points.items(), series.fit.residuals.values(), strict=True)
    ]
    slower = [f"{f:.2f}× with {n} busy" for n, f in enumerate(series.slowdown, start=1) if n > 1]
    slower += [f"{series.spin:.2f}× more while lengths that differ wait"] if series.spin > 1 else []
    lines = [
        str(setting),
        table(["rows × length", "ms", "±", "law off by"], rows),
        f"law     {series.fit}{'' if series.fit.good else ' — does not fit'}",
        f"adds    {_us(series.dispatch_us)} an execution, {_us(series.merge_us)} a merged request",
        f"client  {_us(series.client_us)} there and back",
    ]
    return "\n".join([*lines, f"slower  {', '.join(slower)}"] if slower else lines)


def _us(value: float) -> str:
    return format_duration_us(value)


def _footer(curve: ServiceCurve) -> str:
    others = "" if curve.foreign_cores is None else f"; other programs used {curve.foreign_cores:.1f} cores"
    missing = (f"left out for want of time, {setting}: {', '.join(what)}" for setting, what in curve.left_out.items())
    return "\n".join([*missing, f"{len(curve.runs)} runs in {curve.wall_s:.0f} s{others}"])
