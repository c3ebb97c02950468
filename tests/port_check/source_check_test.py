"""The check of a file names each line that will not port, and no other."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

import pytest

from lingvo_pipe import py_utils
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.tools.port_check import counterparts
from lingvo_pipe.tools.port_check.source_check import Finding, check_source

IMPORTS = """\
import lingvo.compat as tf
from lingvo.core import base_layer
from lingvo.core import layers, py_utils, schedule
"""
NUM_IMPORTS = 5  # Lines before a class's body, with its own line and an empty one.


def check_fprop(*lines: str) -> list[Finding]:
    body = textwrap.indent("\n".join(lines), "    ")
    layer = "class Layer(base_layer.BaseLayer):\n  def FProp(self, theta, x):"
    return check_source(f"{IMPORTS}\n{layer}\n{body}")


def changes(report: list[Finding]) -> list[Finding]:
    return [each for each in report if each.kind == "change"]


def only(report: list[Finding]) -> Finding:
    (found,) = changes(report)
    return found


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("from lingvo.core import builder", "from lingvo_pipe import builder"),
        ("from lingvo.core import gpipe as g", "from lingvo_pipe import gpipe as g"),
        (
            "from lingvo.core import builder_layers",
            "from lingvo_pipe.layers import builder_layers",
        ),
        ("import lingvo.compat as tf", "import tensorflow as tf"),
        ("from lingvo import model_registry", "import model_registry"),
        ("from lingvo.core.layers import FCLayer", "from lingvo_pipe.layers import"),
        ("from lingvo.core.layers import *", "from lingvo_pipe.layers import"),
        ("import lingvo.core.layers", "import lingvo_pipe.layers, and"),
        ("import tensorflow.compat.v1 as tf", "import tensorflow as tf"),
    ],
)
def test_imports_get_another_name(line: str, written: str) -> None:
    report = check_source(f"{line}\n")
    assert report[0].kind == "import"
    assert report[0].instead.startswith(written)


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("from lingvo.core import recurrent", "tf.while_loop"),
        ("from lingvo.core import rnn_cell", "Port that module"),
        ("from lingvo.tasks.mt import model", "Port that module"),
        ("from lingvo.core.layers import FCLayr", "'FCLayer'"),
        ("from lingvo_pipe.layers import FCLayr", "'FCLayer'"),
        ("from lingvo_pipe import nothing", ""),
        ("import lingvo_pipe as lp; lp.gpip", "'gpipe'"),
        ("from lingvo_pipe import py_utils; py_utils.NoSuchThing", ""),
    ],
)
def test_imports_without_a_counterpart_are_named(line: str, instead: str) -> None:
    assert instead in only(check_source(f"{line}\n")).instead


def test_modules_by_lingvos_names_are_counterparts() -> None:
    """A module beside `py_utils` has the name of one of Lingvo's, or is listed here."""
    folder = Path(inspect.getfile(py_utils)).parent
    names = {path.stem for path in folder.glob("*.py")}
    for name in names - {"__init__", "schedule_formulas", "trainer", "version"}:
        assert f"lingvo.core.{name}" in counterparts.MODULES


def test_every_name_of_py_utils_is_known() -> None:
    """Also those that later changes add: nothing lists them."""
    names = dir(py_utils)
    assert "GetShape" in names
    lines = [f"py_utils.{name}" for name in names]
    assert not changes(check_source("\n".join([IMPORTS, *lines])))


def test_the_error_of_py_utils_says_what_to_write() -> None:
    found = only(check_fprop("py_utils.RematerializeFn(x)"))
    with pytest.raises(AttributeError) as error:
        _ = py_utils.RematerializeFn
    assert str(error.value) == f"py_utils has no RematerializeFn here. {found.instead}"
    assert found.line == NUM_IMPORTS + 2


