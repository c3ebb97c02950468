"""A worker under a scheduler ends when its trainer has ended, and not before."""

from __future__ import annotations

import pytest

from lingvo_pipe.core.errors import UserConnectionError
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.own_addresses import answers, unused_ports
from lingvo_pipe.pipeline.devices.trainer_liveness import answer_workers, poll_trainer
from tests.support.errors import fails

NEVER = 1e9
PATIENCE = 1000.0


def _end(
    up: list[tuple[float, float]],
    signal_at: float,
    notice_at: float,
    released_at: float = NEVER,
) -> tuple[bool, float]:
    """Returns whether a trainer was seen, and the end of the wait.

    Args:
        up: intervals in which the trainer can be reached.
        signal_at: time of a termination signal.
        notice_at: time of the trainer's shutdown notice.
        released_at: time when the trainer no longer uses the worker.
    """
    now = [0.0]

    def is_released() -> bool:
        if released_at < NEVER:
            now[0] += 5.0  # The question may take this long.
        return now[0] >= released_at

    def sleep(seconds: float) -> None:
        now[0] += seconds

    seen = poll_trainer(
        lambda: any(begin <= now[0] < end for begin, end in up),
        lambda: now[0] >= signal_at,
        lambda: now[0] >= notice_at,
        is_released,
        PATIENCE,
        lambda: now[0],
        sleep,
    )
    return seen, now[0]


@pytest.mark.parametrize(
    ("up", "signal_at", "notice_at", "seen", "earliest_and_latest"),
    [
        ([(5, 100)], NEVER, 99, True, (99, 101)),
        ([(5, 100), (900, 990)], NEVER, 990, True, (990, 992)),  # It restarted.
        ([(5, 100)], NEVER, NEVER, True, (1399, 1402)),  # It was killed.
        ([], NEVER, NEVER, False, (1300, 1302)),
        ([(5, 100)], 50, NEVER, True, (100, 105)),  # It saves its step.
        ([(5, 100)], 120, NEVER, True, (120, 122)),
        ([], 50, NEVER, False, (50, 52)),
        ([], NEVER, 20, True, (20, 22)),  # It ended before it listened.
    ],
)
def test_the_end_follows_from_answers_signals_and_notices(
    up: list[tuple[float, float]],
    signal_at: float,
    notice_at: float,
    seen: bool,
    earliest_and_latest: tuple[int, int],
) -> None:
    was_seen, ended = _end(up, signal_at, notice_at)
    assert was_seen == seen
    earliest, latest = earliest_and_latest
    assert earliest <= ended <= latest


@pytest.mark.parametrize(
    ("signal_at", "released_at", "earliest_and_latest"),
    [(20, 60, (60, 70)), (60, 20, (60, 70))],
)
def test_a_signalled_worker_ends_when_its_trainer_lets_it_go(
    signal_at: float, released_at: float, earliest_and_latest: tuple[int, int]
) -> None:
    has_trainer_ended, ended = _end([(5, 999)], signal_at, NEVER, released_at)
    assert not has_trainer_ended
    earliest, latest = earliest_and_latest
    assert earliest <= ended <= latest


def test_a_trainer_without_workers_answers_that_it_runs() -> None:
    """Any number of times, and at its own address alone, unless a flag says all."""
    port, other_port = unused_ports(2)
    cluster = Cluster(("127.0.0.1:1",), f"127.0.0.1:{port}")
    answer_workers(cluster)
    assert all(answers("127.0.0.1", port, 10.0) for _ in range(300))
    assert not answers("127.0.0.2", port, 10.0)
    with fails(UserConnectionError):
        answer_workers(cluster)
    answer_workers(Cluster(cluster.workers, f"127.0.0.1:{other_port}", True))
    assert answers("127.0.0.2", other_port, 10.0)
