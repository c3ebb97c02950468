"""The base of registered models: a task, and the data sets to train and test it on.

For example:

    @model_registry.RegisterSingleTaskModel
    class Toy(SingleTaskModelParams):
        def Train(self):
            return ImageClassificationInput.Params().Set(...)

        def Test(self):
            return ImageClassificationInput.Params().Set(...)

        def Task(self):
            return ImageClassifier.Params().Set(...)
"""

from __future__ import annotations

from lingvo_pipe.hyperparams import InstantiableParams, Params

_DEFAULT_TASK_NAME = "task"


class SingleTaskModelParams:
    """Sub-classes give the input's params for each data set and those of the task."""

    def Train(self) -> InstantiableParams:
        """Params of the input to train on."""
        raise NotImplementedError(f"{type(self).__name__}.Train")

    def Test(self) -> InstantiableParams:
        """Params of the input to evaluate on."""
        raise NotImplementedError(f"{type(self).__name__}.Test")

    def Task(self) -> InstantiableParams:
        """Params of the task, a BaseTask."""
        raise NotImplementedError(f"{type(self).__name__}.Task")

    def Model(self) -> Params:
        """Params of the whole: `task`, and `input`, which the registry fills in."""
        task = self.Task()
        if not isinstance(task, Params):
            raise ValueError(
                f"{type(self).__name__}.Task must return the params of a task; it "
                f"returned {task!r}. Does it end without a `return`?"
            )
        if not task.name:
            task.name = _DEFAULT_TASK_NAME
        p = Params()
        p.Define("task", task, "What is trained, and how.")
        p.Define("input", None, "What it is fed.")
        return p
