"""The planner's model of devices: memory, speed, links and contention. Pure.

Figures are the vendors': per core of a TPU, and for the densest matrix units of a GPU,
without sparsity. `efficiency` is the fraction that a model reaches, with operations as
large as in a Transformer or a convolutional network.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.planner.resources.hosts import Hosts, Link

_GB, _GIGA, _TERA, _BITS = 10**9, 10**9, 10**12, 8
_MIB, _GIB = 2**20, 2**30


class Contention(NamedTuple):
    """The time of a step beyond its operations' costs, on devices of one machine.

    Linear between one device and all that it was measured on, and constant beyond.
    """

    num_devices: int = 2  # At least 2.
    slowdown: float = 1.0  # Time of cells with contention over their time without.
    # Seconds of a step outside operations, beyond an update's bytes over bandwidth.
    rest_on_one: float = 0.0
    rest_on_all: float = 0.0

    def slowdown_at(self, num_busy: float) -> float:
        """Returns the slowdown of cells while this many devices compute."""
        return 1 + self._fraction(num_busy) * (self.slowdown - 1)

    def rest_seconds(self, num_devices: int) -> float:
        """Returns the rest's seconds for a step on this many devices."""
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
    efficiency: float = 0.4  # Fraction of `flops` that layers reach.
    contention: Contention = Contention()
    shares_memory: bool = False  # Whether `memory` shrinks when there are more devices.
    has_replicas: bool = True  # Whether pipelines run side by side; not yet on TPUs.
    in_place: bool = False  # Whether XLA plans all buffers; see `StageMemory`.
    hosts: Hosts | None = None  # If None, all devices are on one host.

    @property
    def usable_bytes(self) -> int:
        """Bytes of memory for a model."""
        return self.memory - self.reserved

    def speed(self, dtype: str) -> float:
        """Returns the operations per second that layers reach.

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

    def send_seconds(self, num_bytes: int) -> float:
        """Returns the seconds until a message has arrived on the same host."""
        return self.link.seconds(num_bytes)

    def on_hosts(
        self, devices_per_host: int, network_gbits: float | None = None
    ) -> DeviceModel:
        """Returns the same kind on hosts whose network has this bandwidth.

        All devices of a host share it. If None, it is the network of the vendor's
        server. TPUs have the same links to all neighbors.
        """
        if network_gbits is not None:
            shared = network_gbits * _GIGA / _BITS
            bandwidth = shared
        else:
            bandwidth, shared = (x * _GB for x in _NETWORKS[self.name])
        is_same = bandwidth == self.link_bandwidth and shared == math.inf
        link = self.link if is_same else Link(bandwidth, _NETWORK_SECONDS)
        return dataclasses.replace(self, hosts=Hosts(devices_per_host, link, shared))


# Name, memory in GiB, reserved MiB, tera-operations per second, and bandwidths in GB/s.
# Reserved memory: on TPUs as XLA's errors report it; on GPUs as much as TensorFlow
# leaves to the system, by compute capability. A TPU multiplies float32 as bfloat16, and
# from Ampere on TensorFlow lets a GPU multiply it as TF32. Pascal and Volta have no
# bfloat16.
_KNOWN: list[tuple[str, float, int, dict[str, float], int, int]] = [
    ("TPUv2", 8, 528, {"float32": 22.5, "bfloat16": 22.5}, 300, 62),
    ("TPUv3", 16, 528, {"float32": 61.5, "bfloat16": 61.5}, 450, 70),
    ("P100", 15.9, 500, {"float32": 9.3, "float16": 18.7}, 732, 12),
    ("V100", 15.8, 1050, {"float32": 15.7, "float16": 125}, 900, 150),
    ("A100", 39.6, 1536, {"float32": 156, "bfloat16": 312}, 1555, 300),
    ("H100", 79.6, 1800, {"float32": 494, "bfloat16": 989}, 3350, 450),
    ("H200", 140, 1800, {"float32": 494, "bfloat16": 989}, 4800, 450),
]
DEVICES = {
    name: DeviceModel(
        name,
        int(memory * _GIB),
        reserved * _MIB,
        {dtype: speed * _TERA for dtype, speed in teraflops.items()},
        memory_bandwidth * _GB,
        link_bandwidth * _GB,
        has_replicas=not name.startswith("TPU"),
        in_place=name.startswith("TPU"),
    )
    for name, memory, reserved, teraflops, memory_bandwidth, link_bandwidth in _KNOWN
}
# Between hosts, in GB/s: what a device can send, and all devices of a host together.
# TPUs' own links connect the chips of all hosts. GPUs are as in the vendor's servers of
# eight: DGX-1 with four InfiniBand ports of 100 Gb/s (P100, V100), DGX A100 with eight
# of 200 Gb/s, DGX H100 and H200 with eight of 400 Gb/s. A P100 reaches them by PCIe.
_NETWORKS = {
    "TPUv2": (62, math.inf),
    "TPUv3": (70, math.inf),
    "P100": (12, 50),
    "V100": (12.5, 50),
    "A100": (25, 200),
    "H100": (50, 400),
    "H200": (50, 400),
}
_NETWORK_SECONDS = 14e-6  # Of a message by network, in NCCL's model (tuning.cc).
MEASURED = "measured"  # The name of this machine's devices, whose speed is measured.


class DeviceRequest(NamedTuple):
    """A number of devices of one kind, on hosts of D devices unless D is None."""

    number: int
    kind: str
    devices_per_host: int | None = None


def parse_devices(text: str) -> DeviceRequest:
    """Reads devices of one kind: `8xTPUv3`, `TPUv3` for one, `2x8xV100` on two hosts.

    Raises:
        UserValueError: if the text has another form, or the kind is unknown.
    """
    match = re.fullmatch(r"(?:(?:(\d+)x)?(\d+)x)?(\w+)", text.strip())
    names = [*DEVICES, MEASURED]
    hosts, per_host, name = match.groups() if match else ("0", "0", text)
    number = int(hosts or 1) * int(per_host or 1)
    by_lower = {kind.lower(): kind for kind in names}
    is_known = name.lower() in by_lower and (not hosts or name.lower() != MEASURED)
    if number < 1 or not is_known:
        near = "" if name in names else did_you_mean(name, names)
        raise UserValueError(
            path="--devices",
            expected="a number and a kind of devices, such as 8xTPUv3, or 2x8xV100 on "
            "two hosts",
            got=text,
            hint=f"{near} Kinds are {', '.join(names)}; {MEASURED} stands for the "
            "devices of this machine, one host, whose speed is measured.".lstrip(),
        )
    return DeviceRequest(
        number, by_lower[name.lower()], int(per_host) if hosts else None
    )
