"""Local losses: a head and a loss for each block of a task's cells.

task = with_local_losses(model.Task(), input_generator).Instantiate()
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import map_present, spec_of
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.sequential import outputs_in_sequence
from lingvo_pipe.local_parallelism.blocks import make_blocks
from lingvo_pipe.local_parallelism.local_cells import local_pipeline
from lingvo_pipe.training.task.pipeline_inputs import task_and_inputs
from lingvo_pipe.training.task.task_params import BACKPROPAGATION, plain_task


def with_local_losses(
    task_params: InstantiableParams, input_generator: Any
) -> InstantiableParams:
    """Returns params of a task whose blocks of cells are trained by local losses.

    The task's params `local` define the blocks. Each block but the last is followed by
    a `LocalLossLayer` (see `local_pipeline`). Devices and stages stay the same. If the
    schedule is `local` and each stage ends where a block ends, no device waits for
    another's backward pass. The input's `element_spec` determines the sizes of heads.

    Raises:
        ValueError: if the blocks are invalid, or the task has no head for them.
    """
    p, local = plain_task(task_params), task_params.local
    if local.scheme != BACKPROPAGATION and p.pipeline.slices is not None:
        raise UserValueError(
            path="task.pipeline.slices",
            expected=f"None with task.local.scheme={local.scheme!r}, whose blocks are "
            "of whole cells",
            got=p.pipeline.slices,
            hint=f"Set it to None, or task.local.scheme to {BACKPROPAGATION!r}.",
        )
    if local.head is not None and not isinstance(local.head, InstantiableParams):
        raise UserValueError(
            path="task.local.head",
            expected="params of a layer, or None for the task's own head",
            got=local.head,
        )
    try:
        blocks = make_blocks(local.scheme, len(p.pipeline.cell_tpl), local.chunks)
    except UserValueError as error:
        raise error.within("task.local") from error
    if len(blocks) == 1:
        if local.head is not None:
            raise UserValueError(
                path="task.local.head",
                expected=f"None, since with task.local.scheme={local.scheme!r} the "
                "only block has the model's loss",
                got=local.head,
            )
        return p
    specs = _passed_on(p, input_generator)

    def make_head(num_cells: int) -> InstantiableParams:
        passed_on = specs[num_cells]
        if local.head is not None:
            return _sized(local.head, passed_on, specs[-1])
        return p.cls.LocalHead(p, num_cells, passed_on, specs[-1])

    p.pipeline = local_pipeline(p.pipeline, blocks, make_head)
    return p


def _passed_on(task_params: InstantiableParams, input_generator: Any) -> list[Any]:
    with tf.Graph().as_default():
        task, inputs = task_and_inputs(task_params, input_generator)
        pipeline, theta = task.pipeline, task.pipeline.theta
        layers = [*pipeline.before, *pipeline.cells]
        with ForwardContext(do_eval=True):
            outputs = outputs_in_sequence(layers, [*theta.before, *theta.cells], inputs)
            specs = [map_present(spec_of, x) for x in outputs]
    return specs[len(pipeline.before) :]


def _sized(
    head: InstantiableParams, passed_on: Any, predictions: Any
) -> InstantiableParams:
    p = head.Copy()
    sizes = dict.fromkeys(("num_in", "input_dim"), _num_channels(passed_on))
    sizes |= dict.fromkeys(("num_classes", "output_dim"), _num_channels(predictions))
    return p.Set(**{k: size for k, size in sizes.items() if k in p and p.Get(k) == 0})


def _num_channels(specs: Any) -> int:
    first = specs[0] if isinstance(specs, Sequence) else specs
    if isinstance(first, Mapping) or first is None or not first.shape.rank:
        return 0
    return first.shape[-1]
