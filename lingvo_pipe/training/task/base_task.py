"""BaseTask: a model's pipeline, inputs, loss and training. B: examples in a batch."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import present
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.training.optim.frozen_variables import without_frozen
from lingvo_pipe.training.task import task_params
from lingvo_pipe.training.task.protocols import EvalImages


class BaseTask(BaseLayer):
    """A model and its training. Sub-classes define its inputs and its loss."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the pipeline, training and evaluation."""
        p = super().Params()
        p.Define("pipeline", PipeliningLayer.Params(), "The model's layers.")
        p.Define(
            "local",
            task_params.local_params(),
            "Which blocks of layers have a loss of their own.",
        )
        p.Define("train", task_params.train_params(), "How to train the model.")
        p.Define("eval", task_params.eval_params(), "How to evaluate the model.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        task_params.check_plain(self.params, self.path)
        self.CreateChild("pipeline", self.params.pipeline)

    @classmethod
    def LocalHead(
        cls,
        p: InstantiableParams,
        num_cells: int,
        passed_on: Any,
        predictions: Any,
    ) -> InstantiableParams:
        """Returns params of the head of a block of cells that has a local loss.

        There are `num_cells` cells before the head. `passed_on` are specs of the last
        one's outputs, and `predictions` of the head's outputs, which the model has too.

        Raises:
            ValueError: if the task defines no head, as in this base class.
        """
        shapes = ", ".join(str(list(x.shape)) for x in present(passed_on))
        raise UserValueError(
            path="task.local.head",
            expected=f"params of a layer for outputs of shape {shapes} after "
            f"{num_cells} cells, since {cls.__name__} has no head of its own",
            got=p.local.head,
            hint="Or define LocalHead in the task's class.",
        )

    @classmethod
    def CheckInput(cls, p: InstantiableParams, input_generator: Any) -> None:
        """Raises ValueError if an input does not fit `p`. By default, any fits."""

    def PipelineInputs(self, input_batch: NestedMap) -> Sequence[Any]:
        """Returns the first layer's positional inputs from a batch."""
        raise NotImplementedError(f"{type(self).__name__}.PipelineInputs")

    def LossTargets(self, input_batch: NestedMap) -> NestedMap:
        """Returns the fields of a batch that the last stage needs for the loss."""
        raise NotImplementedError(f"{type(self).__name__}.LossTargets")

    def ComputeLoss(self, predictions: Any, targets: NestedMap) -> NestedMap:
        """Returns a micro-batch's metrics, name=(mean, weight), among them `loss`.

        `predictions` are the last layer's outputs, and `targets` are from
        `LossTargets`. The method runs in the pipeline's last stage. It has no theta,
        since weights belong in layers.
        """
        raise NotImplementedError(f"{type(self).__name__}.ComputeLoss")

    def OnlyInTraining(self) -> list[str]:
        """Returns names of what only the training loss includes, such as `dropout`."""
        p, layers = self.params, [x.params for x in self.pipeline.Descendants()]
        parts = {
            "label smoothing": "label_smoothing" in p and p.label_smoothing > 0,
            "dropout": any("keep_prob" in x and x.keep_prob < 1 for x in layers),
        }
        return [name for name, is_included in parts.items() if is_included]

    def MakeEvalImages(self, input_generator: Any) -> EvalImages | None:
        """Returns an object that draws images of one evaluation's batches, or None."""
        return None

    def ComputePredictions(self, theta: NestedMap, input_batch: NestedMap) -> Any:
        """Returns the last layer's outputs for a batch, `[B, ...]`."""
        return self.pipeline.FProp(theta.pipeline, *self.PipelineInputs(input_batch))

    def ServingOutputs(self, predictions: Any) -> dict[str, tf.Tensor]:
        """Returns the last layer's outputs by name, for an exported model."""
        flat = tf.nest.flatten(predictions)
        if len(flat) == 1:
            return {"predictions": flat[0]}
        return {f"predictions_{i}": x for i, x in enumerate(flat) if x is not None}

    def ComputeMetrics(self, theta: NestedMap, input_batch: NestedMap) -> NestedMap:
        """Returns a batch's metrics, as NestedMap(name=(mean, weight))."""
        return self.pipeline.ComputeMetrics(*self._arguments(theta, input_batch))

    def ComputeGradients(self, theta: NestedMap, input_batch: NestedMap) -> NestedMap:
        """Returns a NestedMap of a batch's metrics and gradients.

        Its fields are `metrics`, `gradients`, `accumulated`, and the pipeline's
        `times`. `gradients` has the structure of `vars`, with None for variables that
        are not trained. `accumulated` has the structure of `accumulators`.
        """
        result = self.pipeline.ComputeGradients(*self._arguments(theta, input_batch))
        return NestedMap(
            metrics=result.metrics,
            gradients=NestedMap(pipeline=result.gradients),
            accumulated=NestedMap(pipeline=result.accumulated),
            times=result.times,
        )

    def Diagnose(self, theta: NestedMap, input_batch: NestedMap) -> None:
        """Reruns a failed step layer by layer, and raises the failing layer's error."""
        self.pipeline.Diagnose(*self._arguments(theta, input_batch))

    def _arguments(self, theta: NestedMap, input_batch: NestedMap) -> tuple[Any, ...]:
        inputs = self.PipelineInputs(input_batch)
        return theta.pipeline, inputs, self.LossTargets(input_batch), self.ComputeLoss

    def Values(self) -> NestedMap:
        """Returns the values of all variables, each on the variable's device."""
        return tf.nest.map_structure(_read, self.vars)

    def CheckAllInPipeline(self) -> None:
        """Raises ValueError unless all state of the task is in its pipeline."""
        inside = set(self.pipeline.Descendants())
        outside = [
            f"{layer.path}/{name}"
            for layer in self.Descendants()
            if layer not in inside
            for name in [*layer.own_variables, *layer.own_accumulators]
        ]
        if outside:
            raise UserValueError(
                path=self.path,
                expected="all variables and accumulators in layers of the pipeline",
                got=Words(f"{outside} outside, which would not be trained"),
                hint="Put them into a layer of task.pipeline.cell_tpl.",
            )

    def TrainedVariables(self) -> dict[str, tf.Variable]:
        """Returns the trainable variables that are not frozen, by path, in order."""
        trainable = {k: v for k, v in self.VariablePaths().items() if v.trainable}
        return without_frozen(self.params.train, trainable)


def _read(variable: tf.Variable) -> tf.Tensor:
    with tf.device(variable.device):
        return variable.value()
