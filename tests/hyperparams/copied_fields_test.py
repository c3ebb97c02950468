"""Params copied and merged from other Params."""

from __future__ import annotations

from typing import Any

import pytest

from lingvo_pipe.hyperparams import CopyFieldsSubsetTo, CopyFieldsTo, Params
from tests.hyperparams.sample_params import Layer, model_params


def test_merge_takes_common_names_only() -> None:
    ours, theirs = Layer.Params(), model_params()
    assert ours.MergeCommonKeysFrom(theirs) is ours
    assert ours == Layer.Params().Set(name="m")


def test_copy_fields_to() -> None:
    class Other(Layer):
        pass

    source = Layer.Params().Set(dim=7, name="a", sub_tpl=Layer.Params())
    target = CopyFieldsTo(source, Other.Params(), skip=["name"])
    assert (target.cls, target.dim, target.name) == (Other, 7, "")
    assert target.sub_tpl == source.sub_tpl
    assert target.sub_tpl is not source.sub_tpl


def test_copy_fields_to_narrower_params() -> None:
    narrow = Params()
    narrow.Define("dim", 0, "")
    with pytest.raises(AttributeError, match="'name'"):
        CopyFieldsTo(Layer.Params(), narrow)
    assert narrow.dim == 0
    assert CopyFieldsTo(Layer.Params(), narrow, ignore_unknown_keys=True).dim == 4


@pytest.mark.parametrize("names", ["dim", ["dim"], ("dim", "cls"), {"dim", "sub_tpl"}])
def test_copy_some_fields(names: Any) -> None:
    class Other(Layer):
        pass

    source = Layer.Params().Set(dim=7, name="a", sub_tpl=Layer.Params())
    target = Other.Params()
    assert CopyFieldsSubsetTo(source, target, names) is target
    assert (target.cls, target.dim, target.name) == (Other, 7, "")
    assert (target.sub_tpl == source.sub_tpl) is ("sub_tpl" in names)
    assert target.sub_tpl is not source.sub_tpl


def test_copied_fields_must_exist_on_both_sides() -> None:
    narrow = Params()
    narrow.Define("dim", 0, "")
    for source, target in ((narrow, Layer.Params()), (Layer.Params(), narrow)):
        before = target.Copy()
        with pytest.raises(AttributeError, match="'name'"):
            CopyFieldsSubsetTo(source, target, ["dim", "name"])
        assert target == before


def test_one_name_may_be_skipped_without_a_list() -> None:
    target = CopyFieldsTo(Layer.Params().Set(dim=7, name="a"), Layer.Params(), "name")
    assert (target.dim, target.name) == (7, "")


def test_merging_keeps_the_class_and_copies() -> None:
    class Other(Layer):
        pass

    source = Layer.Params().Set(sub_tpl=Layer.Params())
    merged = Other.Params().MergeCommonKeysFrom(source)
    assert merged.cls is Other
    source.sub_tpl.dim = 9
    assert merged.sub_tpl.dim == 4
