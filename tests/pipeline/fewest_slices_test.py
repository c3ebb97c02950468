"""The search for the fewest slices with which a model fits."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import pytest

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.pipeline.fewest_slices import fewest_slices
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.slices import with_slices
from tests.models.transformer.small_models import translation_task

NUM_UNITS = 12
TIED = ("cells[0].embedding", "cells[3].embedding", "cells[6]")
TIED_TO_ONE_THAT_STAYS_WHOLE = {
    "logits/w": "source_embedding/embedding/w",
    "target_embedding/embedding/w": "source_embedding/embedding/w",
    "decoder_0/feed_forward/norm/scale": "source_embedding/embedding/w",
}


def _dense(num_cells: int) -> InstantiableParams:
    cell = FCLayer.Params().Set(input_dim=NUM_UNITS, output_dim=NUM_UNITS)
    cells = [cell] * num_cells + [LayerNormLayer.Params().Set(dim=NUM_UNITS)]
    return PipeliningLayer.Params().Set(cell_tpl=cells)


def _attempts(
    p: InstantiableParams, cell_bytes: list[int], limit: float, needed: float = 0.0
) -> list[dict[str, int]]:
    """Returns the slices of all attempts, if a device needs too much for each."""
    tried: list[dict[str, int]] = []

    def attempt(slices: dict[str, int]) -> tuple[None, float]:
        tried.append(slices)
        return None, needed

    assert fewest_slices(p, cell_bytes, limit, 100, attempt) is None
    return tried


@pytest.mark.parametrize("fitting", [10, 7, 3])
def test_no_fewer_slices_fit(fitting: int) -> None:
    cell_bytes = [4, 25, 12, 1]

    def attempt(slices: dict[str, int]) -> tuple[bool | None, float]:
        numbers = [slices.get(f"cells[{i}]", 1) for i in range(4)]
        largest = max(n / x for n, x in zip(cell_bytes, numbers, strict=True))
        return largest <= fitting or None, largest

    found = fewest_slices(_dense(3), cell_bytes, 10, 100, attempt)
    fewest = {f"cells[{i}]": -(-n // fitting) for i, n in enumerate(cell_bytes)}
    assert found == ({k: n for k, n in fewest.items() if n > 1}, True)


def test_cells_are_whole_if_they_fit() -> None:
    assert fewest_slices(_dense(1), [9, 2], 10, 0, lambda _: (True, 9)) == ({}, True)


def test_the_search_ends_where_cutting_cannot_help() -> None:
    assert not _attempts(_dense(1), [5, 11], 10)  # A norm is never cut.
    *_, last = _attempts(_dense(1), [1000, 1], 10)
    assert last == {"cells[0]": NUM_UNITS}
    assert _attempts(_dense(9), [60] * 9 + [1], 10) == [
        dict.fromkeys([f"cells[{i}]" for i in range(9)], number)
        for number in (6, 8, 10)
    ]
    assert not _attempts(_dense(9), [120] * 9 + [1], 10)  # 108 slices, at least.
    # Smaller slices than four of 5 bytes cannot save more than 10 of 24.
    *_, last = _attempts(_dense(1), [20, 1], 10, needed=24)
    assert last["cells[0]"] == 3


def _needed(pieces: Sequence[float], num_devices: int) -> float:
    """Returns the bytes of the largest device, for the best stages."""

    @functools.cache
    def needed(start: int, devices: int) -> float:
        if devices == 1:
            return sum(pieces[start:])
        ends = range(start + 1, len(pieces) - devices + 2)
        return min(max(sum(pieces[start:e]), needed(e, devices - 1)) for e in ends)

    return needed(0, num_devices)


def test_cuts_between_devices_are_found() -> None:
    """The search gave up where a device needed the same for slices a bit smaller."""
    rng = random.Random(0)
    found_some = 0
    for _ in range(60):
        cell_bytes = [rng.choice([40, 60, 100]) for _ in range(rng.randint(3, 5))]
        num_devices = rng.randint(2, 3)
        share = sum(cell_bytes) / num_devices
        limit = share * rng.uniform(1, 1.6)

        def attempt(
            slices: dict[str, int],
            own: list[int] = cell_bytes,
            num_devices: int = num_devices,
            limit: float = limit,
        ) -> tuple[bool | None, float]:
            numbers = [slices.get(f"cells[{i}]", 1) for i in range(len(own))]
            pieces = [
                n / x for n, x in zip(own, numbers, strict=True) for _ in range(x)
            ]
            needed = _needed(pieces, num_devices)
            return needed <= limit or None, needed

        dense = _dense(len(cell_bytes))
        found = fewest_slices(dense, [*cell_bytes, 0], limit, 60, attempt)
        finest = {f"cells[{i}]": NUM_UNITS for i in range(len(cell_bytes))}
        if found is None:
            assert attempt(finest)[0] is None
        else:
            assert attempt(found[0])[0]
            found_some += bool(found[0])
    assert found_some > 10


def test_parts_with_tied_weights_are_always_cut_alike() -> None:
    """A bias made the logits larger than the embeddings that they share a table with.

    So they were cut into more slices, which was refused.
    """
    p = translation_task(tied=True).pipeline.Set(name="pipe")
    attempts = _attempts(p, [30, 50, 50, 30, 50, 50, 35], 36)
    numbers = [{each.get(name) for name in TIED} for each in attempts]
    assert all(len(each) == 1 for each in numbers)
    assert {None, 2, 11} <= {number for each in numbers for number in each}
    for slices in attempts:
        assert 1 not in slices.values()
        with_slices(p.Copy().Set(slices=slices), "pipe")


def test_a_weight_tied_to_a_whole_one_stays_whole() -> None:
    p = translation_task().pipeline.Set(name="pipe")
    p.tied = TIED_TO_ONE_THAT_STAYS_WHOLE
    attempts = _attempts(p, [30, 50, 50, 30, 50, 50, 35], 36)
    assert attempts
    assert not any(name in slices for name in TIED for slices in attempts)
