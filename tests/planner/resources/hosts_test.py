"""Placements on hosts, and the links that their messages take."""

from __future__ import annotations

import itertools
import math

import pytest

from lingvo_pipe.planner.resources.hosts import (
    Hosts,
    Link,
    Placement,
    placements,
    stage_links,
)

NEAR, FAR = Link(1e9, 1e-6), Link(1e8, 1e-5)
SIZES = list(itertools.product(range(1, 5), repeat=3))


@pytest.mark.parametrize(("num_replicas", "num_devices", "per_host"), SIZES)
def test_each_place_is_a_device_of_its_own(
    num_replicas: int, num_devices: int, per_host: int
) -> None:
    whole = num_replicas * num_devices
    for number in (None, -(-whole // per_host) + 2):
        hosts = Hosts(per_host, FAR, number=number)
        available = (number or hosts.count(whole)) * per_host
        found = placements(num_replicas, num_devices, hosts)
        assert len(found) == len(set(found))
        assert found[0] == placements(num_replicas, num_devices, None)[0]
        for placement in found:
            assert [len(row) for row in placement] == [num_devices] * num_replicas
            devices = sorted(itertools.chain(*placement))
            assert len(set(devices)) == whole
            assert devices[0] >= 0
            assert devices[-1] < available


def test_both_orders_are_compared() -> None:
    by_pipeline, by_stage = placements(2, 4, Hosts(4, FAR))
    assert by_pipeline == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert by_stage == ((0, 2, 4, 6), (1, 3, 5, 7))


def test_pipelines_begin_on_hosts_with_room_for_them() -> None:
    """They do so if there are enough hosts."""
    expected = ((0, 1, 2), (4, 5, 6))
    assert expected in placements(2, 3, Hosts(4, FAR))
    assert expected not in placements(2, 3, Hosts(3, FAR))
    wide = ((0, 1, 2), (4, 5, 6))
    assert wide in placements(2, 3, Hosts(2, FAR, number=4))
    assert wide not in placements(2, 3, Hosts(2, FAR, number=3))


def links(placement: Placement, hosts: Hosts) -> list[tuple[Link, ...]]:
    return stage_links(placement, range(len(placement[0])), NEAR, hosts)


def test_messages_take_the_links_between_their_stages() -> None:
    by_pipeline, by_stage = placements(2, 4, Hosts(4, FAR))
    hosts = Hosts(4, FAR)
    assert links(by_pipeline, hosts) == [(NEAR,) * 3] * 2
    assert links(((0, 1), (3, 4)), hosts) == [(NEAR,), (FAR,)]
    assert links(by_stage, hosts) == [(NEAR, FAR, NEAR)] * 2
    # Two stages on each device, which go up the devices and down again.
    found = stage_links(((0, 1),), [0, 1, 1, 0], NEAR, Hosts(1, FAR))
    assert found == [(FAR, NEAR, FAR)]


@pytest.mark.parametrize("bandwidth", [1.0, 1e8, 1.5e8, 2e8, 1e9, math.inf])
def test_messages_of_a_host_share_its_network(bandwidth: float) -> None:
    """Two pipelines send between the hosts, but never faster than a device can."""
    hosts = Hosts(4, FAR, bandwidth)
    by_stage = ((0, 2, 4, 6), (1, 3, 5, 7))
    for row in links(by_stage, hosts):
        assert row[1] == Link(min(1e8, bandwidth / 2), 1e-5)
    # The host in the middle sends activations on and gradients back.
    (row,) = links(((0, 1, 2),), Hosts(1, FAR, bandwidth))
    assert row == (Link(min(1e8, bandwidth / 2), 1e-5),) * 2


def test_nothing_takes_no_time() -> None:
    assert FAR.seconds(0) == 0
    assert FAR.seconds(10**8) == pytest.approx(1 + 1e-5)
