"""BaseTask: a pipeline, what it is fed, its loss, and how it is trained.

Shapes: B examples in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.training.best_evaluation import define_best_params
from lingvo_pipe.training.eval_pictures import EvalPictures
from lingvo_pipe.training.exponential_moving_average import define_averaging_params
from lingvo_pipe.training.frozen_variables import define_freezing_params, without_frozen
from lingvo_pipe.training.init_from_checkpoint import define_initialization_params
from lingvo_pipe.training.learner import define_learner_params
from lingvo_pipe.training.local_params import check_plain, local_params
from lingvo_pipe.training.loop_params import define_loop_params
from lingvo_pipe.training.loss_spikes import define_spike_params
from lingvo_pipe.training.skipped_steps import define_skipping_params


class BaseTask(BaseLayer):
    """A model and its training. Sub-classes say what goes in and what the loss is."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the pipeline, training and evaluation."""
        p = super().Params()
        p.Define("pipeline", PipeliningLayer.Params(), "The model's layers.")
        p.Define("local", local_params(), "Which blocks of them are trained alone.")
        p.Define("train", _train_params(), "How to train it.")
        p.Define("eval", _eval_params(), "How to evaluate it.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        check_plain(self.params, self.path)
        self.CreateChild("pipeline", self.params.pipeline)

    @classmethod
    def LocalHead(
        cls,
        p: InstantiableParams,
        num_cells: int,
        handed_on: Any,
        predictions: Any,
    ) -> InstantiableParams:
        """Params of the head of a block of cells that has a loss of its own.

        Args:
            p: the task's params.
            num_cells: how many cells have run before the head.
            handed_on: specs of what the last of them returns: the head's inputs.
            predictions: specs of what the model's last cell returns: its outputs.

        Raises:
            ValueError: if the task knows none, as here.
        """
        raise ValueError(
            "A block that is trained by itself needs a head, which makes of what its "
            "last cell hands on what the loss takes; "
            f"{cls.__name__} knows none for {_shown(handed_on)} behind "
            f"{num_cells} cells. Set task.local.head to params of a layer, or define "
            "LocalHead in the task's class."
        )

    def PipelineInputs(self, input_batch: NestedMap) -> Sequence[Any]:
        """What of a batch goes into the first layer: its positional inputs."""
        raise NotImplementedError(f"{type(self).__name__}.PipelineInputs")

    def LossTargets(self, input_batch: NestedMap) -> NestedMap:
        """What of a batch the loss needs, on the last device."""
        raise NotImplementedError(f"{type(self).__name__}.LossTargets")

    def ComputeLoss(self, predictions: Any, targets: NestedMap) -> NestedMap:
        """The metrics of one micro-batch; runs within the pipeline's last stage.

        Weights belong into layers, so there is no theta here.

        Args:
            predictions: the last layer's outputs.
            targets: as of `LossTargets`.

        Returns:
            NestedMap(name=(mean, weight)) of scalars, one of them called `loss`.
        """
        raise NotImplementedError(f"{type(self).__name__}.ComputeLoss")

    def MakePictures(self, input_generator: Any) -> EvalPictures | None:
        """What is to be drawn of an evaluation, anew for each; None: nothing.

        Args:
            input_generator: whose batches it will be of.
        """
        return None

    def ComputePredictions(self, theta: NestedMap, input_batch: NestedMap) -> Any:
        """The last layer's outputs for a batch, `[B, ...]`."""
        return self.pipeline.FProp(theta.pipeline, *self.PipelineInputs(input_batch))

    def ServingOutputs(self, predictions: Any) -> dict[str, tf.Tensor]:
        """What an exported model returns, by name.

        Args:
            predictions: the last layer's outputs.
        """
        flat = tf.nest.flatten(predictions)
        if len(flat) == 1:
            return {"predictions": flat[0]}
        return {f"predictions_{i}": x for i, x in enumerate(flat) if x is not None}

    def ComputeMetrics(self, theta: NestedMap, input_batch: NestedMap) -> NestedMap:
        """Metrics of a batch as NestedMap(name=(mean, weight)), without gradients."""
        return self.pipeline.ComputeMetrics(
            theta.pipeline,
            self.PipelineInputs(input_batch),
            self.LossTargets(input_batch),
            self.ComputeLoss,
        )

    def ComputeGradients(self, theta: NestedMap, input_batch: NestedMap) -> NestedMap:
        """Metrics and gradients of a batch.

        Args:
            theta: values in the structure of `vars`.
            input_batch: the batch.

        Returns:
            NestedMap of `metrics` as from `ComputeMetrics`, `gradients` in the
            structure of `vars` (None for what is not trained), `accumulated` in that of
            `accumulators`, and `times` as from the pipeline.
        """
        result = self.pipeline.ComputeGradients(
            theta.pipeline,
            self.PipelineInputs(input_batch),
            self.LossTargets(input_batch),
            self.ComputeLoss,
        )
        return NestedMap(
            metrics=result.metrics,
            gradients=NestedMap(pipeline=result.gradients),
            accumulated=NestedMap(pipeline=result.accumulated),
            times=result.times,
        )

    def Diagnose(self, theta: NestedMap, input_batch: NestedMap) -> None:
        """Raises the error of the operation that fails on a batch, if one does.

        Args:
            theta: values in the structure of `vars`.
            input_batch: a batch that `ComputeGradients`, or in evaluation
                `ComputeMetrics`, failed on; see `PipeliningLayer.Diagnose`.
        """
        self.pipeline.Diagnose(
            theta.pipeline,
            self.PipelineInputs(input_batch),
            self.LossTargets(input_batch),
            self.ComputeLoss,
        )

    def Values(self) -> NestedMap:
        """The variables' values in their own dtypes, each read on its device.

        Unlike theta they are not cast: the pipeline's layers do that on their devices.
        """
        return tf.nest.map_structure(_read, self.vars)

    def CheckAllInPipeline(self) -> None:
        """Raises ValueError if the task has state outside its pipeline."""
        inside = set(self.pipeline.Descendants())
        outside = [
            f"{layer.path}/{name}"
            for layer in self.Descendants()
            if layer not in inside
            for name in [*layer.own_variables, *layer.own_accumulators]
        ]
        if outside:
            raise ValueError(
                "Variables and accumulators of a task must be those of layers in its "
                f"pipeline; {outside} are not, and would not be trained. Put them into "
                "a layer of task.pipeline.cell_tpl."
            )

    def TrainedVariables(self) -> dict[str, tf.Variable]:
        """The variables that the learner updates, by path, in the model's order.

        Raises:
            ValueError: as of `without_frozen`.
        """
        return without_frozen(
            self.params.train,
            {k: v for k, v in self.VariablePaths().items() if v.trainable},
        )


def _shown(specs: Any) -> str:
    """Shapes, for an error."""
    flat = [x for x in tf.nest.flatten(specs) if x is not None]
    return ", ".join(str(list(x.shape)) for x in flat)


def _read(variable: tf.Variable) -> tf.Tensor:
    with tf.device(variable.device):
        return variable.value()


def _train_params() -> Params:
    p = Params()
    define_learner_params(p)
    define_freezing_params(p)
    define_averaging_params(p)
    define_initialization_params(p)
    define_skipping_params(p)
    define_spike_params(p)
    define_loop_params(p)
    return p


def _eval_params() -> Params:
    p = Params()
    p.Define(
        "interval_steps",
        None,
        "Steps from evaluation to evaluation while training; None: only at the end.",
    )
    define_best_params(p)
    p.Define(
        "pictures",
        True,
        "Whether evaluations draw what the task offers, for TensorBoard. If it does, "
        "each batch runs forward once more.",
    )
    return p
