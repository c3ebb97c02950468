"""Calls that will not port, or do something else here, are named by their lines."""

from __future__ import annotations

import pytest

from tests.port_check.expected_findings import Finding, assert_finds

HEAD = """\
import lingvo.compat as tf
from lingvo.core import base_layer, builder, layers, py_utils
"""
LAYER = f"{HEAD}class Layer(base_layer.BaseLayer):"
# A file, and what is found there.
CASES: dict[str, tuple[str, list[Finding]]] = {
    "the step in a forward pass": (
        f"""{LAYER}
  def FProp(self, theta, x):
    return x * py_utils.GetGlobalStep() + self._Rate()
  def _Rate(self):
    return tf.cast(py_utils.GetGlobalStep(), tf.float32)
  def PostTrainingStepUpdate(self):
    py_utils.GetGlobalStep()
""",
        [
            (5, "note", "py_utils.GetGlobalStep", "self.do_eval"),
            (7, "note", "py_utils.GetGlobalStep", "self.do_eval"),
        ],
    ),
    "rows by a condition": (
        f"{HEAD}tf.where(a, b, c)\ntf.where(a, x=b, y=c)\ntf.where(a)\n",
        [
            (3, "note", "tf.where", "broadcast"),
            (4, "note", "tf.where", "broadcast"),
        ],
    ),
    "conditions of TensorFlow 2": (
        "import tensorflow as tf\nfrom lingvo.core import layers\ntf.where(a, b, c)\n",
        [],
    ),
    "extremes in an accumulator": (
        f"""{HEAD}
class Range(base_layer.Accumulator):
  def Update(self, value):
    low = tf.minimum(self.GetValue()[0], value)
    self.SetValue(tf.stack([low, tf.maximum(self.GetValue()[1], value)]))
class Layer(base_layer.BaseLayer):
  def FProp(self, theta, x):
    return tf.maximum(x, 0.0)
""",
        [(6, "note", "tf.minimum", "adds up"), (7, "note", "tf.maximum", "adds up")],
    ),
    "functions that no module has by a name": (
        f"""{HEAD}
def First(x): return x
class Builder(builder.Base):
  def _Block(self, name):
    def Second(x):
      return x
    return self._Seq(name, self._Fn('a', First), self._Fn('b', Second),
        self._Fn('c', fn=lambda x: x), self._Own(lambda: 1), self._Own(Second))
  def _Own(self, fn):
    return fn()
class Layer(base_layer.BaseLayer):
  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define('fn', lambda x: x, 'F.')
    p.fn = lambda x: -x
    return p
Layer.Params().Set(fn=lambda x: x)
""",
        [
            (9, "change", "Second in self._Fn", "the module defines"),
            (10, "change", "a lambda in self._Fn", "the module defines"),
            (10, "change", "a lambda in self._Own", "the module defines"),
            (17, "change", "a lambda in p.Define", "the module defines"),
            (18, "change", "a lambda in p.fn", "the module defines"),
            (20, "change", "a lambda in Layer.Params().Set", "the module defines"),
        ],
    ),
    "methods that a forward pass calls": (
        f"""{LAYER}
  def __init__(self, params):
    super().__init__(params)
    self.CreateChild('fc', layers.DropoutLayer.Params())
  def _Hidden(self, x):
    self.last = x
    if tf.reduce_sum(x) > 0:
      x *= self.theta.w
    return self.fc(x)
  def FProp(self, theta, x):
    return self._More(x)
  def _More(self, x):
    return tf.map_fn(self._Hidden, x)
  def Other(self, x):
    return self.fc(x) * self.theta.w
""",
        [
            (8, "change", "self.last = ... in FProp", "AddMetric"),
            (9, "change", "tf.reduce_sum(x) > 0", "tf.cond"),
            (10, "change", "self.theta in FProp", "theta"),
            (11, "change", "self.fc(...) in FProp", "theta.fc"),
        ],
    ),
    "updates whose results are used": (
        f"""{LAYER}
  def PostTrainingStepUpdate(self):
    super().PostTrainingStepUpdate()
    return tf.group(super().PostTrainingStepUpdate(), self.vars.x.assign(1.0))
class Other(base_layer.BaseLayer):
  def PostTrainingStepUpdate(self):
    return super().PostTrainingStepUpdate()
""",
        [(6, "change", "super().PostTrainingStepUpdate", "returns nothing")],
    ),
    "params that only Lingvo has": (
        f"""{HEAD}
class Builder(builder.Base):
  @classmethod
  def Params(cls):
    p = super().Params()
    p.deterministic_dropout = True
    return p
p = layers.DropoutLayer.Params()
p.Set(add_name_to_theta=True, inference_driver_name='x')
layers.LayerNormLayer.Params().Set(input_dim=3)
""",
        [
            (8, "change", "p.deterministic_dropout", "all dropout"),
            (11, "change", "p", "variables have names"),
            (11, "change", "p", "no drivers"),
            (12, "change", "layers.LayerNormLayer.Params", "mean 'dim'?"),
        ],
    ),
    "definitions by keywords": (
        f"""{LAYER}
  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define(name='sizes', default_value=py_utils.Params(), description='S.')
    p.Define('dim', default=3, description='D.')
    p.sizes.Define('first', 1, 'F.')
    p.sizes.frist = p.dim
    return p
""",
        [
            (7, "change", "p.Define", "Write default"),
            (10, "change", "p.sizes.frist", "'first'"),
        ],
    ),
    "members that only Lingvo has": (
        f"""{LAYER}
  def __init__(self, params):
    super().__init__(params)
    self.CreateChild('fetch', layers.FetchLayer.Params())
  def Value(self):
    return self.fetch.activation + self.input_generator.x
""",
        [
            (8, "change", "self.fetch.activation", "_AddFetches"),
            (8, "change", "self.input_generator", "PipelineInputs"),
        ],
    ),
}


@pytest.mark.parametrize(("source", "expected"), CASES.values(), ids=CASES)
def test_findings(source: str, expected: list[Finding]) -> None:
    assert_finds(source, expected)
