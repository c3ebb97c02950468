"""The signal that a process gets when its parent dies. Linux alone knows it."""

from __future__ import annotations

import ctypes

_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2  # Of prctl(2).


def death_signal() -> int:
    """The calling thread's; 0: none."""
    found = ctypes.c_int(0)
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_GET_PDEATHSIG, ctypes.byref(found), 0, 0, 0)
    return found.value


def set_death_signal(number: int) -> None:
    """Sets it for the calling thread, and for the program that it may become.

    Raises:
        OSError: if the system refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")
