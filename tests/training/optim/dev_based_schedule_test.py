"""A rate that follows evaluations is a function of the run's directory."""

import pytest

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.schedule import DevBasedSchedule
from lingvo_pipe.training.optim.keras_optimizer import ScheduleParams
from lingvo_pipe.training.run.changed_params import check_changes
from lingvo_pipe.training.run.metrics_log import read_metrics
from tests.support.errors import fails
from tests.training.toy_run import Input, batch, make_task, run, saved_bytes

STEPS = 6
DATA = Input(*map(batch, range(STEPS)))


def factors(records, **params):
    schedule = DevBasedSchedule.Params().Set(**params).Instantiate()
    found = []
    for n in range(1, len(records) + 1):
        pairs = [{"step": step, "loss": loss} for step, loss in records[:n]]
        schedule.FollowEvaluations(pairs)
        found.append(float(schedule.Value()))
    return found


def test_the_factor_falls_after_a_window_without_improvement():
    records = [(1, 10.0), (2, 5.0), (5, 4.0), (6, 4.0), (9, 4.0), (10, 3.9), (13, 3.0)]
    got = factors(records, tolerance=1.0, window=2, decay=0.5, min_factor=0.2)
    assert got == pytest.approx([1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.2])


@pytest.mark.parametrize(("metric", "want"), [("-loss", 1.0), ("loss", 0.5)])
def test_the_sign_of_the_metric_says_what_is_better(metric, want):
    assert factors([(2, 3.0), (4, 2.0)], metric=metric, window=2)[-1] == want


def test_a_loss_that_is_not_a_number_is_no_improvement():
    assert factors([(2, "NaN"), (4, "NaN")], window=2) == [0.5, 0.25]


def test_earlier_evaluations_must_have_the_metric():
    with fails(path="task.train.lr_schedule.metric", got="accuracy"):
        factors([(2, 3.0)], metric="accuracy")


def task(max_steps=STEPS, steps_per_loop=1, interval_steps=2):
    # Accuracy cannot improve by 2, so each evaluation but the first decays.
    schedule = DevBasedSchedule.Params().Set(metric="accuracy", tolerance=2.0, window=1)
    p = make_task(
        lr_schedule=schedule,
        max_steps=max_steps,
        steps_per_loop=steps_per_loop,
        report_interval_steps=1,
    ).params.Copy()
    p.pipeline.splits = min(steps_per_loop, 2)
    p.eval.interval_steps = interval_steps
    return p.Instantiate()


def rates(logdir):
    records = [r for r in read_metrics(logdir) if r["split"] == "train"]
    return [record["learning_rate"] for record in records]


def test_stages_that_update_by_themselves_follow_evaluations(tmp_path):
    run(task(steps_per_loop=4), DATA, tmp_path)
    assert rates(tmp_path) == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.05, 0.05])


@pytest.mark.exhaustive
def test_a_resumed_run_has_the_same_rates(tmp_path):
    """Also if it ended between two evaluations that are due, or was killed."""
    run(task(max_steps=3), DATA, tmp_path)
    run(task(), DATA, tmp_path)
    assert rates(tmp_path) == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.05, 0.05])
    want = saved_bytes(tmp_path, STEPS)
    # As killed after step 5: its checkpoint is the last, later metrics are there.
    for path in (tmp_path / "checkpoints").glob("ckpt-00000006*"):
        path.unlink()
    run(task(), DATA, tmp_path)
    assert saved_bytes(tmp_path, STEPS) == want


@pytest.mark.parametrize("kind", ["alone", "within another", "none"])
def test_another_interval_of_evaluations_is_recorded(kind):
    """The schedule then follows other evaluations, also earlier ones."""
    path, model = "task.eval.interval_steps", Params()
    model.Define("task", task().params.Copy(), "")
    train = model.task.train
    if kind == "within another":
        train.lr_schedule = ScheduleParams("LinearWarmup", schedule=train.lr_schedule)
    elif kind == "none":
        train.lr_schedule = None
    before = model.ToText()
    model.task.eval.interval_steps = 3
    changes = [f"{path} : 2 -> 3"] * (kind != "none")
    assert check_changes(before, model.ToText(), []) == changes


def test_evaluations_must_be_there(tmp_path):
    with fails(path="task.eval.interval_steps"):
        run(task(interval_steps=None), DATA, tmp_path)
    assert not any(tmp_path.iterdir())


def test_evaluations_must_have_the_metric():
    schedule = DevBasedSchedule.Params().Set(metric="-los").Instantiate()
    with fails() as info:
        schedule.CheckEvaluations(2, ["loss", "accuracy"])
    assert str(info.value).startswith("task.train.lr_schedule.metric: ")
