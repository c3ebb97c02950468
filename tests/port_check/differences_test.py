"""The check of a file names what would port without an error, and do less."""

from __future__ import annotations

import pytest

from lingvo_pipe.tools.port_check.source_check import check_source


def found(source: str, kind: str) -> list[tuple[int, str]]:
    """Returns lines, and what is in them, of the findings of a kind."""
    return [(x.line, x.what) for x in check_source(source) if x.kind == kind]


@pytest.mark.parametrize("method", ["_CreateChildrenVariables", "Inference"])
def test_methods_that_nothing_calls_are_named(method: str) -> None:
    source = f"""\
from lingvo.core import base_model
class Task(base_model.BaseTask):
  def {method}(self):
    super().{method}()
"""
    assert found(source, "change") == [(3, method), (4, f"super().{method}")]


@pytest.mark.parametrize(
    "args", ["theta, input_batch, first_ids, eos_id, on_stages", "batch"]
)
def test_a_task_decodes_by_its_protocol(args: str) -> None:
    source = f"""\
from lingvo.core import base_model
class Task(base_model.BaseTask):
  def Decode(self, {args}):
    return {args}
"""
    changes = [(3, "Decode")] if args == "batch" else []
    assert found(source, "change") == changes


def test_inputs_may_draw_random_numbers() -> None:
    source = """\
import lingvo.compat as tf
from lingvo.core import base_layer
x = tf.random.uniform([3])
class Layer(base_layer.BaseLayer):
  def Noise(self):
    return tf.random.uniform([3])
"""
    assert found(source, "note") == [(3, "tf.random.uniform")]
    assert found(source, "change") == [(6, "tf.random.uniform")]


def test_a_layers_own_method_may_have_the_name_of_a_tasks() -> None:
    source = """\
from lingvo.core import base_layer
class Layer(base_layer.BaseLayer):
  def Decode(self, x):
    return x
class Other(Layer):
  def Decode(self, x):
    return super().Decode(x)
"""
    assert not found(source, "change")


@pytest.mark.parametrize(("package", "num"), [("lingvo.core", 2), ("lingvo_pipe", 0)])
def test_layers_that_have_more_in_lingvo_are_noted(package: str, num: int) -> None:
    source = f"""\
from {package} import layers
from {package}.layers import Conv2DLayer
p = layers.FCLayer.Params().Set(input_dim=1), layers.DropoutLayer.Params()
"""
    assert not found(source, "change")
    assert found(source, "note") == [(2, "Conv2DLayer"), (3, "FCLayer")][:num]


@pytest.mark.parametrize("splits", [True, False])
def test_a_pipeline_of_one_stage_is_noted(splits: bool) -> None:
    source = f"""\
from lingvo.core import gpipe
p = gpipe.PipeliningLayer.Params().Set(cell_tpl=[]{", splits=2" if splits else ""})
"""
    assert not found(source, "change")
    notes = [(2, "gpipe.PipeliningLayer.Params")]
    assert found(source, "note") == ([] if splits else notes)
