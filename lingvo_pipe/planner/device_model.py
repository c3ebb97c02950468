"""What the planner knows of devices: memory, speed, and links between them. Pure.

Figures are the vendors': of a TPU those of one core, of a GPU those of its densest
matrix units without sparsity. What a model gets of them is `efficiency`, of operations
that are as large as those of a Transformer or a convolutional network.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.planner.company import Company

_GB = 10**9
_MIB = 2**20
_GIB = 2**30
_TERA = 10**12


@dataclasses.dataclass(frozen=True)
class DeviceModel:
    """A kind of device.

    Attributes:
        name: as users write it.
        memory: bytes.
        reserved: bytes of them that the system keeps for itself.
        flops: operations a second, by the dtype that layers compute in.
        memory_bandwidth: bytes a second, of its own memory.
        link_bandwidth: bytes a second, to the next device.
        link_seconds: until a message's first byte has come.
        operation_seconds: what each operation of a schedule takes beside its work.
        efficiency: the part of `flops` that layers reach.
        company: what several take beside one another.
        shares_memory: whether several have `memory` only as long as they are no more.
        has_replicas: whether several pipelines run side by side; on TPUs they don't
            yet.
    """

    name: str
    memory: int
    reserved: int
    flops: Mapping[str, float]
    memory_bandwidth: float
    link_bandwidth: float
    link_seconds: float = 5e-6
    operation_seconds: float = 5e-5
    efficiency: float = 0.4
    company: Company = Company()
    shares_memory: bool = False
    has_replicas: bool = True

    @property
    def usable(self) -> int:
        """Bytes of memory for a model."""
        return self.memory - self.reserved

    def speed(self, dtype: str) -> float:
        """Operations a second that layers reach.

        Raises:
            ValueError: if nothing is known of this dtype.
        """
        if dtype not in self.flops:
            raise ValueError(
                f"What a {self.name} computes in must be {' or '.join(self.flops)}; "
                f"got {dtype!r}. Choose another device, or fprop_dtype."
            )
        return self.flops[dtype] * self.efficiency

    def send_seconds(self, num_bytes: int) -> float:
        """Until a message has come."""
        return self.link_seconds + num_bytes / self.link_bandwidth if num_bytes else 0.0


def _device(
    name: str,
    memory: float,
    reserved: int,
    speeds: Mapping[str, float],
    memory_bandwidth: float,
    link_bandwidth: float,
) -> DeviceModel:
    """Of figures in GiB, MiB, tera-operations, and GB a second."""
    return DeviceModel(
        name,
        int(memory * _GIB),
        reserved * _MIB,
        {dtype: speed * _TERA for dtype, speed in speeds.items()},
        memory_bandwidth * _GB,
        link_bandwidth * _GB,
        has_replicas=not name.startswith("TPU"),
    )


def _speeds(float32: float, **others: float) -> dict[str, float]:
    return {"float32": float32, **others}


# What is reserved: XLA's errors tell it of TPUs; on a GPU TensorFlow leaves as much to
# the system, by its compute capability. A TPU multiplies float32 as bfloat16, and from
# Ampere on TensorFlow has a GPU multiply it as TF32. Pascal and Volta have no bfloat16.
_KNOWN = [
    _device("TPUv2", 8, 528, _speeds(22.5, bfloat16=22.5), 300, 62),
    _device("TPUv3", 16, 528, _speeds(61.5, bfloat16=61.5), 450, 70),
    _device("P100", 15.9, 500, _speeds(9.3, float16=18.7), 732, 12),
    _device("V100", 15.8, 1050, _speeds(15.7, float16=125), 900, 150),
    _device("A100", 39.6, 1536, _speeds(156, bfloat16=312), 1555, 300),
    _device("H100", 79.6, 1800, _speeds(494, bfloat16=989), 3350, 450),
    _device("H200", 140, 1800, _speeds(494, bfloat16=989), 4800, 450),
]
DEVICES = {model.name: model for model in _KNOWN}


def parse_devices(text: str) -> tuple[int, str]:
    """Reads a number of devices of one kind: `8xTPUv3`, or `TPUv3` for one.

    Raises:
        ValueError: if it is none.
    """
    match = re.fullmatch(r"(?:(\d+)x)?(\w+)", text.strip())
    names = [*DEVICES, MEASURED]
    number, name = (int(match[1] or 1), match[2]) if match else (0, text)
    known = {each.lower(): each for each in names}
    if number < 1 or name.lower() not in known:
        hint = "" if name in names else did_you_mean(name, names)
        raise ValueError(
            "--devices must be a number and a kind of devices, such as 8xTPUv3; got "
            f"{text!r}.{hint} There are {', '.join(names)}; "
            f"{MEASURED} is this machine's, whose speed is measured."
        )
    return number, known[name.lower()]


# The devices that are there: their speed is measured.
MEASURED = "measured"
