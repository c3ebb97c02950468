"""Lines for the user when a run starts, and when it ends."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lingvo_pipe.pipeline.devices.device_kind import DeviceKind
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.run.best_evaluation import BestEvaluation
from lingvo_pipe.training.run.run_parts import RunPart, kinds_note


def resumed_text(
    start: int, max_steps: int, parts: Sequence[RunPart], kinds: Sequence[DeviceKind]
) -> str:
    """Returns the lines for a run that resumes from step `start` on these devices."""
    note = ", the last: raise --max_steps to train on" if start == max_steps else ""
    lines = [f"Resumed from step {start}{note}."]
    if start and not parts:
        lines.append(
            "parts.json is missing: on which kind of device the run was trained so far "
            "is unknown."
        )
    if line := kinds_note(parts, start, kinds):
        lines.append(line)
    return "\n".join(lines)


def replaced_line(records: Sequence[Mapping[str, Any]]) -> str:
    """Returns the line for a run that has metrics, but no checkpoint."""
    return (
        "No checkpoint to resume from: starts at step 0, and replaces the metrics of "
        f"step {records[-1]['step']} and before."
    )


def result_text(best: BestEvaluation, checkpointer: Checkpointer) -> str:
    """Returns what a run has come to: its best evaluation, or its last checkpoint."""
    if best.step is not None:
        return f"{best.description}: {checkpointer.prefix(best.step)}"
    newest = max(checkpointer.saved_steps())
    return f"newest checkpoint: {checkpointer.prefix(newest)}"


def stopped_line(signal: str, step: int, saved_steps: Collection[int]) -> str:
    """Returns the line for a run that a signal has stopped after `step`."""
    if not saved_steps:
        return f"Stopped by {signal} before the first step; nothing is saved."
    saved, start = "which is saved", "there"
    if step not in saved_steps:
        saved = "which is not saved, since the run may roll back"
        start = f"step {max(saved_steps)}"
    return (
        f"Stopped by {signal} after step {step}, {saved}. The same command resumes "
        f"from {start}."
    )
