"""A first-in-first-out channel for tensors between the loops of two devices.

TensorFlow's Send and Recv, which queue messages of one name in the order they were
sent. Within one process or between processes; a receiver waits only for its message.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


class Channel:
    """Carries lists of tensors of fixed specs from one device to another."""

    def __init__(
        self, name: str, source: str, target: str, specs: Sequence[tf.TensorSpec]
    ):
        """Initialises the channel.

        Args:
            name: unlike any other's in the same step.
            source: full name of the sending device.
            target: full name of the receiving device.
            specs: of the tensors in each message; shapes are static.
        """
        self._specs = list(specs)
        self._ends = [
            {
                "tensor_name": f"{name}/{i}",
                "send_device": source,
                "send_device_incarnation": 0,
                "recv_device": target,
            }
            for i in range(len(self._specs))
        ]

    def send(self, tensors: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Sends a message; returns the operations that must run."""
        return [
            tf.raw_ops.Send(tensor=tensor, **ends)
            for tensor, ends in zip(tensors, self._ends, strict=True)
        ]

    def receive(self) -> list[tf.Tensor]:
        """Receives the next message."""
        return [
            tf.ensure_shape(tf.raw_ops.Recv(tensor_type=spec.dtype, **ends), spec.shape)
            for spec, ends in zip(self._specs, self._ends, strict=True)
        ]
