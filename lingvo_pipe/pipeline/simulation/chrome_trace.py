"""Timelines in the format of Chrome's tracing, which Perfetto reads too."""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline


def chrome_trace(timelines: Mapping[str, Timeline]) -> str:
    """Returns timelines, by name, as JSON for chrome://tracing or Perfetto.

    A timeline is a process, and each device is a thread. A device's copies to its host
    are another thread, and its copies from the host are a third one.
    """
    events = []
    for process, (name, timeline) in enumerate(timelines.items()):
        events.append(_metadata("process_name", name, pid=process))
        for device in range(len(timeline.columns)):
            title = f"device {device}"
            events.append(_metadata("thread_name", title, pid=process, tid=device))
        for device, timed in timeline.ops():
            events.append({"pid": process, "tid": device, **_complete_event(timed)})
        events += _copy_events(timeline, process)
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


def _copy_events(timeline: Timeline, process: int) -> Iterator[dict[str, Any]]:
    threads = itertools.count(len(timeline.columns))
    for device, copies in enumerate(timeline.copies):
        for kind, direction in ((Kind.OFFLOAD, "to"), (Kind.LOAD, "from")):
            lane = [timed for timed in copies if timed.op.kind is kind]
            if lane:
                ids = {"pid": process, "tid": next(threads)}
                title = f"device {device} {direction} host"
                yield _metadata("thread_name", title, **ids)
                yield from ({**ids, **_complete_event(timed)} for timed in lane)


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
