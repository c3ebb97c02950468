"""Models made by a builder compute, cost and train as what they are made of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe import builder
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers import builder_layers
from lingvo_pipe.layers.builder_layers import FnLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.model_size import layer_sizes
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.graph_layer import GraphLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.splitting.partition_layers import PartitionSequentialLayers
from tests.support.errors import fails

B, D, F = 4, 6, 10


class Builder(builder.Base):
    """A builder of blocks like a Transformer's, without attention."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("hidden_dim", F, "F.")
        return p

    def Block(self, name: str) -> InstantiableParams:
        hidden = self.params.hidden_dim
        return self._Graph(
            name,
            ["x"],
            ["out"],
            ("x->normed", self._LN("ln", D)),
            ("normed->change", self._Seq("ff", *self.FeedForward(hidden))),
            ("x,change->out", self._Fn("add", lambda x, y: x + y, lambda x, y: x)),
        )

    def FeedForward(self, hidden: int) -> list[InstantiableParams]:
        return [
            self._FC("fc", D, hidden),
            self._Linear("linear", hidden, D),
            self._Bias("bias", D),
            self._Dropout("dropout", 0.8),
        ]

    def Stack(self, num_blocks: int) -> InstantiableParams:
        return self._Rep("stack", num_blocks, self.Block("block"), self._Id("id"))


def make(**params: Any) -> Any:
    return Builder.Params().Set(**params).Instantiate()


def inputs(*shape: int, seed: int = 1) -> tf.Tensor:
    return tf.random.stateless_normal(shape, [seed, 2])


def test_a_graph_is_the_composition_of_its_layers() -> None:
    p = make().Block("block")
    p.sub[1][1].sub[3].keep_prob = 1.0
    layer, x = p.Instantiate(), inputs(B, D)
    norm, feed_forward, _ = layer.sub
    fc, linear, bias, _ = feed_forward.sub
    hidden = tf.nn.relu(norm(x) @ fc.sub[0].vars.w + fc.sub[1].vars.b)
    want = x + hidden @ linear.vars.w + bias.vars.b
    np.testing.assert_allclose(layer(x), want, rtol=1e-5)
    paths = list(layer.VariablePaths())[:4]
    parts = ["ln/gamma", "ln/beta", "ff/fc/linear/w", "ff/fc/bias/b"]
    assert paths == [f"block/{part}" for part in parts]


def test_repetitions_have_their_own_weights() -> None:
    layer = make()._Rep("rep", 3, make()._Linear("w", D, D)).Instantiate()
    assert list(layer.VariablePaths()) == [f"rep/iter_00{i}/w/w" for i in range(3)]
    values = [v.numpy() for v in layer.VariablePaths().values()]
    assert not np.array_equal(values[0], values[1])
    x = inputs(B, D)
    want = x @ values[0] @ values[1] @ values[2]
    np.testing.assert_allclose(layer(x), want, rtol=1e-5, atol=1e-6)


def test_parallel_layers_concatenate_their_outputs() -> None:
    b = make()
    both = b._Par("par", b._Id("id"), b._Arg("second", 1), b._Fn("sum", tf.add))
    layer = both.Instantiate()
    assert [float(x) for x in layer(tf.constant(1.0), tf.constant(2.0))] == [1, 2, 2, 3]
    p = b._Par("par", b._Fn("twice", lambda x: 2 * x))
    assert float(p.Instantiate()(tf.constant(3.0))) == 6.0
    p.merge = lambda outputs: outputs[0][0]
    for shape in ([1, 2], [3, 2]):
        assert p.Instantiate()(tf.ones(shape)).shape == shape


def test_fetches_follow_the_outputs_of_the_body() -> None:
    b = make()
    inner = b._Seq("inner", b._Fn("half", lambda x: x / 2), b._Save("halved"))
    body = b._Seq("body", b._Save("in"), inner, b._Fn("less", lambda x: x - 1))
    p = b._Branch("branch", body, ["inner.halved", "in"])
    assert [float(x) for x in p.Instantiate()(tf.constant(8.0))] == [3.0, 4.0, 8.0]
    meta = p.cls.FPropMeta(p, (2, 3))
    assert (meta.flops, meta.out_shapes) == (2 * 6, ((2, 3),) * 3)
    outer = b._AddFetches("outer", p, ["in"]).Instantiate()
    assert len(outer(tf.constant(8.0))) == 4


@pytest.mark.parametrize("num", [0, 2])
def test_a_fetch_names_one_layer(num: int) -> None:
    b = make()
    p = b._Branch("branch", b._Rep("body", num, b._Save("out")), ["out"])
    with fails(path="branch.fetches", got="out"):
        p.Instantiate()(tf.constant(1.0))


