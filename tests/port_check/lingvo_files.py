"""Files as users of Lingvo write them, marked with the changes that port_check lists.

A line that ends in `#-` is only in the file of Lingvo, and one after `#+` only in the
ported file. Imports are not marked.

Shapes: B sequences, T positions, D and H features.
"""

from tests.port_check.lingvo_tasks import TASKS

FILES: dict[str, str] = dict(TASKS)

FILES["batch norm with paddings"] = """
import lingvo.compat as tf
from lingvo.core import base_layer
from lingvo.core import bn_layers
from lingvo.core import py_utils

class Block(base_layer.BaseLayer):
  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define('dim', 3, 'D.')
    p.Define('bn_tpl', bn_layers.BatchNormLayer.Params(), 'Batch norm.')
    p.bn_tpl.decay = 0.9
    p.bn_tpl.gamma_one_init = True  #-
    return p

  def __init__(self, params):
    super().__init__(params)
    p = self.params
    bn = p.bn_tpl.Copy()
    bn.dim = p.dim
    self.CreateChild('bn', bn)

  def FProp(self, theta, inputs, paddings):
    with tf.name_scope(self.params.name):
      out = self.bn.FProp(theta.bn, inputs, paddings)
      return py_utils.ApplyPadding(paddings[..., tf.newaxis], out), paddings

def Cells():
  return [Block.Params().Set(name='one'), Block.Params().Set(name='two')]
"""

FILES["weights and functions of TensorFlow 1"] = """
import lingvo.compat as tf
from lingvo.core import base_layer
from lingvo.core import py_utils

class Gate(base_layer.BaseLayer):
  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define('dim', 3, 'D.')
    return p

  @base_layer.initializer  #-
  def __init__(self, params):
    super().__init__(params)
    p = self.params
    pc = py_utils.WeightParams(
        shape=[p.dim, p.dim], init=p.params_init, dtype=p.dtype,
        collections=[self.__class__.__name__ + '_vars'])
    with tf.variable_scope(p.name):  #-
#+    if True:
      self.CreateVariable('w', pc)

  def FProp(self, theta, inputs, paddings):
    gate = tf.sigmoid(py_utils.Matmul(tf.reshape(inputs, [-1, 3]), theta.w))
    gate = tf.reshape(gate, py_utils.GetShape(inputs))
    total = tf.reduce_sum(gate, -1, keep_dims=True)  #-
#+    total = tf.reduce_sum(gate, -1, keepdims=True)
    out = inputs * gate / tf.log(1.0 + total)  #-
#+    out = inputs * gate / tf.math.log(1.0 + total)
    return out * (1.0 - tf.to_float(paddings)[..., tf.newaxis]), paddings  #-
#+    return out * (1.0 - tf.cast(paddings, tf.float32)[..., tf.newaxis]), paddings

def Cells():
  return [Gate.Params(), Gate.Params()]
"""

FILES["children and their params"] = """
import lingvo.compat as tf
from lingvo.core import base_layer
from lingvo.core import layers

class FeedForward(base_layer.BaseLayer):
  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define('input_dim', 3, 'D.')
    p.Define('hidden_dims', [5, 3], 'H.')
    p.Define('fc_tpl', layers.FCLayer.Params(), 'A layer.')
    p.Define('ln_tpl', layers.LayerNorm.Params(), 'Norm.')  #-
#+    p.Define('ln_tpl', layers.LayerNormLayer.Params(), 'Norm.')
    p.fc_tpl.Set(activation='RELU', batch_norm=False)  #-
#+    p.fc_tpl.Set(activation='RELU')
    return p

  def __init__(self, params):
    super().__init__(params)
    p = self.params
    self.CreateChild('ln', p.ln_tpl.Copy().Set(input_dim=p.input_dim))  #-
#+    self.CreateChild('ln', p.ln_tpl.Copy().Set(dim=p.input_dim))
    dims = [p.input_dim] + p.hidden_dims
    self.CreateChildren('fc', [
        p.fc_tpl.Copy().Set(input_dim=i, output_dim=o)
        for i, o in zip(dims[:-1], dims[1:])])

  def FProp(self, theta, inputs, paddings):
    x = self.ln.FProp(theta.ln, inputs)
    for i in range(len(self.fc)):
      x = self.fc[i].FProp(theta.fc[i], x, paddings)  #-
#+      x = self.fc[i].FProp(theta.fc[i], x)
    return inputs + x, paddings

def Cells():
  return [FeedForward.Params(), FeedForward.Params()]
"""

FILES["an accumulator and moving averages"] = """
import lingvo.compat as tf
from lingvo.core import base_layer
from lingvo.core import py_utils

class Sum(base_layer.Accumulator):
  def __init__(self, dim):
    super().__init__()
    self._dim = dim

  def DefaultValue(self):
    return tf.zeros([self._dim])

  def Update(self, value):
    self.SetValue(self.GetValue() + value)

class Center(base_layer.BaseLayer):
  def _CreateLayerVariables(self):
    super()._CreateLayerVariables()
    mean = py_utils.WeightParams(
        [3], py_utils.WeightInit.Constant(0.0), self.params.dtype,
        collections=['moving_vars'])
    self.CreateVariable('mean', mean, trainable=False)
    self.RegisterAccumulator('sum', Sum(3))

  def FProp(self, theta, inputs, paddings):
    if not self.do_eval:
      self.accumulators.sum.Update(tf.reduce_sum(inputs, [0, 1]))
    return inputs - theta.mean, paddings

  def PostTrainingStepUpdate(self, global_step):  #-
#+  def PostTrainingStepUpdate(self):
    acc = self.accumulators.sum
    mean = 0.9 * self.vars.mean + 0.1 * acc.GetValue()
    acc.Reset()
    return tf.assign(self.vars.mean, mean)  #-
#+    return self.vars.mean.assign(mean)

def Cells():
  return [Center.Params(), Center.Params()]
"""

