"""Define, set, get, delete, merge, show and visit Params."""

from __future__ import annotations

import collections
import dataclasses
import re
from typing import Any

import pytest

from lingvo_pipe import hyperparams
from lingvo_pipe.hyperparams import (
    InstantiableParams,
    Params,
)
from tests.hyperparams.sample_params import Layer, model_params

Point = collections.namedtuple("Point", ["x", "y"])


# ---- Definition.


def test_the_package_is_one_door() -> None:
    assert hyperparams.Params is Params
    assert hyperparams.InstantiableParams is InstantiableParams


@pytest.mark.parametrize("name", ["", "A", "_x", "1x", "a b", "a-b", "a.b", "é", "if"])
def test_define_refuses_bad_names(name: str) -> None:
    with pytest.raises(ValueError, match=f"name.*{re.escape(repr(name))}"):
        Params().Define(name, 1, "")


def test_define_refuses_other_types_of_name_and_description() -> None:
    with pytest.raises(ValueError, match=r"name.*\b3\b"):
        Params().Define(3, 1, "")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="description.*'a'.*None"):
        Params().Define("a", "Forgot the default.", None)  # type: ignore[arg-type]


def test_define_refuses_a_second_definition() -> None:
    with pytest.raises(AttributeError, match=r"'name'.*'Name\.'"):
        model_params().Define("name", 1, "")


# ---- Values by name and path.

PATHS = [
    "name",
    "train",
    "train.lr",
    "layer.dim",
    "cells",
    "cells[0]",
    "cells[-1].dim",
    "by_name['left']",
    'by_name["left"].dim',
    "by_name[3]",
    "by_name[3][0]",
    "pair[0].dim",
]


@pytest.mark.parametrize("path", PATHS)
def test_get_returns_the_value_set_and_nothing_else_changes(path: str) -> None:
    p, before = model_params(), model_params()
    new = object()
    assert p.Set(**{path: new}) is p
    assert p.Get(path) is new
    assert p != before
    assert p.Set(**{path: before.Get(path)}) == before


def test_attributes_are_the_values() -> None:
    p = model_params()
    p.train.lr = 2.0
    assert (p.train.lr, p.Get("train.lr")) == (2.0, 2.0)
    del p.name
    assert "name" not in p


UNKNOWN = [
    ("nmae", "'nmae'"),
    ("nmae", "'nmae'.*'name'.*by_name, cells, layer, name"),
    ("train.max_stps", "'train'.*'max_stps'.*'max_steps'"),
    ("train.max_stps", r"'train\.max_stps'.* lr, max_steps\b"),
    ("train.rl", r"'train\.rl'.*'lr'"),
    ("cells[1].dmi", r"'cells\[1\]'.*'dmi'.*'dim'"),
    ("cells[2]", r"'cells\[2\]'.*'cells'.*list.*\b2\b"),
    ("cells['a']", r"\"cells\['a'\]\".*'cells'.*list.*\b2\b"),
    ("by_name['lift']", "'by_name'.*dict.*'left'.*'left', 3"),
    ("layer.dim.x", r"'layer\.dim'.*'layer\.dim\.x'.*int.*\b4\b"),
    ("layer.sub_tpl.x", r"'layer\.sub_tpl'.*'layer\.sub_tpl\.x'.*None"),
    ("cells.dim", r"'cells'.*Params.*'cells\.dim'.*list"),
    ("name[0]", r"'name'.*list, tuple.*dict.*'name\[0\]'"),
    ("train[0]", r"'train'.*'train\[0\]'.*Params"),
]


@pytest.mark.parametrize(("path", "message"), UNKNOWN)
def test_unknown_paths_are_refused_by_all(path: str, message: str) -> None:
    p = model_params()
    for attempt in (
        lambda: p.Get(path),
        lambda: p.Set(**{path: 1}),
        lambda: p.Delete(path),
        lambda: p.IsDefault(path),
        lambda: p.ParamIsSet(path),
    ):
        with pytest.raises(AttributeError, match=message):
            attempt()
    assert p == model_params()


def test_unknown_attributes_are_refused() -> None:
    p = model_params()
    with pytest.raises(AttributeError, match="'lrr'.*'lr'"):
        p.train.lrr  # noqa: B018
    with pytest.raises(AttributeError, match="'lrr'.*'lr'"):
        p.train.lrr = 3
    with pytest.raises(AttributeError, match="'x'"):
        Params().x  # noqa: B018
    assert not hasattr(p, "_private")


@pytest.mark.parametrize("path", ["", ".a", "a.", "a..b", "a[", "a[b]", "a b", "[0]"])
def test_malformed_paths_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(path))):
        model_params().Set(**{path: 1})


