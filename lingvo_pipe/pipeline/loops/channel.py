"""A first-in-first-out channel for tensors between the loops of two devices.

    within one process    Send ------------------------------------> Recv
    between processes     Send ----> Recv Send --------------------> Recv
                                     the relay, on the receiving device

TensorFlow's Send and Recv queue messages of one name in the order they were sent. A
receiver waits only for its own message. Between processes, the receiver requests each
message. A device's loop that requested a message only when it needs the message would
wait for a round trip each time. So another loop, the relay, requests one message after
another, and forwards the messages within the process.
"""

import tensorflow as tf

from lingvo_pipe.pipeline.devices.cluster import incarnation
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.loops.while_loop import repeat


class Channel:
    """A queue of tensors of one spec from one device to another.

    Attributes:
        devices: full names of the sending and the receiving device.
        is_relayed: whether `relay` must run beside the loops.
    """

    def __init__(
        self,
        name: str,
        source: str,
        target: str,
        spec: tf.TensorSpec,
        is_urgent: bool = True,
    ):
        """Initializes a channel for tensors of static shape.

        `name` must be unique in a step. Messages to another process are relayed if
        `is_urgent`.
        """
        self.devices = source, target
        self.num_bytes = spec.shape.num_elements() * spec.dtype.size
        tasks = {device_name(end).worker for end in self.devices}
        self.is_relayed = is_urgent and len(tasks) > 1
        self._spec = spec
        self._first = _attributes(name, source, target)
        self._last = self._first
        if self.is_relayed:
            self._last = _attributes(f"{name}/relayed", target, target)

    def send(self, tensor: tf.Tensor) -> tf.Operation:
        """Adds a Send operation, on which some result must depend, and returns it."""
        return tf.raw_ops.Send(tensor=tensor, **self._first)

    def receive(self) -> tf.Tensor:
        return self._received(self._last)

    def relay(self, number: tf.Tensor) -> tf.Tensor:
        """Relays `number` ([] int32) messages. The result exists after the last one."""

        def forward() -> list[tf.Operation]:
            return [tf.raw_ops.Send(tensor=self._received(self._first), **self._last)]

        return repeat(number, forward)

    def _received(self, attributes: dict[str, object]) -> tf.Tensor:
        tensor = tf.raw_ops.Recv(tensor_type=self._spec.dtype, **attributes)
        return tf.ensure_shape(tensor, self._spec.shape)


def _attributes(name: str, source: str, target: str) -> dict[str, object]:
    return {
        "tensor_name": name,
        "send_device": source,
        "send_device_incarnation": incarnation(source),
        "recv_device": target,
    }