FILES["a builder"] = """
import lingvo.compat as tf
from lingvo.core import builder

#+def First(x, y):
#+  return x
class Builder(builder.Base):
  def _Block(self, name, dim):
    return self._Graph(
        name, ['x', 'paddings'], ['z', 'paddings'],
        ('x->n', self._LN('ln', dim)),
        ('n->y', self._MLP('mlp', [dim, 5, dim])),
        ('x,y->z', self._Fn('add', tf.add, fn_out=lambda x, y: x)))  #-
#+        ('x,y->z', self._Fn('add', tf.add, fn_out=First)))

def Cells():
  b = Builder.Params().Instantiate()
  return [b._Block('one', 3), b._Block('two', 3)]
"""

FILES["random numbers and conditions"] = """
import lingvo.compat as tf
from lingvo.core import base_layer
from lingvo.core import layers
from lingvo.core import py_utils

class Noisy(base_layer.BaseLayer):
  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define('dropout_tpl', layers.DropoutLayer.Params(), 'Dropout.')
    p.dropout_tpl.keep_prob = 0.9
    p.vn = py_utils.VariationalNoiseParams(None, False, False)  #-
    return p

  def __init__(self, params):
    super().__init__(params)
    self.CreateChild('dropout', self.params.dropout_tpl)

  def FProp(self, theta, inputs, paddings):
    x = self.dropout.FProp(theta.dropout, inputs)
    if tf.reduce_sum(x) > 0.0:  #-
#+    x = tf.where(tf.reduce_sum(x) > 0.0, 2.0 * x, x)
      x *= 2.0  #-
    self.last = x  #-
    x = self.dropout(x)  #-
#+    x = self.dropout.FProp(theta.dropout, x)
    return tf.nn.dropout(x, 0.1), paddings  #-
#+    return self.dropout.FProp(theta.dropout, x), paddings

def Cells():
  return [Noisy.Params(), Noisy.Params()]
"""

FILES["a pipeline"] = """
import lingvo.compat as tf
from lingvo.core import gpipe
from lingvo.core import base_layer
from lingvo.core import layers
from lingvo.core import py_utils

class Double(base_layer.BaseLayer):
  def __init__(self, params):
    super().__init__(params)
    fc = layers.FCLayer.Params().Set(name='fc', input_dim=3, output_dim=3)
    self.CreateChild('fc', fc)

  def FProp(self, theta, inputs, paddings):
    return self.fc.FProp(theta.fc, inputs) * 2.0, paddings

  @classmethod
  def FPropMeta(cls, p, inputs, paddings):
    py_utils.CheckShapes((inputs, paddings))
    flops = inputs.num_elements() * inputs[-1] * 2
    return py_utils.NestedMap(flops=flops, out_shapes=(inputs, paddings))

def Cells():
  stage = gpipe.FeatureExtractionLayer.Params().Set(
      name='stage', sub=[Double.Params().Set(name='a')], num_act_inputs=0)
  pipe = gpipe.PipeliningLayer.Params().Set(name='pipe', splits=1)
  pipe.nested_map_fprop = False  #-
  pipe.cell_tpl = [stage.Copy(), Double.Params()]
  return pipe.cell_tpl
"""

FILES["attention and a residual"] = '''
import lingvo.compat as tf
from lingvo.core import base_layer
from lingvo.core import layers
from lingvo.core import py_utils

class Mixing(base_layer.BaseLayer):
  """Mixes positions by their similarity."""

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define('dim', 3, 'D.')
    p.Define('proj_tpl', layers.ProjectionLayer.Params(), 'Query.')  #-
#+    p.Define('proj_tpl', layers.FCLayer.Params(), 'Query.')
    return p

  def __init__(self, params):
    super().__init__(params)
    p = self.params
    proj = p.proj_tpl.Copy()
    proj.Set(input_dim=p.dim, output_dim=p.dim, has_bias=False)
    self.CreateChild('query', proj)
    self.CreateChild('key', proj)

  def _Logits(self, theta, x):
    query = self.query.FProp(theta.query, x)
    key = self.key.FProp(theta.key, x)
    return tf.einsum('btd,bsd->bts', query, key) / tf.sqrt(float(self.params.dim))

  def FProp(self, theta, inputs, paddings):
    inputs, paddings = self._CastToFPropDtype((inputs, paddings))
    logits = self._Logits(theta, inputs) - 1e9 * paddings[:, tf.newaxis, :]
    out = tf.matmul(py_utils.Softmax(logits), inputs)
    self.AddMetric('size', tf.reduce_mean(tf.abs(out)), tf.constant(1.0))
    return inputs + out, paddings

def Cells():
  return [Mixing.Params(), Mixing.Params()]
'''
