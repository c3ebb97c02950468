"""Registered models train to the same bytes on workers as in one process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lingvo_pipe.pipeline.devices.own_addresses import unused_ports
from tests.support.command_line import CommandLine
from tests.support.forked_process import ForkedProcess

NUM_WORKERS = 4
MODELS = [
    "image.keras_digits.KerasDigits",
    "mt.cldr.TransformerTiny",
]

IN_ONE_PROCESS = {"devices": ["cpu:0"], "splits": 1}


def _on_workers(num_stages: int, num_replicas: int = 1) -> dict:
    tasks = range(num_stages * num_replicas)
    devices = [f"worker:{task}/cpu:0" for task in tasks]
    return {"devices": devices, "splits": num_stages, "num_replicas": num_replicas}


# Pipelines of one list train to the same bytes.
ONE_SHARD = [IN_ONE_PROCESS, _on_workers(4)]
TWO_SHARDS = [
    {**pipeline, "num_batch_shards": 2}
    for pipeline in (IN_ONE_PROCESS, _on_workers(num_stages=2, num_replicas=2))
]


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[CommandLine, list[str]]]:
    """Yields a starter of programs and the addresses of the workers."""
    command_line = CommandLine(tmp_path_factory.mktemp("cluster"))
    addresses = [f"127.0.0.1:{port}" for port in unused_ports(NUM_WORKERS)]
    flag = f"--cluster_spec=worker={','.join(addresses)}"
    workers: list[ForkedProcess] = [
        command_line.start_trainer("--job=worker", f"--task={task}", flag)
        for task in range(NUM_WORKERS)
    ]
    yield command_line, addresses
    for worker in workers:
        worker.kill()
        worker.communicate()


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", MODELS)
def test_bytes_are_the_same_on_workers_and_with_replicas(
    cluster: tuple[CommandLine, list[str]], model: str
) -> None:
    command_line, addresses = cluster
    script = str(Path(__file__).with_name("train_on_cluster.py"))
    runs = [*ONE_SHARD, *TWO_SHARDS]
    trainer = command_line.start(script, *map(json.dumps, (addresses, model, runs)))
    output, errors = trainer.communicate(timeout=1200)
    assert trainer.returncode == 0, errors
    hashes = json.loads(output.splitlines()[-1])
    assert len(set(hashes[: len(ONE_SHARD)])) == 1
    assert len(set(hashes[len(ONE_SHARD) :])) == 1
    assert len(set(hashes)) == 2, "sums of two shards are rounded differently"
