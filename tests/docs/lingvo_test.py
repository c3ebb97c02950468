"""The page for users of Lingvo says what is so."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe import base_layer, builder, gpipe, py_utils, schedule, tshape
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.tools.port_check import counterparts
from lingvo_pipe.tools.port_check.source_check import check_source
from tests.docs.pages import page

PAGE = page("lingvo")


class _Weight(base_layer.BaseLayer):
    def _CreateLayerVariables(self) -> None:
        self.CreateVariable("w", py_utils.WeightParams([2]))

    def FProp(self, theta: Any, x: Any) -> Any:
        return x * theta.w


class _Stateful(_Weight):
    def FProp(self, theta: Any, x: Any) -> Any:
        return x * theta.w + tf.random.normal([2])


class _ReadsVars(_Weight):
    def FProp(self, theta: Any, x: Any) -> Any:
        return x * self.vars.w


class _Forgets(_Weight):
    def _CreateLayerVariables(self) -> None:
        super()._CreateLayerVariables()
        self.RegisterAccumulator("sum", [])


def _loss(outputs: Any, targets: Any) -> Any:
    return NestedMap(loss=(tf.reduce_mean(outputs - targets), tf.constant(1.0)))


def _pipelined(cls: Any) -> Any:
    p = gpipe.PipeliningLayer.Params().Set(name="pipe", cell_tpl=[cls.Params()])
    layer, x = p.Instantiate(), tf.ones([4, 2])
    layer.ComputeGradients(layer.theta, [x], x, _loss)
    return layer.cells[0]


def _weight() -> Any:
    return _Weight.Params().Set(name="weight").Instantiate()


def _builder() -> Any:
    return builder.Base.Params().Instantiate()


REFUSED: dict[str, Callable[[], Any]] = {
    "expected a pure function": lambda: _pipelined(_Stateful),
    "expected a value for every accumulator": lambda: _pipelined(_Forgets),
    "expected weights as arguments": lambda: _pipelined(_ReadsVars),
    "expected AddFunction before the first run": lambda: _pipelined(
        _Weight
    ).AddFunction("f", abs),
    "expected no parameter global_step": lambda: type(
        "Old", (_Weight,), {"PostTrainingStepUpdate": lambda self, global_step: None}
    ),
    "where it creates its parts": lambda: _weight().CreateChild("x", _Weight.Params()),
    "expected a child's name that no sibling has": lambda: (
        _builder()._Seq("s", _builder()._Id("a"), _builder()._Id("a")).Instantiate()
    ),
    "these Params are frozen": lambda: _weight().params.Set(name="other"),
    "py_utils has no DefaultVN here": lambda: py_utils.DefaultVN,
    "expected a defined param": lambda: _Weight.Params().Set(vn=None),
    "There are no symbolic dimensions": lambda: tshape.Shape(["x"]),
    "expected no reserved name": lambda: NestedMap(keys=1),
    "that its module has by its name": lambda: (
        _builder()._Fn("f", lambda x: x).ToText()
    ),
    "expected a value computed before": lambda: (
        _builder()._Graph("g", ["x"], ["y"]).Instantiate()(1.0)
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused_is_refused_in_these_words(words: str) -> None:
    with pytest.raises((AttributeError, TypeError, ValueError)) as error:
        REFUSED[words]()
    assert words in str(error.value)


def test_all_refusals_are_tested() -> None:
    table = PAGE.partition("## Refused")[2].partition("##")[0]
    assert set(re.findall(r"\| `([^`]+)` \|$", table, re.MULTILINE)) == set(REFUSED)


def test_imports_are_those_that_port_check_writes() -> None:
    pairs = re.findall(r"^\| `(lingvo\.[\w.]+)` \| `([\w.]+)` \|$", PAGE, re.MULTILINE)
    ours = {name: x.__name__ for name, x in counterparts.MODULES.items()}
    assert dict(pairs) == ours


def test_schedules_that_are_missing_are_named() -> None:
    row = PAGE.partition("| Rates |")[2].split("\n")[0]
    names = re.findall(r"`(\w+(?:Schedule|Replicas|WarmUp))`", row)
    assert [name for name in names if hasattr(schedule, name)] == ["BaseSchedule"]
    assert len(names) == 4


def test_methods_of_builders_exist() -> None:
    row = re.search(r"^\| Builders \|.*$", PAGE, re.MULTILINE)
    assert row
    names = set(re.findall(r"`(_\w+)`", row[0]))
    own = {x for x in vars(builder.Base) if re.fullmatch(r"_[A-Z]\w*", x)}
    assert names == own


def test_the_example_has_nothing_to_port() -> None:
    example = PAGE.partition("```python\n")[2].partition("```")[0]
    assert "builder.Base" in example
    assert not check_source(example)


@pytest.mark.exhaustive
def test_runs_from_python_define_no_flags() -> None:
    """Lingvo defines flags of the same names."""
    names = "lp.train, lp.evaluate, lp.plan, lp.load"
    code = f"import sys, lingvo_pipe as lp; {names}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "lingvo_pipe.cli.runs" in modules.split()
    assert "lingvo_pipe.cli.flags" not in modules.split()
