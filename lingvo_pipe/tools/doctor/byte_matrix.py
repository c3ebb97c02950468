"""A check that training gives the same bytes with all schedules and devices."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from lingvo_pipe.pipeline.devices.device_names import short_name
from lingvo_pipe.pipeline.devices.stage_devices import must_compile
from lingvo_pipe.pipeline.schedules.by_name import SCHEDULE_NAMES, V_SHAPED_NAMES
from lingvo_pipe.pipeline.schedules.recompute import POLICIES
from lingvo_pipe.tools.doctor.model import Configuration, pipelined_step

_NUM_STEPS = 2
_TWO_STAGES = ("interleaved", "interleaved_zero_bubble", *V_SHAPED_NAMES)


class Combination(NamedTuple):
    """A way to train the model on some devices, given by their full names."""

    configuration: Configuration
    devices: tuple[str, ...]

    @property
    def name(self) -> str:
        """Schedule, recomputation or offload, and short names of the devices."""
        names = ",".join(map(short_name, self.devices))
        way = self.configuration
        role = f"offload {way.offload}" if way.offload else f"recompute {way.recompute}"
        return f"{way.schedule}, {role}, on {names}"


# Trains a combination, and returns the bytes of the loss and of the weights by name.
Train = Callable[[Combination], Mapping[str, bytes]]


def combinations(devices: Sequence[str], quick: bool) -> Iterator[Combination]:
    """Yields all schedules and recomputation policies on 1, 2, 4, ... and all devices.

    The first combination is the reference: GPipe on the first device. Then come GPipe
    on each other device, GPipe with offload on each device, and then all schedules, on
    the most devices first. If `quick`, uses only one device or all, and only the
    policies "always" and "never".
    """
    number = len(devices)
    powers = [1 << i for i in range(number.bit_length())]
    numbers = {1, number} if quick else {1, number, *powers}

    def combination(
        used: Sequence[str], schedule: str, recompute: str, offload: str | None = None
    ) -> Combination:
        # Enough layers for two stages per device, and two micro-batches per device, or
        # four for an offload.
        configuration = Configuration(
            num_layers=2 * number,
            model_dim=32,
            batch_size=4 * number,
            sequence_length=8,
            num_micro_batches=max(2 * number, 4),
            schedule=schedule,
            recompute=recompute,
            offload=offload,
            stages_per_device=2 if schedule in _TWO_STAGES else 1,
        )
        return Combination(configuration, tuple(used))

    for device in devices:
        yield combination([device], "gpipe", "always")
    for device in devices:
        if not must_compile(device):
            yield combination([device], "gpipe", "never", "always")
    for used in sorted(numbers, reverse=True):
        for recompute in ("always", "never") if quick else POLICIES:
            for schedule in SCHEDULE_NAMES:
                # Blocks with losses of their own are another model.
                is_reference = (used, schedule, recompute) == (1, "gpipe", "always")
                if schedule != "local" and not is_reference:
                    yield combination(devices[:used], schedule, recompute)


def train_combination(combination: Combination) -> dict[str, bytes]:
    """Returns the bytes of the loss and of the weights after two steps."""
    configuration, devices = combination
    layer = configuration.pipeline(devices)
    step = pipelined_step(layer, configuration.batch())
    losses = [step().numpy() for _ in range(_NUM_STEPS)]
    weights = {path: v.numpy() for path, v in layer.VariablePaths().items()}
    return {"loss": losses[-1].tobytes()} | {k: w.tobytes() for k, w in weights.items()}


def differing(found: Mapping[str, bytes], expected: Mapping[str, bytes]) -> list[str]:
    """Returns the names whose bytes differ between `found` and `expected`."""
    names = [*expected, *(name for name in found if name not in expected)]
    return [name for name in names if found.get(name) != expected.get(name)]
