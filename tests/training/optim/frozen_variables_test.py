"""Patterns freeze variables, and refuse to freeze none or all."""

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.optim.frozen_variables import (
    define_freezing_params,
    without_frozen,
)
from tests.support.errors import fails

PATHS = ["task/stem/w", "task/cells_0/w", "task/cells_1/w", "task/softmax/w"]


def trained(bprop_filter=None, exclusion=None):
    p = Params()
    define_freezing_params(p)
    p.Set(bprop_variable_filter=bprop_filter, bprop_variable_exclusion=exclusion)
    return list(without_frozen(p, {path: tf.Variable(0.0) for path in PATHS}))


@pytest.mark.parametrize(
    ("bprop_filter", "exclusion", "want"),
    [
        (None, None, PATHS),
        ("softmax", None, PATHS[3:]),
        (r"cells_\d/", None, PATHS[1:3]),
        (None, "stem|cells_0", PATHS[2:]),
        ("cells", "cells_1", PATHS[1:2]),
    ],
)
def test_patterns_choose(bprop_filter, exclusion, want):
    assert trained(bprop_filter, exclusion) == want


@pytest.mark.parametrize(
    ("bprop_filter", "exclusion", "path"),
    [
        ("sofmax", None, "task.train.bprop_variable_filter"),
        (None, "^stem", "task.train.bprop_variable_exclusion"),
        (None, "task", "task.train"),
        ("softmax", "softmax", "task.train"),
        ("(", None, "task.train.bprop_variable_filter"),
    ],
)
def test_what_freezes_none_or_all_is_refused(bprop_filter, exclusion, path):
    with fails(path=path) as info:
        trained(bprop_filter, exclusion)
    assert ("'softmax'" in info.value.hint) == (bprop_filter == "sofmax")
