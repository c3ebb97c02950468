"""The best evaluation of a run, and when to stop waiting for a better one.

evaluation of accuracy   0.71   0.80   0.79   0.80   0.78
best so far                *      *
without improvement        0      0      1      2      3  -> stops if patience is 3
"""

import contextlib
import json
import math
import sys
from collections.abc import Collection, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.checks import is_count, is_number
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.regular_file import damaged, read_json, read_text
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.param_rules import Rule, count, optional

SPLIT = "test"

BEST_HINT = "The trainer's command, run again, rebuilds it from metrics.jsonl."


def define_best_params(p: Params) -> None:
    """Adds the params that rank evaluations to a task's `eval` params."""
    p.Define(
        "best_metric",
        None,
        "Metric that ranks evaluations: 'accuracy' if larger is better, or '-loss' if "
        "smaller is. The best one's checkpoint is kept besides the newest ones.",
    )
    p.Define(
        "patience",
        None,
        "Number of consecutive evaluations without improvement after which training "
        "stops. Those at multiples of interval_steps count. If None, it does not stop.",
    )


BEST_RULES = {
    "best_metric": optional(
        Rule(
            lambda name: isinstance(name, str) and bool(name.removeprefix("-")),
            "a metric's name, with - before it if smaller is better",
        )
    ),
    "patience": optional(count()),
}


def is_evaluation_due(p: Params, step: int) -> bool:
    """Returns whether the `eval` params ask for an evaluation after `step` steps."""
    return p.interval_steps is not None and step > 0 and step % p.interval_steps == 0


class BestEvaluation:
    """The best evaluation so far, by `best_metric`. `step` is its step, or None.

    An evaluation that is not due follows the last step of a run, which may resume for
    more steps. It can be the best, but does not count for the patience.

    All of `records` count for the patience. If `usable` is given, only its steps can be
    the best.
    """

    def __init__(
        self,
        p: Params,
        records: Iterable[Mapping[str, Any]] = (),
        usable: Container[int] | None = None,
    ) -> None:
        self._params = p
        self._metric = p.best_metric or ""
        self._name = self._metric.removeprefix("-")
        self._sign = -1 if self._metric.startswith("-") else 1
        self._patience: int | None = p.patience
        self._value = -math.inf
        # Of the evaluations that were due: the best one, and how many are since.
        self._due_value, self._num_since = -math.inf, 0
        self._due_step: int | None = None
        self._last_step = -1
        self.step: int | None = None
        for record in records:
            if record["split"] == SPLIT:
                step = record["step"]
                self.add(step, record, usable is None or step in usable)

    @property
    def is_over(self) -> bool:
        """True if training should stop."""
        return self._patience is not None and self._num_since >= self._patience

    @property
    def reason(self) -> str:
        """The reason to stop training."""
        best = "" if self._due_step is None else f" over step {self._due_step}"
        return (
            f"{self._num_since} consecutive evaluations did not improve "
            f"{self._metric}{best}."
        )

    @property
    def description(self) -> str:
        """The best value and its step."""
        value = self._sign * self._value
        return f"best {SPLIT} {self._name} {value:.4f} at step {self.step}"

    def check_metrics(self, names: Collection[str]) -> None:
        """Raises ValueError if `best_metric` is set, but not to one of `names`."""
        if self._name and self._name not in names:
            raise UserValueError(
                path="task.eval.best_metric",
                expected=f"a metric of evaluations: {', '.join(sorted(names))}",
                got=self._name,
                names=names,
            )

    def add(
        self, step: int, metrics: Mapping[str, Any], is_usable: bool = True
    ) -> bool:
        """Adds an evaluation of a later step. Returns whether it is the best so far."""
        if not self._name or step <= self._last_step:
            return False
        self._last_step = step
        value = self._sign * float(metrics.get(self._name, math.nan))
        if is_evaluation_due(self._params, step):
            self._num_since += 1
            if value > self._due_value:
                self._due_value, self._due_step, self._num_since = value, step, 0
        if is_usable and value > self._value:
            self._value, self.step = value, step
            return True
        return False

    def text(self) -> str | None:
        """Returns the content of the best evaluation's file, or None without one."""
        if self.step is None:
            return None
        record = {"step": self.step, self._name: self._sign * self._value}
        return json.dumps(record) + "\n"


def write_best(path: Path, text: str | None) -> None:
    """Writes the text of `BestEvaluation.text`. Removes the file if `text` is None."""
    if text is None:
        path.unlink(missing_ok=True)
        return
    with contextlib.suppress(UserValueError):  # A damaged file is written again.
        if read_text(path) == text:
            return
    write_atomically(path, text)


def read_best(path: Path) -> dict[str, Any]:
    """Returns the best evaluation's step and metric, or {} without a file.

    Raises:
        ValueError: if the file is damaged.
    """
    record = read_json(path, BEST_HINT)
    if record is None:
        return {}
    is_record = isinstance(record, dict) and is_count(record.get("step"), 0)
    if not is_record or not all(map(_is_comparable, record.values())):
        raise damaged(path, "step and value of the best evaluation", record, BEST_HINT)
    return dict(record)


def _is_comparable(value: Any) -> bool:
    """Returns whether a value is a number that a float can hold, and not NaN."""
    is_infinite = value in (-math.inf, math.inf)
    return is_number(value) and (is_infinite or abs(value) <= sys.float_info.max)
