"""A Keras model's pipelines with the same stages, one per number of micro-batches."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging
from keras import tree

from lingvo_pipe.core.checks import is_count
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import spec_of
from lingvo_pipe.core.quantities import bytes_text
from lingvo_pipe.core.tables import text_table
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.keras.cells.model_cells import CellCalls, ModelCells
from lingvo_pipe.keras.cells.private_names import graph_of
from lingvo_pipe.keras.cells.refusals import check_devices
from lingvo_pipe.keras.cells.triples import first_inputs
from lingvo_pipe.keras.keras_cell import KerasCell
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.splitting.partitioning import is_auto
from lingvo_pipe.pipeline.stage_choice.stage_boundaries import needs_inputs

_NAMES_WIDTH = 60

# Params for the choice of stages. Only the first pipeline chooses them.
_CHOOSING = ("cell_costs", "memory_limit", "input_shapes", "input_dtypes")


class Pipelines:
    """Pipelines that share the model's variables."""

    def __init__(
        self,
        model: keras.Model,
        num_micro_batches: int,
        batch_size: int | None,
        sequence_length: int | None,
        params: Mapping[str, Any],
    ):
        self._graph, self._params = graph_of(model), dict(params)
        self._num_micro_batches, self._batch_size = num_micro_batches, batch_size
        self._sequence_length = sequence_length
        # The length to which a task's preprocessor pads.
        preprocessor = getattr(model, "preprocessor", None)
        self._padded_length = getattr(preprocessor, "sequence_length", None)
        self._made: dict[int, PipeliningLayer] = {}
        self._cells: ModelCells | None = None
        self._had_enough = False

    def make(self, cells: ModelCells) -> None:
        """Replaces the pipelines by new ones of these cells, with the same stages.

        Raises:
            ValueError: if several stages were chosen for another number of cells.
        """
        number = len(cells.cells)
        before = number if self._cells is None else len(self._cells.cells)
        if number != before:
            if self.of_full_size.num_stages > 1:
                raise UserValueError(
                    path="PipelinedModel.model",
                    expected=f"{before} cells, for which its stages were chosen",
                    got=Words(f"{number}, since its layers have changed"),
                    hint="Make a PipelinedModel of the model as it is now.",
                )
            self._params["splits"] = 1
        self._cells = cells
        self._made.clear()
        self._make(self._num_micro_batches)

    @property
    def of_full_size(self) -> PipeliningLayer:
        """The pipeline with `num_micro_batches` micro-batches."""
        return self._made[self._num_micro_batches]

    def for_examples(self, num_examples: int) -> PipeliningLayer:
        """Returns the pipeline for a mini-batch of this many examples.

        Raises:
            ValueError: if there are fewer examples than batch shards.
        """
        shards = self.of_full_size.spec.layout.num_batch_shards
        if num_examples < shards:
            raise UserValueError(
                path="fit(x=...)",
                expected=f"at least {shards} examples, one for each batch shard",
                got=num_examples,
                hint="Leave a smaller last mini-batch out, or change batch_size.",
            )
        number = min(self._num_micro_batches, num_examples // shards * shards)
        return self._made.get(number) or self._make(number)

    def warn_of_few(self, num_examples: int) -> None:
        """Logs a warning if the first mini-batch is smaller than num_micro_batches."""
        number = self._num_micro_batches
        if num_examples < number and not self._had_enough:
            text = "num_micro_batches=%d for %d examples: give fit a larger batch_size."
            logging.warning(text, number, num_examples)
        self._had_enough = True

    def warn_of_waiting(self, name: str) -> None:
        """Logs a warning if several stages have only one micro-batch to work on."""
        if self._num_micro_batches == 1 < self.of_full_size.num_stages:
            logging.warning(
                "%s: with num_micro_batches=1 stages wait for one another, and several "
                "devices are no faster than one.",
                name,
            )

    def warn_of_change(self, name: str) -> None:
        """Logs a warning that layers or variables have changed since a step ran."""
        logging.warning(
            "%s: the model has changed since it ran, and is cut again. Plain Keras may "
            "run its old layers until compile is called.",
            name,
        )

    def _make(self, num_micro_batches: int) -> PipeliningLayer:
        assert self._cells is not None
        p = PipeliningLayer.Params().Set(
            name="pipeline",
            cell_tpl=[
                KerasCell.Params().Set(name=name, calls=calls)
                for name, calls in self._cells.cells.items()
            ],
            tied=self._cells.tied,
            num_micro_batches=num_micro_batches,
            **self._params,
        )
        self._set_inputs(p)
        pipe = self._made[num_micro_batches] = p.Instantiate()
        self._params["splits"] = pipe.boundaries
        self._batch_size = self._sequence_length = None
        for name in _CHOOSING:
            self._params.pop(name, None)
        return pipe

    def _set_inputs(self, p: InstantiableParams) -> None:
        """Sets the inputs' shapes if stages are chosen by them.

        Without a sequence length, unknown dimensions have the padded length.

        Raises:
            ValueError: if a size is missing, is not a count, or has no effect.
        """
        graph, batch_size = self._graph, self._batch_size
        sequence_length = self._sequence_length
        sizes = {
            "PipelinedModel(batch_size=...)": batch_size,
            "PipelinedModel(sequence_length=...)": sequence_length,
        }
        if p.input_shapes is not None or not needs_inputs(p):
            expected = "None (data have it) unless splits='auto' or memory_limit is set"
            for path, size in sizes.items():
                if size is not None:
                    raise UserValueError(path=path, expected=expected, got=size)
            return
        path, path_of_length = sizes
        by_flops = p.memory_limit is None and p.cell_costs is None
        if batch_size is None and not by_flops:
            expected = "the size of a mini-batch, for measured times or memory_limit"
            raise UserValueError(path=path, expected=expected, got=None)
        # Flops of cells are in the same ratios for any number of rows.
        rows = 1 if batch_size is None else -(-batch_size // p.num_micro_batches)
        unknown = [x.name for x in graph.inputs if None in x.shape[1:]]
        length = self._padded_length if sequence_length is None else sequence_length
        if unknown and not is_count(length):
            raise UserValueError(
                path=path_of_length,
                expected=f"the size of the unknown dimensions of inputs {unknown}",
                got=length,
                hint="Or give a number of stages or a list of boundaries.",
            )
        if not unknown and sequence_length is not None:
            expected = "None, since inputs have no unknown dimension"
            raise UserValueError(
                path=path_of_length, expected=expected, got=sequence_length
            )
        with tf.Graph().as_default():
            placeholders = [
                tf.compat.v1.placeholder(
                    x.dtype, [rows, *(n or length for n in x.shape[1:])]
                )
                for x in graph.inputs
            ]
            inputs = first_inputs(
                graph, tree.pack_sequence_as(graph.input, placeholders)
            )
        p.input_shapes = [None if x is None else tuple(x.shape) for x in inputs]
        p.input_dtypes = [None if x is None else x.dtype for x in inputs]


def with_stages(
    params: Mapping[str, Any], devices: int | Sequence[str] | None, num_cells: int
) -> dict[str, Any]:
    """Returns a pipeline's params, with `devices` and `splits` set for these devices.

    Raises:
        ValueError: if devices, `splits`, replicas and cells do not fit together.
    """
    p, stages = dict(params), params.get("splits")
    if devices is None and stages is not None and not is_auto(stages):
        return p
    devices = 1 if devices is None else devices
    check_devices(devices)
    path = "PipelinedModel(devices=...)"
    number = devices if isinstance(devices, int) else len(devices)
    if not isinstance(devices, int):
        p["devices"] = list(devices)
    elif is_auto(stages):
        p["devices"] = stage_devices(None, devices)
    replicas, per_device = p.get("num_replicas", 1), p.get("stages_per_device", 1)
    if "splits" not in p and isinstance(replicas, int) and replicas > 0:
        if number % replicas:
            expected = f"a multiple of num_replicas, {replicas}"
            raise UserValueError(path=path, expected=expected, got=devices)
        check_devices(number // replicas, num_cells)
        p["splits"] = number // replicas * per_device
        return p
    num_stages = len(stages) if isinstance(stages, (list, tuple)) else stages
    # The pipeline refuses other values, and another number of names.
    counts = num_stages, devices, replicas, per_device
    if all(map(is_count, counts)) and num_stages % per_device == 0:
        needed = num_stages // per_device * replicas
        if number != needed:
            expected = f"{needed}, as splits={stages} needs"
            hint = "Or give no splits, so that devices decide."
            raise UserValueError(path=path, expected=expected, got=devices, hint=hint)
    return p


def summary_lines(
    name: str, pipe: PipeliningLayer, cells: Sequence[CellCalls]
) -> list[str]:
    """Returns the lines of a table with a row for each cell, and a line of totals.

    Shared variables count once.
    """
    rows = [["Stage", "Device", "Cell", "Layers", "Param #"]]
    total = total_bytes = 0
    for i, cell in enumerate(cells):
        owned = [v for v in cell.variables if v.owned and v.kind.name != "seed"]
        variables = [v.variable for v in owned]
        number = sum(math.prod(v.shape) for v in variables)
        total_bytes += sum(v.value.dtype.size * math.prod(v.shape) for v in variables)
        total += number
        stage = pipe.stage_of_cell(i)
        devices = [device_name(replica[stage]).short for replica in pipe.replicas]
        names = ", ".join(dict.fromkeys(call.operation.name for call in cell.calls))
        shown = textwrap.shorten(names, _NAMES_WIDTH, placeholder=" ...")
        rows.append([str(stage), ", ".join(devices), str(i), shown, f"{number:,}"])
    return [
        f'Model: "{name}"',
        *text_table(rows, right=[4]),
        f"Total params: {total:,} ({bytes_text(total_bytes)})",
    ]


def num_examples_of(inputs: Sequence[Any]) -> int:
    """Returns the number of examples in flat inputs, `[B, ...]` each or None.

    Raises:
        ValueError: if the inputs differ in the number, or it is unknown.
    """
    sizes = {x.shape[0] for x in inputs if x is not None}
    if len(sizes) != 1 or None in sizes:
        expected = "one number of examples, known before the step"
        raise UserValueError(path="inputs", expected=expected, got=[*sizes])
    return sizes.pop()


def num_rows_of(data: Any) -> tf.Tensor:
    """Returns the number of examples by which Keras weights a loss, int32 `[]`."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    return tf.shape(next(value for value in tree.flatten(x) if value is not None))[0]


def specs_of(data: Any) -> tuple[Any, Any, Any]:
    """Returns the KerasTensors of inputs, targets and sample weights for `fit`."""
    return tree.map_structure(
        lambda x: x if x is None else keras.KerasTensor(x.shape, x.dtype.name),
        keras.utils.unpack_x_y_sample_weight(data),
    )


def text_of_specs(data: Any) -> str:
    """Returns the structure, shapes and dtypes of tensors as text."""
    return repr(tree.map_structure(lambda x: x if x is None else spec_of(x), data))


def text_of_nesting(data: Any) -> str:
    """Returns the structure of data as text, with what is absent."""
    return repr(tree.map_structure(lambda x: x is None, data))


def as_tensor(value: Any) -> tf.Tensor | None:
    """Returns a dense tensor for an item of a dataset for `fit`, or None if absent."""
    if value is None or isinstance(value, tf.experimental.Optional):
        return None
    if isinstance(value, tf.SparseTensor):
        return tf.sparse.to_dense(value)
    return tf.convert_to_tensor(value)
