"""Schedules as CSV files, to be written in a spreadsheet. Pure.

One line a device, from device 0; one cell an operation, in order:

    F0.0,F1.0,,    ,    ,B0.0,B1.0
    ,    F0.1,F1.1,B0.1,B1.1

`B1.0` is the backward of micro-batch 1 on stage 0; F is forward, R recompute and W
weight gradient, see `Kind`; it is a schedule of one step, without UPDATEs. There is no
header. Empty cells mean nothing, so cells may be laid out by time, and empty lines are
no devices. Cells are separated by commas, semicolons or tabs, as spreadsheets export
them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lingvo_pipe.pipeline.schedules.fault_list import listed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule

_CELL = re.compile(r"([A-Z])([0-9]+)\.([0-9]+)")
_KINDS = {kind.value: kind for kind in Kind if kind is not Kind.UPDATE}


def read_csv(path: str | os.PathLike[str]) -> Schedule:
    """Reads a schedule from a file; it is not checked.

    Raises:
        ValueError: as `parse_csv` does, naming the file.
        OSError: if the file can't be read.
    """
    try:
        return parse_csv(Path(path).read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)} is no schedule: {error}") from error


def write_csv(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Writes a schedule to a file that `read_csv` reads back as the same schedule."""
    Path(path).write_text(format_csv(schedule), encoding="utf-8")


def format_csv(schedule: Schedule) -> str:
    """The text of a schedule, which `parse_csv` turns back into the same schedule."""
    return "".join(
        ",".join(f"{kind.value}{m}.{stage}" for kind, m, stage in column) + "\n"
        for column in schedule.columns
    )


def parse_csv(text: str) -> Schedule:
    """The schedule that a text describes; it is not checked.

    It has as many stages and micro-batches as the highest numbers in the text ask for.

    Raises:
        ValueError: naming line and cell of whatever can't be read.
    """
    columns: list[tuple[Op, ...]] = []
    faults: list[str] = []
    for line_number, line in enumerate(text.splitlines(), start=1):
        column = _read_line(line, f"line {line_number}", faults)
        if column:
            columns.append(column)
    if faults:
        raise ValueError(listed(faults))
    if not columns:
        raise ValueError("it has no operations; write one line a device.")
    ops = [op for column in columns for op in column]
    return Schedule(
        num_stages=1 + max(op.stage for op in ops),
        num_micro_batches=1 + max(op.micro_batch for op in ops),
        columns=tuple(columns),
    )


def _read_line(line: str, where: str, faults: list[str]) -> tuple[Op, ...]:
    """The operations of a line; what is wrong with it is added to `faults`."""
    ops = []
    for number, cell in enumerate(re.split("[,;\t]", line), start=1):
        text = cell.strip(' "')
        match = _CELL.fullmatch(text)
        if match and match[1] in _KINDS:
            ops.append(Op(_KINDS[match[1]], int(match[2]), int(match[3])))
        elif text:
            faults.append(f"{where}, cell {number}: {_explain(text)}")
    return tuple(ops)


def _explain(text: str) -> str:
    kinds = ", ".join(f"{text} ({kind.label})" for text, kind in _KINDS.items())
    if _CELL.fullmatch(text):
        return f"{text!r} begins with {text[0]!r}, but the kinds are {kinds}"
    return (
        f"{text!r} is no operation; write its kind, micro-batch and stage, as in "
        "'F0.1' for the forward of micro-batch 0 on stage 1"
    )
