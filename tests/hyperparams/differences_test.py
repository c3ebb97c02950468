"""Differences of Params, and of their texts."""

from __future__ import annotations

import itertools

import pytest

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.differences import diff_texts
from tests.hyperparams.sample_params import params as tree
from tests.support.errors import fails


def test_equal_params_do_not_differ() -> None:
    p = tree(a=1, b=tree(c=float("nan")), d=[tree(e=object)])
    assert p.TextDiff(p.Copy()) == ""


@pytest.mark.parametrize(
    ("ours", "theirs", "diff"),
    [
        (tree(a=1, b=2), tree(a=1, b=3), "> b: 2\n< b: 3\n"),
        (tree(z=1), tree(b="x"), "< b: x\n> z: 1\n"),
        (
            tree(a=tree(b=tree(c=1, d=3))),
            tree(a=tree(b=tree(c=2, d=3))),
            "? a:\n?   b:\n>     c: 1\n<     c: 2\n",
        ),
        (tree(a={"b": 1}), tree(a=None), "> a: {'b': 1}\n< a: None\n"),
        (
            tree(a=[0, (tree(b=1),)]),
            tree(a=[0, (tree(b=2),)]),
            "? a[1][0]:\n>   b: 1\n<   b: 2\n",
        ),
        (tree(a=[1, 2, 3]), tree(a=[1, 4]), "> a[1]: 2\n< a[1]: 4\n> a[2]: 3\n"),
        (
            tree(a={"k": 1, 2: 3}),
            tree(a={"k": 4, "j": 5}),
            "? a:\n>   2: 3\n<   j: 5\n>   k: 1\n<   k: 4\n",
        ),
        (tree(a={1, 2}), tree(a=b"x"), "> a: {1, 2}\n< a: b'x'\n"),
        (tree(a=[1]), tree(a=(1,)), "> a: [1]\n< a: (1,)\n"),
        (tree(a={"b": 1}), tree(a=tree()), "> a: {'b': 1}\n< a: {\n}\n"),
    ],
)
def test_every_difference_is_a_line(ours: Params, theirs: Params, diff: str) -> None:
    assert ours.TextDiff(theirs) == diff


def test_our_lines_are_entries_that_turn_theirs_into_ours() -> None:
    ours, theirs = tree(a=1, b=tree(c="x;y")), tree(a=2, b=tree(c="z"))
    lines = diff_texts(ours.ToText(), theirs.ToText()).splitlines()
    text = "\n".join(line[2:] for line in lines if line.startswith("> "))
    assert theirs.FromText(text) == ours


# ---- Texts.

SOME = [
    tree(dim=dim, inner=tree(sizes=sizes, name=name))
    for dim in (1, 2)
    for name in ("a", "b : c\n# d")
    for sizes in (None, (1, 2))
]


@pytest.mark.parametrize(("a", "b"), list(itertools.product(SOME, SOME)))
def test_texts_differ_as_their_params_do(a: Params, b: Params) -> None:
    lines = diff_texts(a.ToText(), b.ToText()).splitlines()
    own = [line for line in a.TextDiff(b).splitlines() if line[0] in "<>"]
    assert sorted(line[0] for line in lines) == sorted(line[0] for line in own)
    assert (lines == []) == (a == b)


def test_an_entry_of_one_text_alone_differs() -> None:
    assert diff_texts("a : 1\nb : 2\n", "b : 2\nc : 3\n") == "> a : 1\n< c : 3\n"


def test_a_malformed_entry_is_refused() -> None:
    with fails(got="nonsense"):
        diff_texts("a : 1\n", "nonsense\n")
