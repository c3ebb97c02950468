"""Files of Lingvo run after the changes that port_check lists, and no other."""

from __future__ import annotations

import itertools
import keyword
import re
import sys
import types
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.tools.port_check.source_check import check_source
from lingvo_pipe.training.step.train_step import TrainStep
from model_registry import registry
from tests.port_check.lingvo_files import FILES
from tests.support.cases import fast_cases

MODULE = "ported_file_of_a_test"
FAST = {"batch norm with paddings", "an accumulator and moving averages"}


def lingvos(marked: str) -> list[str]:
    """Returns the lines of a file as it is in Lingvo, with the marks of some."""
    return [line for line in marked.splitlines() if not line.startswith("#+")]


def ported(marked: str) -> str:
    """Returns a file with its marked changes, and with the imports of port_check."""
    imports = defaultdict(list)
    for found in check_source("\n".join(lingvos(marked))):
        if found.kind == "import":
            imports[found.line].append(found.instead)
    lines, number = [], 0
    for line in marked.splitlines():
        number += not line.startswith("#+")
        if line.startswith("#+"):
            lines.append(line.removeprefix("#+"))
        elif not line.endswith("#-"):
            lines += imports[number] or [line]
    return "\n".join(lines)


@pytest.mark.parametrize("name", FILES)
def test_all_lines_that_change_are_listed_and_no_other(name: str) -> None:
    """The body of a method or condition that changes is not listed with it."""
    lines = lingvos(FILES[name])
    changed = {i for i, line in enumerate(lines) if line.endswith("#-")}
    depths = [len(line) - len(line.lstrip()) for line in lines]
    bodies = {i for i in changed if i - 1 in changed and depths[i - 1] < depths[i]}
    report = check_source("\n".join(lines))
    listed = {x.line - 1 for x in report if x.kind == "change"}
    # What a task lacks is listed at its class.
    listed -= {x.line - 1 for x in report if x.what.startswith("no ")}
    assert [lines[i] for i in listed - changed] == []
    assert [lines[i] for i in changed - bodies - listed] == []


@pytest.mark.parametrize("name", FILES)
def test_all_lines_that_are_added_are_named(name: str) -> None:
    """A line stands for the line before, is in its body, or defines what is named."""
    lines = FILES[name].splitlines()
    named = "".join(x.instead for x in check_source("\n".join(lingvos(FILES[name]))))
    defining = []
    for before, line in itertools.pairwise(lines):
        if line.startswith("#+"):
            is_inside = before.startswith("#+") and _depth(before) < _depth(line)
            if before.endswith("#-"):
                named += line
            elif not is_inside:
                defining.append(re.sub(r"#\+ *(def )?([\w.]+).*", r"\2", line))
    assert [x for x in defining if x not in named] == []


@pytest.mark.parametrize("name", FILES)
def test_new_names_are_listed_with_the_lines_that_they_replace(name: str) -> None:
    """The first line of a method's body is listed with the method's head."""
    listed: defaultdict[int, str] = defaultdict(str)
    for finding in check_source("\n".join(lingvos(FILES[name]))):
        listed[finding.line] += f"{finding.instead} "
    methods = set(re.findall(r"^#\+ *def (\w+)", FILES[name], re.MULTILINE))
    number = 0
    for before, line in itertools.pairwise(FILES[name].splitlines()):
        number += not before.startswith("#+")
        if before.endswith("#-") and line.startswith("#+"):
            new = _names(line) - _names(before) - methods
            shown = _names(listed[number] + listed[number - 1])
            assert not new or new & shown, line


def _names(text: str) -> set[str]:
    return set(re.findall(r"[^\W\d]\w*", text)) - set(keyword.kwlist)


def _depth(added: str) -> int:
    return len(added) - len(added.removeprefix("#+").lstrip())


@pytest.fixture(name="module")
def _module(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """The module of a ported file."""
    module = types.ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setattr(registry, "_registered", {})
    exec(ported(FILES[request.param]), module.__dict__)
    return module


def files_with(function: str) -> list[str]:
    return [name for name, text in FILES.items() if f"def {function}():" in text]


def _inputs() -> tf.Tensor:
    return tf.random.stateless_normal([4, 5, 3], [1, 2])


def _loss(outputs: Any, targets: Any) -> NestedMap:
    return NestedMap(
        loss=(tf.reduce_mean((outputs[0] - targets) ** 2), tf.constant(1.0))
    )


def _update(layer: PipeliningLayer, sums: NestedMap) -> None:
    """Updates a layer's state in a graph, as a training step does."""

    @tf.function(autograph=False)
    def update() -> None:
        with ForwardContext(step=tf.constant(3, tf.int64)):
            layer.PostTrainingStepUpdate(sums)

    update()


@pytest.mark.parametrize("module", fast_cases(files_with("Cells"), FAST), indirect=True)
def test_layers_run_in_stages(module: Any) -> None:
    paddings = 1.0 - tf.sequence_mask([5, 3, 1, 4], 5, tf.float32)
    x, results = _inputs(), []
    for splits in (1, 2):
        p = PipeliningLayer.Params().Set(name="pipe", splits=splits)
        p.Set(cell_tpl=module.Cells(), num_micro_batches=2)
        assert PipeliningLayer.Params().FromText(p.ToText()) == p
        layer = p.Instantiate()
        with ForwardContext(step=tf.constant(3, tf.int64)):
            result = layer.ComputeGradients(layer.theta, [x, paddings], x, _loss)
        _update(layer, result.accumulated)
        with ForwardContext(do_eval=True):
            metrics = layer.ComputeMetrics(layer.theta, [x, paddings], x, _loss)
        outputs = result.gradients, result.metrics, metrics, layer.vars
        values = tf.nest.flatten(outputs)
        results.append([tf.identity(v).numpy() for v in values if v is not None])
    for one, two in zip(*results, strict=True):
        assert np.isfinite(one).all()
        assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize("module", files_with("Task"), indirect=True)
def test_tasks_train(module: Any) -> None:
    step = TrainStep(module.Task().Instantiate())
    x = _inputs()
    batch = NestedMap(x=x, y=tf.reduce_sum(x, -1, keepdims=True))
    losses = [float(step(batch).loss[0]) for _ in range(20)]
    assert losses[-1] < losses[0] / 2
