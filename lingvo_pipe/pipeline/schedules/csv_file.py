"""Schedules as CSV files, which a spreadsheet can write.

Each line is a device, starting with device 0. Each cell is an operation, in order:

    F0.0,F1.0,,    ,    ,B0.0,B1.0
    ,    F0.1,F1.1,B0.1,B1.1

`B1.0` is the backward of micro-batch 1 on stage 0. F is forward, R recompute, W weight
gradient, O offload and L load (see `Kind`). The file is a schedule of one step, without
UPDATEs and without a header. Empty cells and lines are ignored, so cells may be laid
out by time. Commas, semicolons or tabs separate cells, as spreadsheets export them.
"""

import itertools
import os
import re
from pathlib import Path

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.pipeline.schedules.check import join_problems
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule

_CELL = re.compile(r"([A-Z])([0-9]+)\.([0-9]+)")
_KINDS = {kind.value: kind for kind in Kind if kind is not Kind.UPDATE}


def read_csv(path: str | os.PathLike[str]) -> Schedule:
    """Reads a schedule from a file, without checking that it can run.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if the text is not valid (see `parse_csv`).
    """
    try:
        return parse_csv(Path(path).read_text(encoding="utf-8-sig"))
    except ValueError as error:
        file = os.fspath(path)
        raise UserValueError(f"{file} is not a schedule: {error}", path=file) from error


def write_csv(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Writes a schedule to a CSV file that `read_csv` reads."""
    Path(path).write_text(format_csv(schedule), encoding="utf-8")


def format_csv(schedule: Schedule) -> str:
    """Returns a schedule as the text of a CSV file, which `parse_csv` reads."""
    return "".join(
        ",".join(f"{kind.value}{m}.{stage}" for kind, m, stage in column) + "\n"
        for column in schedule.columns
    )


def parse_csv(text: str) -> Schedule:
    """Returns the schedule that a text describes, without checking that it can run.

    The schedule's stages and micro-batches go up to the highest numbers in the text.

    Raises:
        ValueError: if there are no operations, or if cells are not valid.
    """
    problems: list[str] = []
    columns_of_lines = [
        _parse_line(line, line_number, problems)
        for line_number, line in enumerate(text.splitlines(), start=1)
    ]
    columns = [column for column in columns_of_lines if column]
    if problems:
        raise UserValueError(join_problems(problems))
    if not columns:
        raise UserValueError(
            expected="operations, one line per device", got=Words("none")
        )
    ops = list(itertools.chain.from_iterable(columns))
    return Schedule(
        num_stages=1 + max(op.stage for op in ops),
        num_micro_batches=1 + max(op.micro_batch for op in ops),
        columns=tuple(columns),
    )


def _parse_line(line: str, line_number: int, problems: list[str]) -> tuple[Op, ...]:
    """Returns the operations in a line. Adds descriptions of errors to `problems`."""
    ops = []
    for number, cell in enumerate(re.split("[,;\t]", line), start=1):
        text = cell.strip(' "')
        match = _CELL.fullmatch(text)
        if match and match[1] in _KINDS:
            ops.append(Op(_KINDS[match[1]], int(match[2]), int(match[3])))
        elif text:
            problems.append(f"line {line_number}, cell {number}: {_explain(text)}")
    return tuple(ops)


def _explain(text: str) -> str:
    kinds = ", ".join(f"{text} ({kind.label})" for text, kind in _KINDS.items())
    if _CELL.fullmatch(text):
        return f"{text!r} begins with {text[0]!r}, but the kinds are {kinds}"
    return (
        f"{text!r} is not an operation; write its kind, micro-batch and stage, as in "
        "'F0.1' for the forward of micro-batch 0 on stage 1"
    )