def test_a_builders_dtype_is_its_layers() -> None:
    b = make(fprop_dtype=tf.bfloat16)
    layers = [b._MLP("mlp", [D, F, D]), b._Activation("tanh", tf.tanh), b._LN("ln", D)]
    assert b._Seq("all", *layers).Instantiate()(inputs(B, D)).dtype == tf.bfloat16


def test_convolutions_normalize_and_activate() -> None:
    b = make()
    conv = b._Conv2D("conv", [3, 3, 2, 4], [2, 1])
    p = b._Seq("net", conv, b._BN("bn", 4), b._Activation("act", "TANH"))
    outputs = p.Instantiate()(inputs(B, 5, 6, 2))
    assert p.cls.FPropMeta(p, (B, 5, 6, 2)).out_shapes == (tuple(outputs.shape),)
    assert p.sub[1].decay == 0.99


def test_the_cost_of_a_function_is_given() -> None:
    b = make()
    first = b._Fn("first", lambda x, y: x[0], lambda x, y: x[1:], lambda x, y: 7)
    assert first.cls.FPropMeta(first, (2, 3), (4,)) == NestedMap(
        flops=7, out_shapes=((3,),)
    )
    swap = b._Fn("swap", lambda x, y: (y, x * 2), lambda x, y: (y, x))
    assert swap.cls.FPropMeta(swap, (2, 3), (4,)) == NestedMap(
        flops=6, out_shapes=((4,), (2, 3))
    )
    parts = b._Par("par", first, swap)
    parts.merge, parts.merge_meta = (lambda outputs: outputs[1]), _second_meta
    assert parts.cls.FPropMeta(parts, (2, 3), (4,)).flops == 7 + 6 + 50
    for p, flops in ((b._Seq("all", swap, b._Fn("y", lambda x, y: y)), 6), (parts, 63)):
        (size,) = layer_sizes([b._Seq("whole", p)], (2, 3), (4,))
        assert size.flops == flops


@pytest.mark.parametrize("name", ["fn_out", "fn_flops"])
def test_a_function_of_all_costs_excludes_others(name: str) -> None:
    p = FnLayer.Params().Set(fn=tf.abs, fn_meta=_second_meta, **{name: scalar_shape})
    with fails(path=f"FnLayer.{name}", got=scalar_shape):
        p.cls.FPropMeta(p, (2, 3))


def _second_meta(shapes: Any) -> NestedMap:
    return NestedMap(flops=50, out_shapes=shapes[1])


@pytest.mark.parametrize(
    ("function", "output"),
    [
        (tf.identity, (2, 3)),
        (tf.reduce_sum, ()),
        (lambda x: NestedMap(a=x, b=(x, None)), NestedMap(a=(2, 3), b=((2, 3), None))),
    ],
)
def test_a_functions_outputs_must_have_the_given_shapes(
    function: Any, output: Any
) -> None:
    p = make()._Fn("fn", function, lambda x: output)
    assert p.cls.FPropMeta(p, (2, 3)).out_shapes == (output,)
    assert layer_sizes([p], (2, 3))
    with fails(path="layers[0], FnLayer 'fn'.FnLayer.FPropMeta"):
        layer_sizes([p.Set(fn_out=lambda x: (4, 4))], (2, 3))


def test_a_function_of_a_module_has_a_text() -> None:
    p = make()._Fn("sum", tf.reduce_sum, scalar_shape, math.prod)
    again = make()._Fn("", tf.abs)
    again.FromText(p.ToText())
    assert again == p == make()._Fn("sum", tf.reduce_sum, scalar_shape, math.prod)
    assert again.cls.FPropMeta(again, (2, 3)) == NestedMap(flops=6, out_shapes=((),))


def scalar_shape(shape: Any) -> tuple:
    return ()


def loss_fn(outputs: tf.Tensor, targets: tf.Tensor) -> NestedMap:
    return NestedMap(loss=(tf.reduce_mean((outputs - targets) ** 2), tf.constant(1.0)))


