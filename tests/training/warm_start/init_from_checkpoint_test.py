"""Initial values from other runs: taken, logged, or rejected."""

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.warm_start.init_from_checkpoint import (
    define_initialization_params,
    init_from_checkpoint,
)
from lingvo_pipe.training.warm_start.init_rules import PARAM
from tests.support.errors import fails

EVERY = [("(.*)", "%s")]
# Variables of a run: name -> value of all elements, and shape.
SAVED = {
    "global_step": (5, []),
    "task/stem/w": (1, [3]),
    "task/norm/moving_mean": (2, [3]),
    "task/softmax/w": (3, [3, 10]),
    "task/old/w": (4, [2]),
    "task/stem/w/ema": (10, [3]),
    "task/softmax/w/ema": (30, [3, 10]),
    "learner/iteration": (5, []),
    "learner/task_stem_w_velocity": (6, [3]),
}


def filled(values):
    return {name: tf.Variable(tf.fill(s, float(v))) for name, (v, s) in values.items()}


def model(**shapes):
    """Returns variables of a model with another number of classes, all 0."""
    shapes = {"stem/w": [3], "norm/moving_mean": [3], "softmax/w": [3, 7], **shapes}
    return filled({f"task/{path}": (0, shape) for path, shape in shapes.items()})


@pytest.fixture
def saved(tmp_path):
    directory = tmp_path / "run" / "checkpoints"
    directory.parent.mkdir()
    for step in (4, 5):
        values = {name: (v if step == 5 else -1, s) for name, (v, s) in SAVED.items()}
        values["global_step"] = (step, [])
        Checkpointer(directory, filled(values)).save(step)
    return tmp_path / "run"


def initialize(variables, rules, ema=True, override=""):
    p = Params()
    define_initialization_params(p)
    p.Set(
        init_from_checkpoint_rules=rules,
        init_from_checkpoint_override=override,
        init_from_checkpoint_ema=ema,
    )
    logged: list[str] = []
    init_from_checkpoint(p, variables, logged.append)
    return "\n".join(logged).splitlines()


def _assert_lines(lines, *patterns):
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.match(pattern, line)


def value_of(variables, path):
    (value,) = set(np.ravel(variables[path].numpy()))
    return value


def values_of(variables):
    return [value_of(variables, path) for path in variables]


@pytest.mark.parametrize("path", ["", "checkpoints", "checkpoints/ckpt-00000005"])
def test_a_source_may_be_a_run_its_checkpoints_or_one_of_them(saved, path):
    variables = model()
    initialize(variables, {str(saved / path): (EVERY, [".*softmax"])})
    assert values_of(variables) == [10, 2, 0]


def test_a_source_may_be_an_older_checkpoint(saved):
    variables = model()
    path = saved / "checkpoints" / "ckpt-00000004"
    initialize(variables, {str(path): (EVERY, [".*softmax"])})
    assert values_of(variables) == [-1, -1, 0]


@pytest.mark.parametrize(("ema", "expected"), [(True, 10), (False, 1)])
def test_moving_averages_are_used_if_there_are_any(saved, ema, expected):
    variables = model()
    initialize(variables, {str(saved): (EVERY, [".*softmax"])}, ema)
    assert value_of(variables, "task/stem/w") == expected
    assert value_of(variables, "task/norm/moving_mean") == 2


def test_a_param_may_replace_the_checkpoint_of_the_rules(saved):
    variables = model()
    rules = {"some/run": (EVERY, [".*softmax"])}
    with fails(path=PARAM, got="some/run, which does not exist"):
        initialize(variables, rules)
    initialize(variables, rules, override=str(saved))
    assert values_of(variables) == [10, 2, 0]
    with fails(path=PARAM, got=[]):
        initialize(variables, {}, override=str(saved))


def test_names_may_differ(saved):
    variables = model()
    initialize(variables, {str(saved): ([("task/norm", "task/stem/w")], [])})
    assert values_of(variables) == [0, 10, 0]


