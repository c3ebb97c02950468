"""Layers as a user of Lingvo writes them; only their imports name lingvo_pipe.

For Lingvo they are `from lingvo import compat as tf` and `from lingvo.core import ...`.

Shapes: B sequences, T positions, D and H features, N heads.
"""

# mypy: disable-error-code="no-untyped-def, override"

import tensorflow as tf

from lingvo_pipe import base_layer, py_utils, tshape


class Projection(base_layer.BaseLayer):
    """`[B, T, D]` -> `[B, T, H]`, zeros at paddings, `[B, T]`."""

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define("input_dim", 0, "D.")
        p.Define("output_dim", 0, "H.")
        p.Define("has_bias", True, "True to add a bias.")
        return p

    def __init__(self, params):
        super().__init__(params)
        p = self.params
        assert p.name
        assert p.input_dim > 0
        assert p.output_dim > 0

    def _CreateLayerVariables(self):
        super()._CreateLayerVariables()
        p = self.params
        w_pc = py_utils.WeightParams(
            shape=[p.input_dim, p.output_dim],
            init=p.params_init,
            dtype=p.dtype,
            collections=[self.__class__.__name__ + "_vars"],
        )
        self.CreateVariable("w", w_pc)
        if p.has_bias:
            b_pc = py_utils.WeightParams(
                shape=[p.output_dim],
                init=py_utils.WeightInit.Constant(0.0),
                dtype=p.dtype,
                collections=[py_utils.SKIP_LP_REGULARIZATION],
            )
            self.CreateVariable("b", b_pc)

    def FProp(self, theta, inputs, paddings):
        p = self.params
        with tf.name_scope(p.name):
            inputs, paddings = self._CastToFPropDtype((inputs, paddings))
            inputs = py_utils.HasShape(inputs, [-1, -1, p.input_dim])
            shape = py_utils.GetShape(inputs)
            paddings = py_utils.HasShape(paddings, shape[:2])
            out = py_utils.Matmul(tf.reshape(inputs, [-1, p.input_dim]), theta.w)
            if p.has_bias:
                out += theta.b
            out = tf.nn.tanh(tf.reshape(out, shape[:-1] + [p.output_dim]))
            return py_utils.ApplyPadding(paddings[:, :, tf.newaxis], out), paddings

    @classmethod
    def FPropMeta(cls, p, inputs, paddings):
        py_utils.CheckShapes((inputs, paddings))
        assert inputs[-1] == p.input_dim
        return py_utils.NestedMap(
            flops=inputs.num_elements() * p.output_dim * 2,
            out_shapes=(inputs[:-1] + [p.output_dim], paddings),
        )


class Sum(base_layer.Accumulator):
    """A sum over micro-batches."""

    def __init__(self, shape, dtype):
        super().__init__()
        self.shape = shape
        self.dtype = dtype

    def DefaultValue(self):
        return tf.zeros(self.shape, self.dtype)

    def Update(self, value):
        self.SetValue(self.GetValue() + tf.cast(value, self.dtype))


class Normalization(base_layer.BaseLayer):
    """Batch norm of `[B, T, D]`, by moments that are accumulated over micro-batches."""

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define("dim", 0, "D.")
        p.Define("decay", 0.9, "Decay of the moving averages.")
        p.Define("epsilon", 1e-3, "Added to the variance.")
        return p

    def _CreateLayerVariables(self):
        super()._CreateLayerVariables()
        p = self.params
        collections = [
            self.__class__.__name__ + "_vars",
            py_utils.SKIP_LP_REGULARIZATION,
        ]
        zeros = py_utils.WeightParams(
            shape=[p.dim],
            init=py_utils.WeightInit.Constant(0.0),
            dtype=p.dtype,
            collections=collections,
        )
        self.CreateVariable("beta", zeros)
        self.CreateVariable("gamma", zeros)
        ones = py_utils.WeightParams(
            shape=[p.dim],
            init=py_utils.WeightInit.Constant(),
            dtype=p.dtype,
            collections=["moving_vars"],
        )
        self.CreateVariable("moving_mean", zeros, trainable=False)
        self.CreateVariable("moving_variance", ones, trainable=False)
        self.RegisterAccumulator("counts", Sum([], p.dtype))
        self.RegisterAccumulator("mean_ss", Sum([p.dim], p.dtype))
        self.RegisterAccumulator("variance_ss", Sum([p.dim], p.dtype))

    def FProp(self, theta, inputs, paddings):
        p = self.params
        with tf.name_scope(p.name):
            if self.do_eval:
                mean, variance = theta.moving_mean, theta.moving_variance
            else:
                counts, mean_ss, variance_ss, _ = tf.nn.sufficient_statistics(
                    inputs, axes=[0, 1], keepdims=False
                )
                self.accumulators.counts.Update(counts)
                self.accumulators.mean_ss.Update(mean_ss)
                self.accumulators.variance_ss.Update(variance_ss)
                mean, variance = tf.nn.normalize_moments(
                    counts, mean_ss, variance_ss, None
                )
            mean = py_utils.CheckNumerics(mean, "mean")
            variance = py_utils.with_dependencies(
                [py_utils.assert_greater_equal(variance, tf.zeros_like(variance))],
                variance,
            )
            gamma = 1.0 + theta.gamma
            return (
                tf.nn.batch_normalization(
                    inputs, mean, variance, theta.beta, gamma, p.epsilon
                ),
                paddings,
            )

    def PostTrainingStepUpdate(self):
        p = self.params
        mean, variance = tf.nn.normalize_moments(
            self.accumulators.counts.GetValue(),
            self.accumulators.mean_ss.GetValue(),
            self.accumulators.variance_ss.GetValue(),
            None,
        )
        decay = tf.convert_to_tensor(1.0 - p.decay, p.dtype)
        moving_mean, moving_variance = self.vars.moving_mean, self.vars.moving_variance
        updates = [
            moving_mean.assign_sub((moving_mean - mean) * decay),
            moving_variance.assign_sub((moving_variance - variance) * decay),
        ]
        self.accumulators.counts.Reset()
        self.accumulators.mean_ss.Reset()
        self.accumulators.variance_ss.Reset()
        return tf.group(*updates)

    @classmethod
    def FPropMeta(cls, p, inputs, paddings):
        py_utils.CheckShapes((inputs, paddings))
        return py_utils.NestedMap(
            flops=inputs.num_elements() * 8, out_shapes=(inputs, paddings)
        )