def results(cells: list[InstantiableParams], splits: Any) -> tuple[bytes, ...]:
    p = PipeliningLayer.Params().Set(name="pipe", cell_tpl=cells, splits=splits)
    p.Set(num_micro_batches=2, recompute=None if splits == 1 else "always")
    p.input_shapes = [(B // 2, D)] if splits == "auto" else None
    p.devices = ["cpu:0", "cpu:1"][: 1 if splits == 1 else 2]
    layer = p.Instantiate()
    assert layer.num_stages == len(p.devices)
    with ForwardContext(step=1):
        result = layer.ComputeGradients(
            layer.theta, [inputs(B, D)], inputs(B, D, seed=3), loss_fn
        )
    outputs = [*tf.nest.flatten(result.gradients), result.metrics.loss[0]]
    assert all(np.any(x) for x in outputs)
    return tuple(x.numpy().tobytes() for x in outputs)


def test_two_stages_give_the_bytes_of_one() -> None:
    """Also with fetches in alike cells, which have one trace, and recomputation."""
    b = make()
    body = b._Seq("body", b._Linear("in", D, D), b._Save("saved"), *b.FeedForward(F))
    fetching = b._Branch("branch", body, ["saved"])
    add = b._Fn("add", tf.add, lambda x, y: x)
    fetches = [b._Seq(f"cell_{i}", fetching, add) for i in range(2)]
    cells = [*make().Stack(1).sub, *fetches]
    assert results(cells, 1) == results(cells, "auto")


def test_a_model_is_cut_by_its_costs() -> None:
    model = make().Stack(4)
    parts = PartitionSequentialLayers(model, 2, (B, D))
    costs = [p.cls.FPropMeta(p, (B, D)).flops for p in parts]
    assert costs[0] == costs[1]
    assert sum(costs) == model.cls.FPropMeta(model, (B, D)).flops
    assert [len(p.sub) for p in parts] == [4, 4]  # Two blocks and two identities.


def graph(*sub: Any, **params: Any) -> InstantiableParams:
    p = GraphLayer.Params().Set(name="graph", sub=list(sub), **params)
    return p.Set(input_endpoints=["x", "m"], output_endpoints=["z"])


def fn(function: Any) -> InstantiableParams:
    return make()._Fn("", function)


def test_signatures_nest() -> None:
    def run(pair: Any, nmap: NestedMap, x: Any) -> tuple[Any, Any]:
        return pair[0] + nmap.q[0] + nmap.r.s, x

    p = graph(
        ("[ x , m.a],( q=[m.b], r=(s=x)), x ->u , out.y", fn(run)),
        ("out->n", fn(lambda nmap: nmap.y)),
        ("u,n,[]->z", fn(lambda u, n, none: u + n + len(none))),
    )
    m = NestedMap(a=tf.constant(10.0), b=tf.constant(100.0))
    assert float(p.Instantiate()(tf.constant(1.0), m)) == 1 + 100 + 1 + 1


def test_outputs_are_not_added_to_the_callers_map() -> None:
    p = graph(("m.a->m.b.c", fn(tf.square)), ("x,m.b.c->z", fn(tf.add)))
    layer, m = p.Instantiate(), NestedMap(a=tf.constant(3.0), b=NestedMap())
    for _ in range(2):
        assert float(layer.FProp(layer.theta, tf.constant(1.0), m)) == 10.0
    assert m.Keys() == ["a"]


def test_the_module_of_lingvo_s_name_has_these_layers() -> None:
    """Once `from builder_layers import GraphLayer` failed."""
    assert builder_layers.GraphLayer is GraphLayer
    assert builder_layers.SequentialLayer is SequentialLayer


def test_names_may_be_words_of_python() -> None:
    p = graph(("x->in", fn(tf.square)), ("(is=in)->z", fn(lambda m: m["is"])))
    assert float(p.Instantiate()(tf.constant(3.0), tf.constant(0.0))) == 9.0


_BRACKETS = ["[x->z", "x]->z", "(x)->z", "x(a=m)->z", "[a=x]->z", "x]#->z"]
_NAMES = ["x", "x->", "x y->z", "x,,m->z", "3->z", "(**m)->z", "(a.b=x)->z", "m.->z"]


@pytest.mark.parametrize(
    ("signatures", "path", "got"),
    [
        (["x->h", "g->z"], "graph.sub[1] 'g->z'", "g"),
        (["x->x", "x->z"], "graph.sub[0] 'x->x'", "x"),
        (["x->h"], "graph.output_endpoints", "z"),
        (["x->u", "u.v->z"], "graph.sub[1] 'u.v->z'", "u.v"),
        *(([x], "GraphLayer.sub", x) for x in (*_BRACKETS, *_NAMES, "(a=x,a=m)->z")),
    ],
)
def test_wrong_signatures_are_named(signatures: Any, path: str, got: str) -> None:
    p = graph(*[(signature, fn(lambda x: x)) for signature in signatures])
    with fails(path=path, got=got):
        p.Instantiate()(1.0, 2.0)


def test_a_graph_counts_inputs_and_outputs() -> None:
    layer = graph(("x->z,y", fn(lambda x: x))).Instantiate()
    with fails(path="graph.input_endpoints", got=1):
        layer(tf.constant(1.0))
    with fails(path="graph.sub[0] 'x->z,y'", got=1):
        layer(tf.constant(1.0), tf.constant(1.0))


def test_layers_without_names_are_named_by_their_outputs() -> None:
    dense = FCLayer.Params().Set(input_dim=2, output_dim=2, has_bias=False)
    layer = graph(("x->h.a", dense), ("h.a->z", dense)).Instantiate()
    assert list(layer.VariablePaths()) == ["graph/h_a_00/w", "graph/z_01/w"]
