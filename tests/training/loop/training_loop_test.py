"""Training resumes, saves only finite state, and starts from other runs."""

import os
import re
import shutil
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.core.errors import UserNumberError, UserValueError
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.checkpoint.async_saver import AsyncSaver
from lingvo_pipe.training.checkpoint.restored_weights import restore_weights
from lingvo_pipe.training.eval.evaluation import Evaluation
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from lingvo_pipe.training.run.metrics_log import read_metrics
from lingvo_pipe.training.run.run_classes import read_class_names, write_class_names
from lingvo_pipe.training.task.placement import describe_run
from tests.support.cases import exhaustive
from tests.support.errors import fails
from tests.training.injected_faults import before_calls
from tests.training.toy_run import (
    STEPS,
    Input,
    batch,
    events,
    make_task,
    published_params,
    resumed_steps,
    run,
    saved_bytes,
    saved_steps,
)

DATA = Input(*map(batch, range(6)))


def test_a_loss_that_is_not_finite_ends_training(tmp_path):
    data = Input(batch(0), batch(1), batch(2, scale=np.nan))
    with pytest.raises(UserNumberError, match=r"step 3\b.*\bnan\b"):
        run(make_task(), data, tmp_path)
    assert saved_steps(tmp_path) == [1, 2]
    # With good data the run resumes.
    logged: list[str] = []
    data = Input(*map(batch, range(STEPS)))
    metrics = run(make_task(), data, tmp_path, logged.append)
    assert resumed_steps(logged) == [2]
    assert read_metrics(tmp_path)[-1] == {"step": STEPS, "split": "test", **metrics}


def test_variables_that_are_not_finite_are_not_saved(tmp_path):
    data = Input(*[batch(step, scale=1e3) for step in range(STEPS)])
    with fails(UserNumberError) as info:
        run(make_task(learning_rate=1e38), data, tmp_path)
    assert info.value.path.startswith("task/pipeline/cells_")
    assert saved_steps(tmp_path) == []


def test_batches_that_end_too_soon_are_an_error(tmp_path):
    with fails(path="TrainBatches", hint="The run is saved after step 2."):
        run(make_task(), Input(batch(0), batch(1)), tmp_path)
    assert saved_steps(tmp_path) == [1, 2]


