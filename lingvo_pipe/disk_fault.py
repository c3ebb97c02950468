"""What users are told when a disk takes no more."""

from __future__ import annotations

import errno
import os

# The error numbers -> what is wrong, and what to do.
_FAULTS = {
    (errno.ENOSPC, errno.EDQUOT): ("have room on the disk", "Make room"),
    (errno.EFBIG,): ("be allowed its size", "Raise the limit of files (ulimit -f)"),
    (errno.EROFS,): ("go to a disk that may be written", "Mount it for writing"),
}


def disk_fault(error: Exception) -> str | None:
    """A line about what could not be written to a disk; None for any other error.

    Args:
        error: an OSError, or one of TensorFlow's, whose text ends in the system's.
    """
    for numbers, (rule, remedy) in _FAULTS.items():
        for number in numbers:
            where = _where(error, number)
            if where is not None:
                return (
                    f"What a run writes must {rule}; got '{os.strerror(number)}'"
                    f"{where and f' at {where}'}. {remedy}, and give the same command "
                    "again. Checkpoints that were saved before are as they were."
                )
    return None


def _where(error: Exception, number: int) -> str | None:
    """The file that an error of this number is about, "" if unknown; else None."""
    if isinstance(error, OSError):
        return str(error.filename or "") if error.errno == number else None
    if not hasattr(error, "error_code"):  # It is none of TensorFlow's.
        return None
    before, found, _ = str(error).partition(f"; {os.strerror(number)}")
    if not found:
        return None
    return (before.split() or [""])[-1]
