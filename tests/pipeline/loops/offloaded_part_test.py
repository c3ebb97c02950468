"""The residuals of a stage that are copied to the host."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.pipeline.loops.offloaded_part import OffloadedPart

SPEC = tf.TensorSpec([None, None])


def test_two_views_of_a_buffer_with_one_spec_keep_their_shapes() -> None:
    buffers = SimpleNamespace(own=[tf.zeros([6])], args=[], made=[], indices=[0, 0])
    phases = SimpleNamespace(
        residuals=[SPEC, SPEC], residual_buffers=buffers, view_of=[]
    )
    layer = SimpleNamespace(
        values=SimpleNamespace(args=[], made=[]),
        functions=SimpleNamespace(phases=phases),
    )
    stage: Any = SimpleNamespace(layers=[layer], offloaded=[True])
    views = [tf.reshape(tf.range(6.0), shape) for shape in ([2, 3], [3, 2])]
    part = OffloadedPart(stage, ())

    @tf.function(input_signature=[SPEC, SPEC])
    def copied(*residuals: tf.Tensor) -> list[list[tf.Tensor]]:
        return part.by_layer(part.distinct([residuals]), {})

    tf.nest.map_structure(np.testing.assert_array_equal, copied(*views), [views])
