"""What the planner says of GPipe's Transformers is near what was published."""

from __future__ import annotations

import pytest

from tools.plan.published import TRANSFORMERS, predicted, throughputs, transformer


@pytest.mark.parametrize("place", [1, 2])
def test_the_memory_of_table_1(place: int) -> None:
    size = TRANSFORMERS[place]
    ours = predicted(size)
    assert ours.parameters == pytest.approx(size.parameters, rel=0.01)
    assert ours.model_gib == pytest.approx(size.model_gib, rel=0.01)
    total = size.model_gib + size.activation_gib
    assert ours.total_gib == pytest.approx(total, rel=0.15)


def test_the_throughput_of_table_2() -> None:
    published = (1.8, 3.4, 6.3)
    assert throughputs(transformer(48), "TPUv3") == pytest.approx(published, rel=0.08)
