"""Copies, equality, and changes that freezing refuses."""

from __future__ import annotations

import collections
import copy
import pickle
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.core.errors import UserTypeError
from lingvo_pipe.hyperparams import InstantiableParams, Params
from tests.hyperparams.sample_params import Layer, Point, model_params, params
from tests.support.errors import fails

# ---- Copies and equality.


def test_a_copy_is_deep() -> None:
    p = model_params()
    q = p.Copy()
    assert q == p
    q.train.lr = 9
    q.cells[0].dim = 9
    q.by_name[3].append(9)
    q.pair[0].dim = 9
    assert p == model_params()


class Settings:
    """An object of a module whose name begins like a library's."""

    __module__ = "keras_settings"

    def __init__(self) -> None:
        self.sizes = [1]


def test_a_copy_has_its_own_objects() -> None:
    p = params(settings=Settings())
    p.Copy().settings.sizes.append(2)
    assert p.settings.sizes == [1]


@pytest.mark.parametrize(
    "clone",
    [
        copy.copy,
        copy.deepcopy,
        lambda p: p.Copy(),
        lambda p: pickle.loads(pickle.dumps(p)),
    ],
)
@pytest.mark.parametrize("frozen", [False, True])
def test_every_clone_is_equal(clone: Any, frozen: bool) -> None:
    p = model_params()
    if frozen:
        p.Freeze()
    assert clone(p) == p
    assert str(clone(p)) == str(p)
    if not clone(p).IsImmutable():
        clone(p).Set(name="other")
        assert p == model_params()


def test_values_shared_inside_are_shared_inside_the_copy() -> None:
    p = params(a=Layer.Params())
    p.Define("b", [p.a], "")
    q = p.Copy()
    assert q.b[0] is q.a
    assert q.a is not p.a


def test_a_copy_keeps_the_classes_of_containers() -> None:
    count = collections.defaultdict(int, a=1)
    p = params(count=count, point=Point([1], 2), array=np.zeros(2))
    q = p.Copy()
    assert q == p
    assert type(q.count) is collections.defaultdict
    assert type(q.point) is Point
    q.point.x.append(1)
    q.array[0] = 1
    assert p.point == Point([1], 2)
    assert p.array[0] == 0
    assert p != q


def test_equality_is_of_class_names_and_values() -> None:
    p = model_params()
    assert p == model_params()
    assert p != model_params().Set(**{"cells[1].dim": 5})
    assert p != p.Copy().Delete("name")
    assert Params() != InstantiableParams()
    assert Params() != 3
    assert InstantiableParams(Layer) != InstantiableParams(Point)


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (float("nan"), float("nan"), True),
        ([float("nan")], [float("nan")], True),
        ({"a": float("nan")}, {"a": float("nan")}, True),
        ((1,), [1], False),
        ([1], [1, 2], False),
        (np.float32(0.5), 0.5, True),
        (np.array([1, 2]), np.array([1, 2]), True),
        (np.array([1, 2]), np.array([1, 3]), False),
        (np.array([1]), np.array([1.0]), False),
        (np.array([1, 2]), [1, 2], False),
        (np.array([1, 2]), None, False),
    ],
)
def test_equality_of_values(a: Any, b: Any, equal: bool) -> None:
    p, q = params(v=a), params(v=b)
    assert (p == q) is equal
    assert (q == p) is equal


def test_params_are_unhashable() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Params())


# ---- Freezing.


def frozen_params() -> Params:
    p = model_params()
    p.Freeze()
    return p


CHANGES = {
    "attribute": lambda p: setattr(p, "name", 1),
    "set": lambda p: p.Set(name=1),
    "set nested": lambda p: p.Set(**{"train.lr": 1}),
    "set item": lambda p: p.Set(**{"cells[0]": 1}),
    "delete": lambda p: p.Delete("name"),
    "del": lambda p: delattr(p, "name"),
    "define": lambda p: p.Define("new", 1, ""),
    "text": lambda p: p.FromText("name : x"),
    "merge": lambda p: p.MergeCommonKeysFrom(model_params()),
    "nested": lambda p: p.train.Set(lr=1),
    "in list": lambda p: setattr(p.cells[0], "dim", 1),
    "in dict": lambda p: setattr(p.by_name["left"], "dim", 1),
    "in tuple": lambda p: setattr(p.pair[0], "dim", 1),
    "append": lambda p: p.cells.append(1),
    "list item": lambda p: p.cells.__setitem__(0, 1),
    "list +=": lambda p: p.by_name[3].__iadd__([1]),
    "dict item": lambda p: p.by_name.__setitem__("x", 1),
    "dict update": lambda p: p.by_name.update(x=1),
    "dict pop": lambda p: p.by_name.pop("left"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_frozen_params_refuse_every_change_at_any_depth(change: Any) -> None:
    p = frozen_params()
    with fails(UserTypeError) as info:
        change(p)
    assert "params.Copy()" in info.value.hint
    assert p == model_params()
    change(p.Copy())  # A copy can be edited.


def test_frozen_params_inside_unfrozen_ones_are_refused_by_path() -> None:
    p = model_params()
    p.train.Freeze()
    with fails(UserTypeError, path="train.lr"):
        p.Set(name="new", **{"train.lr": 1})
    with fails(UserTypeError, path="train.lr"):
        p.Delete("name", "train.lr")
    assert p == model_params()


def test_freezing_twice_is_freezing_once() -> None:
    p = frozen_params()
    p.Freeze()
    assert p.IsImmutable()
    assert p.cells[0].IsImmutable()
    assert not p.Copy().IsImmutable()
    assert not p.Copy().cells[0].IsImmutable()
    assert type(p.Copy().cells) is list
    assert type(p.Copy().by_name) is dict


def test_a_frozen_clone_by_pickle_is_frozen() -> None:
    p = pickle.loads(pickle.dumps(frozen_params()))
    for change in CHANGES.values():
        with fails(UserTypeError):
            change(p)


def test_freezing_reaches_into_other_containers() -> None:
    p = params(ordered=collections.OrderedDict(a=Layer.Params()))
    p.Freeze()
    assert p.ordered["a"].IsImmutable()
