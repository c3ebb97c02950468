"""Pictures that were written for TensorBoard, read again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf


class EventPicture(NamedTuple):
    """A picture.

    Attributes:
        step: after which it was drawn.
        png: its bytes.
    """

    step: int
    png: bytes


def last_pictures(directory: Path) -> dict[str, EventPicture]:
    """The last picture of each name in a directory of events.

    An event that is cut short, or being written, ends its file.

    Args:
        directory: holds them, if it exists; see `MetricsLog.write_pictures`.
    """
    found = {}
    # Their names begin with the time at which they were begun.
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for event in _events(path):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "images":
                    _, _, png = tf.make_ndarray(value.tensor)
                    found[value.tag] = EventPicture(event.step, png)
    return found


def _events(path: Path) -> Iterator[tf.compat.v1.Event]:
    records = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    while True:
        try:
            yield tf.compat.v1.Event.FromString(next(records))
        except (StopIteration, tf.errors.DataLossError):
            return
