"""Lines for the user when a run starts, and when it ends."""

from collections.abc import Collection, Sequence

from lingvo_pipe.core.near_names import first_names
from lingvo_pipe.pipeline.devices.device_kind import DeviceKind
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.run.best_evaluation import BestEvaluation
from lingvo_pipe.training.run.metrics_log import read_metrics
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.run.run_parts import RunPart, kinds_note

_MAX_NAMED = 3


def resumed_text(
    start: int,
    max_steps: int,
    parts: Sequence[RunPart],
    kinds: Sequence[DeviceKind],
    changes: Sequence[str] = (),
) -> str:
    """Returns the lines for a run that resumes from `start` with changes of params."""
    note = ", the last: raise --max_steps to train on" if start == max_steps else ""
    lines = [f"Resumed from step {start}{note}."]
    if start and not parts:
        lines.append(
            "parts.json is missing: on which kind of device the run was trained so far "
            "is unknown."
        )
    if line := kinds_note(parts, start, kinds):
        lines.append(line)
    if changes:
        named = first_names(changes, _MAX_NAMED)
        lines.append(f"From here on bytes differ from an unchanged run's: {named}")
    return "\n".join(lines)


def replaced_line(directory: RunDirectory, num_skipped: int) -> str:
    """Returns the line for a run without a checkpoint, or "" if it replaces nothing."""
    records, changes = read_metrics(directory.path), directory.read_changes()
    replaced = [
        f"the metrics of step {records[-1]['step']} and before" if records else "",
        f"the record of {num_skipped} skipped batches" if num_skipped else "",
        f"{len(changes)} earlier changes of params" if changes else "",
    ]
    texts = ", ".join(filter(None, replaced))
    line = f"No checkpoint to resume from: starts at step 0, and replaces {texts}."
    return line if texts else ""


def result_text(best: BestEvaluation, checkpointer: Checkpointer) -> str:
    """Returns what a run has come to: its best evaluation, or its last checkpoint."""
    if best.step is not None:
        return f"{best.description}: {checkpointer.prefix(best.step)}"
    newest = max(checkpointer.intact_steps())
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
