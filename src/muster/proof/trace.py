"""A timeline as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is Chrome's trace event format: complete events, times in microseconds, a thread a track.
"""

import gzip
import json
from typing import Any

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


def trace_bytes(timeline: Timeline, *, name: str, compressed: bool) -> bytes:
    """What a trace's file holds, which a name that ends in .gz asks to be compressed."""
    data = json.dumps(trace_document(timeline, name=name), separators=(",", ":")).encode()
    return gzip.compress(data, mtime=0) if compressed else data
