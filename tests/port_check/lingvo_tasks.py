"""Tasks and models as users of Lingvo write them, marked as in `lingvo_files`."""

TASKS: dict[str, str] = {}

TASKS["a task with layers of its own"] = """
import lingvo.compat as tf
from lingvo.core import base_model
from lingvo.core import layers
from lingvo.core import py_utils

class Regression(base_model.BaseTask):
  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define('fc_tpl', layers.FCLayer.Params(), 'Its layer.')
    p.fc_tpl.Set(input_dim=3, output_dim=1, activation='NONE')
    p.train.learning_rate = 0.1
    p.train.summary_interval_steps = 60  #-
#+    p.train.save_interval_steps = 60
    p.eval.samples_per_summary = 100  #-
    p.train.clip_gradient_norm_to_value = 1.0
#+    p.pipeline.cell_tpl = [p.fc_tpl]
    return p

  def __init__(self, params):
    super().__init__(params)
    self.CreateChild('fc', self.params.fc_tpl)  #-

#+  def PipelineInputs(self, input_batch):
#+    return [input_batch.x]
#+  def LossTargets(self, input_batch):
#+    return py_utils.NestedMap(y=input_batch.y)
  def ComputePredictions(self, theta, input_batch):  #-
    return self.fc.FProp(theta.fc, input_batch.x)  #-

  def ComputeLoss(self, theta, predictions, input_batch):  #-
#+  def ComputeLoss(self, predictions, input_batch):
    error = tf.reduce_mean(tf.square(predictions - input_batch.y))
    self.AddEvalMetric('error', error, tf.constant(1.0))  #-
    metrics = py_utils.NestedMap(loss=(error, tf.constant(1.0)))
    return metrics, py_utils.NestedMap()  #-
#+    return metrics

  def PostProcessDecodeOut(self, dec_out, metrics):  #-
    return []  #-

def Task():
  return Regression.Params().Set(name='task')
"""

TASKS["a registered model and its rate"] = """
import lingvo.compat as tf
from lingvo import model_registry
from lingvo.core import base_model_params
from lingvo.core import base_model
from lingvo.core import layers
from lingvo.core import optimizer  #-
#+from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from lingvo.core import py_utils
from lingvo.core import schedule

class Halving(schedule.BaseSchedule):
  def Value(self, current_step):  #-
#+  def Value(self):
    step = tf.cast(current_step, tf.float32)  #-
#+    step = tf.cast(py_utils.GetGlobalStep(), tf.float32)
    return 0.5 ** (step / 100.0)

class Linear(base_model.BaseTask):
#+  def PipelineInputs(self, input_batch):
#+    return [input_batch.x]
#+  def LossTargets(self, input_batch):
#+    return py_utils.NestedMap(y=input_batch.y)
  def ComputeLoss(self, theta, predictions, input_batch):  #-
#+  def ComputeLoss(self, predictions, input_batch):
    error = tf.reduce_mean(tf.square(predictions - input_batch.y))
    return {'loss': (error, tf.constant(1.0))}

@model_registry.RegisterSingleTaskModel
class Model(base_model_params.SingleTaskModelParams):
  def Task(self):
    p = Linear.Params().Set(name='task')
    fc = layers.FCLayer.Params()
    fc.Set(input_dim=3, output_dim=1)
    p.train.optimizer = optimizer.Momentum.Params()  #-
#+    p.train.optimizer = OptimizerParams('SGD', momentum=0.9)
    p.train.learning_rate = 0.1
    p.train.lr_schedule = Halving.Params()
    p.train.tpu_steps_per_loop = 10  #-
#+    p.train.steps_per_loop = 10
#+    p.pipeline.cell_tpl = [fc]
    return p

def Task():
  return Model().Task()
"""
