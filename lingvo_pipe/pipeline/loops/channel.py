"""A first-in-first-out channel for tensors between the loops of two devices.

TensorFlow's Send and Recv, which queue messages of one name in the order they were
sent. Within one process or between processes; a receiver waits only for its message.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.pipeline.devices.cluster import incarnation


class Channel:
    """Carries tensors of one spec from one device to another.

    Attributes:
        ends: full names of the devices that send and receive.
        num_bytes: of a tensor.
    """

    def __init__(self, name: str, source: str, target: str, spec: tf.TensorSpec):
        """Initialises the channel.

        Args:
            name: unlike any other's in the same step.
            source: full name of the sending device.
            target: full name of the receiving device.
            spec: of the tensors; the shape is static.
        """
        self.ends = source, target
        self.num_bytes = spec.shape.num_elements() * spec.dtype.size
        self._spec = spec
        self._attributes = {
            "tensor_name": name,
            "send_device": source,
            "send_device_incarnation": incarnation(source),
            "recv_device": target,
        }

    def send(self, tensor: tf.Tensor) -> tf.Operation:
        """Sends a tensor; returns the operation that must run."""
        return tf.raw_ops.Send(tensor=tensor, **self._attributes)

    def receive(self) -> tf.Tensor:
        """Receives the next tensor."""
        tensor = tf.raw_ops.Recv(tensor_type=self._spec.dtype, **self._attributes)
        return tf.ensure_shape(tensor, self._spec.shape)
