"""The params of the training loop: how long, and what happens how often."""

from __future__ import annotations

from lingvo_pipe.hyperparams import Params


def define_loop_params(p: Params) -> None:
    """Defines them among those of a task's training."""
    p.Define("max_steps", None, "Number of steps to train for.")
    p.Define(
        "steps_per_loop",
        1,
        "How many steps run in one call, in which each stage changes its own weights "
        "as soon as it can; the results are the same. Above 1 where stages train by "
        "losses of their own, or calls take long.",
    )
    p.Define("save_interval_steps", 100, "Steps from checkpoint to checkpoint.")
    p.Define("keep_checkpoints", 5, "How many checkpoints are kept.")
    p.Define("report_interval_steps", 10, "Steps from report to report.")
    p.Define(
        "histogram_interval_steps",
        None,
        "Steps from one histogram of each trained variable, for TensorBoard, to the "
        "next. None: there are none.",
    )


def check_loop_params(p: Params) -> None:
    """Checks them, and the interval of evaluations.

    Args:
        p: a task's.

    Raises:
        ValueError: unless all are positive integers.
    """
    numbers = {
        "task.train.max_steps": p.train.max_steps,
        "task.train.steps_per_loop": p.train.steps_per_loop,
        "task.train.save_interval_steps": p.train.save_interval_steps,
        "task.train.report_interval_steps": p.train.report_interval_steps,
        "task.train.keep_checkpoints": p.train.keep_checkpoints,
    }
    if p.train.histogram_interval_steps is not None:
        name = "task.train.histogram_interval_steps"
        numbers[name] = p.train.histogram_interval_steps
    if p.eval.interval_steps is not None:
        numbers["task.eval.interval_steps"] = p.eval.interval_steps
    wrong = [
        f"{name} is {value!r}"
        for name, value in numbers.items()
        if not isinstance(value, int) or isinstance(value, bool) or value < 1
    ]
    if wrong:
        raise ValueError(
            f"Numbers of steps and checkpoints must be integers of at least 1; "
            f"{', '.join(wrong)}. Set them in the model's Task or by "
            "--model_params_override."
        )
