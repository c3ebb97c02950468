"""Params of a task's training, evaluation and local losses, and their checks."""

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.hyperparams.param_rules import (
    SWITCH,
    check_params,
    count,
    optional,
)
from lingvo_pipe.local_parallelism.blocks import SCHEMES
from lingvo_pipe.pipeline.splitting.partitioning import is_auto
from lingvo_pipe.training.optim.exponential_moving_average import (
    define_averaging_params,
)
from lingvo_pipe.training.optim.frozen_variables import define_freezing_params
from lingvo_pipe.training.optim.learner import define_learner_params
from lingvo_pipe.training.run.best_evaluation import BEST_RULES, define_best_params
from lingvo_pipe.training.stability.loss_spikes import SPIKE_RULES, define_spike_params
from lingvo_pipe.training.stability.non_finite import (
    SKIPPING_RULES,
    define_skipping_params,
)
from lingvo_pipe.training.warm_start.init_from_checkpoint import (
    define_initialization_params,
)

BACKPROPAGATION = SCHEMES[0]

_COUNTS = ("max_steps", "steps_per_loop", "save_interval_steps", "keep_checkpoints")
_TRAIN_RULES = {
    **dict.fromkeys((*_COUNTS, "report_interval_steps"), count()),
    "histogram_interval_steps": optional(count()),
    "init_from_checkpoint_ema": SWITCH,
    **SPIKE_RULES,
    **SKIPPING_RULES,
}
_EVAL_RULES = {"interval_steps": optional(count()), "images": SWITCH, **BEST_RULES}


def train_params() -> Params:
    """Returns the params of `task.train`."""
    p = Params()
    define_learner_params(p)
    define_freezing_params(p)
    define_averaging_params(p)
    define_initialization_params(p)
    define_skipping_params(p)
    define_spike_params(p)
    p.Define("max_steps", None, "Number of steps to train for.")
    p.Define(
        "steps_per_loop",
        1,
        "Number of steps in one call, in which each stage changes its own weights as "
        "soon as it can; results are the same. Use more than 1 if stages train by "
        "losses of their own, or calls take long.",
    )
    p.Define("save_interval_steps", 100, "Steps between checkpoints.")
    p.Define("keep_checkpoints", 5, "Number of checkpoints to keep.")
    p.Define("report_interval_steps", 10, "Steps between reports.")
    p.Define(
        "histogram_interval_steps",
        None,
        "Steps between histograms of each trained variable, for TensorBoard. If None, "
        "there are none.",
    )
    return p


def eval_params() -> Params:
    """Returns the params of `task.eval`."""
    p = Params()
    p.Define(
        "interval_steps",
        None,
        "Steps between evaluations while training; if None, only at the end.",
    )
    define_best_params(p)
    p.Define(
        "images",
        True,
        "Whether evaluations draw the task's images, for TensorBoard. If so, each "
        "batch runs forward once more.",
    )
    return p


def local_params() -> Params:
    """Returns the params of `task.local`, which choose the blocks with local losses."""
    p = Params()
    p.Define(
        "scheme",
        BACKPROPAGATION,
        "Which blocks of pipeline.cell_tpl have a loss of their own, and pass no "
        f"gradient back: one of {', '.join(SCHEMES)}; see `local_parallelism.blocks`.",
    )
    p.Define(
        "chunks",
        None,
        "For 'chunked': the number of blocks, as equal in cells as possible; or a list "
        "of their boundaries.",
    )
    p.Define(
        "head",
        None,
        "Params of the layer that makes the loss's inputs from all outputs of a "
        "block's last cell; if None, the task's own small one. Its num_in, or "
        "input_dim, and num_classes, or output_dim, may be left 0: they become the "
        "channels of the first of these outputs, and of the model's outputs.",
    )
    return p


def check_loop_params(p: Params) -> None:
    """Raises ValueError if a value in the groups `train` and `eval` is wrong."""
    check_params(p.train, "task.train", _TRAIN_RULES)
    check_params(p.eval, "task.eval", _EVAL_RULES)
    needed = ("best_metric", "interval_steps")
    missing = [f"task.eval.{name}" for name in needed if p.eval.Get(name) is None]
    if missing and p.eval.patience is not None:
        raise UserValueError(
            path="task.eval.patience",
            expected=f"None, since {missing[0]} is",
            got=p.eval.patience,
            hint=f"Or set {missing[0]}.",
        )


def plain_task(task_params: InstantiableParams) -> InstantiableParams:
    """Returns a copy of a task's params without local losses."""
    p = task_params.Copy()
    p.local.scheme, p.local.chunks = BACKPROPAGATION, None
    return p


def whole_task(task_params: InstantiableParams) -> InstantiableParams:
    """Returns a copy of a task's params without local losses and slices.

    Decoding and export use this, since both run whole layers and need no gradients.
    """
    p = plain_task(task_params)
    if p.pipeline.slices is not None:
        # Memory limit, costs, and indices and numbers of cells are for slices.
        splits, num_cells = p.pipeline.splits, len(p.pipeline.cell_tpl)
        if not is_auto(splits):
            number = splits if isinstance(splits, int) else len(splits)
            splits = min(number // p.pipeline.stages_per_device, num_cells)
        unset = ("slices", "memory_limit", "cell_costs", "input_shapes", "input_dtypes")
        p.pipeline.Set(**dict.fromkeys(unset), recompute=None, offload=None)
        p.pipeline.Set(splits=splits, stages_per_device=1, schedule="gpipe")
    return p


def check_plain(p: InstantiableParams, path: str) -> None:
    """Raises ValueError if a task's params ask for local losses, which need heads."""
    if p.local.scheme != BACKPROPAGATION:
        raise UserValueError(
            path=f"{path}.local.scheme",
            expected=f"{BACKPROPAGATION!r} in a task without heads",
            got=p.local.scheme,
            hint="Instantiate with_local_losses(task_params, input_generator), or "
            "without training plain_task(task_params).",
        )
