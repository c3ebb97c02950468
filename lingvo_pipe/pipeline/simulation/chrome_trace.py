"""Timelines in the format of Chrome's tracing, which Perfetto reads too. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline


def chrome_trace(timelines: Mapping[str, Timeline]) -> str:
    """The JSON text of a trace: a process for each named timeline, a thread a device.

    Put it into a file and open that in chrome://tracing or Perfetto.
    """
    events = [
        event
        for process, (name, timeline) in enumerate(timelines.items())
        for event in _events(process, name, timeline)
    ]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


def _events(process: int, name: str, timeline: Timeline) -> Iterator[dict[str, Any]]:
    yield _named("process_name", {"pid": process}, name)
    for device in range(len(timeline.columns)):
        thread = {"pid": process, "tid": device}
        yield _named("thread_name", thread, f"device {device}")
    for device, timed in timeline.ops():
        yield {"pid": process, "tid": device, **_complete_event(timed)}


def _named(what: str, where: dict[str, int], name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "args": {"name": name}, **where}


def _complete_event(timed: TimedOp) -> dict[str, Any]:
    op = timed.op
    kind = op.kind.label
    return {
        "ph": "X",
        "name": f"{kind} {op.micro_batch}",
        "cat": kind,
        "ts": timed.start * 1e6,
        "dur": timed.seconds * 1e6,
        "args": {
            "micro-batch": op.micro_batch,
            "stage": op.stage,
            "waited for messages (ms)": (timed.start - timed.wait_start) * 1e3,
        },
    }
