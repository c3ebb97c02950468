"""Bytes and seconds as users read them. Pure."""

from __future__ import annotations

_GIB, _MIB = 2**30, 2**20


def amount(num_bytes: float) -> str:
    """Bytes as text with their unit, three digits: MiB below a tenth of a GiB."""
    unit, name = (_MIB, "MiB") if num_bytes < _GIB / 10 else (_GIB, "GiB")
    value = num_bytes / unit
    return f"{value:,.0f} {name}" if value >= 100 else f"{value:.3g} {name}"


def seconds_text(seconds: float) -> str:
    """Seconds as text with their unit: ms below one."""
    return f"{seconds:.4g} s" if seconds >= 1 else f"{seconds * 1e3:.4g} ms"
