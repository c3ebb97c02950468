"""With another number of steps a schedule takes the same course, slower or faster."""

from __future__ import annotations

import pytest

from lingvo_pipe import schedule
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dropout import DropPathLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.training.optim.keras_optimizer import ScheduleParams, make_rate
from lingvo_pipe.training.task.base_task import BaseTask
from tests.support.errors import fails
from tools.local_study.studied_model import train_for


def _task(max_steps: int | None = 100) -> InstantiableParams:
    p = BaseTask.Params()
    inner = ScheduleParams("CosineDecay", decay_steps=90, alpha=0.1)
    p.train.Set(
        max_steps=max_steps,
        learning_rate=0.5,
        lr_schedule=ScheduleParams("LinearWarmup", warmup_steps=10, schedule=inner),
    )
    drops = DropPathLayer.Params()
    p.pipeline.cell_tpl = [
        SequentialLayer.Params().Set(sub=[drops.Copy().Set(num_steps=50)]),
        drops,
    ]
    return p


def _rate(p: InstantiableParams, step: int) -> float:
    return float(make_rate(0.5, p.train.lr_schedule)(step))


@pytest.mark.parametrize("factor", [1, 3])
def test_rates_follow_the_fraction_of_steps(factor: int) -> None:
    before, after = _task(), _task()
    train_for(after, 100 * factor)
    assert after.train.max_steps == 100 * factor
    for step in (0, 5, 10, 50, 100):
        assert _rate(after, step * factor) == pytest.approx(_rate(before, step))


def test_drop_path_is_scaled() -> None:
    p = _task()
    train_for(p, 300)
    (inside,), at_once = p.pipeline.cell_tpl[0].sub, p.pipeline.cell_tpl[1]
    assert inside.num_steps == 150
    assert at_once.num_steps is None


def test_boundaries_are_scaled() -> None:
    p = _task().Copy()
    p.train.lr_schedule = ScheduleParams(
        "PiecewiseConstantDecay", boundaries=[1, 50], values=[1.0, 0.5, 0.1]
    )
    train_for(p, 10)
    assert p.train.lr_schedule.arguments["boundaries"] == [1, 5]


def test_what_cannot_be_stretched_is_refused() -> None:
    p = _task().Copy()
    p.train.lr_schedule = schedule.CosineSchedule.Params().Set(total_steps=10)
    with fails(path="task.train.lr_schedule", got=p.train.lr_schedule):
        train_for(p, 10)
    with fails(path="task.train.max_steps", got=None):
        train_for(_task(max_steps=None), 10)
