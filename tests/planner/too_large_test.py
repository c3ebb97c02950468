"""What a way that does not fit would need, against trying every cut."""

from __future__ import annotations

import itertools

import pytest

from lingvo_pipe.planner import too_large
from lingvo_pipe.planner.too_large import TooLarge
from tests.planner.made_up_model import NUM_CELLS, every_needs


def test_it_would_need_what_the_best_cut_does() -> None:
    for candidate, _, needs in every_needs():
        cuts = [
            [*middle, NUM_CELLS]
            for middle in itertools.combinations(
                range(1, NUM_CELLS), candidate.num_stages - 1
            )
        ]
        least = min(max(needs.of_devices(ends)) for ends in cuts)
        alike = min(map(needs.largest, cuts))
        for limit in (alike - 1, alike // 2):
            needed = TooLarge(candidate, needs, limit).needed
            assert limit < needed <= alike
            assert needed >= least
            if candidate.stages_per_device == 1:
                assert needed == least


def test_of_many_cells_it_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = [
        (TooLarge(candidate, needs, 1), TooLarge(candidate, needs, 1).needed)
        for candidate, _, needs in every_needs()
        if candidate.stages_per_device == 1
    ]
    assert not any(each.is_bound for each, _ in exact)
    monkeypatch.setattr(too_large, "_MOST_CELLS", NUM_CELLS - 1)
    for each, needed in exact:
        assert each.is_bound
        assert 1 < each.needed <= needed
