"""Axes of curves: the range of numbers they show, and the labeled ticks. Pure."""

import dataclasses
import itertools
import math
import re

# The distance between ticks is one of these times a power of ten.
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_NUM_STEPS = 4
_MAX_LOG_TICKS = 6
# Numbers from here on, and below the next, are written with an exponent.
_LARGE = 1e6
_SMALL = 1e-4


@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high` with labeled ticks, ascending."""

    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def position(self, value: float) -> float:
        """Returns a number's position: 0 at the start, 1 at the end."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low)

    def labels(self) -> list[str]:
        """Returns the ticks as texts, with as many digits as distinguish them."""
        if self.is_log:
            return list(map(number_text, self.ticks))
        is_plain = _SMALL <= max(map(abs, self.ticks)) < _LARGE
        for digits in range(0 if is_plain else 1, 17):
            form = f",.{digits}f" if is_plain else f".{digits}g"
            texts = [format(tick, form) for tick in self.ticks]
            if all(map(_is_exact, texts, self.ticks)):
                break
        return list(map(_short_exponent, texts))


def linear_axis(low: float, high: float) -> Axis:
    """Returns an axis that starts and ends at ticks, or at 0 if that is near."""
    if low == high:
        around = abs(low) / 10 or 1.0
        low, high = low - around, high + around
    if 0 <= low <= high / 2:
        low = 0.0
    step = _nice_step((high - low) / _NUM_STEPS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(float(f"{n * step:.12g}") for n in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks)


def step_axis(last: int) -> Axis:
    """Returns the axis of steps from 0 to a run's last step, in whole numbers."""
    last = max(last, 1)
    step = max(int(_nice_step(last / _NUM_STEPS)), 1)
    return Axis(0, last, tuple(map(float, range(0, last + 1, step))))


def log_axis(low: float, high: float) -> Axis:
    """Returns a logarithmic axis of numbers from `low`, above 0, to a larger one."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        all_ticks = (f * 10.0**n for n, f in itertools.product(powers, factors))
        ticks = [tick for tick in all_ticks if low <= tick <= high]
        if len(ticks) <= _MAX_LOG_TICKS:
            break
    stride = math.ceil(len(ticks) / _MAX_LOG_TICKS)
    return Axis(low, high, tuple(ticks[::stride]), is_log=True)


def number_text(value: float) -> str:
    """Returns a number as a short text: `0.9944`, `1,234`, `3e-5`, `nan`."""
    if value.is_integer() and abs(value) < _LARGE:
        return f"{value:,.0f}"
    return _short_exponent(f"{value:.4g}")


def _nice_step(minimum: float) -> float:
    power = 10.0 ** math.floor(math.log10(minimum))
    return next(s * power for s in _STEPS if s * power >= minimum * (1 - 1e-9))


def _is_exact(text: str, number: float) -> bool:
    return math.isclose(float(text.replace(",", "")), number, rel_tol=1e-9)


def _short_exponent(text: str) -> str:
    return re.sub(r"e([+-])0*(\d)", lambda m: f"e{m[1].strip('+')}{m[2]}", text)
