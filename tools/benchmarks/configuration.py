"""Configurations to measure: systems, models, schedules and sizes. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

LEARNING_RATE = 1e-3
NORM_EPSILON = 1e-6
_WEIGHT_SCALE = 0.02

System = Literal["lingvo_pipe", "torch", "tensorflow"]
Dtype = Literal["float32", "bfloat16", "pure bfloat16"]
Placement = Literal["in-process", "workers"]
Recompute = str | tuple[int, ...]

_PREDICTED = ("gpipe", "1f1b", "zero_bubble", "zero_bubble_v")
ZERO_BUBBLE = ("zero_bubble", "interleaved_zero_bubble", "zero_bubble_v")


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model of L Transformer layers with D channels, and a batch to train it on.

    The batch has B examples of T tokens. The loss is the mean of the squared outputs,
    and the optimizer is SGD. All systems get the same weights and the same batch, so
    they must compute the same loss.
    """

    num_layers: int
    model_dim: int
    batch_size: int
    sequence_length: int
    num_heads: int = 4

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of a layer's weights. Vectors are factors of norms."""
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


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A way to train a workload in a system, which is a row of the benchmark's table.

    With placement "workers", each of lingvo_pipe's stages is on a worker process.
    PyTorch's stages are always in separate processes, and have placement None. System
    "tensorflow" is a plain tf.function, which accumulates gradients over M
    micro-batches on one device. Weights are float32, and layers compute in `dtype`.
    With "pure bfloat16", weights are bfloat16 too.
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
    is_compiled: bool = False  # Whether torch.compile compiles PyTorch's stages.

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Configuration:
        """Inverts `dataclasses.asdict`, also after a round trip through JSON."""
        recompute, workload = fields["recompute"], Workload(**fields["workload"])
        if not isinstance(recompute, str):
            recompute = tuple(recompute)
        return cls(**(fields | {"workload": workload, "recompute": recompute}))

    @property
    def num_stages(self) -> int:
        """The number of stages, K·V."""
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
        """The recomputation policy, or the numbers of recomputed layers, as text."""
        if isinstance(self.recompute, str):
            return self.recompute
        return ",".join(map(str, self.recompute))

    @property
    def name(self) -> str:
        """The configuration's name, whose words the flag --only selects."""
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
        """The reason why the system cannot run this configuration, or None."""
        if self.system == "torch" and self.schedule in ZERO_BUBBLE:
            if self.is_compiled:
                return "PyTorch's zero-bubble schedules refuse compiled stages"
            if self.recompute != "never":
                return "PyTorch's zero-bubble schedules cannot recompute"
        return None

    def is_peer_of(self, other: Configuration) -> bool:
        """Returns whether this trains the same model as `other`, in another system."""
        names = ("workload", "num_micro_batches", "recompute", "num_blocks")
        return (
            self.system != other.system
            and self.precision == other.precision
            and all(getattr(self, name) == getattr(other, name) for name in names)
            and (self.system == "tensorflow" or self.num_devices == other.num_devices)
        )

    def stages_on(self, device: int) -> list[int]:
        """Returns a PyTorch device's stages, round-robin or in the shape of a V."""
        if self.schedule == "zero_bubble_v":
            return [device, self.num_stages - 1 - device]
        return list(range(device, self.num_stages, self.num_devices))

    @property
    def is_predicted(self) -> bool:
        """True if a simulation predicts the seconds of this configuration's steps."""
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