@pytest.mark.parametrize(
    ("line", "what", "instead"),
    [
        ("tf.get_variable('w', [3])", "tf.get_variable", "CreateVariable"),
        ("tf.placeholder(tf.int32)", "tf.placeholder", "argument of FProp"),
        ("tf.log(x)", "tf.log", "tf.math.log"),
        ("tf.gradients(x, x)", "tf.gradients", "GradientTape"),
        ("tf.to_float(x)", "tf.to_float", "tf.cast"),
        ("tf.random_uniform([3])", "tf.random_uniform", "current_context"),
        ("tf.random.normal([3])", "tf.random.normal", "current_context"),
        ("tf.nn.dropout(x, 0.1)", "tf.nn.dropout", "current_context"),
        ("tf.summary.scalar('x', x)", "tf.summary.scalar", "AddMetric"),
        ("tf.reduce_sum(x, keep_dims=1)", "tf.reduce_sum", "'keepdims'"),
        ("tf.Print(x, [x])", "tf.Print", "Use tf.print instead of tf.Print."),
        ("tf.cond(x, fn1=f, true_fn=g)", "tf.cond", "'fn1'"),
        ("tf.train.AdamOptimizer(1)", "tf.train.AdamOptimizer", "OptimizerParams"),
        ("tf.GraphKeys.WEIGHTS", "tf.GraphKeys.WEIGHTS", "WeightParams"),
        ("py_utils.HasShap(x, [1])", "py_utils.HasShap", "'HasShape'"),
        ("py_utils.GetShape(x, dims=1)", "py_utils.GetShape", "'ndims'"),
        ("py_utils.WeightInit.Gausian(1)", "py_utils.WeightInit.Gausian", "'Gaussian'"),
        ("layers.LayerNorm.Params()", "layers.LayerNorm.Params", "whose dim"),
        (
            "layers.FCLayer.Params().Set(outputdim=1)",
            "layers.FCLayer.Params",
            "'outputdim'.*'output_dim'",
        ),
        (
            "layers.FCLayer.Params().Set(vn=1)",
            "layers.FCLayer.Params",
            "'vn'.*current_context",
        ),
        (
            "import lingvo_pipe.gpipe as g; g.PipeliningLayer.Params().Set("
            "splits=2, nested_map_fprop=True)",
            "g.PipeliningLayer.Params",
            "'nested_map_fprop'.*as they are",
        ),
        ("self.last = x", "self.last = ... in FProp", "AddMetric"),
        ("self.cluster.do_eval", "self.cluster", "PipeliningLayer"),
        ("super()._Zoneout()", "super()._Zoneout", "no such method"),
        ("super().FPropp(x)", "super().FPropp", "'FProp'"),
        ("layers.ProjectionLayer", "layers.ProjectionLayer", "FCLayer"),
        ("py_utils.ToStaticShape([3])", "py_utils.ToStaticShape", "Leave it out"),
        ("self.CreateVariabel('w')", "self.CreateVariabel", "'CreateVariable'"),
        ("self.AddLoss('x', x, scale=1)", "self.AddLoss", "'scale'"),
        ("self.params.vn", "p.vn", "current_context"),
        ("self.params.ToProto()", "p.ToProto", "ToText"),
        ("py_utils.Params.FromProto(x)", "py_utils.Params.FromProto", "ToText"),
        ("x.accumulators.sum.Disable()", "x.accumulators.sum.Disable", "Delete it"),
        ("self.name", "self.name", "self.params.name"),
        ("x * self.vars.w", "self.vars in FProp", "theta"),
        ("self.child[0].theta", "self.child[0].theta in FProp", "theta"),
        ("self.CreateChild('x', None)", "self.CreateChild in FProp", "__init__"),
        ("self.AddFunction('f', abs)", "self.AddFunction in FProp", "__init__"),
        ("if tf.reduce_sum(x) > 0: pass", "tf.reduce_sum(x) > 0", "tf.cond"),
        ("n = tf.shape(x); 1 if n[0] > 2 else 3", "n[0] > 2", "tf.cond"),
        ("assert x > 0", "x > 0", "tf.cond"),
        ("p = self.params; p.device_mesh", "p.device_mesh", "sharded"),
        ("p.vn = p.vn.Copy()", "p.vn", "noise"),
    ],
)
def test_lines_that_will_not_port_are_named(line: str, what: str, instead: str) -> None:
    found = only(check_fprop("y = x", line))
    assert (found.line, found.what) == (NUM_IMPORTS + 3, what)
    assert all(part in found.instead for part in instead.split(".*"))


@pytest.mark.parametrize(
    "line",
    [
        "x[:, tf.newaxis]",
        "tf.random.stateless_uniform([3], [1, 2])",
        "tf.reduce_sum(x, keepdims=True)",
        "tf.cond(x, lambda: x, lambda: x)",
        "tf.nn.relu(x)",
        "tf.float32.is_floating",
        "isinstance(x, tf.Variable)",
        "self.AddLoss('x', x)",
        "if tf.is_tensor(x) and x is not None: pass",
        "x = x.shape[0]; assert x > 2",
        "self.child.FProp(theta.child, x)",
        "self.do_eval",
        "self.params.whatever",
        "layers = [x]; layers.append(x)",  # A local name that hides a module.
        "py_utils.NestedMap(x=x).x",
        "self.CopyBaseParams(self.params, x)",
        "super().FProp(theta, x)",
        "super().__init__(x)",
        "sorted(x, key=lambda tf: tf.log)",
        "with tf.name_scope(self.params.name): x",
    ],
)
def test_lines_that_port_are_not_named(line: str) -> None:
    assert not changes(check_fprop(line))


def test_the_methods_of_layers_are_known() -> None:
    names = [name for name in dir(BaseLayer) if name[0].isupper()]
    assert "FProp" in names
    assert not changes(check_fprop(*(f"super().{name}" for name in names)))
