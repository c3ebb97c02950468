"""Whether a process is stopped, as the system sees it."""

from __future__ import annotations

from pathlib import Path

_STOPPED = "T"  # By a signal such as SIGSTOP; under a debugger it would be t.


def is_stopped(pid: int) -> bool:
    """Whether a process has been stopped by a signal, and not continued.

    Args:
        pid: of a child, which may have ended.
    """
    # The state follows the program's name, which may hold brackets and spaces itself.
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()[0] == _STOPPED
