"""Measures one stage of torch.distributed.pipelining in a process of its own.

    python -m tools.benchmarks.torch_worker REQUEST RANK FOLDER

answers with a `Report`; see `exchange`, and `turns` for when it does what. RANK is the
stage, and FOLDER a new one in which the stages' processes find one another. Needs no
TensorFlow.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from tools.benchmarks.configuration import Configuration
from tools.benchmarks.exchange import Report, Request
from tools.benchmarks.live_bytes import LiveBytes
from tools.benchmarks.other_programs import OtherPrograms
from tools.benchmarks.torch_layer import Stage
from tools.benchmarks.turns import Turns
from tools.benchmarks.workload import LEARNING_RATE


def main() -> None:
    """Answers with the report that the first argument requests."""
    request, rank = Request.from_json(sys.argv[1]), int(sys.argv[2])
    turns = Turns()
    os.sched_setaffinity(0, {request.cores[rank % len(request.cores)]})
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{sys.argv[3]}/meeting_point",
        rank=rank,
        world_size=request.configuration.num_devices,
    )
    turns.answer(_measure(request, rank, turns).to_json())
    distributed.destroy_process_group()


def _measure(request: Request, rank: int, turns: Turns) -> Report:
    configuration = request.configuration
    stage, batch = _stage(configuration, rank), _batch(configuration)

    distributed.barrier()
    before = time.perf_counter()
    step = _train_step(configuration, stage, rank)
    loss = step(batch)
    start_seconds = time.perf_counter() - before

    others, step_seconds = OtherPrograms(os.sched_getaffinity(0)), []
    for _ in range(request.num_steps):
        turns.wait()
        with others:
            before = time.perf_counter()
            loss = step(batch)
            step_seconds.append(time.perf_counter() - before)
    turns.wait()
    peak = [_peak_bytes(configuration, rank)] if request.with_peak else None
    return Report(start_seconds, step_seconds, peak, loss, others.num_cores())


def _stage(configuration: Configuration, rank: int) -> Stage:
    workload = configuration.workload
    size = workload.num_layers // configuration.num_devices
    layers = range(rank * size, (rank + 1) * size)
    return Stage(workload, layers, configuration.recompute == "always")


def _batch(configuration: Configuration) -> torch.Tensor:
    return torch.tensor(configuration.workload.batch())


def _train_step(
    configuration: Configuration, stage: Stage, rank: int
) -> Callable[[torch.Tensor], float | None]:
    """Updates the weights; the last stage returns the loss. Ends everywhere at once."""
    num_stages = configuration.num_devices
    schedule = ScheduleGPipe(
        PipelineStage(stage, rank, num_stages, torch.device("cpu")),
        configuration.num_micro_batches,
        loss_fn=lambda outputs, targets: outputs.square().mean(),
    )
    optimizer = torch.optim.SGD(stage.parameters(), LEARNING_RATE)

    def run(batch: torch.Tensor) -> float | None:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        inputs = [batch] if rank == 0 else []
        if rank == num_stages - 1:
            schedule.step(*inputs, target=batch, losses=losses)
        else:
            schedule.step(*inputs)
        optimizer.step()
        distributed.barrier()
        return torch.stack(losses).mean().item() if losses else None

    return run


def _peak_bytes(configuration: Configuration, rank: int) -> int:
    """In untimed steps of a new pipeline, for watching them costs time."""
    with LiveBytes() as live:
        stage, batch = _stage(configuration, rank), _batch(configuration)
        step = _train_step(configuration, stage, rank)
        for _ in range(2):
            step(batch)
    return live.peak


if __name__ == "__main__":
    main()
