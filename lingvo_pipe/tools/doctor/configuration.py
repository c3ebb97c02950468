"""The configurations to measure: systems, models, schedules and sizes. Pure."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

LEARNING_RATE = 1e-3
NORM_EPSILON = 1e-6
_WEIGHT_SCALE = 0.02

System = Literal["lingvo_pipe", "torch", "tensorflow"]
Dtype = Literal["float32", "bfloat16", "pure bfloat16"]
Placement = Literal["in-process", "workers"]
Recompute = str | tuple[int, ...]

# The schedules whose steps the simulation predicts.
_PREDICTED = ("gpipe", "1f1b", "zero_bubble", "zero_bubble_v")
_LOCAL_STEPS_PER_CALL = 16
_ZERO_BUBBLE = ("zero_bubble", "interleaved_zero_bubble", "zero_bubble_v")
_TORCH_SCHEDULES = ("gpipe", "1f1b", "interleaved", *_ZERO_BUBBLE)
# On one device the others only add calls.
_TORCH_SCHEDULES_ALONE = ("gpipe", "1f1b")


@dataclasses.dataclass(frozen=True)
class Workload:
    """L Transformer layers, trained with SGD on the mean of the squared outputs.

    They have D channels; a mini-batch has B examples of T tokens. All systems get the
    same weights and the same batch, and so must compute the same loss.
    """

    num_layers: int
    model_dim: int
    batch_size: int
    sequence_length: int
    num_heads: int = 4

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of a layer's weights; a vector is the factor of a norm."""
        dim = self.model_dim
        return {
            "attention_norm": (dim,),
            "query_key_value": (dim, 3 * dim),
            "attention_output": (dim, dim),
            "feed_forward_norm": (dim,),
            "expand": (dim, 4 * dim),
            "contract": (4 * dim, dim),
        }

    def weights(self, layer: int) -> dict[str, np.ndarray]:
        """Returns the initial weights of a layer."""
        random = np.random.RandomState(layer)
        return {
            name: np.ones(shape, np.float32)
            if len(shape) == 1
            else (_WEIGHT_SCALE * random.standard_normal(shape)).astype(np.float32)
            for name, shape in self.weight_shapes().items()
        }

    def batch(self) -> np.ndarray:
        """Returns the inputs, `[B, T, D]`."""
        shape = (self.batch_size, self.sequence_length, self.model_dim)
        random = np.random.RandomState(self.num_layers)
        return random.standard_normal(shape).astype(np.float32)


_LAYERS_8 = Workload(num_layers=8, model_dim=256, batch_size=32, sequence_length=64)
_LAYERS_64 = Workload(num_layers=64, model_dim=32, batch_size=64, sequence_length=16)
_LAYERS_1024 = dataclasses.replace(_LAYERS_64, num_layers=1024)


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A row of the table.

    With placement "workers", each of lingvo_pipe's stages is on a worker process;
    PyTorch's, always separate processes, have placement None. System "tensorflow" is a
    plain tf.function, which accumulates gradients over M micro-batches on one device.
    Weights are float32, and layers compute in `dtype`; "pure bfloat16" is also the
    weights'.
    """

    system: System
    workload: Workload
    num_devices: int  # K
    num_micro_batches: int  # M
    schedule: str = "gpipe"
    recompute: Recompute = "always"  # A policy, or the layers to recompute.
    stages_per_device: int = 1  # V
    num_blocks: int = 1  # Of layers, each with a loss of its own.
    steps_per_call: int = 1
    only_start: bool = False  # Runs the first step alone.
    placement: Placement | None = "in-process"
    dtype: Dtype = "float32"
    is_compiled: bool = False  # PyTorch's stages, by torch.compile.

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Configuration:
        """Inverts `dataclasses.asdict`, also after a round trip through JSON."""
        recompute, workload = fields["recompute"], Workload(**fields["workload"])
        if not isinstance(recompute, str):
            recompute = tuple(recompute)
        return cls(**(fields | {"workload": workload, "recompute": recompute}))

    @property
    def num_stages(self) -> int:
        """K·V."""
        return self.num_devices * self.stages_per_device

    @property
    def schedule_text(self) -> str:
        """The schedule with its options."""
        options = (
            (self.stages_per_device, "V={}"),
            (self.num_blocks, "{} blocks"),
            (self.steps_per_call, "{} steps a call"),
        )
        shown = [form.format(number) for number, form in options if number > 1]
        return ", ".join([self.schedule, *shown, *["compiled"] * self.is_compiled])

    @property
    def recompute_text(self) -> str:
        """The policy, or the layers."""
        every = [self.recompute] if isinstance(self.recompute, str) else self.recompute
        return ",".join(map(str, every))

    @property
    def name(self) -> str:
        """The name, whose words --only selects by."""
        words = (
            f"{self.system} L={self.workload.num_layers} K={self.num_devices}",
            f"M={self.num_micro_batches} {self.schedule_text} {self.recompute_text}",
            self.dtype,
            self.placement,
        )
        return " ".join(filter(None, words))

    @property
    def precision(self) -> str:
        """The dtype that layers compute in."""
        return self.dtype.removeprefix("pure ")

    @property
    def limitation(self) -> str | None:
        """Why the system can't run this, if so."""
        if self.system == "torch" and self.schedule in _ZERO_BUBBLE:
            if self.is_compiled:
                return "PyTorch's zero-bubble schedules refuse compiled stages"
            if self.recompute != "never":
                return "PyTorch's zero-bubble schedules cannot recompute"
        return None

    def is_peer_of(self, other: Configuration) -> bool:
        """Returns whether this trains `other`'s model as well, in another system."""
        names = ("workload", "num_micro_batches", "recompute", "num_blocks")
        return (
            self.system != other.system
            and self.precision == other.precision
            and all(getattr(self, name) == getattr(other, name) for name in names)
            and (self.system == "tensorflow" or self.num_devices == other.num_devices)
        )

    def stages_on(self, device: int) -> list[int]:
        """Returns the stages of a device: in turns, or back again in the shape of a V.

        PyTorch's processes must know; lingvo_pipe's schedules decide it themselves.
        """
        if self.schedule == "zero_bubble_v":
            return [device, self.num_stages - 1 - device]
        return list(range(device, self.num_stages, self.num_devices))

    @property
    def is_predicted(self) -> bool:
        """True if the simulation predicts the steps."""
        is_in_process = self.num_devices > 1 and self.placement == "in-process"
        return is_in_process and self.schedule in _PREDICTED

    def on_one_device(self) -> Configuration:
        """Returns the configuration without parallelism."""
        return dataclasses.replace(self.in_process(), num_devices=1)

    def in_process(self) -> Configuration:
        """Returns the configuration with all stages in one process, if possible."""
        placement: Placement | None = "in-process" if self.placement else None
        return dataclasses.replace(self, placement=placement)

    def on_workers(self) -> Configuration:
        """Returns the configuration with each stage on a worker."""
        return dataclasses.replace(self, placement="workers")


