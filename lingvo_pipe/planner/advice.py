"""What would have to change for a model to fit. Pure.

    it does not fit on 8 devices     on 16 it does, on 12, on 10, and on 9 it doesn't
    ... with 32 rows                 with 16 it doesn't, with 8 it does
    ... with K=4, M=8                without K=4 it does, without M=8 it doesn't

So it would fit on 10 devices, or with 8 rows, or without K=4.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Iterator

from lingvo_pipe.planner.amounts import amount
from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.cell_alone import bytes_alone
from lingvo_pipe.planner.constraints import Constraints
from lingvo_pipe.planner.device_model import DEVICES
from lingvo_pipe.planner.evaluation import Evaluated, evaluate
from lingvo_pipe.planner.model_costs import ModelCosts
from lingvo_pipe.planner.resources import Resources, allowed_candidates
from lingvo_pipe.planner.search import Models

_MOST_DEVICES = 4096
_NUM_DEVICES = "num_devices"
MEMORY_LIMIT = "task.pipeline.memory_limit"

# What is changed, as text, and the changed.
_Change = tuple[str, Resources, Constraints]


def fits(models: Models, resources: Resources, constraints: Constraints) -> bool:
    """Whether there is any way to run a model.

    Raises:
        ValueError: if constraints contradict each other.
    """
    device, rows = resources.limited, resources.batch_size
    num_cells = count_cells(models, resources, constraints)
    for each in reversed(allowed_candidates(resources, constraints, num_cells)):
        costs, seconds = models(rows // each.num_micro_batches)
        if _weights_share(costs, each) > device.usable:
            continue  # As most are where a model is far too large.
        if isinstance(evaluate(each, costs, seconds, device), Evaluated):
            return True
    return False


def _weights_share(costs: ModelCosts, candidate: Candidate) -> float:
    """Bytes of a device for what lasts, were it shared evenly."""
    num_cells, num_devices = costs.num_cells, candidate.num_devices
    memory = costs.memory
    held = memory.weights(0, num_cells) + memory.totals(0, num_cells)
    slots = costs.slots(0, num_cells) / candidate.num_replicas
    return (held + slots) / num_devices


def count_cells(models: Models, resources: Resources, constraints: Constraints) -> int:
    """L, of a size that is looked at anyhow, for each may have to be traced."""
    rows = max(resources.batch_size // (constraints.num_micro_batches or 1), 1)
    return models(rows)[0].num_cells


def advice(models: Models, resources: Resources, constraints: Constraints) -> str:
    """The nearest changes after which it would fit, in sentences.

    Args:
        models: the model's costs, by rows.
        resources: on which it does not fit.
        constraints: with which it doesn't.
    """
    alone = _too_large_alone(models, resources, constraints)
    would = []
    if not (alone or resources.device.shares_memory):
        would.append(_on_more_devices(models, resources, constraints))
    would += [
        _first(_fewer_rows(resources, constraints), models),
        _first(_larger_devices(resources, constraints), models),
        _first(_no_limit(resources, constraints), models),
        *(
            _first([each], models)
            for each in _fewer_constraints(resources, constraints)
        ),
    ]
    texts = dict.fromkeys(filter(None, would))
    if texts:
        return f"It would fit {', or '.join(texts)}. {alone}".rstrip()
    if alone:
        return f"{alone} Make cells smaller."
    return (
        "No single change was found with which it would fit, among twice as many "
        f"devices and so on up to {_MOST_DEVICES:,}, fewer rows, larger devices, and "
        "one thing less that is asked for. Make cells smaller, or change several of "
        "these."
    )


def _too_large_alone(
    models: Models, resources: Resources, constraints: Constraints
) -> str:
    """Says which cell no number of devices has memory for, if there is one."""
    rows = resources.batch_size
    smallest, _ = models(rows // (constraints.num_micro_batches or rows))
    needed, cell = max((x, -i) for i, x in enumerate(bytes_alone(smallest)))
    if needed <= resources.usable:
        return ""
    return (
        f"More devices don't help: cell {-cell} by itself needs {amount(needed)} at "
        "least."
    )


def _first(changes: Iterable[_Change], models: Models) -> str:
    """The first with which it fits; nothing: with none."""
    for text, resources, constraints in changes:
        if _would(models, resources, constraints):
            return text
    return ""


def _would(models: Models, resources: Resources, constraints: Constraints) -> bool:
    try:
        return fits(models, resources, constraints)
    except ValueError:  # The constraints are not for so many.
        return False


def _on_more_devices(
    models: Models, resources: Resources, constraints: Constraints
) -> str:
    """The number is doubled until it fits, and then halved in between."""
    but = ""
    if _NUM_DEVICES in constraints.given:  # More could not be used.
        but = f" without {constraints.shown(_NUM_DEVICES)}"
        constraints = constraints.without(_NUM_DEVICES)

    def on(number: int) -> Resources:
        return dataclasses.replace(resources, num_devices=number)

    def fits_on(number: int) -> bool:
        return _would(models, on(number), constraints)

    least = resources.num_devices
    if but and fits_on(least):
        return ""  # As is said of this constraint by itself.
    for most in _numbers(least, count_cells(models, resources, constraints)):
        if fits_on(most):
            between = range(least + 1, most)
            number = least + 1 + bisect.bisect_left(between, True, key=fits_on)
            return f"on {on(number)}{but}"
        least = most
    return ""


def _numbers(num_devices: int, num_cells: int) -> list[int]:
    """Doublings, and a device for each cell, which is most for a pipeline."""
    numbers = {num_cells} if num_cells > num_devices else set()
    number = 2 * num_devices
    while number <= _MOST_DEVICES:
        numbers.add(number)
        number *= 2
    return sorted(numbers)


def _fewer_rows(resources: Resources, constraints: Constraints) -> Iterator[_Change]:
    """Half of them, and so on; where constraints allow that."""
    rows = resources.batch_size // 2
    while rows:
        changed = dataclasses.replace(resources, batch_size=rows)
        yield f"with {rows} row{'s' if rows > 1 else ''}", changed, constraints
        rows //= 2


def _larger_devices(
    resources: Resources, constraints: Constraints
) -> Iterator[_Change]:
    for device in sorted(DEVICES.values(), key=lambda each: each.usable):
        changed = dataclasses.replace(resources, device=device)
        if changed.usable > resources.usable and resources.dtype in device.flops:
            yield f"on {changed}", changed, constraints


def _no_limit(resources: Resources, constraints: Constraints) -> Iterator[_Change]:
    if resources.memory_limit is not None:
        changed = dataclasses.replace(resources, memory_limit=None)
        text = f"without {MEMORY_LIMIT}={resources.memory_limit}"
        yield text, changed, constraints


def _fewer_constraints(
    resources: Resources, constraints: Constraints
) -> Iterator[_Change]:
    for name in constraints.given:
        without = constraints.without(name)
        yield f"without {constraints.shown(name)}", resources, without
