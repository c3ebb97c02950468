"""What is measured: systems, models, schedules and sizes. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from tools.benchmarks.workload import Workload

System = Literal["lingvo_pipe", "torch"]
Placement = Literal["in-process", "workers"]
Recompute = str | tuple[int, ...]

_LAYERS_8 = Workload(num_layers=8, model_dim=256, batch_size=32, sequence_length=64)
_LAYERS_64 = Workload(num_layers=64, model_dim=32, batch_size=64, sequence_length=16)
_LAYERS_1024 = dataclasses.replace(_LAYERS_64, num_layers=1024)

# The schedules whose steps are predicted by the simulation.
_PREDICTED = ("gpipe", "1f1b", "zero_bubble")

# Where blocks train by losses of their own.
_STEPS_PER_CALL = 16

# By the number of micro-batches: what is measured with its stages on workers too.
_ON_WORKERS: list[tuple[int, str, Recompute]] = [
    (8, "gpipe", "always"),
    (8, "1f1b", "always"),
    (16, "gpipe", "always"),
    (16, "1f1b", "always"),
]


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One line of the table.

    Attributes:
        system: what trains.
        workload: what is trained.
        num_devices: K.
        num_micro_batches: M.
        schedule: its name.
        recompute: a policy, or the layers that are recomputed.
        stages_per_device: V.
        num_blocks: how many blocks of layers have losses of their own.
        steps_per_call: how many steps run in one call.
        only_start: whether the first step alone is run.
        placement: whether lingvo_pipe's stages are on devices of the process that
            trains, or each on a worker process of its own, as they always are in
            PyTorch, where it is None.
    """

    system: System
    workload: Workload
    num_devices: int
    num_micro_batches: int
    schedule: str = "gpipe"
    recompute: Recompute = "always"
    stages_per_device: int = 1
    num_blocks: int = 1
    steps_per_call: int = 1
    only_start: bool = False
    placement: Placement | None = "in-process"

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Configuration:
        """The inverse of `dataclasses.asdict`, also after a way through JSON."""
        recompute = fields["recompute"]
        if not isinstance(recompute, str):
            recompute = tuple(recompute)
        workload = Workload(**fields["workload"])
        return cls(**(fields | {"workload": workload, "recompute": recompute}))

    @property
    def num_stages(self) -> int:
        """K·V."""
        return self.num_devices * self.stages_per_device

    @property
    def schedule_text(self) -> str:
        """Its name, and what else is said of it."""
        parts = [self.schedule]
        if self.stages_per_device > 1:
            parts.append(f"V={self.stages_per_device}")
        if self.num_blocks > 1:
            parts.append(f"{self.num_blocks} blocks")
        if self.steps_per_call > 1:
            parts.append(f"{self.steps_per_call} steps a call")
        return ", ".join(parts)

    @property
    def recompute_text(self) -> str:
        """The policy, or the layers."""
        if isinstance(self.recompute, str):
            return self.recompute
        return ",".join(map(str, self.recompute))

    @property
    def name(self) -> str:
        """What --only selects by."""
        name = (
            f"{self.system} L={self.workload.num_layers} K={self.num_devices} "
            f"M={self.num_micro_batches} {self.schedule_text} {self.recompute_text}"
        )
        return f"{name} {self.placement}" if self.placement else name

    @property
    def is_predicted(self) -> bool:
        """Whether its steps are predicted by the simulation."""
        return (
            self.num_devices > 1
            and self.placement == "in-process"
            and self.schedule in _PREDICTED
        )

    def on_one_device(self) -> Configuration:
        """The same without parallelism."""
        return dataclasses.replace(self.in_process(), num_devices=1)

    def in_process(self) -> Configuration:
        """The same with all stages in one process, if there is such a thing."""
        placement: Placement | None = "in-process" if self.placement else None
        return dataclasses.replace(self, placement=placement)

    def on_workers(self) -> Configuration:
        """The same with each stage on a worker of its own."""
        return dataclasses.replace(self, placement="workers")

    def in_torch(self) -> Configuration:
        """PyTorch's GPipe with the same number of micro-batches and recomputation."""
        return dataclasses.replace(
            self,
            system="torch",
            schedule="gpipe",
            stages_per_device=1,
            placement=None,
        )


def standard_configurations(num_devices: int) -> list[list[Configuration]]:
    """The whole table, in groups of what is compared.

    Args:
        num_devices: K of the pipelines whose steps are timed.
    """
    every_other = tuple(range(0, _LAYERS_8.num_layers, 2))
    by_num_micro_batches: dict[int, list[tuple[str, Recompute]]] = {
        8: [
            ("gpipe", "always"),
            ("gpipe", "never"),
            ("gpipe", "except_last"),
            ("gpipe", every_other),
            ("1f1b", "always"),
            ("1f1b", "never"),
            ("interleaved", "always"),
            ("interleaved", "never"),
            ("zero_bubble", "never"),
        ],
        16: [
            ("gpipe", "always"),
            ("gpipe", "never"),
            ("1f1b", "always"),
            ("interleaved", "always"),
            ("zero_bubble", "never"),
        ],
    }
    groups: dict[Any, list[Configuration]] = {}
    for num_micro_batches, variants in by_num_micro_batches.items():
        for schedule, recompute in variants:
            pipelined = Configuration(
                "lingvo_pipe",
                _LAYERS_8,
                num_devices,
                num_micro_batches,
                schedule,
                recompute,
                stages_per_device=2 if schedule == "interleaved" else 1,
            )
            on_workers = (num_micro_batches, schedule, recompute) in _ON_WORKERS
            group = groups.setdefault((num_micro_batches, recompute), [])
            group += _compared(pipelined, on_workers)
    return [
        *groups.values(),
        *(
            _compared(_local(num_devices, steps), on_workers=False)
            for steps in (1, _STEPS_PER_CALL)
        ),
        [Configuration("lingvo_pipe", _LAYERS_64, 8, 32, only_start=True)],
        [Configuration("lingvo_pipe", _LAYERS_1024, 16, 64, only_start=True)],
    ]


def _local(num_devices: int, steps_per_call: int) -> Configuration:
    """A block with a loss of its own on each device."""
    return Configuration(
        "lingvo_pipe",
        _LAYERS_8,
        num_devices,
        num_micro_batches=8,
        schedule="local",
        recompute="never",
        num_blocks=num_devices,
        steps_per_call=steps_per_call,
    )


def quick_configurations(num_devices: int) -> list[list[Configuration]]:
    """One small pipeline, to see that everything runs: its times say nothing."""
    workload = Workload(
        num_layers=num_devices, model_dim=8, batch_size=8, sequence_length=4
    )
    pipelined = Configuration("lingvo_pipe", workload, num_devices, 4)
    local = dataclasses.replace(
        pipelined, schedule="local", num_blocks=num_devices, steps_per_call=3
    )
    return [_compared(pipelined, on_workers=True), _compared(local, on_workers=False)]


def _compared(pipelined: Configuration, on_workers: bool) -> list[Configuration]:
    """A pipeline beside what it is compared with; PyTorch's comes with GPipe's."""
    configurations = [pipelined.on_one_device(), pipelined]
    if on_workers:
        configurations.append(pipelined.on_workers())
    if pipelined.schedule == "gpipe" and pipelined.recompute in ("always", "never"):
        torch = pipelined.in_torch()
        configurations += [torch, torch.on_one_device()]
    return configurations
