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
        ("a", "must be {checkpoint: .* got 'a'"),
        ({"a": EVERY}, "must be {checkpoint: "),
        ({"a": (EVERY, "softmax")}, "must be {checkpoint: "),
        ({"a": (["(.*)"], [])}, "must be {checkpoint: "),
        ({3: (EVERY, [])}, "must be {checkpoint: "),
        ({"a": ([("(.*", "%s")], [])}, "must be a regular expression; got '..\\*'"),
        # It must match from the beginning.
        ({"a": ([("sofmax/(.*)", "%s")], [])}, "'sofmax/.*Did you mean 'softmax'"),
        ({"a": (EVERY, ["softmax"])}, "'softmax' chooses none of 4"),
        ({"a": ([("(.*)", "x")], [])}, "one %s for each group .* has 1, .*'x'"),
        ({"a": ([(".*", "%s")], [])}, "one %s for each group .* has 0, .*'%s'"),
        ({"a": (EVERY, []), "b": (EVERY, [".*stem"])}, "3 would come from more, such"),
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
        ({}, r"for 0, \[\]. Name it in the rules"),
        ({"a": (EVERY, []), "b": ([], [])}, r"one checkpoint .* for 2, \['a', 'b'\]"),
        ([], r"must be {checkpoint: .* got \[\]"),
    ],
)
def test_in_place_of_another_number_it_is_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        with_checkpoint(rules, "c")
