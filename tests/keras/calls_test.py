"""Cells of a graph of calls: what a later cell needs is passed on, and nothing else."""

from __future__ import annotations

import random

from lingvo_pipe.keras.calls import Step, cut


def _random_graph(seed: int) -> tuple[list[int], list[Step], list[int]]:
    """Returns inputs, steps and outputs of a graph."""
    random_numbers = random.Random(seed)
    inputs = list(range(random_numbers.randint(1, 3)))
    known, steps = list(inputs), []
    for _ in range(random_numbers.randint(1, 12)):
        takes = [
            random_numbers.choice(known) for _ in range(random_numbers.randint(1, 3))
        ]
        makes = [len(known) + i for i in range(random_numbers.randint(1, 2))]
        known += makes
        steps.append(Step(takes, makes, random_numbers.random() < 0.4))
    outputs = [
        random_numbers.choice(known) for _ in range(random_numbers.randint(1, 3))
    ]
    return inputs, steps, outputs


_GRAPHS = list(map(_random_graph, range(200)))


def test_cells_compute_the_graph_from_what_they_are_given() -> None:
    for inputs, steps, outputs in _GRAPHS:
        cells = cut(inputs, steps, outputs)
        assert [i for cell in cells for i in range(cell.start, cell.stop)] == list(
            range(len(steps))
        )
        passed_on = tuple(inputs)
        for cell in cells:
            assert cell.given == passed_on
            known = set(cell.given)
            for step in steps[cell.start : cell.stop]:
                assert known.issuperset(step.takes)
                known.update(step.makes)
            assert known.issuperset(cell.kept)
            passed_on = cell.kept
        assert passed_on == tuple(outputs)


def test_nothing_is_passed_on_that_no_later_cell_takes() -> None:
    for inputs, steps, outputs in _GRAPHS:
        for cell in cut(inputs, steps, outputs)[:-1]:
            later = {x for step in steps[cell.stop :] for x in step.takes} | set(
                outputs
            )
            assert later.issuperset(cell.kept)
            assert len(set(cell.kept)) == len(cell.kept)


def test_each_cell_but_the_first_starts_with_a_kernel() -> None:
    for inputs, steps, outputs in _GRAPHS:
        cells = cut(inputs, steps, outputs)
        assert all(steps[cell.start].starts_cell for cell in cells[1:])
        kernels = sum(step.starts_cell for step in steps)
        assert len(cells) == max(1, kernels)
