"""How well the simulation predicts the time of a step from the steps before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.training.step_profile import measured_timeline, predict

# The trainer's profile of a step predicts it from as many.
_NUM_BEFORE = 5


def prediction_errors(
    pipeline: PipeliningLayer, times: Sequence[Sequence[np.ndarray]]
) -> list[float]:
    """Relative errors of the predicted times of all steps but the first.

    Each is |predicted - measured| / measured, from the begin of a step's first
    operation to the end of its last. A prediction knows nothing of its own step.

    Args:
        pipeline: what ran.
        times: of consecutive steps, in their order; as from `ComputeGradients`.

    Raises:
        ValueError: if times contradict themselves, as they do where the machine's clock
            was set meanwhile.
    """
    steps = [measured_timeline(pipeline.schedule, of_step) for of_step in times]
    errors = []
    for i, step in enumerate(steps[1:], start=1):
        predicted = predict(
            steps[max(0, i - _NUM_BEFORE) : i], steps[i].schedule
        ).step_seconds
        errors.append(abs(predicted - step.step_seconds) / step.step_seconds)
    return errors