def test_wrong_shapes_are_found_before_anything_is_written(tmp_path):
    small = NestedMap({name: value[:1] for name, value in batch(0).items()})
    with pytest.raises(UserValueError, match=r"task/pipeline"):
        run(make_task(), Input(small), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """A run that reports each step, and what was on disk before each checkpoint."""
    logdir = tmp_path_factory.mktemp("runs") / "reported"
    sync, synced, found = os.fsync, {}, []

    def note(descriptor):
        sync(descriptor)
        synced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    def look():
        file = (logdir / "metrics.jsonl").stat()
        found.append(
            (len(read_metrics(logdir)), synced.get(file.st_ino) == file.st_size)
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", note)
        before_calls(patch, AsyncSaver, "save", look)
        task = make_task(report_interval_steps=1, histogram_interval_steps=2)
        run(task, DATA, logdir)
    return logdir, found


def test_what_is_reported_is_on_disk_before_a_checkpoint_is_saved(reported):
    """Otherwise a crash of the machine leaves a gap that no resumed run fills."""
    _, found = reported
    assert found == [(n, True) for n in range(1, STEPS + 1)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run of two steps."""
    logdir = tmp_path_factory.mktemp("source")
    p = published_params()
    p.train.max_steps = 2
    run(p.Instantiate(), DATA, logdir)
    return logdir


def own_names(source):
    return {str(source): ([("(.*)", "%s")], [])}


def test_a_new_run_starts_from_another(tmp_path, source):
    rules = {str(source): ([("(.*)", "%s")], [".*/out/"])}
    p = published_params(num_classes=3)
    p.train.Set(max_steps=1, init_from_checkpoint_rules=rules)
    logged: list[str] = []
    run(p.Instantiate(), DATA, tmp_path / "new", logged.append)
    assert re.search(rf"\b7 of 9\b.*{source}", logged[0])
    assert re.search(r"/out/w  float32 \[5, 3\], .*'\.\*/out/'", logged[1])
    before, start = saved_bytes(source, 2), saved_bytes(tmp_path / "new", 0)

    def stored(state, name, ending=""):
        return state[f"task/pipeline/{name}{ending}"]

    for name in ("in/w", "norm/gamma", "norm/moving_mean", "mid/b"):
        assert stored(start, name) == stored(before, name, "/ema")
        # The initial averages are the initial weights.
        assert stored(start, name, "/ema") == stored(start, name)


@pytest.mark.parametrize(
    ("num_stages", "num_replicas"), [(2, 1), exhaustive(1, 1), exhaustive(1, 2)]
)
def test_a_new_run_starts_where_another_ended(
    tmp_path, source, num_stages, num_replicas
):
    """The evaluation of step 0 is the other run's last, on any devices."""
    p = published_params(num_stages=num_stages)
    p.pipeline.num_replicas = num_replicas
    p.train.Set(max_steps=1, init_from_checkpoint_override=str(source))
    run(p.Instantiate(), DATA, tmp_path)
    task = p.Instantiate()
    paths = task.VariablePaths()
    assert restore_weights(paths, tmp_path / "checkpoints", "ckpt-00000000", print) == 0
    metrics = Evaluation(task)(Input(batch(9)).EvalBatches())
    assert {"step": 2, "split": "test", **metrics} == read_metrics(source)[-1]
    text = (tmp_path / "initial_weights.txt").read_text()
    assert text.startswith(f"Initialized 9 of 9 variables from {source}/")


@pytest.mark.exhaustive
def test_layers_of_other_shapes_keep_their_initial_values(tmp_path, source):
    p = published_params(num_classes=3, num_stages=2)
    p.train.Set(max_steps=1, loss_spike_factor=9.0)
    run(p.Copy().Instantiate(), DATA, tmp_path / "fresh")
    assert not (tmp_path / "fresh" / "initial_weights.txt").exists()
    p.train.init_from_checkpoint_override = str(source)
    run(p.Instantiate(), DATA, tmp_path / "tuned")
    fresh, tuned, before = (
        saved_bytes(tmp_path / "fresh", 0),
        saved_bytes(tmp_path / "tuned", 0),
        saved_bytes(source, 2),
    )
    weights = {path for path in fresh if f"{path}/ema" in fresh}
    assert len(weights) == 9
    for path in weights:
        other = fresh[path] if "/out/" in path else before[f"{path}/ema"]
        assert tuned[path] == other
    text = (tmp_path / "tuned" / "initial_weights.txt").read_text()
    assert "/out/w  float32 [5, 3], float32 [5, 2] in the source" in text


class Ended:
    """An input like another, without batches."""

    def __init__(self, data):
        self.params = data.params
        self._data = data

    def TrainBatches(self, start_step=0):
        return self._data.TrainBatches(start_step).take(0)


@pytest.mark.exhaustive
def test_a_started_run_does_not_need_its_source(tmp_path):
    source = tmp_path / "source"
    run(make_task(max_steps=1), DATA, source)
    rules = own_names(source)
    run(make_task(init_from_checkpoint_rules=rules), DATA, tmp_path / "whole")
    killed = make_task(max_steps=1, init_from_checkpoint_rules=rules)
    with fails(path="TrainBatches", hint="The run is saved after step 0."):
        run(killed, Ended(DATA), tmp_path / "parts")
    assert saved_steps(tmp_path / "parts") == [0]
    shutil.rmtree(source)
    logged: list[str] = []
    task = make_task(init_from_checkpoint_rules=rules)
    run(task, DATA, tmp_path / "parts", logged.append)
    assert resumed_steps(logged) == [0]
    assert saved_bytes(tmp_path / "parts", 3) == saved_bytes(tmp_path / "whole", 3)


def test_a_wrong_source_is_found_before_anything_is_written(tmp_path, source):
    p = published_params(num_classes=3)
    p.train.init_from_checkpoint_rules = own_names(source)
    with fails(path="task.train.init_from_checkpoint_rules"):
        run(p.Instantiate(), DATA, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_frozen_parameters_are_counted_separately():
    task = make_task(bprop_variable_filter="/cells_1/")
    # 5 * 2 + 2 of the last layer; 3 * 5 + 5 of the other.
    assert describe_run(task).startswith("parameters: 12 and 20 frozen; ")


def _histograms(logdir):
    """Returns steps and names of the histograms that a run has written."""
    return sorted(
        (step, name) for step, name, _ in events(logdir / "train", "histograms")
    )


def test_histograms_are_written_if_requested(reported, source):
    names = sorted(make_task().TrainedVariables())
    assert _histograms(reported[0]) == [(2, name) for name in names]
    assert _histograms(source) == []


def test_progress_shows_the_utilization_of_stages(tmp_path, capfd):
    run(make_task(2, report_interval_steps=1), DATA, tmp_path)
    shown = re.findall(r"stages (\d+)% busy, loss", capfd.readouterr().err)
    assert len(shown) == STEPS
    assert all(0 < int(percent) <= 100 for percent in shown)


def test_slots_that_copy_weights_copy_another_runs(tmp_path, reported):
    """Once step 1 put the random initial weights back."""
    free = make_task(
        optimizer=OptimizerParams("ScheduleFreeAdamW"),
        learning_rate=1e-6,
        max_steps=1,
        init_from_checkpoint_override=str(reported[0]),
    )
    run(free, DATA, tmp_path / "run")
    start, end = (saved_bytes(tmp_path / "run", step) for step in (0, 1))
    for path in free.VariablePaths():
        before, after = (np.frombuffer(x[path], np.float32) for x in (start, end))
        np.testing.assert_allclose(after, before, atol=1e-5)


def test_a_run_whose_checkpoints_are_removed_starts_anew(tmp_path, reported):
    """Once batches that the earlier try had skipped stayed skipped."""
    logdir = shutil.copytree(reported[0], tmp_path / "run")
    data: Any = Input(*map(batch, range(STEPS)))
    data.class_names = ["bee", "cat"]
    write_class_names(logdir, data)
    data.class_names = ["ant", "bee"]
    shutil.rmtree(logdir / "checkpoints")
    skipped, params = logdir / "skipped_batches.json", logdir / "params.txt"
    skipped.write_text('[{"after_step": 0, "num_batches": 2}]\n')
    model, text = params.read_text().split("\n", 1)
    params.write_text(f"{model}\n# since step 1: a\n{text}")
    lines: list[str] = []
    run(make_task(report_interval_steps=1), data, logdir, lines.append)
    assert not skipped.exists()
    assert read_class_names(logdir) == data.class_names
    assert "since step" not in params.read_text()
    (line,) = (line for line in lines if line.startswith("No checkpoint"))
    assert re.search(r"step 3\b.*\b2 skipped batches\b.*\b1 earlier change", line)
    assert saved_bytes(logdir, STEPS) == saved_bytes(reported[0], STEPS)
    assert read_metrics(logdir) == read_metrics(reported[0])
