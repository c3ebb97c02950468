"""Tells the faults that our checks find from errors in a program."""

from __future__ import annotations

import dis
from pathlib import Path

OURS = (
    Path(__file__).resolve().parent,
    Path(__file__).resolve().parents[1] / "model_registry",
)


def fault_line(error: Exception) -> str | None:
    """The text of an error that a check of ours raised, else None.

    Its text says all that the user needs. Of any other error, such as one in the code
    of a user's model, the user is told more: see `error_text`.
    """
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