class Attention(base_layer.BaseLayer):
    """Self-attention of `[B, T, D]` that leaves out paddings, `[B, T]`."""

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define("dim", 0, "D.")
        p.Define("num_heads", 2, "N.")
        return p

    def _CreateLayerVariables(self):
        super()._CreateLayerVariables()
        p = self.params
        pc = py_utils.WeightParams(
            shape=[p.dim, p.num_heads, p.dim // p.num_heads],
            init=py_utils.WeightInit.GaussianSqrtDim(),
            dtype=p.dtype,
        )
        for name in ("query", "key", "value", "post"):
            self.CreateVariable(name, pc)

    def FProp(self, theta, inputs, paddings):
        p = self.params
        theta = self._CastToFPropDtype(theta)
        batch, time, _ = py_utils.GetShape(inputs, 3)
        query = tf.einsum("btd,dnh->bnth", inputs, theta.query)
        key = tf.einsum("bsd,dnh->bnsh", inputs, theta.key)
        value = tf.einsum("bsd,dnh->bnsh", inputs, theta.value)
        logits = tf.einsum("bnth,bnsh->bnts", query, key)
        logits = py_utils.HasShape(logits, [batch, p.num_heads, time, time])
        is_padded = paddings[:, tf.newaxis, tf.newaxis, :] + tf.zeros_like(logits)
        very_low = tf.cast(-1e4, py_utils.FPropDtype(p)) * tf.ones_like(logits)
        logits = py_utils.ApplyPadding(is_padded, logits, very_low)
        context = tf.einsum("bnts,bnsh->bnth", tf.nn.softmax(logits), value)
        return tf.einsum("bnth,dnh->btd", context, theta.post)

    @classmethod
    def FPropMeta(cls, p, inputs, paddings):
        py_utils.CheckShapes((inputs, paddings))
        _, time, dim = inputs
        flops = inputs.num_elements() * (8 * dim + 4 * time)
        return py_utils.NestedMap(flops=flops, out_shapes=(inputs,))


class TransformerBlock(base_layer.BaseLayer):
    """Attention and two projections, each normalized and added to its inputs."""

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define("dim", 0, "D.")
        p.Define("hidden_dim", 0, "H.")
        p.Define("atten_tpl", Attention.Params(), "Params of the attention.")
        p.Define("norm_tpl", Normalization.Params(), "Params of the normalization.")
        p.Define("proj_tpl", Projection.Params(), "Params of the projections.")
        return p

    def __init__(self, params):
        super().__init__(params)
        p = self.params
        self.CreateChild("atten", p.atten_tpl.Copy().Set(name="atten", dim=p.dim))
        norm = p.norm_tpl.Copy().Set(name="norm", dim=p.dim)
        self.CreateChild("norm", norm)
        dims = [(p.dim, p.hidden_dim), (p.hidden_dim, p.dim)]
        self.CreateChildren(
            "proj",
            [
                p.proj_tpl.Copy().Set(name=f"proj_{i}", input_dim=m, output_dim=n)
                for i, (m, n) in enumerate(dims)
            ],
        )

    def FProp(self, theta, inputs, paddings):
        p = self.params
        with tf.name_scope(p.name):
            normalized, _ = self.norm.FProp(theta.norm, inputs, paddings)
            x = inputs + self.atten.FProp(theta.atten, normalized, paddings)
            hidden, _ = self.proj[0].FProp(theta.proj[0], x, paddings)
            hidden, _ = self.proj[1].FProp(theta.proj[1], hidden, paddings)
            return x + hidden, paddings

    @classmethod
    def FPropMeta(cls, p, inputs, paddings):
        py_utils.CheckShapes((inputs, paddings))
        atten = p.atten_tpl.Copy().Set(dim=p.dim)
        flops = atten.cls.FPropMeta(atten, inputs, paddings).flops
        shape = tshape.Shape(inputs[:-1] + [p.hidden_dim])
        flops += 2 * (inputs.size + shape.size) * 2
        flops += 4 * inputs.num_elements() * p.hidden_dim
        return py_utils.NestedMap(flops=flops, out_shapes=(inputs, paddings))
