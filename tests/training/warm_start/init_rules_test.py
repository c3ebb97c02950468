"""Rules choose the source of each variable, and wrong rules are rejected."""

from typing import Any

import pytest

from lingvo_pipe.training.warm_start.init_rules import resolve_rules, with_checkpoint

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
    ("rules", "message"),
    [
        ("a", "init_from_checkpoint_rules.*{checkpoint:.*'a'"),
        ({"a": EVERY}, r"{checkpoint:.*{'a': \[\('"),
        ({"a": (EVERY, "softmax")}, "{checkpoint:.*'softmax'"),
        ({"a": (["(.*)"], [])}, r"{checkpoint:.*{'a': \(\['"),
        ({3: (EVERY, [])}, "{checkpoint:.*{3: "),
        ({"a": ([("(.*", "%s")], [])}, r"init_from_checkpoint_rules.*'\(\.\*'"),
        # It must match from the beginning.
        ({"a": ([("sofmax/(.*)", "%s")], [])}, r"_rules.*'sofmax/.*\b4\b.*'softmax'"),
        ({"a": (EVERY, ["softmax"])}, r"_rules.*'softmax'.*\b4\b"),
        ({"a": ([("(.*)", "x")], [])}, r"_rules.*%s.*'\(\.\*\)'.*\b1\b.*'x'"),
        ({"a": ([(".*", "%s")], [])}, r"_rules.*%s.*'\.\*'.*\b0\b.*'%s'"),
        (
            {"a": (EVERY, []), "b": (EVERY, [".*stem"])},
            r"_rules.*\b3\b.*task/cells_0/w",
        ),
    ],
)
def test_wrong_rules_are_rejected(rules, message):
    with pytest.raises(ValueError, match=message):
        resolve_rules(rules, PATHS)


def test_a_checkpoint_replaces_the_only_one():
    rules: Any = {"a": (EVERY, [".*softmax"])}
    assert with_checkpoint(rules, "b") == {"b": rules["a"]}
    assert list(rules) == ["a"]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({}, r"_override.*_rules.*'c'.*\b0\b.*\[\]"),
        ({"a": (EVERY, []), "b": ([], [])}, r"_rules.*'c'.*\b2\b.*\['a', 'b'\]"),
        ([], r"init_from_checkpoint_rules.*{checkpoint:.* \[\]\."),
    ],
)
def test_a_checkpoint_cannot_replace_none_or_several(rules, message):
    with pytest.raises(ValueError, match=message):
        with_checkpoint(rules, "c")
