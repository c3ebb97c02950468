"""Base class of registered models that are cut into stages.

To run on another number of devices, choose new stages:

    --devices=2 --model_params_override='task.pipeline.splits (str) : auto'
"""

from typing import Any

from lingvo_pipe.core.equality_cache import cached_by_equality
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.core.model_size import layer_sizes
from lingvo_pipe.pipeline.splitting.balance import balanced_boundaries
from lingvo_pipe.training.optim.keras_optimizer import ScheduleParams
from lingvo_pipe.training.task.single_task_model_params import SingleTaskModelParams

# A divisor of the usual numbers of steps between reports and between checkpoints.
_STEPS_PER_LOOP = 10


class StagedModel(SingleTaskModelParams):
    """A model whose cells run in stages, configured by constants."""

    TASK: type[Any]

    NUM_STAGES = 1
    NUM_MICRO_BATCHES = 1
    RECOMPUTE: str | None = None
    # Number of blocks, each trained by a local loss on a device of its own. No gradient
    # passes between blocks, so a device keeps one micro-batch at a time and recomputes
    # nothing. Several steps run in one call, in which no block waits for a later one.
    NUM_BLOCKS: int | None = None

    def Train(self) -> InstantiableParams:
        """Returns params of the training data."""
        return self._Input("train")

    def Test(self) -> InstantiableParams:
        """Returns params of the test data."""
        return self._Input("test")

    def Task(self) -> InstantiableParams:
        """Returns the params of the network and its training."""
        p, cells = self.TASK.Params(), self._Cells()
        p.pipeline.Set(
            cell_tpl=cells,
            splits=self.NUM_BLOCKS or self._Splits(cells),
            num_micro_batches=self.NUM_MICRO_BATCHES,
            recompute=self.RECOMPUTE,
        )
        p.train.max_steps = self._MaxSteps()
        self._SetLearner(p.train)
        if self.NUM_BLOCKS is not None:
            p.local.Set(scheme="chunked", chunks=self.NUM_BLOCKS)
            p.pipeline.Set(schedule="local", recompute="never")
            p.train.steps_per_loop = _STEPS_PER_LOOP
        return p

    def _Input(self, split: str) -> InstantiableParams:
        """Returns params of the data of the split `train` or `test`."""
        raise NotImplementedError(f"{type(self).__name__}._Input")

    def _Cells(self) -> list[InstantiableParams]:
        raise NotImplementedError(f"{type(self).__name__}._Cells")

    def _MaxSteps(self) -> int:
        raise NotImplementedError(f"{type(self).__name__}._MaxSteps")

    def _SetLearner(self, train: Params) -> None:
        raise NotImplementedError(f"{type(self).__name__}._SetLearner")

    def _Splits(self, cells: list[InstantiableParams]) -> int | list[int]:
        """Returns the pipeline's `splits`, for NUM_STAGES stages."""
        del cells
        return self.NUM_STAGES

    def _EvenStages(
        self, cells: list[InstantiableParams], *inputs: Any
    ) -> int | list[int]:
        """Returns `splits` for stages with even flops. `inputs` are for one example."""
        if self.NUM_STAGES == 1:
            return 1  # A list would contradict --devices=2.
        copies = [cell.Copy() for cell in cells]  # The caller may change the cells.
        return list(_even_stages(copies, inputs, self.NUM_STAGES))


@cached_by_equality
def _even_stages(
    cells: list[InstantiableParams], inputs: tuple[Any, ...], num_stages: int
) -> list[int]:
    """Returns the boundaries of stages with even flops.

    The result is cached, because tracing takes seconds and each data set needs it.
    """
    sizes = layer_sizes(cells, *inputs)
    flops = [size.flops for size in sizes]
    passed_on = [size.output_elements for size in sizes]
    return balanced_boundaries(flops, num_stages, passed_on)


def warm_up(steps: int, schedule: Params) -> Params:
    """Returns params of a learning rate schedule with a linear warm-up before it."""
    return ScheduleParams("LinearWarmup", warmup_steps=steps, schedule=schedule)
