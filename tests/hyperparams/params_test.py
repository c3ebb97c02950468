"""Define, set, get, delete, merge, show and visit Params."""

from __future__ import annotations

from typing import Any

import pytest

from lingvo_pipe.core.errors import (
    UserAttributeError,
    UserError,
    UserNameError,
    UserPathError,
    UserTypeError,
    UserValueError,
)
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.hyperparams.fields import _HINTS
from tests.hyperparams.sample_params import (
    Color,
    Config,
    Layer,
    Point,
    model_params,
    params,
)
from tests.support.errors import fails

# ---- Definition.


@pytest.mark.parametrize(
    "name", ["", "A", "_fields", "__init__", "1x", "a b", "a.b", "é", 3]
)
def test_define_refuses_bad_names(name: Any) -> None:
    with fails(UserNameError, got=name):
        Params().Define(name, 1, "")


@pytest.mark.parametrize("name", ["_x", "class"])
def test_words_of_python_and_hidden_names(name: str) -> None:
    p = params(**{name: 1}).Set(**{name: 2})
    assert (p.Get(name), getattr(p, name), p.GetKeys()) == (2, 2, [name])
    assert params(**{name: 0}).FromText(p.ToText()) == p.Copy()


def test_define_refuses_another_description_and_a_second_definition() -> None:
    p = model_params()
    with fails(UserTypeError, path="description of a", got=None):
        p.Define("a", "Forgot the default.", None)  # type: ignore[arg-type]
    with fails(UserAttributeError, path="name") as info:
        p.Define("name", 1, "")
    assert "'Name.'" in info.value.got


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
    ("nmae", "nmae", "nmae", "'name'"),
    ("train.max_stps", "train.max_stps", "max_stps", "'max_steps'"),
    ("cells[1].dmi", "cells[1].dmi", "dmi", "'dim'"),
    ("cells[2]", "cells[2]", 2, ""),
    ("cells['a']", "cells['a']", "a", ""),
    ("by_name['lift']", "by_name['lift']", "lift", "'left'"),
    ("layer.dim.x", "layer.dim", 4, ""),
    ("layer.sub_tpl.x", "layer.sub_tpl", None, ""),
    ("cells.dim", "cells", model_params().cells, ""),
    ("name[0]", "name", "m", ""),
    ("train[0]", "train", "Params", ""),
]


@pytest.mark.parametrize(("path", "error_path", "got", "near"), UNKNOWN)
def test_unknown_paths_are_refused_by_all(
    path: str, error_path: str, got: Any, near: str
) -> None:
    p = model_params()
    for attempt in (
        lambda: p.Get(path),
        lambda: p.Set(**{path: 1}),
        lambda: p.Delete(path),
        lambda: p.IsDefault(path),
        lambda: p.ParamIsSet(path),
    ):
        with fails(UserAttributeError, path=error_path, got=got) as info:
            attempt()
        assert near in info.value.hint
        assert bool(near) == bool(info.value.hint)
    assert p == model_params()


def test_a_path_below_a_plain_value_is_an_assertion_error_as_in_lingvo() -> None:
    with fails(UserPathError, path="d"):
        params(d={"a": 1}).Set(**{"d.a": 2})
    assert issubclass(UserPathError, AssertionError)


def test_unknown_attributes_are_refused() -> None:
    p = model_params()
    with fails(UserAttributeError, got="ToProto", hint=_HINTS["ToProto"]):
        p.ToProto()
    with fails(
        UserAttributeError, path="lrr", expected="a defined param (lr, max_steps)"
    ):
        p.train.lrr  # noqa: B018
    with fails(UserAttributeError, path="lrr", hint="Did you mean 'lr'?"):
        p.train.lrr = 3
    with fails(UserAttributeError, path="x", expected="a defined param (none)"):
        Params().x  # noqa: B018
    assert not hasattr(p, "_private")


@pytest.mark.parametrize("path", ["", ".a", "a.", "a..b", "a[", "a[b]", "a b", "[0]"])
def test_malformed_paths_are_refused(path: str) -> None:
    with fails() as info:
        model_params().Set(**{path: 1})
    assert repr(path) in str(info.value)


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
    with fails(UserAttributeError) as info:
        p.Set(**changes)
    problems = info.value.problems
    assert [x.path for x in problems] == ["nope", "train.nope", "pair[1]"]
    assert str(info.value).splitlines()[1:] == [f"  {x}" for x in problems]
    assert p == model_params()


def test_set_follows_its_own_changes_in_order() -> None:
    p = model_params().Set(**{"layer.sub_tpl": Layer.Params(), "layer.sub_tpl.dim": 9})
    assert p.layer.sub_tpl.dim == 9


def test_delete_is_all_or_nothing() -> None:
    p = model_params()
    with fails(UserAttributeError, path="nope"):
        p.Delete("name", "train.lr", "nope")
    assert p == model_params()
    assert p.GetKeys() == model_params().GetKeys()
    assert p.Delete("name", "train.lr", "cells[0].dim") is p
    assert ("name" in p, "lr" in p.train, "dim" in p.cells[0]) == (False,) * 3


@pytest.mark.parametrize(
    ("path", "attempt", "kind", "hint"),
    [
        ("cells[0]", Params.Delete, UserValueError, "Name the whole cells."),
        ("cells[0]", Params.IsDefault, UserValueError, "Name the whole cells."),
        (
            "pair[1]",
            lambda p, path: p.Set(**{path: 3}),
            UserTypeError,
            "Set the whole pair.",
        ),
    ],
)
def test_some_items_are_neither_deleted_nor_set(
    path: str, attempt: Any, kind: type[UserError], hint: str
) -> None:
    with fails(kind, path=path, hint=hint):
        attempt(model_params(), path)


def test_is_default_sees_changes_inside_the_default() -> None:
    p = model_params()
    assert all(map(p.IsDefault, p.GetKeys()))
    p.cells[0].dim = 9
    p.by_name[3].append(3)
    changed = [name for name in p.GetKeys() if not p.IsDefault(name)]
    assert changed == ["cells", "by_name"]
    assert not p.IsDefault("cells[0].dim")
    assert p.Copy().IsDefault("train.lr")
    assert p.ParamIsSet("layer.dim")
    assert not p.ParamIsSet("layer.sub_tpl")


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


def test_str_shows_the_tree_sorted_as_lingvo_does() -> None:
    p = params(z=[params(b=1, a="x"), 3], y=(params(),), x={"k": 1, "j": params()})
    p.Define("layer", params(b=Color.RED, a=Point(params(), 1)), "")
    p.Define("text", "it's", "")
    assert repr(p) == str(p)
    assert str(p).splitlines() == [
        *("{", "  layer: {", "    a: Point(x={", "}, y=1)", "    b: Color.RED", "  }"),
        *('  text: "it\'s"', "  x: {'j': {}, 'k': 1}", "  y: ({},)"),
        *("  z: [{'a': 'x', 'b': 1}, 3]", "}"),
    ]


# ---- Visits.


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
    assert (type(layer), layer.params, layer.extra) == (Layer, p, 5)
    assert InstantiableParams["Layer"] is type(p)  # type: ignore[misc]
    with fails(path="cls", got=None):
        InstantiableParams().Instantiate()
