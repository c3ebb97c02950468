"""The check of a whole file names what will not port, or does less, by its line."""

from __future__ import annotations

import pytest

from tests.port_check.expected_findings import Finding, assert_finds

LAYER = """\
import lingvo.compat as tf
from lingvo.core import base_layer, base_model, builder, schedule
class Layer(base_layer.BaseLayer):
"""
TASK = LAYER.replace("Layer(base_layer.BaseLayer)", "Task(base_model.BaseTask)")
SCHEDULE = LAYER.replace("Layer(base_layer.BaseLayer)", "Rate(schedule.BaseSchedule)")
DECODE_ARGUMENTS = "self, theta, input_batch, first_ids, eos_id, on_stages"
INCOMPLETE: Finding = (
    3,
    "change",
    "no PipelineInputs, LossTargets, ComputeLoss, p.pipeline.cell_tpl",
    "Add PipelineInputs(",
)
CASES: dict[str, tuple[str, list[Finding]]] = {
    "methods of the file are known": (
        f"""{LAYER}
  def __init__(self, params):
    super().__init__(params)
    self.CreateChild('Inner', params.inner)
  def Helper(self, x):
    return self.Inner(x)
class Second(Layer):
  def FProp(self, theta, x):
    return self.Helper(x) + self.Other(x)
""",
        [(12, "change", "self.Other", "")],
    ),
    "other classes are left alone": (
        "class A(object):\n  def f(self):\n    return self.Other()\n",
        [],
    ),
    "files that are ported": (
        """\
import lingvo_pipe.base_layer as base_layer
class Layer(base_layer.BaseLayer):
  def FProp(self, theta, x):
    return self.GetStep()
""",
        [(4, "change", "self.GetStep", "")],
    ),
    "updates without a step": (
        f"{LAYER}  def PostTrainingStepUpdate(self): pass\n",
        [],
    ),
    "optional steps of schedules": (
        f"{SCHEDULE}  def Value(self, step=None): pass\n",
        [(4, "change", "Value", "GetGlobalStep")],
    ),
    "schedules without a step": (f"{SCHEDULE}  def Value(self): pass\n", []),
    "schedules by FProp": (
        f"{SCHEDULE}  def FProp(self, theta, current_step): return 1.0\n",
        [(4, "change", "FProp", "Value(self)")],
    ),
    "params that Lingvo alone has": (
        f"""{LAYER}
  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define("dim", 0, "D.")
    return p
class Second(Layer):
  pass
Second.Params().Set(dim=1, defined_elsewhere=2, vn=3)
""",
        [(12, "change", "Second.Params", "'vn'")],
    ),
    "scopes of children's variables": (
        f"{LAYER}  def _child_variable_scope_override(self): return {{}}\n",
        [(4, "change", "_child_variable_scope_override", "delete it")],
    ),
    "a scope of the name": (
        f"{LAYER}  def FProp(self, theta, x):\n    tf.name_scope(self.params.name)\n",
        [(5, "note", "tf.name_scope(self.params.name)", "Leave it out")],
    ),
    "arguments of the base": (
        f"""{TASK}
  def ComputePredictions(self, theta, batch, more=1):
    return batch
  def ComputeLoss(self, theta, predictions, batch):
    return predictions
p.pipeline.cell_tpl = []
""",
        [
            (3, "change", "no PipelineInputs, LossTargets", "Add PipelineInputs("),
            (5, "change", "ComputePredictions", "a layer's FProp"),
            (7, "change", "ComputeLoss", "predictions"),
        ],
    ),
    "methods that nothing calls": (
        f"""{TASK}
  def Inference(self):
    super()._CreateChildrenVariables()
""",
        [
            INCOMPLETE,
            (5, "change", "Inference", ""),
            (6, "change", "super()._CreateChildrenVariables", "Delete"),
        ],
    ),
    "a task that decodes by its protocol": (
        f"{TASK}  def Decode({DECODE_ARGUMENTS}): pass\n",
        [INCOMPLETE],
    ),
    "a task that decodes as Lingvo's": (
        f"{TASK}  def Decode(self, batch): pass\n",
        [INCOMPLETE, (4, "change", "Decode", "eos_id")],
    ),
    "a layer's method named as a task's": (
        f"""{LAYER}
  def Decode(self, x):
    return x
class Other(Layer):
  def Decode(self, x):
    return super().Decode(x)
""",
        [],
    ),
    "random numbers of inputs and of layers": (
        f"""{LAYER}
  def Noise(self):
    return tf.random.uniform([3])
x = tf.random.uniform([3])
""",
        [(6, "change", "tf.random.uniform", ""), (7, "note", "tf.random.uniform", "")],
    ),
    "layers with more in Lingvo": (
        """\
from lingvo.core import layers
from lingvo.core.layers import Conv2DLayer
p = layers.FCLayer.Params().Set(input_dim=1), layers.DropoutLayer.Params()
""",
        [(2, "note", "Conv2DLayer", ""), (3, "note", "FCLayer", "")],
    ),
    "layers of lingvo_pipe": (
        """\
from lingvo_pipe import layers
from lingvo_pipe.layers import Conv2DLayer
p = layers.FCLayer.Params().Set(input_dim=1), layers.DropoutLayer.Params()
""",
        [],
    ),
    "a pipeline of one stage": (
        "from lingvo.core import gpipe\ngpipe.PipeliningLayer.Params().Set(name='x')",
        [(2, "note", "gpipe.PipeliningLayer.Params", "splits")],
    ),
    "a pipeline of two stages": (
        "from lingvo.core import gpipe\ngpipe.PipeliningLayer.Params().Set(splits=2)",
        [],
    ),
    "children and their params": (
        f"""{LAYER}
  @classmethod
  def Params(cls):
    p = super(Layer, cls).Params()
    p.Define("fc", builder.FCLayer.Params(), "F.")
    p.Define("sizes", py_utils.Params(), "S.")
    p.sizes.Define("first", 3, "S.")
    p.sizes.frist = 4
    return p
  def __init__(self, params):
    self.CreateChildren("fcs", [self.params.fc.Copy()] * 3)
  def FProp(self, theta, x, paddings):
    for i, fc in enumerate(self.fcs):
      x = fc.FProp(theta.fcs[i], x, paddings)
    for fc, own in zip(self.fcs, theta.fcs):
      x = fc.FPrp(own, x)
    return self.fcs[0](x)
class Second(Layer):
  def __init__(self, params):
    self.CreateChild("one", Layer.Params().Set(vn=1))
  def FProp(self, theta, x):
    x = self.one.fcs[1].FProp(theta.one.fcs[1])
    x = self.one.FProp(theta.one, x, x)
    return self.one.fcs.params.output_dmi
class Third(builder.FCLayer):
  def FProp(self, theta, x, paddings):
    return super().FProp(theta, x, paddings)
""".replace("builder.FC", "layers.FC").replace("builder,", "layers, py_utils,"),
        [
            (8, "note", "FCLayer", "RELU"),
            (11, "change", "p.sizes.frist", "'first'"),
            (17, "change", "fc.FProp", "too many"),
            (19, "change", "fc.FPrp", "'FProp'"),
            (20, "change", "self.fcs[0](...) in FProp", "theta.fcs[0]"),
            (23, "change", "Layer.Params", "noise"),
            (25, "change", "self.one.fcs[1].FProp", "missing"),
            (28, "note", "FCLayer", "RELU"),
            (30, "change", "super().FProp", "too many"),
        ],
    ),
    "lists of children": (
        f"""{LAYER.replace("builder", "layers")}
  def __init__(self, params):
    fc = layers.FCLayer.Params()
    fcs = []
    for _ in range(3):
      fcs.append(fc.Copy())
    self.CreateChildren(name="fcs", params=fcs)
    more = [fc] * len(fcs)
    more += fcs
    self.CreateChildren("more", more)
    self.CreateChildren("unlike", [fc, layers.BatchNormLayer.Params()])
  def FProp(self, theta, x, paddings):
    for i in range(3):
      x = self.fcs[i].FProp(theta.fcs[i], x, paddings)
    y = [c.FProp(theta.more[i], x, x) for i, c in enumerate(self.more)]
    return self.unlike[1].FProp(theta.unlike[1], sum(y), paddings)
""",
        [
            (6, "note", "FCLayer", "RELU"),
            (17, "change", "self.fcs[i].FProp", "too many"),
            (18, "change", "c.FProp", "too many"),
        ],
    ),
    "a task's params, children and loss": (
        f"""{TASK.replace("builder,", "optimizer,")}
  def PipelineInputs(self, batch): return batch
  def LossTargets(self, batch): return batch
  def __init__(self, params):
    self.CreateChild("x", params.x)
  def ComputeLoss(self, predictions, targets):
    result = predictions, targets
    self.AddMetric("x", 1, self.theta.x)
    return result
class Model:
  def Task(self):
    p = Task.Params()
    p.train.optimizer = optimizer.Adam.Params()
    p.pipeline.Set(num_micro_batch=3, cell_tpl=[])
    train = p.train
    train.max_step = p.input
    p.eval.interval_steps = p.train.max_steps
""",
        [
            (2, "change", "lingvo.core.optimizer", "Keras"),
            (8, "change", "self.CreateChild", "cell_tpl"),
            (11, "change", "self.AddMetric", "Return it"),
            (11, "change", "self.theta in ComputeLoss", "in layers"),
            (12, "change", "return result", "metrics alone"),
            (16, "change", "optimizer.Adam.Params", "Keras"),
            (17, "change", "p.pipeline", "'num_micro_batches'"),
            (19, "change", "p.input", "no param"),
            (19, "change", "train.max_step", "'max_steps'"),
        ],
    ),
    "a task that others complete": (
        f"""{TASK}
  pass
class Whole(Task):
  def PipelineInputs(self, batch): return batch
  def LossTargets(self, batch): return batch
  def ComputeLoss(self, predictions, targets): return predictions
""",
        [(6, "change", "no p.pipeline.cell_tpl", "p.pipeline.cell_tpl = ")],
    ),
    "pairs that a loss returns": (
        f"""{TASK}
  def PipelineInputs(self, batch): return batch
  def LossTargets(self, batch): return batch
  def _Loss(self, predictions):
    pair = predictions, predictions
    return pair
  def ComputeLoss(self, predictions, targets):
    if targets.x:
      return (targets, 1) if targets.y else targets
    if targets.z:
      return self._Loss(predictions)
    metrics, _ = self._Loss(predictions)
    return metrics
Task.Params().pipeline.cell_tpl.append(1)
""",
        [
            (12, "change", "return (targets, 1) if targets.y else targets", "alone"),
            (14, "change", "return self._Loss(predictions)", "alone"),
        ],
    ),
    "methods of builders": (
        """\
import lingvo.core.builder
class Builder(lingvo.core.builder.Base):
  def Block(self, name):
    return self._Seq(name, self._Id('id'), self._BNN('bn', 3), self.Block('x'))
  def Other(self):
    return self._Dropout('dropout', keepprob=0.5)
""",
        [
            (4, "change", "self._BNN", "'_BN'"),
            (6, "change", "self._Dropout", "'keep_prob'"),
        ],
    ),
}


@pytest.mark.parametrize(("source", "expected"), CASES.values(), ids=CASES)
def test_findings(source: str, expected: list[Finding]) -> None:
    assert_finds(source, expected)
