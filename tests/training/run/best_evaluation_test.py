"""The best evaluation is the first of the best values, and patience ends."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.run.best_evaluation import (
    BestEvaluation,
    define_best_params,
    read_best_step,
    write_best,
)


def params(**values: Any) -> Params:
    p = Params()
    p.Define("interval_steps", 10, "")
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
    for step, loss in enumerate([3.0, 4.0, 2.0, 2.0, 5.0]):
        best.add(step, {"loss": loss})
        over.append(best.is_over)
    assert over == [False, False, False, False, True]
    assert re.fullmatch(r"2\b.* -loss\b.*step 2\.", best.reason)


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


@pytest.mark.parametrize("metric", ["-loss", "loss"])
def test_the_best_evaluation_is_read_back(tmp_path: Path, metric: str) -> None:
    assert read_best_step(tmp_path / "best.json") is None
    best = BestEvaluation(params(best_metric=metric))
    best.add(20, {"loss": 0.25})
    write_best(tmp_path / "best.json", best.text())
    assert read_best_step(tmp_path / "best.json") == 20
    assert (tmp_path / "best.json").read_text() == '{"step": 20, "loss": 0.25}\n'
    write_best(tmp_path / "best.json", BestEvaluation(params()).text())
    assert read_best_step(tmp_path / "best.json") is None


def test_the_best_may_be_infinite(tmp_path: Path) -> None:
    best = BestEvaluation(params(best_metric="ratio"))
    best.add(20, {"ratio": float("inf")})
    write_best(tmp_path / "best.json", best.text())
    assert read_best_step(tmp_path / "best.json") == 20


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b"{}", b'{"step": null}'])
def test_a_damaged_file_is_named_and_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "best.json"
    path.write_bytes(content)
    with pytest.raises(UserValueError, match=rf"^{path}:"):
        read_best_step(path)
    write_best(path, '{"step": 20, "loss": 0.25}\n')
    assert read_best_step(path) == 20


def test_without_a_metric_no_evaluation_is_the_best() -> None:
    best = BestEvaluation(params())
    assert not best.add(1, {"loss": 1.0})
    assert best.step is None
    assert not best.is_over


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"best_metric": 3}, r"task\.eval\.best_metric\b.*\b3\b"),
        ({"best_metric": "-"}, r"task\.eval\.best_metric\b.*'-'"),
        ({"patience": 2}, r"eval\.patience\b.*\b2\b.*task\.eval\.best_metric"),
        ({"best_metric": "loss", "patience": 0}, r"eval\.patience\b.*\b1\b.*\b0\b"),
        ({"best_metric": "loss", "patience": True}, r"eval\.patience\b.*\b1\b.*True"),
        (
            {"best_metric": "loss", "patience": 2, "interval_steps": None},
            r"eval\.patience\b.*\b2\b.*task\.eval\.interval_steps",
        ),
    ],
)
def test_wrong_params_are_rejected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BestEvaluation(params(**values))


def test_an_unknown_metric_is_an_error_with_near_names() -> None:
    best = BestEvaluation(params(best_metric="-acuracy"))
    pattern = r"task\.eval\.best_metric.*'acuracy'.*'accuracy'.*accuracy, loss"
    with pytest.raises(ValueError, match=pattern):
        best.check_metrics(["loss", "accuracy"])
    best = BestEvaluation(params(best_metric="-loss"))
    best.check_metrics(["loss", "accuracy"])
