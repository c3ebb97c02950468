"""Finds the checks of values that XLA leaves out."""

import functools
from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.core.near_names import first_names
from lingvo_pipe.pipeline.loops.traced_layers import TracedLayers
from lingvo_pipe.pipeline.tracing.purity import checks_values

_MAX_NAMED = 5


def warn_of_lost_checks(traced: TracedLayers, by_xla: Sequence[bool]) -> None:
    """Logs a warning that names the layers whose assertions XLA leaves out, if any."""
    has_checks = functools.cache(checks_values)
    calls = zip(traced.labels, traced.traces, by_xla, strict=True)
    names = [label for label, x, compiled in calls if compiled and has_checks(x.graph)]
    if names:
        tf.get_logger().warning(
            "XLA leaves out the assertions, and other checks of values, in %s. To run "
            "them, set jit_compile to False.",
            first_names(names, _MAX_NAMED),
        )
