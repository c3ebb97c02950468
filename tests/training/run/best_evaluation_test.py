"""The best evaluation is the first of the best values, and patience ends."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.run.best_evaluation import (
    BestEvaluation,
    define_best_params,
    read_best,
    write_best,
)
from tests.support.errors import fails


def params(**values: Any) -> Params:
    p = Params()
    p.Define("interval_steps", 1, "")
    define_best_params(p)
    return p.Set(**values)


@pytest.mark.parametrize("sign", ["", "-"])
def test_the_first_of_the_best_values_is_best(sign: str) -> None:
    random = np.random.default_rng(0)
    for _ in range(100):
        values = random.integers(4, size=8) / 2
        best = BestEvaluation(params(best_metric=f"{sign}score"))
        found = [best.add(n, {"score": value}) for n, value in enumerate(values)]
        signed = -values if sign else values
        assert best.step == int(np.argmax(signed))
        improved = [signed[n] > max([*signed[:n], -math.inf]) for n in range(8)]
        assert found == improved


def test_training_stops_when_patience_is_over() -> None:
    best = BestEvaluation(params(best_metric="-loss", patience=2))
    over = []
    for step, loss in enumerate([3.0, 4.0, 2.0, 2.0, 5.0], start=1):
        best.add(step, {"loss": loss})
        over.append(best.is_over)
    assert over == [False, False, False, False, True]
    assert re.fullmatch(r"2\b.* -loss\b.*step 3\.", best.reason)


def test_an_evaluation_after_an_earlier_last_step_may_be_best_but_does_not_count() -> (
    None
):
    """Once a run that resumed for more steps stopped earlier than one in one go."""
    best = BestEvaluation(params(best_metric="-loss", patience=2, interval_steps=4))
    over = []
    for step, loss in {4: 3.0, 6: 1.0, 8: 2.0, 12: 2.0, 14: 2.0, 16: 2.0}.items():
        best.add(step, {"loss": loss})
        over.append(best.is_over)
    assert over == [False] * 5 + [True]
    assert best.step == 6
    assert re.search(r"step 8\.$", best.reason)


def test_a_repeated_evaluation_does_not_count() -> None:
    best = BestEvaluation(params(best_metric="-loss", patience=1))
    assert best.add(10, {"loss": 1.0})
    assert not best.add(10, {"loss": 1.0})
    assert not best.is_over
    other = BestEvaluation(params(best_metric="-loss", patience=2))
    for step in (10, 20, 20):
        other.add(step, {"loss": step})
    assert not other.is_over


def test_nan_is_never_the_best() -> None:
    best = BestEvaluation(params(best_metric="-loss"))
    assert not best.add(1, {"loss": math.nan})
    assert not best.add(2, {})
    assert best.add(3, {"loss": 7.0})
    assert best.step == 3


def test_logged_evaluations_count() -> None:
    records = [
        {"step": 5, "split": "test", "accuracy": 0.5},
        {"step": 6, "split": "train", "accuracy": 0.9},
        {"step": 10, "split": "test", "accuracy": 0.4},
    ]
    best = BestEvaluation(params(best_metric="accuracy", patience=2), records)
    assert best.step == 5
    assert not best.is_over
    best.add(15, {"accuracy": 0.5})
    assert best.is_over


def test_an_evaluation_without_a_checkpoint_counts_but_is_not_the_best() -> None:
    """Once a run that resumed later had more patience."""
    records = [
        {"step": step, "split": "test", "accuracy": value}
        for step, value in ((1, 0.9), (2, 0.5), (3, 0.6))
    ]
    p = params(best_metric="accuracy", patience=3)
    best = BestEvaluation(p, records, usable={2, 3})
    assert (best.step, best.is_over) == (3, False)
    assert best.add(4, {"accuracy": 0.7})
    assert best.is_over
    assert re.search(r"step 1\.$", best.reason)


@pytest.mark.parametrize("metric", ["-loss", "loss"])
def test_the_best_evaluation_is_read_back(tmp_path: Path, metric: str) -> None:
    path = tmp_path / "best.json"
    assert read_best(path) == {}
    for value in (0.25, math.inf):
        best = BestEvaluation(params(best_metric=metric))
        best.add(20, {"loss": value if metric == "loss" else -value})
        write_best(path, best.text())
        assert read_best(path)["step"] == 20
    write_best(path, BestEvaluation(params()).text())
    assert not path.exists()


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b"{}", b'{"step": null}'])
def test_a_damaged_file_is_named_and_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "best.json"
    path.write_bytes(content)
    with fails(UserDamageError, path=str(path)):
        read_best(path)
    write_best(path, '{"step": 20, "loss": 0.25}\n')
    assert read_best(path) == {"step": 20, "loss": 0.25}


def test_without_a_metric_no_evaluation_is_the_best() -> None:
    best = BestEvaluation(params())
    assert not best.add(1, {"loss": 1.0})
    assert best.step is None
    assert not best.is_over


def test_an_unknown_metric_is_an_error_with_near_names() -> None:
    best = BestEvaluation(params(best_metric="-acuracy"))
    with fails(path="task.eval.best_metric", got="acuracy") as info:
        best.check_metrics(["loss", "accuracy"])
    assert "'accuracy'" in info.value.hint
    best = BestEvaluation(params(best_metric="-loss"))
    best.check_metrics(["loss", "accuracy"])
