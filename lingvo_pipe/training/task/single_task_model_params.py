"""Base class of registered models: a task, and data sets for training and testing.

@lp.register_model
class Toy(lp.SingleTaskModelParams):
    def Train(self):
        return lp.input.ImageClassificationInput.Params().Set(...)

    def Test(self):
        return lp.input.ImageClassificationInput.Params().Set(...)

    def Task(self):
        return lp.models.ImageClassifier.Params().Set(...)
"""

import model_registry
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams, Params

register_model = model_registry.RegisterSingleTaskModel


class SingleTaskModelParams:
    """Params of a task and of its inputs, which sub-classes define."""

    def Train(self) -> InstantiableParams:
        """Returns params of the input to train on."""
        raise NotImplementedError(f"{type(self).__name__}.Train")

    def Test(self) -> InstantiableParams:
        """Returns params of the input to evaluate on."""
        raise NotImplementedError(f"{type(self).__name__}.Test")

    def Task(self) -> InstantiableParams:
        """Returns params of the task, a BaseTask."""
        raise NotImplementedError(f"{type(self).__name__}.Task")

    def Model(self) -> Params:
        """Returns params of the model: `task`, and `input`, which the registry sets."""
        task = self.Task()
        if not isinstance(task, Params):
            raise UserValueError(
                path=f"{type(self).__name__}.Task",
                expected="params of a task as its result",
                got=task,
            )
        if not task.name:
            task.name = "task"
        p = Params()
        p.Define("task", task, "The model and its training.")
        p.Define("input", InstantiableParams(), "The model's input.")
        return p
