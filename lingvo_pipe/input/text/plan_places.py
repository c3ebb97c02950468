"""Where the batches begin that training has read, for a run that goes on."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from lingvo_pipe.input.text.batch_plan import FIRST, BatchPlanner, Place
from lingvo_pipe.input.text.mixture_order import MixtureOrder


class PlanPlaces:
    """The places of the last batches of one plan.

    Args:
        planner: makes the plan.
        order: of its sentences.
    """

    def __init__(self, planner: BatchPlanner, order: MixtureOrder):
        self._fingerprint = _fingerprint(planner, order)
        self._places: dict[int, Place] = {}

    def add(self, place: Place) -> None:
        """Takes note of the next batch, which is planned before it is read."""
        self._places[place.step] = place

    def text_before(self, step: int) -> str:
        """The place of the last batch before a step's, as text; empty: not known.

        Places before it are forgotten.
        """
        place = self._places.get(step - 1)
        if place is None:
            return ""
        # A copy: batches are planned on a thread of tf.data meanwhile.
        for old in list(self._places):
            if old < place.step:
                del self._places[old]
        return json.dumps([self._fingerprint, *place])

    def read(self, text: str, step: int) -> Place:
        """The place in a text, or that of the first batch.

        The text may be of another plan, or its place after `step`: it is no use then.
        """
        if text:
            fingerprint, *numbers = json.loads(text)
            place = Place(*numbers)
            if fingerprint == self._fingerprint and place.step <= step:
                return place
        return FIRST


def _fingerprint(planner: BatchPlanner, order: MixtureOrder) -> str:
    """Of all that a plan follows from."""
    settings = (
        planner.capacity,
        planner.batch_size,
        order.temperature,
        order.seed,
        order.shuffle,
        sorted(order.members),
    )
    digest = hashlib.sha256(repr(settings).encode())
    arrays = [planner.lengths, *(order.members[name] for name in sorted(order.members))]
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
