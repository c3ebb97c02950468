"""An elastic run ends in the same bytes as an undisturbed one."""

from __future__ import annotations

import contextlib
import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lingvo_pipe.training.run.run_parts import disturbances, read_parts
from tests.local_cluster.elastic_runs import ElasticRuns
from tests.support.cases import seeds
from tests.support.network_hosts import Host, network_hosts

STEPS, MANY_STEPS = 150, 300
NUM_EVENTS, TRAINER_TOO, ALONE = 4, 0.3, 0.5
NUM_WORKERS = 4
OVERRIDES = (
    "task.pipeline.splits : 4",
    "task.pipeline.splits : 2; task.pipeline.num_replicas : 2",
)
# Two devices have the memory that the model needs, and one has not.
LIMITED = "task.pipeline.splits (str) : auto; task.pipeline.memory_limit : 31e3"


@pytest.fixture
def ends() -> Iterator[contextlib.ExitStack]:
    """A stack for what ends after the test, such as a run."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.mark.exhaustive
def test_a_run_that_loses_a_worker_goes_on_without_it(
    tmp_path: Path, ends: contextlib.ExitStack
) -> None:
    runs = ElasticRuns(tmp_path, STEPS)
    run = runs.start("elastic", 2, "--devices=2")
    ends.callback(run.end)
    run.wait_for_devices(0, 1)
    run.disturb(signal.SIGKILL, 1)
    run.wait_for_devices(0)
    output = run.finish()
    assert re.search(r"^elastic: 1 of 2 devices; left out: worker:1$", output, re.M)
    runs.train("whole", "--devices=2")
    assert runs.results("elastic") == runs.results("whole")
    first, second = read_parts(tmp_path / "elastic" / "parts.json")
    assert first.cause == ""
    assert re.search(r"^worker:1 at \S+ is gone\.$", second.cause)
    (line,) = disturbances([first, second])
    assert re.search(rf"after step \d+: 0:\d\d:\d\d lost\. {second.cause}$", line)


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_elastic", [True, False])
def test_a_worker_with_notice_costs_no_step(
    tmp_path: Path, ends: contextlib.ExitStack, is_elastic: bool
) -> None:
    runs = ElasticRuns(tmp_path, STEPS, save_every=STEPS)
    run = runs.start("run", 2, "--devices=2", is_elastic=is_elastic)
    ends.callback(run.end)
    run.wait_for_line(r"\nstep \d")
    run.disturb(signal.SIGTERM, 1)
    assert run.wait_for_worker(1) == 128 + signal.SIGTERM
    if not is_elastic:
        run.wait_for_line(r"Waiting for worker:1 ")
        run.start_worker(1)
    run.wait_for_line(r"Resumed from step \d+")
    run.finish()
    before, resumed = run.output.split("Resumed from step ")
    *_, last = re.findall(r"^step (\d+)", before, re.M)
    assert resumed.startswith(f"{last}.")
    runs.train("whole", "--devices=2")
    assert runs.results("run") == runs.results("whole")
    _, second = read_parts(tmp_path / "run" / "parts.json")
    assert re.search(r"^worker:1 at \S+ is leaving\.$", second.cause)


@pytest.mark.exhaustive
def test_a_run_shrinks_from_four_devices_to_one_and_grows_back(
    tmp_path: Path, ends: contextlib.ExitStack
) -> None:
    runs = ElasticRuns(tmp_path, MANY_STEPS)
    run = runs.start("elastic", 4)
    ends.callback(run.end)
    run.wait_for_devices(0, 1, 2, 3)
    run.disturb(signal.SIGKILL, 1)
    run.wait_for_devices(0, 2, 3)
    run.disturb(signal.SIGSTOP, 3)
    run.wait_for_devices(0, 2)
    run.disturb(signal.SIGKILL, 0)
    run.wait_for_devices(2)
    for task in (0, 1, 3):
        run.start_worker(task)
    run.wait_for_devices(0, 1, 2, 3)
    run.finish()
    runs.train("whole", "--devices=4")
    assert runs.results("elastic") == runs.results("whole")
    parts = read_parts(tmp_path / "elastic" / "parts.json")
    assert re.search(r"\bworker:\d at \S+ is back\.$", parts[-1].cause)
    print(*disturbances(parts), sep="\n")


@pytest.mark.exhaustive
def test_a_model_that_does_not_fit_waits_for_the_lost_worker(
    tmp_path: Path, ends: contextlib.ExitStack
) -> None:
    runs = ElasticRuns(tmp_path, STEPS, LIMITED)
    run = runs.start("elastic", 2, "--devices=2")
    ends.callback(run.end)
    run.wait_for_devices(0, 1)
    run.disturb(signal.SIGKILL, 1)
    misfit = r"On 1 device the model does not fit: [\d.]+ \w+ are missing\."
    run.wait_for_line(rf"Waiting for worker:1 at \S+, \d+ s at most\. {misfit}\n")
    run.start_worker(1)
    run.wait_for_devices(0, 1)
    run.finish()
    runs.train("whole", "--devices=2")
    assert runs.results("elastic") == runs.results("whole")


@pytest.mark.exhaustive
def test_a_worker_that_comes_back_unfit_is_left_out_and_a_signal_ends_the_job(
    tmp_path: Path, ends: contextlib.ExitStack
) -> None:
    runs = ElasticRuns(tmp_path, MANY_STEPS)
    run = runs.start("elastic", 2, "--devices=2")
    ends.callback(run.end)
    run.wait_for_devices(0, 1)
    run.disturb(signal.SIGKILL, 1)
    run.wait_for_devices(0)
    run.start_worker(1, more=",127.0.0.1:9")
    run.wait_for_line(r"worker:1 at \S+ is back, but does not fit: workers ")
    run.wait_for_checkpoint()
    run.disturb(signal.SIGKILL, 0, 1)
    run.wait_for_line(r"Waiting for .*\b0 of 2 devices can be used")
    assert run.stop_trainer() == 128 + signal.SIGTERM
    assert "\nStopped by SIGTERM. The same command resumes" in run.output
    for task in (0, 1):
        run.start_worker(task)
    run.start_trainer()
    run.finish()
    runs.train("whole", "--devices=2")
    assert runs.results("elastic") == runs.results("whole")


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", seeds(3, fast=[]))
def test_a_random_series_of_losses_leaves_no_trace(
    tmp_path: Path, ends: contextlib.ExitStack, seed: int
) -> None:
    """Workers are killed, stopped and cut off, one or two at once. Some come back."""
    draw = random.Random(seed)
    override = OVERRIDES[seed // 2 % 2]
    model = ("Images", "Text")[(seed ^ seed // 2 ^ seed // 4) % 2]
    runs = ElasticRuns(tmp_path, MANY_STEPS, override, model=model)
    hosts: list[Host] = []
    losses: list[signal.Signals | None] = [
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGTERM,
    ]
    if seed % 2:
        hosts = ends.enter_context(network_hosts(1 + NUM_WORKERS))
        losses.append(None)
    run = runs.start("elastic", NUM_WORKERS, hosts=hosts)
    ends.callback(run.end)
    present = set(range(NUM_WORKERS))
    for _ in range(NUM_EVENTS):
        run.wait_for_checkpoint()
        lost = draw.sample(sorted(present), min(draw.choice([1, 2]), len(present) - 1))
        if lost:
            run.disturb(draw.choice(losses), *lost)
            present -= {*lost}
        if draw.random() < TRAINER_TOO:
            run.kill_trainer()
        if draw.random() < ALONE:
            run.wait_for_checkpoint()
        back = [task for task in range(NUM_WORKERS) if task not in present]
        for task in draw.sample(back, draw.randint(0, len(back))):
            run.start_worker(task)
            present.add(task)
    run.finish()
    runs.train("whole", f"--devices={NUM_WORKERS}")
    assert runs.results("elastic") == runs.results("whole")
    print(*disturbances(read_parts(tmp_path / "elastic" / "parts.json")), sep="\n")
