"""Bytes and seconds as text for users. Needs no TensorFlow."""

_UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}


def bytes_text(num_bytes: float) -> str:
    """Returns a number of bytes as text with three digits, such as "12.3 MiB"."""
    for name, unit in _UNITS.items():
        if num_bytes >= unit / 10:
            return f"{number_text(num_bytes / unit, 3)} {name}"
    return f"{num_bytes:.0f} bytes"


def seconds_text(seconds: float) -> str:
    """Returns a time as text with four digits: in ms below one second, else in s."""
    if seconds >= 1:
        return f"{number_text(seconds, 4)} s"
    return f"{number_text(seconds * 1e3, 4)} ms"


def number_text(value: float, number: int) -> str:
    """Returns a value with `number` digits, or more if it has more before the point."""
    return f"{value:,.0f}" if value >= 10 ** (number - 1) else f"{value:.{number}g}"
