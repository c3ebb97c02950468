"""Texts of errors about params, NestedMaps and names of models."""

from __future__ import annotations

from unittest import mock

import model_registry
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.nested_map import NestedMap
from model_registry import registry
from tests.wordings.wording import Wording


def _params() -> Params:
    train = Params()
    train.Define("max_steps", 1000, "Number of steps.")
    train.Define("learning_rate", 0.1, "Rate of all steps.")
    p = Params()
    p.Define("name", "toy", "Name of the task.")
    p.Define("train", train, "Training.")
    return p


def _set_frozen() -> None:
    p = _params()
    p.Freeze()
    p.train.max_steps = 3


def _get_params(model: str, dataset: str) -> None:
    """Looks up params where `my_models.words.Words` is the only model."""
    methods = dict.fromkeys(["Task", "Model", "Train", "Test"], lambda self: Params())
    words = type("Words", (), {"__module__": "my_models.words", **methods})
    with (
        mock.patch.dict(registry._registered, clear=True),
        mock.patch.object(registry, "ImportAll"),
    ):
        model_registry.RegisterSingleTaskModel(words)
        model_registry.GetParams(model, dataset)


WORDINGS = [
    # ---- Params.
    Wording(
        "unknown param",
        lambda _: _params().Set(**{"train.max_step": 3}),
        AttributeError,
        "'train.max_step'",
        "'train.max_step' must be a defined param; 'train' has no 'max_step'. Did you "
        "mean 'max_steps'? Defined: learning_rate, max_steps.",
    ),
    Wording(
        "a word in place of a number",
        lambda _: _params().FromText("train.max_steps : many"),
        ValueError,
        "'train.max_steps'",
        "Cannot read 'train.max_steps': an int must be a whole number such as 1000 or "
        "1e3; got 'many'. 'train.max_steps' has type int, default 1000. If it may be a "
        "str too, write 'train.max_steps (str) : many'.",
    ),
    Wording(
        "an equals sign in place of a colon",
        lambda _: _params().FromText("train.max_steps = 10"),
        ValueError,
        "'train.max_steps = 10'",
        "An entry must be `path : value`; got 'train.max_steps = 10'. "
        "'train.max_steps' has type int, default 1000.",
    ),
    Wording(
        "set twice",
        lambda _: _params().FromText("name : a\ntrain.max_steps : 10\nname : b"),
        ValueError,
        "'name'",
        "'name' is set twice. Remove one of the entries.",
    ),
    Wording(
        "several problems",
        lambda _: _params().FromText("train.max_steps : 1.5; nam : a", separator=";"),
        ValueError,
        "'nam'",
        "2 problems; nothing was changed:\n"
        "  Cannot read 'train.max_steps': an int must be a whole number such as 1000 "
        "or 1e3; got '1.5'. 'train.max_steps' has type int, default 1000.\n"
        "  'nam' must be a defined param; these Params have no 'nam'. Did you mean "
        "'name'? Defined: name, train. Near it: 'name' (type str, default 'toy').",
    ),
    Wording(
        "frozen",
        lambda _: _set_frozen(),
        TypeError,
        "'max_steps'",
        "Cannot set 'max_steps': these Params are frozen. Edit a copy: params.Copy().",
    ),
    # ---- NestedMaps.
    Wording(
        "unknown key",
        lambda _: NestedMap(image=1, label=2).lable,
        AttributeError,
        "'lable'",
        "No 'lable' among the available attributes: image, label. Did you mean "
        "'label'?",
    ),
    Wording(
        "a key that is a method",
        lambda _: NestedMap(items=[1, 2]),
        ValueError,
        "'items'",
        "A NestedMap's key must not be 'items', which is a reserved key, the name of "
        "one of its methods. Call it 'items_'.",
    ),
    # ---- Models by name.
    Wording(
        "unknown model",
        lambda _: _get_params("my_models.wrods.Words", "Train"),
        LookupError,
        "'my_models.wrods.Words'",
        "No model is registered as 'my_models.wrods.Words'. Did you mean "
        "'my_models.words.Words'? --list_models lists all 1. A model of your own is "
        "found as `package.file.Class` if the folder of its package is on PYTHONPATH, "
        "or is where you start the trainer. Or import the package first: by the "
        "trainer's --model_imports=package, or by model_registry.ImportModels.",
    ),
    Wording(
        "unknown data set of a model",
        lambda _: _get_params("my_models.words.Words", "Tset"),
        model_registry.DatasetError,
        "'Tset'",
        "A data set must be a method of the model; Words has no 'Tset'. Did you mean "
        "'Test'? It has: Test, Train.",
    ),
]
