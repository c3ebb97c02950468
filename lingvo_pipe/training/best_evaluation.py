"""Which evaluation of a run was the best, and whether to wait for a better one.

    evaluation of accuracy   0.71   0.80   0.79   0.80   0.78
    best so far                *      *
    without improvement        0      0      1      2      3  -> stops if patience is 3

Only a value that is better than the best counts as an improvement; of equal ones the
first stays the best.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.training.atomic_file import write_atomically

SPLIT = "test"


def define_best_params(p: Params) -> None:
    """Defines what is best among the params of a task's evaluation."""
    p.Define(
        "best_metric",
        None,
        "Metric that tells the best evaluation: 'accuracy', the larger the better, or "
        "'-loss', the smaller. Its checkpoint is kept besides the newest ones.",
    )
    p.Define(
        "patience",
        None,
        "How many evaluations in a row may not be the best one; then training stops. "
        "None: any number.",
    )


class BestEvaluation:
    """The best evaluation so far by one metric.

    Attributes:
        step: of the best evaluation; None if there was none.
    """

    def __init__(self, p: Params) -> None:
        """Initialises it with no evaluation.

        Args:
            p: as of `define_best_params`.

        Raises:
            ValueError: if a param can't be used.
        """
        _check(p)
        self._name: str | None = p.best_metric
        self._patience: int | None = p.patience
        self._value = -math.inf
        self._num_since = 0
        self._last_step = -1
        self.step: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether training should stop."""
        return self._patience is not None and self._num_since >= self._patience

    @property
    def reason(self) -> str:
        """Why training should stop."""
        return (
            f"{self._num_since} evaluations in a row were no better, by "
            f"{self._name}, than that of step {self.step}."
        )

    def check_metrics(self, names: Collection[str]) -> None:
        """Raises ValueError unless the metric is among those of evaluations."""
        name = (self._name or "").removeprefix("-")
        if self._name is not None and name not in names:
            raise ValueError(
                f"task.eval.best_metric must be a metric of evaluations; there is no "
                f"{name!r}.{did_you_mean(name, names)} There are "
                f"{', '.join(sorted(names))}."
            )

    def add(self, step: int, metrics: Mapping[str, Any]) -> bool:
        """Takes an evaluation into account; returns whether it is the best.

        One of a step that is not after the last one's was taken into account before.
        """
        if self._name is None or step <= self._last_step:
            return False
        self._last_step = step
        value = float(metrics.get(self._name.removeprefix("-"), math.nan))
        value = -value if self._name.startswith("-") else value
        if value > self._value:
            self._value, self.step, self._num_since = value, step, 0
            return True
        self._num_since += 1
        return False

    def add_all(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Takes those into account that a run has logged; see `metrics_log`."""
        for record in records:
            if record["split"] == SPLIT:
                self.add(record["step"], record)

    def text(self) -> str | None:
        """Step and value of the best evaluation, for its file; None: there is none."""
        if self._name is None or self.step is None:
            return None
        name = self._name.removeprefix("-")
        value = -self._value if self._name.startswith("-") else self._value
        return json.dumps({"step": self.step, name: value}) + "\n"


def write_best(path: Path, text: str | None) -> None:
    """Writes what `BestEvaluation.text` has returned."""
    if text is None:
        path.unlink(missing_ok=True)
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text)


def read_best_step(path: Path) -> int | None:
    """The step of the best evaluation, or None if none was written."""
    if not path.exists():
        return None
    return int(json.loads(path.read_text(encoding="utf-8"))["step"])


def _check(p: Params) -> None:
    name, patience = p.best_metric, p.patience
    if name is not None and not (isinstance(name, str) and name.removeprefix("-")):
        raise ValueError(
            "task.eval.best_metric must be a metric's name, with - before it if less "
            f"is better, such as 'accuracy' or '-loss'; got {name!r}."
        )
    if patience is None:
        return
    if not isinstance(patience, int) or isinstance(patience, bool) or patience < 1:
        raise ValueError(
            f"task.eval.patience must be an integer of at least 1; got {patience!r}. "
            "None waits for ever."
        )
    if name is None:
        raise ValueError(
            f"task.eval.patience, which is {patience}, needs a metric to go by. Set "
            "task.eval.best_metric, such as 'accuracy' or '-loss'."
        )
    if p.interval_steps is None:
        raise ValueError(
            f"task.eval.patience, which is {patience}, needs evaluations while "
            "training. Set task.eval.interval_steps."
        )
