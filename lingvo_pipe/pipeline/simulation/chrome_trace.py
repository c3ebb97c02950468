"""Timelines in the format of Chrome's tracing, which Perfetto reads too."""

import json
from collections.abc import Mapping
from typing import Any

from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline


def chrome_trace(timelines: Mapping[str, Timeline]) -> str:
    """Returns timelines, by name, as JSON for chrome://tracing or Perfetto.

    A timeline is shown as a process, and each of its devices as a thread.
    """
    events = []
    for process, (name, timeline) in enumerate(timelines.items()):
        events.append(_metadata("process_name", name, pid=process))
        for device in range(len(timeline.columns)):
            title = f"device {device}"
            events.append(_metadata("thread_name", title, pid=process, tid=device))
        for device, timed in timeline.ops():
            events.append({"pid": process, "tid": device, **_complete_event(timed)})
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


def _metadata(event: str, name: str, **ids: int) -> dict[str, Any]:
    return {"ph": "M", "name": event, "args": {"name": name}, **ids}


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
