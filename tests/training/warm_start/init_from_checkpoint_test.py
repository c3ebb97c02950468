"""Initial values from other runs: taken, logged, or rejected."""

import re
from typing import Any

import h5py
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.warm_start.init_from_checkpoint import (
    define_initialization_params,
    init_from_checkpoint,
    keep_source,
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


def initialize(variables, rules, ema=True, override="", names=None):
    p = Params()
    define_initialization_params(p)
    p.Set(
        init_from_checkpoint_rules=rules,
        init_from_checkpoint_override=override,
        init_from_checkpoint_names=names,
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
    with fails(path="--init_from", got=f"{saved}/no, which does not exist"):
        initialize(variables, rules, override=f"{saved}/no")
    with fails(path=PARAM) as info:
        initialize(variables, {"some/run": (EVERY, [])}, override=str(saved))
    assert "{}" in info.value.hint


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
        rf"Initialized 2 of 4\b.* {prefix},.*\b1\b.*\b0\b",
        r"    task/stem/w  float32 \[3\]$",
        r"    task/norm/moving_mean  float32 \[3\]$",
        r"2 variables\b",
        r"    task/new/w  float32 \[2\],.*\brule",
        r"    task/softmax/w  float32 \[3, 7\],.*'\.\*softmax'",
        rf"\w.* {prefix}: 1\b.*\b2\b.*\b2\b",
        r"    task/old/w  float32 \[2\]$",
        r"    task/softmax/w  float32 \[3, 10\]$",
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
    assert re.match(rf"{index.with_suffix('')} with \S", info.value.got)


def test_an_error_lists_all_problems_and_changes_nothing(saved):
    variables = model(**{"sten/w": [3], "old/w": [2]})
    variables["task/old/w"] = tf.Variable(tf.zeros([2], tf.int64))
    with fails(path=PARAM) as caught:
        initialize(variables, {str(saved): (EVERY, [])})
    assert f"{saved}/checkpoints/ckpt-00000005" in caught.value.expected
    _assert_lines(
        caught.value.got.splitlines()[1:],
        r"  \w.* \(1\):$",
        "    task/sten/w, .*task/sten/w.*'task/stem/w'.*'task/softmax/w'.*'task/old/w'",
        r"  \w.* \(2\):$",
        r"    task/old/w,.* int64 \[2\],.* float32 \[2\]$",
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


def test_without_rules_what_fits_is_taken(saved):
    variables = model(**{"new/w": [2]})
    logged = initialize(variables, {}, override=str(saved))
    assert values_of(variables) == [10, 2, 0, 0]
    prefix = saved / "checkpoints" / "ckpt-00000005"
    _assert_lines(
        logged,
        rf"Initialized 2 of 4\b.* {prefix},",
        r"    task/stem/w  float32 \[3\]$",
        r"    task/norm/moving_mean  float32 \[3\]$",
        r"2 variables\b",
        r"    task/new/w  float32 \[2\], not in",
        r"    task/softmax/w  float32 \[3, 7\], float32 \[3, 10\] in",
        rf"\w.* {prefix}: 1\b.*\b2\b.*\b2\b",
        r"    task/old/w  float32 \[2\]$",
        r"    task/softmax/w  float32 \[3, 10\]$",
    )


@pytest.mark.parametrize(("dtype", "expected"), [("float16", 10), ("float64", 10)])
def test_floating_values_are_cast(saved, dtype, expected):
    variables = model()
    variables["task/stem/w"] = tf.Variable(tf.zeros([3], dtype))
    logged = initialize(variables, {}, override=str(saved))
    assert value_of(variables, "task/stem/w") == expected
    assert variables["task/stem/w"].dtype == dtype
    assert "    task/stem/w  " + f"{dtype} [3], cast from float32" in logged
    assert re.search(r"\b1 cast\b", logged[0])


def test_names_are_mapped_beside_those_that_fit(saved):
    variables = model(**{"new/w": [2]})
    names = "new/=old/;norm/=-"
    logged = initialize(variables, {}, override=str(saved), names=names)
    assert values_of(variables) == [10, 0, 0, 4]
    assert "    task/new/w  float32 [2], from task/old/w" in logged
    assert any("'norm/'" in line for line in logged)


@pytest.mark.parametrize(
    ("names", "rules", "path", "shown"),
    [
        ("softmax/=softmax/", {}, "--init_names", "[3, 10]"),
        ("stem/=sten/", {}, "--init_names", "'task/stem/w'"),
        ("norm/moving_mean=stem/w", {}, "--init_names", "task/stem/w, task/norm/"),
        ("stem=stem", {"a": (EVERY, [])}, "--init_names", PARAM),
        (".*w=-;.*mean=-", {}, "--init_from", "'task/old/w'"),
    ],
)
def test_wrong_names_change_nothing(saved, names, rules, path, shown):
    variables = model()
    with fails(path=path) as info:
        initialize(variables, rules, override=str(saved), names=names)
    assert shown in str(info.value)
    assert set(values_of(variables)) == {0}


def test_the_hint_about_wrong_names_mends_them(saved):
    names = "softmax/=softmax/"
    with fails(path="--init_names") as info:
        initialize(model(), {}, override=str(saved), names=names)
    (first,) = re.findall(r"'(\S+;)'", info.value.hint)
    initialize(model(), {}, override=str(saved), names=f"{first}{names}")


def test_names_need_a_source():
    with fails(path="--init_names", expected="--init_from"):
        initialize(model(), {}, names="a=b")


@pytest.mark.parametrize(
    ("name", "then", "now", "shown"),
    [
        ("override", "'a'", "'a'", []),
        ("override", "'a'", "'b'", ["'b'"]),
        ("override", "'a'", "''", []),
        # It names no source, and each rerun without the override has the default.
        ("ema", "False", "True", []),
        ("ema", "True", "False", []),
    ],
)
def test_a_run_that_resumes_keeps_its_source(name, then, now, shown):
    """Once its params named a source that it had not used."""
    path, logged = f"task.train.init_from_checkpoint_{name}", list[str]()
    before, text = (f"a : 1\n{path} : {x}\nb : 2\n" for x in (then, now))
    assert keep_source(before, text, logged.append) == before
    assert [re.findall(r" : (\S+)\.", line)[0] for line in logged] == shown


def test_a_source_of_another_kind_is_refused(tmp_path):
    (tmp_path / "run.log").write_text("")
    with fails(path="--init_from", got=f"{tmp_path}/run.log, a file of another kind"):
        initialize(model(), {}, override=f"{tmp_path}/run.log")
    with fails(path="--init_from", got=f"{tmp_path}, which holds no checkpoints"):
        initialize(model(), {}, override=str(tmp_path))
    with fails(path="--init_from", got=f"{tmp_path}/lr=[0.1]"):
        initialize(model(), {}, override=f"{tmp_path}/lr=[0.1]")


def test_the_log_is_short_and_the_text_is_whole(saved):
    variables = model(**{f"new_{i}/w": [2] for i in range(20)})
    p, logged = Params(), list[str]()
    define_initialization_params(p)
    p.init_from_checkpoint_override = str(saved)
    text = init_from_checkpoint(p, variables, logged.append)
    assert max(part.count("\n") for part in logged) == 6
    assert {path for path in variables if f"    {path}  " in text} == {*variables}
    assert not init_from_checkpoint(p.Set(init_from_checkpoint_override=""), {}, print)


def test_a_file_of_weights_is_a_source(tmp_path):
    arrays: dict[str, Any] = {
        "stem/w": np.full(3, 7, np.float16),
        "softmax/w": np.ones([3, 10]),
    }
    np.savez(tmp_path / "x.npz", **arrays)
    with h5py.File(tmp_path / "x.weights.h5", "w") as file:
        data = np.full(3, 7, tf.bfloat16.as_numpy_dtype)
        file.create_dataset("stem/w", data=data).attrs["dtype"] = "bfloat16"
    for name, dtype in {"x.npz": "float16", "x.weights.h5": "bfloat16"}.items():
        variables, source = model(), str(tmp_path / name)
        with fails(path="--init_from") as info:
            initialize(variables, {}, override=source)
        assert "'stem/w'" in info.value.hint
        logged = initialize(variables, {}, override=source, names=r"task/(stem.*)=\1")
        row = f"    task/stem/w  float32 [3], from stem/w, cast from {dtype}"
        assert row in logged
        assert values_of(variables) == [7, 0, 0]
