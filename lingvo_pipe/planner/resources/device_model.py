"""The planner's model of devices: memory, speed, links and contention. Pure.

Figures are the vendors': per core of a TPU, and for the densest matrix units of a GPU,
without sparsity. `efficiency` is the fraction that a model reaches, with operations as
large as in a Transformer or a convolutional network.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import NamedTuple

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.near_names import did_you_mean

_GB, _TERA = 10**9, 10**12
_MIB, _GIB = 2**20, 2**30


class Contention(NamedTuple):
    """Slowdown from contention between devices of one machine.

    Linear between one device and all that it was measured on, and constant beyond.
    """

    num_devices: int = 2  # At least 2.
    slowdown: float = 1.0  # Time of cells with contention over their time without.
    update_on_one: float = 0.0  # Seconds to launch the updates of all weights.
    update_on_all: float = 0.0  # The same, spread over all devices.

    def slowdown_at(self, num_busy: float) -> float:
        """Returns the slowdown of cells while this many devices compute."""
        return 1 + self._fraction(num_busy) * (self.slowdown - 1)

    def update_seconds(self, num_devices: int) -> float:
        """Returns the seconds to launch the updates of weights on this many devices."""
        more = self.update_on_all - self.update_on_one
        return self.update_on_one + self._fraction(num_devices) * more

    def _fraction(self, number: float) -> float:
        return min((number - 1) / (self.num_devices - 1), 1.0)


@dataclasses.dataclass(frozen=True)
class DeviceModel:
    """A kind of device; bandwidths are in bytes per second."""

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

    @property
    def usable_bytes(self) -> int:
        """Bytes of memory for a model."""
        return self.memory - self.reserved

    def speed(self, dtype: str) -> float:
        """Returns the operations per second that layers reach.

        Raises UserValueError if the speed for this dtype is not known.
        """
        if dtype not in self.flops:
            raise UserValueError(
                f"fprop_dtype on {self.name}: expected {' or '.join(self.flops)}, got "
                f"{dtype!r}. Choose another device or fprop_dtype."
            )
        return self.flops[dtype] * self.efficiency

    def send_seconds(self, num_bytes: int) -> float:
        """Returns the seconds until a message has arrived."""
        return self.link_seconds + num_bytes / self.link_bandwidth if num_bytes else 0.0


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
MEASURED = "measured"  # The name of this machine's devices, whose speed is measured.


def parse_devices(text: str) -> tuple[int, str]:
    """Reads a number of devices of one kind: `8xTPUv3`, or `TPUv3` for one.

    Raises UserValueError if the text has another form, or the kind is unknown.
    """
    match = re.fullmatch(r"(?:(\d+)x)?(\w+)", text.strip())
    names = [*DEVICES, MEASURED]
    number, name = (int(match[1] or 1), match[2]) if match else (0, text)
    by_lower = {each.lower(): each for each in names}
    if number < 1 or name.lower() not in by_lower:
        near = "" if name in names else did_you_mean(name, names)
        raise UserValueError(
            path="--devices",
            expected="a number and a kind of devices, such as 8xTPUv3",
            got=text,
            hint=f"{near} Kinds are {', '.join(names)}; {MEASURED} stands for this "
            "machine's devices, whose speed is measured.".lstrip(),
        )
    return number, by_lower[name.lower()]
