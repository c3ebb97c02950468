"""Cosines of gradients that consist of several arrays."""

from __future__ import annotations

import numpy as np
import pytest

from tools.local_study.training import cosine

pytestmark = pytest.mark.exhaustive  # Only developers run the tool.


def _pieces(seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    shapes = {"a/w": (3, 4), "a/b": (4,), "other": (2,)}
    return {p: draw.normal(size=s).astype(np.float32) for p, s in shapes.items()}


def test_a_cosine_is_that_of_the_concatenation() -> None:
    ours, others = _pieces(0), _pieces(1)
    paths = ["a/w", "a/b"]
    a, b = (np.concatenate([x[p].ravel() for p in paths]) for x in (ours, others))
    expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert cosine(ours, others, paths) == pytest.approx(expected, rel=1e-5)
    assert cosine(ours, {p: -x for p, x in ours.items()}, ours) == pytest.approx(-1)


def test_nothing_and_zero_have_no_cosine() -> None:
    ours = _pieces(0)
    assert cosine(ours, ours, []) is None
    assert cosine(ours, {p: 0 * x for p, x in ours.items()}, ours) is None


def test_small_gradients_do_not_vanish() -> None:
    tiny = {p: np.float32(1e-25) * x for p, x in _pieces(0).items()}
    assert cosine(tiny, tiny, tiny) == pytest.approx(1)
