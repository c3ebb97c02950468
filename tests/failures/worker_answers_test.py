"""A worker answers however busy it is, unless it is stopped or gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lingvo_pipe
from lingvo_pipe.failures.worker_answers import Answer, WorkerAnswers
from lingvo_pipe.pipeline.devices.own_port import unused_ports

ROOT = Path(lingvo_pipe.__file__).parents[1]
# Seconds in which even a busy machine answers.
TIMEOUT = 5.0
# Keeps every thread of the worker at work for some seconds; says by which number the
# worker knows it.
BUSY = """
import sys, time
import tensorflow as tf
from lingvo_pipe.failures.keep_alive import own_number
tf.config.experimental_connect_to_cluster(
    tf.train.ClusterSpec({"worker": [sys.argv[1]], "localhost": ["127.0.0.1:0"]}),
    job_name="localhost", task_index=0)

@tf.function
def work(x):
    with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
        return tf.add_n([tf.reduce_sum(tf.matmul(x + i, x)) for i in range(8)])

with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
    x = tf.zeros([2000, 2000])
work(x)
print(own_number(), flush=True)
end = time.monotonic() + 6
while time.monotonic() < end:
    float(work(x))
print(flush=True)
sys.stdin.read()
"""


def _start(code: str, *arguments: str) -> subprocess.Popen[str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**environment, "CUDA_VISIBLE_DEVICES": "-1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


class Worker:
    """A worker at an address, and another process after it."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{unused_ports(1)[0]}"
        self.start()

    def start(self) -> None:
        self.process = _start(
            "import sys\n"
            "from lingvo_pipe.pipeline.devices.cluster_spec import Cluster\n"
            "from lingvo_pipe.pipeline.devices.worker import serve\n"
            "serve(Cluster((sys.argv[1],)), 0)\n",
            self.address,
        )

    def identity(self) -> bytes:
        """Of the worker, as soon as it is up."""
        asked = WorkerAnswers([self.address])
        end = time.monotonic() + 60
        while (identity := asked.ask(TIMEOUT)[0].identity) is None:
            assert time.monotonic() < end
            assert self.process.poll() is None
            time.sleep(0.1)
        return identity


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.process.kill()
    worker.process.communicate()


def test_answers_tell_what_has_become_of_a_worker(worker: Worker) -> None:
    identity = worker.identity()
    asked = WorkerAnswers([worker.address])
    busy = _start(BUSY, worker.address)
    assert busy.stdin is not None
    assert busy.stdout is not None
    number = int(busy.stdout.readline())
    assert asked.forgotten(number, TIMEOUT) == [False]
    assert asked.forgotten(number + 1, TIMEOUT) == [True]
    done = threading.Thread(target=busy.stdout.readline)
    done.start()
    while done.is_alive():
        assert asked.ask(TIMEOUT) == [Answer(identity)]
    assert asked.forgotten(number, TIMEOUT) == [False]
    asked.forget(number + 1, TIMEOUT)
    assert asked.forgotten(number, TIMEOUT) == [False]
    busy.kill()
    busy.communicate()
    asked.forget(number, TIMEOUT)
    assert asked.forgotten(number, TIMEOUT) == [True]

    worker.process.send_signal(signal.SIGSTOP)
    os.waitpid(worker.process.pid, os.WUNTRACED)  # Until all its threads have stopped.
    assert asked.ask(1.0) == [Answer()]
    worker.process.send_signal(signal.SIGCONT)
    assert asked.ask(TIMEOUT) == [Answer(identity)]

    worker.process.kill()
    worker.process.communicate()
    assert asked.ask(TIMEOUT) == [Answer(is_gone=True)]
    worker.start()
    assert worker.identity() not in (None, identity)


def test_nobody_is_gone() -> None:
    address = f"127.0.0.1:{unused_ports(1)[0]}"
    assert WorkerAnswers([address]).ask(TIMEOUT) == [Answer(is_gone=True)]
