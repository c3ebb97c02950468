"""How many devices compute at a time. Pure.

device 0   ##########
device 1      ##########
1  2      1      devices, for 3, 7 and 3 seconds
"""

from __future__ import annotations

import itertools

from lingvo_pipe.pipeline.simulation.timeline import Timeline


def busy_devices(timeline: Timeline) -> float:
    """How many compute, itself included, while a device does: the mean of its seconds.

    In the picture there are 2 in 14 of 20 seconds, so 1.7. At least 1.
    """
    ops = [timed for column in timeline.columns for timed in column]
    changes = sorted([(x.start, 1) for x in ops] + [(x.end, -1) for x in ops])
    busy, once, squared = 0, 0.0, 0.0
    for (time, change), (later, _) in itertools.pairwise(changes):
        busy += change
        once += busy * (later - time)
        squared += busy**2 * (later - time)
    return squared / once if once else 1.0
