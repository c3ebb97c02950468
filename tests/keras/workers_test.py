"""PipelinedModel trains to the same bytes on workers as in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lingvo_pipe.pipeline.devices.own_addresses import unused_ports
from tests.support.command_line import CommandLine

_HERE, _THERE = ["cpu:0"], ["worker:0/cpu:0", "worker:1/cpu:0"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", ["residual", "transformer"])
def test_bytes_are_the_same_on_workers(tmp_path: Path, model: str) -> None:
    """Stages on two workers, and a replica on each."""
    command_line = CommandLine(tmp_path)
    addresses = [f"127.0.0.1:{port}" for port in unused_ports(2)]
    flag = f"--cluster_spec=worker={','.join(addresses)}"
    workers = [
        command_line.start_trainer("--job=worker", f"--task={task}", flag)
        for task in range(2)
    ]
    runs = [
        {"devices": _HERE, "num_batch_shards": 2},
        {"devices": _THERE, "num_batch_shards": 2, "schedule": "1f1b"},
        {"devices": _THERE, "num_replicas": 2},
    ]
    script = str(Path(__file__).with_name("fit_on_cluster.py"))
    options = [{**run, "num_micro_batches": 4} for run in runs]
    given = map(json.dumps, (addresses, model, options))
    trainer = command_line.start(script, *given)
    output, errors = trainer.communicate(timeout=600)
    for worker in workers:
        worker.kill()
        worker.communicate()
    assert trainer.returncode == 0, errors
    assert len(set(json.loads(output.splitlines()[-1]))) == 1
