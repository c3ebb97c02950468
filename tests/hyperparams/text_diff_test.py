"""Texts differ as the Params do that they are of."""

from __future__ import annotations

import itertools

import pytest

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.text_diff import diff_texts


def params(dim: int, name: str, sizes: list[int]) -> Params:
    inner, p = Params(), Params()
    inner.Define("sizes", sizes, "")
    inner.Define("name", name, "")
    p.Define("dim", dim, "")
    p.Define("inner", inner, "")
    return p


SOME = [
    params(dim, name, sizes)
    for dim in (1, 2)
    for name in ("a", "b : c\n# d")
    for sizes in ([], [1, 2])
]


@pytest.mark.parametrize(("a", "b"), list(itertools.product(SOME, SOME)))
def test_it_is_that_of_the_params(a: Params, b: Params) -> None:
    found = diff_texts(a.ToText(), b.ToText())
    assert sorted(found.splitlines()) == sorted(a.TextDiff(b).splitlines())
    assert (found == "") == (a == b)


def test_params_of_one_alone_differ() -> None:
    assert diff_texts("a : 1\nb : 2\n", "b : 2\nc : 3\n") == "> a : 1\n< c : 3\n"


def test_what_is_no_entry_is_told() -> None:
    with pytest.raises(ValueError, match="`path : value`.*'nonsense'"):
        diff_texts("a : 1\n", "nonsense\n")
