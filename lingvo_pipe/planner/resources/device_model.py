"""The planner's model of devices: memory, speed, links and contention."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.planner.resources.hosts import Hosts, Link

GIGA = 10**9
MEASURED = "measured"  # The name of this machine's devices, whose speed is measured.
_BITS = 8
_NETWORK_SECONDS = 14e-6  # A network message's latency in NCCL's model (tuning.cc).


class Contention(NamedTuple):
    """The extra time of a step on several devices of one machine.

    Cells slow down, and the time outside operations changes. Both are linear from one
    device to `num_devices` devices, and constant beyond.
    """

    num_devices: int = 2  # The number of devices that were measured, at least 2.
    slowdown: float = 1.0  # Time of cells with contention over their time without.
    # The rest: seconds of a step outside operations, without the predicted update.
    rest_on_one: float = 0.0
    rest_on_all: float = 0.0

    def slowdown_at(self, num_busy: float) -> float:
        """Returns the factor by which cells slow down with `num_busy` busy devices."""
        return 1 + self._fraction(num_busy) * (self.slowdown - 1)

    def rest_seconds(self, num_devices: int) -> float:
        """Returns the rest of a step on `num_devices`, in seconds."""
        more = self.rest_on_all - self.rest_on_one
        return self.rest_on_one + self._fraction(num_devices) * more

    def _fraction(self, number: float) -> float:
        return min((number - 1) / (self.num_devices - 1), 1.0)


@dataclasses.dataclass(frozen=True)
class DeviceModel:
    """A kind of device, with bandwidths in bytes per second."""

    name: str  # On the command line.
    memory: int  # Bytes.
    reserved: int  # Bytes of the memory that the system reserves.
    flops: Mapping[str, float]  # Per second, by the dtype that layers compute in.
    memory_bandwidth: float
    link_bandwidth: float  # To the next device.
    link_seconds: float = 5e-6  # Latency of a message.
    operation_seconds: float = 5e-5  # Overhead of each operation of a schedule.
    # Fraction of `flops` that layers reach, with operations as large as in a
    # Transformer or a convolutional network.
    efficiency: float = 0.4
    contention: Contention = Contention()
    shares_memory: bool = False  # Whether `memory` shrinks when there are more devices.
    has_replicas: bool = True  # Whether pipelines run side by side; not yet on TPUs.
    in_place: bool = False  # Whether XLA plans all buffers; see `StageMemory`.
    # Bandwidths between the vendor's servers: of a device, and of a whole server.
    network: tuple[float, float] | None = None
    # To the host's memory and, at the same time, back. If None, nothing is offloaded.
    host_bandwidth: float | None = None
    hosts: Hosts | None = None  # If None, all devices are on one host.
    slowness: float = 1.0  # Seconds of a cell, relative to the seconds in `Models`.

    @property
    def usable_bytes(self) -> int:
        """The bytes of memory that a model can use."""
        return self.memory - self.reserved

    def speed(self, dtype: str) -> float:
        """Returns the floating-point operations per second that layers reach.

        Raises:
            UserValueError: if the speed for this dtype is not known.
        """
        if dtype not in self.flops:
            expected = f"{' or '.join(self.flops)} on {self.name}"
            raise UserValueError(path="fprop_dtype", expected=expected, got=dtype)
        return self.flops[dtype] * self.efficiency

    @property
    def link(self) -> Link:
        """The link between devices of one host."""
        return Link(self.link_bandwidth, self.link_seconds)

    def copy_seconds(self, num_bytes: int) -> float:
        """Returns the seconds of a copy to the host's memory, or back."""
        return num_bytes / (self.host_bandwidth or math.inf)

    def on_hosts(
        self, devices_per_host: int, network_gbits: float | None = None
    ) -> DeviceModel:
        """Returns a copy of the device model for devices on several hosts.

        `network_gbits` is the bandwidth between hosts in gigabits per second, which all
        devices of a host share. If None, takes the bandwidth between the vendor's
        servers, which must be known. TPUs have the same links between hosts as within.
        """
        if network_gbits is not None:
            bandwidth = shared = network_gbits * GIGA / _BITS
        else:
            assert self.network is not None
            bandwidth, shared = self.network
        is_same = bandwidth == self.link_bandwidth and shared == math.inf
        link = self.link if is_same else Link(bandwidth, _NETWORK_SECONDS)
        return dataclasses.replace(self, hosts=Hosts(devices_per_host, link, shared))
