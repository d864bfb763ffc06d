"""Read a trace file of Triton: when each traced request passed from one part of the server to the next. Layer: bottom
of perf, pure."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from tooling.errors import UsageError

# Triton's names of the moments between the parts, HTTP's or gRPC's; a part goes from one moment to the next.
_PARTS = {
    "receive": (("HTTP_RECV_START", "GRPC_WAITREAD_END"), ("REQUEST_START",)),
    "queue": (("QUEUE_START",), ("COMPUTE_START",)),
    "compute_input": (("COMPUTE_START",), ("COMPUTE_INPUT_END",)),
    "compute_infer": (("COMPUTE_INPUT_END",), ("COMPUTE_OUTPUT_START",)),
    "compute_output": (("COMPUTE_OUTPUT_START",), ("COMPUTE_END",)),
    "send": (("REQUEST_END",), ("HTTP_SEND_END", "GRPC_SEND_END")),
}


def read_trace(path: Path) -> dict[str, list[float]]:
    """Microseconds of every traced request in each part, ascending; parts that no request has are left out.

    Raises UsageError for a file that is no trace of Triton.
    """
    moments: dict[Any, dict[str, int]] = defaultdict(dict)
    try:
        text = path.read_text(encoding="utf-8").rstrip(", \n")
        events = json.loads(text if text.endswith("]") else f"{text}]")  # the end comes when Triton closes the file
        for event in events:
            for stamp in event.get("timestamps", ()):
                moments[event["id"]][str(stamp["name"])] = int(stamp["ns"])
    except OSError as error:
        raise UsageError("the trace cannot be read", where=path, got=error.strerror) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError("not a trace file of Triton", where=path, got=f"{type(error).__name__}: {error}") from error
    found = {name: sorted(_spent(moments.values(), *ends)) for name, ends in _PARTS.items()}
    return {name: times for name, times in found.items() if times}


def _spent(requests: Any, starts: tuple[str, ...], ends: tuple[str, ...]) -> list[float]:
    times = []
    for moments in requests:
        start, end = (next((moments[name] for name in names if name in moments), None) for names in (starts, ends))
        if start is not None and end is not None:
            times.append((end - start) / 1e3)
    return times
