"""A model's plan: the fastest ways to run it, as a table, rows or a picture."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lingvo_pipe.core.activity import activity
from lingvo_pipe.core.checks import is_number
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.garbage import collected_seldom
from lingvo_pipe.pipeline.simulation.draw import draw_timelines
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.resources.resources import Constraints
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation
from lingvo_pipe.planner.search.plan_report import report
from lingvo_pipe.tools.plan.planned_model import Devices, PlannedModel

_MILLION, _HOUR = 1_000_000, 3600


class Plan:
    """The fastest ways to run a model. `str` returns what `lingvo_pipe plan` prints.

    `price` is for an hour of one device, or of one of each kind, if known.

    Raises:
        ValueError: if nothing fits, or an argument is wrong.
    """

    def __init__(
        self,
        model: PlannedModel,
        devices: Devices,
        constraints: Constraints,
        price: float | Sequence[float] | None = None,
    ) -> None:
        path = constraints.names.get("price", "price")
        self._rents = _rents(devices.models, price, path)
        self._model = model
        is_shown = sys.stderr.isatty()
        with (
            collected_seldom(),
            activity("planning") if is_shown else contextlib.nullcontext(),
        ):
            self._result = model.plan(devices, constraints)
        self._title, self._resources = model.title(devices), model.resources(devices)

    def __str__(self) -> str:
        hosts = self._resources.devices[0].hosts
        lines = self._model.how_to_run(self._result.fastest[0], hosts)
        text = report(self._result, self._resources, lines)
        return "\n\n".join(filter(None, [self._title, self._prices(), text]))

    __repr__ = __str__

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The fastest way of each variant and, if faster, by stage, sorted by time.

        `bytes` is for the device that has the least memory left, of `usable_bytes`.
        `kinds` are the devices of a pipeline. `price` is for a million examples.
        """
        return list(map(self._row, self._result.fastest))

    def draw(self, path: Path) -> str:
        """Draws the timeline of the fastest way's step. Returns a line about it."""
        best = self._result.fastest[0]
        number = best.candidate.num_replicas
        which = f", of one of {number} replicas" if number > 1 else ""
        draw_timelines({f"{best.candidate}{which}": best.timeline}, path)
        return f"The timeline of a step{which}, without the update, is {path}."

    def _row(self, way: Evaluation) -> dict[str, Any]:
        row = {
            "step_seconds": way.step_seconds,
            "examples_per_second": self._resources.batch_size / way.step_seconds,
            "idle_fraction": way.timeline.bubble_fraction,
            "bytes": way.bytes_by_device[way.fullest],
            "usable_bytes": way.devices[way.fullest].usable_bytes,
            "kinds": [device.name for device in way.devices],
            "num_devices": way.candidate.total_devices,
            "num_stages": way.candidate.num_stages,
            **way.candidate.params(way.boundaries),
        }
        if self._rents:
            row["price"] = _MILLION / row["examples_per_second"] * self._price_of_second
        return row

    @property
    def _price_of_second(self) -> float:
        return sum(number * price for number, _, price in self._rents) / _HOUR

    def _prices(self) -> str:
        if not self._rents:
            return ""
        speed = self.rows[0]["examples_per_second"]
        number, steps = self._model.num_examples, self._model.max_steps
        counts = {f"{_MILLION:,} examples": _MILLION}
        if number:
            counts = {f"an epoch of {number:,} examples": number}
        if steps:
            in_all = steps * self._resources.batch_size
            counts[f"{steps:,} steps (task.train.max_steps)"] = in_all
        rented = [f"{n} {kind} at {price:g} an hour" for n, kind, price in self._rents]
        lines = [f"On {' and '.join(rented)} each, the first costs:"]
        for name, n in counts.items():
            cost, hours = _money(n / speed * self._price_of_second), n / speed / _HOUR
            lines.append(f"{cost} in {hours:,.3g} hours for {name}")
        return "\n".join(lines)


def _rents(
    models: Sequence[DeviceModel], price: float | Sequence[float] | None, path: str
) -> list[tuple[int, str, float]]:
    """Returns (number, kind, price for an hour) of devices, [] if no price is known."""
    if price is None:
        return []
    prices: list[Any] = [*price] if isinstance(price, (list, tuple)) else [price]
    groups = [(len([*group]), kind.name) for kind, group in itertools.groupby(models)]
    if len(prices) == 1:
        groups = [(len(models), "devices")]
    if len(prices) != len(groups) or not all(
        is_number(x) and 0 < x < math.inf for x in prices
    ):
        one_each = f", or one for each of {len(groups)} kinds" * (len(groups) > 1)
        expected = f"a positive number{one_each}"
        raise UserValueError(path=path, expected=expected, got=price)
    return [(*group, x) for group, x in zip(groups, prices, strict=True)]


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 0.1 else f"{amount:.2g}"
