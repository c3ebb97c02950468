"""A worker of a scheduler ends when its trainer has, and not before."""

from __future__ import annotations

import pytest

from lingvo_pipe.pipeline.devices.trainers_end import end_of_trainer

NEVER = 1e9
PATIENCE = 1000.0


def _end(
    up: list[tuple[float, float]], told_at: float, dismissed_at: float
) -> tuple[bool, float]:
    """Whether a trainer was seen, and when the wait for its end was over.

    Args:
        up: from when to when it can be reached.
        told_at: when this process is told to end.
        dismissed_at: when the trainer says that it ends.
    """
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    seen = end_of_trainer(
        lambda: any(begin <= now[0] < end for begin, end in up),
        lambda: now[0] >= told_at,
        lambda: now[0] >= dismissed_at,
        PATIENCE,
        lambda: now[0],
        sleep,
    )
    return seen, now[0]


@pytest.mark.parametrize(
    ("up", "told_at", "dismissed_at", "seen", "ends"),
    [
        ([(5, 100)], NEVER, 99, True, (99, 101)),
        ([(5, 100), (900, 990)], NEVER, 990, True, (990, 992)),  # It was started again.
        ([(5, 100)], NEVER, NEVER, True, (1399, 1402)),  # It was killed.
        ([], NEVER, NEVER, False, (1300, 1302)),
        ([(5, 100)], 50, NEVER, True, (100, 105)),  # It saves its step.
        ([(5, 100)], 120, NEVER, True, (120, 122)),
        ([], 50, NEVER, False, (50, 52)),
        ([], NEVER, 20, True, (20, 22)),  # It ended before it listened.
    ],
)
def test_the_end(
    up: list[tuple[float, float]],
    told_at: float,
    dismissed_at: float,
    seen: bool,
    ends: tuple[int, int],
) -> None:
    was_seen, ended = _end(up, told_at, dismissed_at)
    assert was_seen == seen
    assert ends[0] <= ended <= ends[1]
