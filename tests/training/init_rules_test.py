"""Rules say which variable comes from where, and refuse to say nothing."""

from typing import Any

import pytest

from lingvo_pipe.training.init_rules import resolve_rules, with_checkpoint

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
    want = {
        "task/cells_0/w": "old/cells0/w",
        "task/cells_1/w": "old/cells1/w",
    }
    assert resolved(rules) == [("a", want, {})]


def test_the_first_expression_that_matches_counts():
    rules: Any = {"a": ([("task/stem/w", "conv"), ("task/(stem|softmax)/w", "%s")], [])}
    want = {"task/stem/w": "conv", "task/softmax/w": "softmax"}
    assert resolved(rules) == [("a", want, {})]


def test_what_is_left_out_is_told_with_its_expression():
    rules: Any = {"a": (EVERY, [".*softmax", "task/stem"])}
    excluded = {"task/softmax/w": ".*softmax", "task/stem/w": "task/stem"}
    want = {path: path for path in PATHS[1:3]}
    assert resolved(rules) == [("a", want, excluded)]


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
def test_what_can_not_be_meant_is_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        resolve_rules(rules, PATHS)


def test_another_checkpoint_in_place_of_the_only_one():
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
def test_in_place_of_another_number_it_is_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        with_checkpoint(rules, "c")