def test_set_is_all_or_nothing_and_reports_all_problems() -> None:
    p = model_params()
    changes: dict[str, Any] = {
        "name": "new",
        "by_name['left'].dim": 7,
        "cells[0]": None,
        "nope": 1,
        "train.nope": 2,
        "pair[1]": 3,
    }
    with pytest.raises(AttributeError) as caught:
        p.Set(**changes)
    head, *problems = str(caught.value).splitlines()
    assert "3" in head
    tokens = ["'nope'", r"'train\.nope'", r"'pair\[1\]'.*tuple.*'pair'"]
    for token, problem in zip(tokens, problems, strict=True):
        assert re.search(token, problem)
    assert p == model_params()


def test_set_follows_its_own_changes_in_order() -> None:
    p = model_params().Set(**{"layer.sub_tpl": Layer.Params(), "layer.sub_tpl.dim": 9})
    assert p.layer.sub_tpl.dim == 9


def test_an_item_of_a_tuple_is_not_set() -> None:
    with pytest.raises(TypeError, match=r"'pair\[1\]'.*tuple.*'pair'"):
        model_params().Set(**{"pair[1]": 3})


def test_delete_is_all_or_nothing() -> None:
    p = model_params()
    with pytest.raises(AttributeError, match="'nope'"):
        p.Delete("name", "train.lr", "nope")
    assert p == model_params()
    assert p.GetKeys() == model_params().GetKeys()
    assert p.Delete("name", "train.lr", "cells[0].dim") is p
    assert ("name" in p, "lr" in p.train, "dim" in p.cells[0]) == (False,) * 3


def test_items_have_neither_delete_nor_default() -> None:
    with pytest.raises(ValueError, match=r"Delete.*'cells\[0\]'.*list"):
        model_params().Delete("cells[0]")
    with pytest.raises(ValueError, match=r"IsDefault.*'cells\[0\]'.*list"):
        model_params().IsDefault("cells[0]")


def test_param_is_set() -> None:
    p = model_params()
    assert p.ParamIsSet("layer.dim")
    assert not p.ParamIsSet("layer.sub_tpl")


def test_is_default_sees_changes_inside_the_default() -> None:
    p = model_params()
    assert all(map(p.IsDefault, p.GetKeys()))
    p.cells[0].dim = 9
    p.by_name[3].append(3)
    changed = [name for name in p.GetKeys() if not p.IsDefault(name)]
    assert changed == ["cells", "by_name"]
    assert not p.IsDefault("cells[0].dim")
    assert p.Copy().IsDefault("train.lr")


# ---- Python's protocols and looks.


def test_names_in_order_of_definition() -> None:
    p = model_params()
    keys = ["name", "train", "layer", "cells", "by_name", "pair"]
    assert p.GetKeys() == keys
    assert [name for name, _ in p.IterParams()] == keys
    assert len(p) == 6
    assert "train" in p
    assert "nope" not in p
    assert bool(Params())
    assert {"name", "Set"} <= set(dir(p))
    assert dir(p) == sorted(dir(p))


def test_str_shows_the_tree_sorted() -> None:
    assert str(model_params().Delete("layer", "by_name", "pair")) == (
        "{\n"
        "  cells: [\n"
        "    {\n"
        f"      cls: {Layer!r}\n"
        "      dim: 4\n"
        "      name: ''\n"
        "      sub_tpl: None\n"
        "    }\n"
        "    {\n"
        f"      cls: {Layer!r}\n"
        "      dim: 4\n"
        "      name: ''\n"
        "      sub_tpl: None\n"
        "    }\n"
        "  ]\n"
        "  name: 'm'\n"
        "  train: {\n"
        "    lr: 0.5\n"
        "    max_steps: 10\n"
        "  }\n"
        "}"
    )
    shown = str(model_params())
    assert "  by_name: {\n    'left': {\n" in shown
    assert "  pair: (\n    {\n" in shown
    assert repr(model_params()) == shown


# ---- Visits.


@dataclasses.dataclass
class Config:
    size: int


def test_visit_reaches_every_leaf_by_its_path() -> None:
    p = model_params()
    p.Define("point", Point(1, [2]), "")
    p.Define("config", Config(3), "")
    seen: dict[str, Any] = {}
    entered: list[str] = []
    left: list[str] = []

    def enter(path: str, value: Any) -> bool:
        entered.append(path)
        return path != "cells[1]"

    p.Visit(
        enter_fn=enter,
        visit_fn=seen.__setitem__,
        exit_fn=lambda path, _: left.append(path),
    )
    assert seen["point[x]"] == 1
    assert seen["point[y][0]"] == 2
    assert seen["config[size]"] == 3
    assert seen["cells[1]"] is p.cells[1]
    assert seen["by_name['left'].dim"] == 4
    assert sorted([*left, "cells[1]"]) == sorted(entered)
    assert left[-1] == ""
    for path, value in seen.items():
        if not path.startswith(("point", "config")):
            assert p.Get(path) is value


# ---- Instantiation.


def test_instantiate() -> None:
    p = Layer.Params().Set(dim=2)
    layer = p.Instantiate(extra=5)
    assert type(layer) is Layer
    assert layer.params is p
    assert layer.extra == 5


def test_instantiate_needs_a_class() -> None:
    with pytest.raises(ValueError, match="cls = None"):
        InstantiableParams().Instantiate()
