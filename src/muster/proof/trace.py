"""A timeline as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is Chrome's trace event format: complete events, times in microseconds, a thread a track.
"""

import gzip
import json
from pathlib import Path
from typing import Any

from muster.errors import BadInput
from muster.proof.costs import MAIN
from muster.proof.timeline import Timeline

_PROCESS = 1
_MICRO = 1e6


def trace_document(timeline: Timeline, *, name: str) -> dict[str, Any]:
    """The trace as a JSON object.

    Args:
        timeline: of one step.
        name: of the process that it is shown as, such as the model and the hardware.
    """
    others = sorted({span.track for span in timeline.spans} - {MAIN})
    threads = {track: number for number, track in enumerate([MAIN, *others])}
    named: list[dict[str, Any]] = [
        {"ph": "M", "pid": _PROCESS, "name": "process_name", "args": {"name": name}},
    ]
    for track, thread in threads.items():
        about = {"ph": "M", "pid": _PROCESS, "tid": thread}
        named.append(about | {"name": "thread_name", "args": {"name": track}})
        named.append(about | {"name": "thread_sort_index", "args": {"sort_index": thread}})
    events = [
        {
            "ph": "X",
            "pid": _PROCESS,
            "tid": threads[span.track],
            "ts": span.begin * _MICRO,
            "dur": span.seconds * _MICRO,
            "name": span.label,
            "cat": "wait" if span.wait else span.kind,
            "args": {"operation": span.name},
        }
        for span in sorted(timeline.spans, key=lambda span: span.begin)
    ]
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "predicted": "a step that has not run: the compiler's cycles, the shapes, the links",
            "step_seconds": timeline.seconds,
            "notes": list(timeline.notes),
        },
        "traceEvents": [*named, *events],
    }


def write_trace(timeline: Timeline, path: Path, *, name: str) -> None:
    """Write a trace, compressed where the path ends in .gz.

    Raises:
        BadInput: the file cannot be written.
    """
    data = json.dumps(trace_document(timeline, name=name), separators=(",", ":")).encode()
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BadInput(f"cannot write {path}: {error.strerror}") from None