def test_all_unused_variables_are_logged(saved):
    logged = initialize(
        model(**{"new/w": [2]}),
        {str(saved): ([("(task/(?:stem|norm|softmax)/.*)", "%s")], [".*softmax"])},
    )
    prefix = saved / "checkpoints" / "ckpt-00000005"
    _assert_lines(
        logged,
        rf"Initialized 2 of 4\b.* {prefix}\b.*\b1\b.*\b1\b.*\b2\b.*\b2\b",
        r"    task/old/w  float32 \[2\]$",
        r"    task/softmax/w  float32 \[3, 10\]$",
        r"2 variables\b",
        r"    task/new/w  float32 \[2\],.*\brule",
        r"    task/softmax/w  float32 \[3, 7\],.*'\.\*softmax'",
    )


def test_two_runs_make_one_model(saved):
    variables = model(**{"old/w": [2]})
    rules: Any = {
        str(saved): ([("(task/stem/w)", "%s")], []),
        str(saved / "checkpoints" / "ckpt-00000004"): ([("(task/old/w)", "%s")], []),
    }
    logged = initialize(variables, rules)
    assert values_of(variables) == [10, 0, 0, -1]
    assert sum(" 1 of 4 " in line for line in logged) == 2
    assert any(line.startswith("2 variables") for line in logged)


def test_a_damaged_newest_checkpoint_is_passed_over(saved):
    index = saved / "checkpoints" / "ckpt-00000005.index"
    index.write_bytes(b"")
    variables = model()
    logged = initialize(variables, {str(saved): (EVERY, [".*softmax"])})
    assert value_of(variables, "task/stem/w") == -1
    assert re.search(r"/ckpt-00000005\b.*damaged", logged[0])
    with fails(path=PARAM) as info:
        initialize(variables, {str(index.with_suffix("")): (EVERY, [".*softmax"])})
    assert str(index.with_suffix("")) in info.value.got


def test_an_error_lists_all_problems_and_changes_nothing(saved):
    variables = model(**{"sten/w": [3], "old/w": [2]})
    variables["task/old/w"] = tf.Variable(tf.zeros([2], tf.float64))
    with fails(path=PARAM) as caught:
        initialize(variables, {str(saved): (EVERY, [])})
    assert f"{saved}/checkpoints/ckpt-00000005" in caught.value.expected
    _assert_lines(
        caught.value.got.splitlines()[1:],
        r"  \w.* \(1\):$",
        "    task/sten/w, .*task/sten/w.*'task/stem/w'.*'task/softmax/w'.*'task/old/w'",
        r"  \w.* \(2\):$",
        r"    task/old/w,.* float64 \[2\],.* float32 \[2\]$",
        r"    task/softmax/w,.* float32 \[3, 7\],.* float32 \[3, 10\]$",
    )
    assert "'task/old/'" in caught.value.hint
    assert set(values_of(variables)) == {0}


def test_a_path_without_checkpoint_is_rejected(tmp_path):
    with fails(path=PARAM, got=f"{tmp_path}, which holds no checkpoints"):
        initialize(model(), {str(tmp_path): (EVERY, [])})


def test_checkpoints_of_other_programs_are_rejected(tmp_path):
    prefix = tf.train.Checkpoint(w=tf.Variable(0.0)).write(str(tmp_path / "ckpt"))
    with fails(path=PARAM) as info:
        initialize(model(), {prefix: (EVERY, [])})
    assert info.value.got.startswith(f"{prefix}, which is another program's")


def test_only_damaged_checkpoints_are_rejected(saved):
    for path in (saved / "checkpoints").glob("*.index"):
        path.write_bytes(b"")
    with fails(path=PARAM) as info:
        initialize(model(), {str(saved): (EVERY, [])})
    assert re.search(r"step 5: .*step 4: \S", info.value.got)
    assert not isinstance(info.value, UserDamageError), "it is of another run"
