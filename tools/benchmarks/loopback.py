"""What goes over the loopback interface: what this machine's processes say."""

from __future__ import annotations

from pathlib import Path

# Of this process's network, which may be a sandbox's own.
_INTERFACES = Path("/proc/self/net/dev")
_SENT = 8  # The column of bytes sent, behind the interface's name.


def loopback_bytes() -> int:
    """All bytes sent so far, those of headers and acknowledgements included."""
    for line in _INTERFACES.read_text(encoding="ascii").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[_SENT])
    return 0
