"""From a task whose params ask for local losses to one that has them.

    task = with_local_losses(model.Task(), input_generator).Instantiate()

Laskin et al. 2020 (arXiv 2012.03837): truncated layer-wise backpropagation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.layers.sequential import outputs_in_sequence
from lingvo_pipe.local.blocks import make_blocks
from lingvo_pipe.local.local_cells import local_pipeline
from lingvo_pipe.optional_nest import map_present, spec_of
from lingvo_pipe.training.local_params import plain_task
from lingvo_pipe.training.pipeline_inputs import task_and_inputs


def with_local_losses(
    task_params: InstantiableParams, input_generator: Any
) -> InstantiableParams:
    """Params of a task whose cells are trained in blocks as its `local` says.

    Behind each block but the last there is a `LocalLossLayer`, see `local_pipeline`, in
    the task that the params returned make; their own `local` asks for nothing any more.
    Devices and stages are those of the plain model. With the schedule `local` and
    stages that end where blocks end, no device waits for another's backward pass.

    Args:
        task_params: params of a BaseTask. They stay as they are.
        input_generator: has an `element_spec`: heads are as large as what cells hand
            on, which depends on it.

    Raises:
        ValueError: if there are no such blocks, or the task knows no head.
    """
    p, local = plain_task(task_params), task_params.local
    _check_head(local.head)
    try:
        blocks = make_blocks(local.scheme, len(p.pipeline.cell_tpl), local.chunks)
    except ValueError as error:
        raise ValueError(f"task.local: {error}") from error
    if len(blocks) == 1:
        if local.head is not None:
            raise ValueError(
                "task.local.head is of blocks with losses of their own; by "
                f"task.local.scheme={local.scheme!r} there is one block, whose loss is "
                "the model's. Leave it out, or choose a scheme of several blocks."
            )
        return p
    specs = _handed_on(p, input_generator)

    def make_head(num_cells: int) -> InstantiableParams:
        handed_on = specs[num_cells]
        if local.head is not None:
            return _sized(local.head, handed_on, specs[-1])
        return p.cls.LocalHead(p, num_cells, handed_on, specs[-1])

    p.pipeline = local_pipeline(p.pipeline, blocks, make_head)
    return p


def _check_head(head: Any) -> None:
    if head is not None and not isinstance(head, InstantiableParams):
        raise ValueError(
            "task.local.head must be params of a layer, or None for the task's own; "
            f"got {head!r}. Set it in the model's Task, as HeadLayer.Params()."
        )


def _handed_on(task_params: InstantiableParams, input_generator: Any) -> list[Any]:
    """Specs of the first cell's inputs, and of what each cell returns."""
    with tf.Graph().as_default():
        task, inputs = task_and_inputs(task_params, input_generator)
        pipeline = task.pipeline
        layers = [*pipeline.before, *pipeline.cells]
        theta = pipeline.theta
        with ForwardContext(do_eval=True):
            outputs = outputs_in_sequence(layers, [*theta.before, *theta.cells], inputs)
            specs = [map_present(spec_of, x) for x in outputs]
    return specs[len(pipeline.before) :]


def _sized(
    head: InstantiableParams, handed_on: Any, predictions: Any
) -> InstantiableParams:
    """A copy of the user's head, with the sizes that it leaves open."""
    p = head.Copy()
    for names, specs in (
        (("num_in", "input_dim"), handed_on),
        (("num_classes", "output_dim"), predictions),
    ):
        for name in names:
            if name in p and p.Get(name) == 0:
                p.Set(**{name: _num_channels(specs)})
    return p


def _num_channels(specs: Any) -> int:
    """Of the first tensor, if there are no names; else 0."""
    first = specs[0] if isinstance(specs, Sequence) else specs
    if isinstance(first, Mapping) or first is None or not first.shape.rank:
        return 0
    return first.shape[-1]
