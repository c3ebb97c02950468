"""Hosts of devices, the links between devices, and placements that use them well.

Two placements of R = 2 replicas of K = 4 devices on hosts of D = 4 devices:

          pipeline by pipeline      stage by stage
host 0    0.0 0.1 0.2 0.3           0.0 1.0 0.1 1.1        r.k: replica r, device k
host 1    1.0 1.1 1.2 1.3           0.2 1.2 0.3 1.3

Pipeline by pipeline, activations stay within hosts, and weights are exchanged between
hosts. Stage by stage, weights stay within hosts, and some activations do not.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

# For each replica the numbers of its K devices. Numbers run over all hosts' devices.
Placement: TypeAlias = tuple[tuple[int, ...], ...]


class Link(NamedTuple):
    """A link between two devices."""

    bandwidth: float  # Bytes per second.
    latency: float  # Seconds of a message.

    def seconds(self, num_bytes: float) -> float:
        """Returns the seconds until a message has arrived, 0 for an empty message."""
        return self.latency + num_bytes / self.bandwidth if num_bytes else 0.0

    def slower(self, other: Link) -> Link:
        """Returns a link with the lower bandwidth and the higher latency of the two."""
        bandwidth = min(self.bandwidth, other.bandwidth)
        return Link(bandwidth, max(self.latency, other.latency))


@dataclasses.dataclass(frozen=True)
class Hosts:
    """H hosts of D devices each."""

    devices_per_host: int  # D.
    link: Link  # Between devices of two hosts.
    bandwidth: float = math.inf  # Bytes per second that a host sends to all others.
    number: int | None = None  # H; if None, as many as all devices need.

    def host(self, device: int) -> int:
        """Returns the number of the host that has the device with this number."""
        return device // self.devices_per_host

    def count(self, num_devices: int) -> int:
        """Returns the number of hosts that this many devices need."""
        return -(-num_devices // self.devices_per_host)


def placements(
    num_replicas: int, num_devices: int, hosts: Hosts | None, is_one_kind: bool = True
) -> list[Placement]:
    """Returns the placements to compare, for R replicas of K devices.

    The first one fills the hosts pipeline by pipeline, and the second one stage by
    stage. If there are enough hosts, others let each pipeline, or each stage's
    replicas, span as few hosts as possible. One of these gives pipelines to the hosts
    in turn, because the first replicas own the most weights. Devices of several kinds,
    all on one host, are only placed stage by stage.
    """
    total = num_replicas * num_devices
    by_pipeline = _groups(range(0, total, num_devices), num_devices)
    by_stage = _transposed(_groups(range(0, total, num_replicas), num_replicas))
    if not is_one_kind:
        return [by_stage]
    if hosts is None or hosts.count(total) == 1:
        return [by_pipeline]
    compared = [by_pipeline, by_stage]
    if starts := _aligned(num_replicas, num_devices, hosts):
        compared.append(_groups(starts, num_devices))
        dealt = sorted(starts, key=lambda x: (x % hosts.devices_per_host, x))
        compared.append(_groups(dealt, num_devices))
    if starts := _aligned(num_devices, num_replicas, hosts):
        compared.append(_transposed(_groups(starts, num_replicas)))
    return list(dict.fromkeys(compared))


def stage_links(
    placement: Placement, device_of_stage: Sequence[int], within: Link, hosts: Hosts
) -> list[tuple[Link, ...]]:
    """Returns for each replica the links from each stage to the next one.

    `within` is the link between devices of one host. Links that leave a host share the
    host's network, because in the middle of a step all stages send.
    """
    rows = [[hosts.host(row[k]) for k in device_of_stage] for row in placement]
    crossing = Counter(
        host
        for row in rows
        for pair in itertools.pairwise(row)
        if pair[0] != pair[1]
        for host in pair
    )
    share = hosts.bandwidth / max(crossing.values(), default=1)
    between = hosts.link._replace(bandwidth=min(hosts.link.bandwidth, share))
    return [
        tuple(within if a == b else between for a, b in itertools.pairwise(row))
        for row in rows
    ]


def _groups(starts: Sequence[int], size: int) -> Placement:
    return tuple(tuple(range(start, start + size)) for start in starts)


def _transposed(groups: Placement) -> Placement:
    return tuple(zip(*groups, strict=True))


def _aligned(number: int, size: int, hosts: Hosts) -> list[int]:
    """Returns the first device of each of `number` groups of `size` devices.

    Each group is on as few hosts as possible. Returns [] if there are too few hosts.
    """
    per_host = hosts.devices_per_host
    if per_group := per_host // size:
        starts = [
            i // per_group * per_host + i % per_group * size for i in range(number)
        ]
    else:
        starts = [i * hosts.count(size) * per_host for i in range(number)]
    available = hosts.number or hosts.count(number * size)
    return starts if hosts.count(starts[-1] + size) <= available else []
