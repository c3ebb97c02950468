"""Rules choose the source of each variable, and wrong rules are rejected."""

from typing import Any

import pytest

from lingvo_pipe.core.errors import shown
from lingvo_pipe.training.warm_start.init_rules import (
    PARAM,
    resolve_rules,
    with_checkpoint,
)
from tests.support.errors import fails

PATHS = ["task/stem/w", "task/cells_0/w", "task/cells_1/w", "task/softmax/w"]
EVERY = [("(.*)", "%s")]


def resolved(rules):
    return [(r.checkpoint, r.names, r.excluded) for r in resolve_rules(rules, PATHS)]


def test_no_rules_take_nothing():
    assert resolved({}) == []


def test_all_under_their_own_names():
    assert resolved({"a": (EVERY, [])}) == [("a", {p: p for p in PATHS}, {})]


def test_groups_fill_in_the_format():
    rules: Any = {"a": ([(r"task/(cells|rows)_(\d)/(.*)", "old/%s%s/%s")], [])}
    expected = {
        "task/cells_0/w": "old/cells0/w",
        "task/cells_1/w": "old/cells1/w",
    }
    assert resolved(rules) == [("a", expected, {})]


def test_the_first_expression_that_matches_counts():
    rules: Any = {"a": ([("task/stem/w", "conv"), ("task/(stem|softmax)/w", "%s")], [])}
    expected = {"task/stem/w": "conv", "task/softmax/w": "softmax"}
    assert resolved(rules) == [("a", expected, {})]


def test_excluded_variables_come_with_their_expression():
    rules: Any = {"a": (EVERY, [".*softmax", "task/stem"])}
    excluded = {"task/softmax/w": ".*softmax", "task/stem/w": "task/stem"}
    expected = {path: path for path in PATHS[1:3]}
    assert resolved(rules) == [("a", expected, excluded)]


def test_checkpoints_share_a_model():
    rules: Any = {"a": ([("task/stem", "x")], []), "b": (EVERY, ["task/stem"])}
    (_, from_a, _), (_, from_b, _) = resolved(rules)
    assert from_a == {"task/stem/w": "x"}
    assert from_b == {path: path for path in PATHS[1:]}


@pytest.mark.parametrize(
    ("rules", "got"),
    [
        ("a", "'a'"),
        ({"a": EVERY}, "{'a': "),
        ({"a": (EVERY, "softmax")}, "{'a': "),
        ({"a": (["(.*)"], [])}, "{'a': "),
        ({3: (EVERY, [])}, "{3: "),
        ({"a": ([("(.*", "%s")], [])}, "'(.*' ("),
        # It must match from the beginning.
        ({"a": ([("sofmax/(.*)", "%s")], [])}, "'sofmax/(.*)', which matches none"),
        ({"a": (EVERY, ["softmax"])}, "'softmax', which matches none of 4"),
        ({"a": ([("(.*)", "x")], [])}, "'x' ("),
        ({"a": ([(".*", "%s")], [])}, "'%s' ("),
        (
            {"a": (EVERY, []), "b": (EVERY, [".*stem"])},
            "more for 3, such as task/cells_0/w",
        ),
    ],
)
def test_wrong_rules_are_rejected(rules, got):
    with fails(path=PARAM) as info:
        resolve_rules(rules, PATHS)
    assert shown(info.value.got).startswith(got)


def test_a_checkpoint_replaces_the_only_one():
    rules: Any = {"a": (EVERY, [".*softmax"])}
    assert with_checkpoint(rules, "b") == {"b": rules["a"]}
    assert list(rules) == ["a"]


@pytest.mark.parametrize("rules", [{}, {"a": (EVERY, []), "b": ([], [])}, []])
def test_a_checkpoint_cannot_replace_none_or_several(rules):
    with fails(path=PARAM, got=list(rules)):
        with_checkpoint(rules, "c")
