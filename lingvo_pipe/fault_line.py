"""Tells faults that our checks find, and those of disks, from errors in a program."""

from __future__ import annotations

import dis
from pathlib import Path

from lingvo_pipe.disk_fault import disk_fault

OURS = (
    Path(__file__).resolve().parent,
    Path(__file__).resolve().parents[1] / "model_registry",
)


def fault_line(error: Exception) -> str | None:
    """The text of an error that a check of ours raised, or of a disk's, else None.

    It says all that the user needs. Of any other error, such as one in the code of a
    user's model, the user is told more: see `error_text`.
    """
    of_disk = disk_fault(error)
    if of_disk is not None:
        return of_disk
    raised = error.__traceback__
    while raised is not None and raised.tb_next:
        raised = raised.tb_next
    if raised is None:
        return None
    code = raised.tb_frame.f_code
    file = Path(code.co_filename).resolve()
    is_ours = any(file.is_relative_to(folder) for folder in OURS)
    on_purpose = dis.opname[code.co_code[raised.tb_lasti]] == "RAISE_VARARGS"
    if not is_ours or not on_purpose or isinstance(error, NotImplementedError):
        return None
    return str(error.args[0]) if error.args else None
