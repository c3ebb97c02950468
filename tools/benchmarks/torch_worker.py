"""Runs and measures a device of a torch.distributed.pipelining pipeline.

    python -m tools.benchmarks.torch_worker REQUEST RANK FOLDER

Runs steps in turns, and answers with a `Report` (see `exchange`). RANK is the number of
the device, and FOLDER a new folder in which the devices' processes find one another.
Needs no TensorFlow.

Shapes: b examples of T tokens in a micro-batch; D channels.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed import pipelining
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.weak import WeakIdKeyDictionary

from tools.benchmarks.configuration import (
    LEARNING_RATE,
    NORM_EPSILON,
    Configuration,
    Workload,
)
from tools.benchmarks.exchange import Report, Request, Turns, to_json
from tools.benchmarks.system_load import OtherPrograms

# For each schedule its class, and whether a device has only one stage.
_SCHEDULES: dict[str, tuple[Any, bool]] = {
    "gpipe": (pipelining.ScheduleGPipe, True),
    "1f1b": (pipelining.Schedule1F1B, True),
    "interleaved": (pipelining.ScheduleInterleaved1F1B, False),
    "zero_bubble": (pipelining.ScheduleInterleavedZeroBubble, False),
    "interleaved_zero_bubble": (pipelining.ScheduleInterleavedZeroBubble, False),
    "zero_bubble_v": (pipelining.ScheduleZBVZeroBubble, False),
    "dualpipe_v": (pipelining.ScheduleDualPipeV, False),
}


class TransformerLayer(nn.Module):
    """The layer of attention and feed-forward of lingvo_pipe_model.py, in PyTorch."""

    def __init__(self, workload: Workload, index: int):
        super().__init__()
        self._num_heads = workload.num_heads
        for name, value in workload.weights(index).items():
            weight = torch.tensor(value)
            if weight.dim() == 1:
                module = nn.LayerNorm(len(weight), NORM_EPSILON, bias=False)
            else:
                module = nn.Linear(*weight.shape, bias=False)
            # PyTorch's matrices are transposed.
            module.weight = nn.Parameter(weight.t().contiguous())
            self.add_module(name, module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies the layer to `[b, T, D]`, and returns the same shape."""
        x = x + self._attention(self.attention_norm(x))
        hidden = self.expand(self.feed_forward_norm(x))
        return x + self.contract(torch.relu(hidden))

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        num_examples, length, dim = x.shape
        shape = num_examples, length, self._num_heads, dim // self._num_heads
        query, key, value = (
            part.reshape(shape).transpose(1, 2)
            for part in self.query_key_value(x).split(dim, -1)
        )
        logits = query @ key.transpose(-1, -2) * shape[-1] ** -0.5
        attended = torch.softmax(logits, -1) @ value
        return self.attention_output(attended.transpose(1, 2).reshape(x.shape))


class Stage(nn.Module):
    """A stage of consecutive layers, which are recomputed if the configuration asks."""

    def __init__(self, configuration: Configuration, index: int):
        super().__init__()
        workload = configuration.workload
        size = workload.num_layers // configuration.num_stages
        layers = range(index * size, (index + 1) * size)
        self._layers = nn.Sequential(*(TransformerLayer(workload, i) for i in layers))
        self._recompute = configuration.recompute == "always"
        self._autocast = configuration.dtype == "bfloat16"
        if configuration.dtype == "pure bfloat16":
            self.to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies the layers to `[b, T, D]`, and returns the same shape."""
        with torch.autocast("cpu", torch.bfloat16, self._autocast):
            if self._recompute and torch.is_grad_enabled():
                return checkpoint(self._layers, x, use_reentrant=False)
            return self._layers(x)


class LiveBytes(TorchDispatchMode):
    """A context manager that measures the peak bytes of tensors created in it."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = WeakIdKeyDictionary()  # By storage, as long as it lives.
        self.peak = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        results = function(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, torch.Tensor) and result.device.type != "meta":
                storage = result.untyped_storage()
                self._bytes[storage] = storage.nbytes()
        self.peak = max(self.peak, sum(self._bytes.values()))
        return results


def main() -> None:
    """Measures what the first argument requests, and answers with a report."""
    request, rank = Request.from_json(sys.argv[1]), int(sys.argv[2])
    configuration, turns = request.configuration, Turns()
    os.sched_setaffinity(0, {request.cores[rank % len(request.cores)]})
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{sys.argv[3]}/meeting_point",
        rank=rank,
        world_size=configuration.num_devices,
    )

    distributed.barrier()
    start = time.perf_counter()
    step = _train_step(configuration, rank)
    loss = step()
    start_seconds = time.perf_counter() - start

    other_programs, step_seconds = OtherPrograms(os.sched_getaffinity(0)), []
    for _ in range(request.num_steps):
        turns.wait()
        with other_programs:
            start = time.perf_counter()
            loss = step()
            step_seconds.append(time.perf_counter() - start)
    turns.wait()
    # The meter does not see into compiled stages.
    with_peak = request.with_peak and not configuration.is_compiled
    peak = [_peak_bytes(configuration, rank)] if with_peak else None
    other_cores = other_programs.num_cores()
    report = Report(start_seconds, step_seconds, peak, loss, other_cores)
    turns.answer(to_json(report))
    distributed.destroy_process_group()


def _train_step(configuration: Configuration, rank: int) -> Callable[[], float | None]:
    """Returns a function that runs a step. The last stage's device gets the loss."""
    num_stages, cpu = configuration.num_stages, torch.device("cpu")
    indices = configuration.stages_on(rank)
    stages: list[nn.Module] = [Stage(configuration, index) for index in indices]
    optimizer = torch.optim.SGD(
        [weight for stage in stages for weight in stage.parameters()], LEARNING_RATE
    )
    if configuration.is_compiled:
        stages = [torch.compile(stage, dynamic=False) for stage in stages]
    pipeline_stages = [
        pipelining.PipelineStage(stage, index, num_stages, cpu)
        for stage, index in zip(stages, indices, strict=True)
    ]
    make, is_single = _SCHEDULES[configuration.schedule]
    schedule = make(
        pipeline_stages[0] if is_single else pipeline_stages,
        configuration.num_micro_batches,
        loss_fn=lambda outputs, targets: outputs.float().square().mean(),
    )
    dtype = torch.bfloat16 if configuration.dtype == "pure bfloat16" else torch.float32
    batch = torch.tensor(configuration.workload.batch(), dtype=dtype)

    def run() -> float | None:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        inputs = [batch] if 0 in indices else []
        if num_stages - 1 in indices:
            schedule.step(*inputs, target=batch, losses=losses)
        else:
            schedule.step(*inputs)
        optimizer.step()
        distributed.barrier()
        return torch.stack(losses).mean().item() if losses else None

    return run


def _peak_bytes(configuration: Configuration, rank: int) -> int:
    with LiveBytes() as live:
        step = _train_step(configuration, rank)
        for _ in range(2):
            step()
    return live.peak


if __name__ == "__main__":
    main()
