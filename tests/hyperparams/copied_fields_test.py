"""Params copied and merged from other Params."""

from __future__ import annotations

from typing import Any

import pytest

from lingvo_pipe.core.errors import UserAttributeError
from lingvo_pipe.hyperparams import CopyFieldsSubsetTo, CopyFieldsTo
from tests.hyperparams.sample_params import Layer, OtherLayer, model_params, params
from tests.support.errors import fails


def test_merge_takes_common_names_only() -> None:
    ours = Layer.Params()
    assert ours.MergeCommonKeysFrom(model_params()) is ours
    assert ours == Layer.Params().Set(name="m")


@pytest.mark.parametrize("skip", ["name", ["name"]])
def test_copies_keep_the_class_and_share_nothing(skip: Any) -> None:
    source = Layer.Params().Set(dim=7, name="a", sub_tpl=Layer.Params())
    copied = CopyFieldsTo(source, OtherLayer.Params(), skip=skip)
    merged = OtherLayer.Params().MergeCommonKeysFrom(source)
    assert (copied.name, merged.name) == ("", "a")
    for target in (copied, merged):
        assert (target.cls, target.dim) == (OtherLayer, 7)
        assert target.sub_tpl == source.sub_tpl
        assert target.sub_tpl is not source.sub_tpl


@pytest.mark.parametrize("names", ["dim", ["dim"], ("dim", "cls"), {"dim", "sub_tpl"}])
def test_copy_some_fields(names: Any) -> None:
    source = Layer.Params().Set(dim=7, name="a", sub_tpl=Layer.Params())
    target = OtherLayer.Params()
    assert CopyFieldsSubsetTo(source, target, names) is target
    assert (target.cls, target.dim, target.name) == (OtherLayer, 7, "")
    assert (target.sub_tpl == source.sub_tpl) is ("sub_tpl" in names)
    assert target.sub_tpl is not source.sub_tpl


def test_copied_fields_must_exist_on_both_sides() -> None:
    narrow, wide = params(dim=0), Layer.Params()
    for source, target in ((narrow, wide), (wide, narrow)):
        before = target.Copy()
        with fails(UserAttributeError, path="name"):
            CopyFieldsSubsetTo(source, target, ["dim", "name"])
        assert target == before
    with fails(UserAttributeError):
        CopyFieldsTo(wide, narrow)
    assert narrow.dim == 0
    assert CopyFieldsTo(wide, narrow, ignore_unknown_keys=True).dim == 4
