"""The choice of values for `auto` params of a PipeliningLayer, without the trainer.

Shapes: B examples in a mini-batch, along dimension `batch_dim` of inputs and targets.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import pack_present, present, spec_of
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.core.forward_context import row_dim
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.pipelining_rules import problems_of
from lingvo_pipe.pipeline.tracing.loss_function import LossFunction
from lingvo_pipe.planner.measured.resolve_auto import extract_auto, resolve_auto
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.pipeline_inputs import configure_inputs


def resolve_pipeline(
    pipeline: InstantiableParams,
    inputs: Sequence[Any],
    targets: Any,
    loss_fn: LossFunction,
    train: Params | None = None,
) -> str:
    """Replaces `auto` in a PipeliningLayer's params by values of the fastest plan.

    Measures the devices that the params name, and takes the fastest plan that uses all
    of them. If only `splits` is auto, sets `input_shapes` and `input_dtypes` instead,
    from which the layer then chooses its stages. Other params stay as they are. Returns
    a line about the plan, or "" if none was needed.

    Args:
        pipeline: the layer's params, not yet instantiated.
        inputs: sample inputs of the first layer, `[B, ...]`: tensors, arrays or specs.
        targets: sample targets of the loss, `[B, ...]`.
        loss_fn: the loss; see `PipeliningLayer.ComputeGradients`.
        train: training params, like a task's `train`. The slots of their optimizer
            count as memory. If None, there are no slots.

    Raises:
        UserValueError: if nothing fits, or params are invalid.
    """
    path = pipeline.name or "pipeline"
    names = extract_auto(pipeline, path)
    structure = tuple(inputs), targets
    batch_dim = pipeline.batch_dim
    tensors = [_rows_first(x, batch_dim) for x in present(structure)]
    batch_size = _batch_size(tensors, path)
    rows_first = NestedMap(tensors=tensors)
    task = _task_class(structure, loss_fn, batch_dim).Params()
    task.Set(name="task", pipeline=pipeline)
    # Only the slots matter here. SGD, the default, has none at any learning rate.
    task.train = task.train.Set(learning_rate=1.0) if train is None else train
    line = ""
    if names:
        devices = _device_names(pipeline, names, path)
        line, _ = resolve_auto(
            task, names, rows_first, batch_size, devices, tf.get_logger().warning, path
        )
    configure_inputs(task, SimpleNamespace(element_spec=rows_first))
    return line


def _device_names(
    pipeline: InstantiableParams, names: Collection[str], path: str
) -> list[str]:
    if pipeline.devices is None:
        raise UserValueError(
            path=f"{path}.devices",
            expected=f"devices for {' and '.join(sorted(names))}='auto'",
            got=None,
            hint="Set them to what initialize_devices returns.",
        )
    with problems_of("devices", path):
        return stage_devices(pipeline.devices, len(pipeline.devices))


def _task_class(
    structure: Any, loss_fn: LossFunction, batch_dim: int
) -> type[BaseTask]:
    """Returns a task class whose batch is a flat list of all inputs and targets.

    `structure` is the nested pair (inputs, targets). The list's tensors have their rows
    in the first dimension, and layers get them with the rows in `batch_dim`.
    """

    class SampledTask(BaseTask):
        def PipelineInputs(self, input_batch: NestedMap) -> Sequence[Any]:
            return _unpacked(input_batch)[0]

        def LossTargets(self, input_batch: NestedMap) -> Any:
            return _unpacked(input_batch)[1]

        def ComputeLoss(self, predictions: Any, targets: Any) -> NestedMap:
            return loss_fn(predictions, targets)

    def _unpacked(batch: NestedMap) -> Any:
        tensors = (_rows_back(x, batch_dim) for x in batch.tensors)
        return pack_present(structure, tensors)

    return SampledTask


def _batch_size(tensors: Sequence[tf.TensorSpec], path: str) -> int:
    sizes = {x.shape[0] for x in tensors}
    if len(sizes) != 1 or None in sizes:
        raise UserValueError(
            path=path,
            expected="samples with one known number of rows in dimension batch_dim",
            got=sorted(map(str, sizes)),
        )
    (size,) = sizes
    return int(size)


def _rows_first(x: Any, batch_dim: int) -> tf.TensorSpec:
    spec = x if isinstance(x, tf.TensorSpec) else spec_of(tf.convert_to_tensor(x))
    shape = spec.shape.as_list()
    rows = shape.pop(row_dim(len(shape), batch_dim))
    return tf.TensorSpec([rows, *shape], spec.dtype)


def _rows_back(x: tf.Tensor, batch_dim: int) -> tf.Tensor:
    order = list(range(1, x.shape.rank))
    order.insert(row_dim(x.shape.rank, batch_dim), 0)
    return tf.transpose(x, order)
