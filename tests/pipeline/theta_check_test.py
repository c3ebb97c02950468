"""A theta that does not fit is refused by its first differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.theta_check import check_theta


def _variables() -> NestedMap:
    cells = [NestedMap(w=tf.Variable(tf.ones([2, 3])), b=tf.Variable(tf.ones([3])))]
    return NestedMap(before=[], cells=cells + [NestedMap()] + cells * 4)


def _theta() -> NestedMap:
    return tf.nest.map_structure(tf.convert_to_tensor, _variables())


def test_values_of_the_variables_fit() -> None:
    check_theta(_theta(), _variables(), "pipe")
    check_theta(_variables(), _variables(), "pipe")


def _without_a_weight(theta: NestedMap) -> Any:
    del theta.cells[2].w


def _with_another(theta: NestedMap) -> Any:
    theta.cells[0].v = theta.cells[0].pop("w")


def _transposed(theta: NestedMap) -> Any:
    theta.cells[3].w = tf.transpose(theta.cells[3].w)


def _cells_alone(theta: NestedMap) -> Any:
    return theta.cells


def _tuple(theta: NestedMap) -> Any:
    theta.cells = tuple(theta.cells)


def _without_an_empty_part(theta: NestedMap) -> Any:
    del theta.before


def _absent(theta: NestedMap) -> Any:
    theta.cells[3].b = None


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (_without_a_weight, r"\bpipe\b.*\bcells\[2\]\.w\b"),
        (_with_another, r"\bpipe\b.*\bcells\[0\]\.w\b.*\bcells\[0\]\.v\b"),
        (_transposed, r"\bcells\[3\]\.w\b.*\(3, 2\).*\(2, 3\)"),
        (_cells_alone, r"\bcells\[0\]\.b\b.*\bcells\[2\]\.b\D*\b17\b"),
        (_tuple, r"\bpipe\b.*\btuple\b"),
        (_without_an_empty_part, r"\bpipe\b.*\bempty\b"),
        (_absent, r"\bcells\[3\]\.b\b.*\bNone\b"),
    ],
)
def test_the_first_differences_are_told(
    change: Callable[[NestedMap], Any], pattern: str
) -> None:
    theta = _theta()
    changed = change(theta)
    with pytest.raises(ValueError, match=pattern) as caught:
        check_theta(theta if changed is None else changed, _variables(), "pipe")
    assert len(str(caught.value)) < 300