def standard_configurations(num_devices: int) -> list[list[Configuration]]:
    """Returns the whole table in groups to compare; timed pipelines have K devices."""
    every_other = tuple(range(0, _LAYERS_8.num_layers, 2))
    recomputed = ("gpipe", "1f1b", "interleaved")
    stashed = (*recomputed, *_ZERO_BUBBLE)
    schedules: dict[tuple[int, Recompute, Dtype], Sequence[str]] = {
        (8, "always", "float32"): recomputed,
        (8, "never", "float32"): stashed,
        (8, "always", "bfloat16"): recomputed,
        (8, "never", "bfloat16"): stashed,
        (8, "except_last", "float32"): ("gpipe",),
        (8, every_other, "float32"): ("gpipe",),
        (16, "always", "float32"): recomputed,
        (16, "never", "float32"): ("gpipe", "zero_bubble"),
    }
    make = functools.partial(Configuration, "lingvo_pipe", _LAYERS_8, num_devices)
    groups: list[list[Configuration]] = []
    for (num_micro_batches, recompute, dtype), names in schedules.items():
        groups.append([])
        for name in names:
            stages = _stages_per_device(name)
            variant = make(num_micro_batches, name, recompute, stages, dtype=dtype)
            workers = recompute == "always" and dtype == "float32"
            groups[-1] += _compared(variant, name in ("gpipe", "1f1b") and workers)
        if recompute in ("always", "never"):
            groups[-1] += _peers(make(num_micro_batches, "", recompute, dtype=dtype))
    local = make(8, "local", "never", num_blocks=num_devices)
    many = dataclasses.replace(local, steps_per_call=_LOCAL_STEPS_PER_CALL)
    return [
        *groups,
        *(_compared(each, on_workers=False) for each in (local, many)),
        [Configuration("lingvo_pipe", _LAYERS_64, 8, 32, only_start=True)],
        [Configuration("lingvo_pipe", _LAYERS_1024, 16, 64, only_start=True)],
    ]


def quick_configurations(num_devices: int) -> list[list[Configuration]]:
    """Returns small pipelines to check that everything runs, not to time."""
    workload = Workload(2 * num_devices, model_dim=8, batch_size=8, sequence_length=4)
    pipelined = Configuration("lingvo_pipe", workload, num_devices, 4)
    local = dataclasses.replace(
        pipelined, schedule="local", num_blocks=num_devices, steps_per_call=3
    )
    half = dataclasses.replace(pipelined, recompute="never", dtype="bfloat16")
    # What takes seconds to compile is only in the second group.
    peers = [peer for peer in _peers(pipelined) if not peer.is_compiled]
    half_peers = [x for x in _peers(half) if x.schedule in ("gpipe", "accumulation")]
    return [
        [*_compared(pipelined, on_workers=True), *peers],
        [*_compared(half, on_workers=False), *half_peers],
        _compared(local, on_workers=False),
    ]


def _compared(pipelined: Configuration, on_workers: bool) -> list[Configuration]:
    """Returns a pipeline with its baseline, and the same on workers if wanted."""
    configurations = [pipelined.on_one_device(), pipelined]
    return configurations + [pipelined.on_workers()] * on_workers


def _peers(like: Configuration) -> list[Configuration]:
    """Returns the rows of PyTorch and of a plain tf.function of the same model."""
    dtypes: dict[Dtype, tuple[Dtype, ...]] = {"bfloat16": ("bfloat16", "pure bfloat16")}
    peer = functools.partial(dataclasses.replace, like, placement=None)
    peers = [
        peer(
            system="torch",
            num_devices=num_devices,
            schedule=schedule,
            stages_per_device=_stages_per_device(schedule),
            dtype=dtype,
            is_compiled=is_compiled,
        )
        for dtype in dtypes.get(like.dtype, (like.dtype,))
        for is_compiled in (False, True)
        for schedule in _TORCH_SCHEDULES
        for num_devices in (like.num_devices, 1)
        if num_devices > 1 or schedule in _TORCH_SCHEDULES_ALONE
    ]
    return [*peers, peer(system="tensorflow", num_devices=1, schedule="accumulation")]


def _stages_per_device(schedule: str) -> int:
    interleaved = ("interleaved", "interleaved_zero_bubble", "zero_bubble_v")
    return 2 if schedule in interleaved else 1
