import functools
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence

import pytest

from lingvo_pipe.pipeline.memory.call_bytes import CallBytes
from lingvo_pipe.pipeline.memory.stage_memory import StageMemory
from lingvo_pipe.pipeline.schedules import building_block
from lingvo_pipe.pipeline.schedules.building_block import v_half, v_min
from lingvo_pipe.pipeline.schedules.by_rule import one_f_one_b
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from tests.pipeline.schedules.event_simulation import bubble
from tests.pipeline.schedules.stash_sizes import peak_stashed
from tests.pipeline.simulation.random_schedules import random_costs

UNIT_COSTS = dict.fromkeys(Kind, 1)
Make = Callable[[int, int], Schedule]


def _sizes() -> Iterator[tuple[int, int]]:
    for k in range(1, 10):
        for m in sorted({1, 2, 3, k, k + 1, 2 * k - 1, 2 * k, 2 * k + 1, 4 * k, 37}):
            yield k, m


def _third(num_devices: int) -> int:
    """Returns the paper's limit for V-Min, in stages of 1F1B."""
    return (num_devices + 4) // 3


def _half(num_devices: int) -> int:
    """Returns the paper's limit for V-Half, in stages of 1F1B."""
    return (num_devices + 2) // 2


LIMITS = [(v_min, _third), (v_half, _half)]


@functools.cache
def _made(make: Make, num_devices: int, num_micro_batches: int) -> Schedule:
    return make(num_devices, num_micro_batches)


@pytest.mark.parametrize(("make", "limit"), LIMITS)
def test_the_memory_is_the_papers(make: Make, limit: Callable[[int], int]) -> None:
    for num_devices, num_micro_batches in _sizes():
        schedule = _made(make, num_devices, num_micro_batches)
        check(schedule)
        # A stage is half of 1F1B's.
        most = 2 * min(limit(num_devices), num_micro_batches)
        assert peak_stashed(schedule) <= most, (num_devices, num_micro_batches)
    assert peak_stashed(make(12, 48)) == 2 * limit(12)
    assert limit(12) < peak_stashed(one_f_one_b(12, 48))


@pytest.mark.parametrize("num_devices", [*range(13, 41, 5), 40])
@pytest.mark.parametrize(("make", "limit"), LIMITS)
def test_many_devices_do_not_get_stuck(
    make: Make, limit: Callable[[int], int], num_devices: int
) -> None:
    schedule = make(num_devices, num_devices + 1)
    check(schedule)
    assert peak_stashed(schedule) == 2 * limit(num_devices)


def test_the_bubbles_are_two_thirds_and_half_of_1f1bs() -> None:
    """1F1B's is 6·(K - 1) operations of half a stage."""
    for sizes in _sizes():
        num_devices, num_micro_batches = sizes
        latency = max(4 * num_devices - 5, 0)
        assert bubble(_made(v_min, *sizes), UNIT_COSTS) == latency, sizes
        half = bubble(_made(v_half, *sizes), UNIT_COSTS)
        assert half <= latency, sizes
        if num_micro_batches >= num_devices:
            assert abs(half - 3 * (num_devices - 1)) <= 2, sizes


@pytest.mark.parametrize(("make", "part"), [(v_min, 2 / 3), (v_half, 1 / 2)])
def test_the_simulation_agrees(make: Make, part: float) -> None:
    costs = Costs((StageCosts(0.5, 1.0),) * 24)
    idle = simulate(make(12, 48), costs).idle_seconds(0)
    wholes = Costs((StageCosts(1.0, 2.0),) * 12)
    of_1f1b = simulate(one_f_one_b(12, 48), wholes).idle_seconds(0)
    assert idle == pytest.approx(part * of_1f1b, rel=0.03)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("make", "limit"), LIMITS)
def test_other_costs_take_no_more_memory(
    make: Make, limit: Callable[[int], int], seed: int
) -> None:
    rng = random.Random(seed)
    num_devices = rng.randint(1, 6)
    schedule = make(num_devices, rng.randint(1, 20))
    timeline = simulate(schedule, random_costs(rng, schedule.num_stages))
    for column in timeline.columns:
        changes = [(t.start, 1) for t in column if t.op.kind is Kind.FORWARD]
        changes += [(t.end, -1) for t in column if t.op.kind is Kind.WEIGHT_GRADIENT]
        stashed = most = 0
        for _, change in sorted(changes):
            stashed += change
            most = max(most, stashed)
        assert most <= 2 * limit(num_devices)


def _lifetimes(row: str) -> tuple[dict[str, int], int]:
    """Returns the slots of a device, and the sum of its lifetimes."""
    slots = {letter: slot for slot, letter in enumerate(row[::2]) if letter != " "}
    ends = slots["W"] + slots["w"] + 2
    return slots, ends - slots["F"] - slots["f"]


@pytest.mark.parametrize(
    ("index", "make", "steps"), [(0, v_min, (1, 1, 1, 1)), (1, v_half, (1, 2, 1, 2))]
)
def test_the_drawn_blocks_can_be_repeated(
    index: int, make: Make, steps: Sequence[int]
) -> None:
    drawn = re.findall(r"((?: +device \d \| .*\n)+)", building_block.__doc__ or "")
    rows = re.findall(r"\| (.*)", drawn[index])[::-1]
    devices = [_lifetimes(row) for row in rows]
    most = peak_stashed(make(len(rows), 12))
    for slots, lifetime in devices:
        assert len({slot % 6 for slot in slots.values()}) == len(slots) == 6
        assert lifetime <= 6 * most
        for earlier, later in ("Ff", "fb", "bB", "bw", "BW"):
            assert slots[earlier] < slots[later]
    for (slots, _), (above, _) in zip(devices, devices[1:], strict=False):
        moves = [above[letter] - slots[letter] for letter in "FfbB"]
        assert moves == [steps[0], -steps[1], steps[2], -steps[3]]


def _stashed(slots: Sequence[int]) -> int:
    """Returns the most micro-batches that a device stashes in repeated blocks.

    W and w get the two slots that F, f, b and B, in `slots`, leave modulo 6.
    """
    free = set(range(6)) - {slot % 6 for slot in slots}
    assert len(free) == 2, "slots differ modulo 6"
    first, second, second_backward, backward = slots

    def peak(weights: int, second_weights: int) -> int:
        end = backward + 1 + (weights - backward - 1) % 6
        second_end = second_backward + 1 + (second_weights - second_backward - 1) % 6
        lives = (first, end), (second, second_end)
        # In a slot of each remainder, the blocks that have begun and not ended.
        return max(
            sum((end - slot) // 6 - (begin - slot - 1) // 6 for begin, end in lives)
            for slot in range(6)
        )

    return min(peak(*order) for order in itertools.permutations(free))


@pytest.mark.parametrize(("make", "limit"), LIMITS)
def test_the_blocks_keep_within_the_memory(
    make: Make, limit: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is why no device gets stuck."""
    blocks: list[list[list[int]]] = []
    monkeypatch.setattr(building_block, "_squeezed", lambda x, *_: blocks.append(x))
    for num_devices in range(1, 41):
        make(num_devices, 1)
        peaks = [_stashed(slots) for slots in blocks[-1]]
        assert len(peaks) == num_devices
        assert max(peaks) == 2 * limit(num_devices), num_devices


@pytest.mark.parametrize("num_devices", [12, 100])
@pytest.mark.parametrize(("make", "part"), [(v_half, 2), (v_min, 3)])
def test_half_and_a_third_of_the_activations_are_held(
    make: Make, part: int, num_devices: int
) -> None:
    """A device of 1F1B holds the activations of K stages."""
    cell = CallBytes(0, 0, 100, 100, False, [], [])
    memory = StageMemory([cell] * 2 * num_devices, {}, allocator_loss=0.0)
    ends = range(1, 2 * num_devices + 1)
    of_1f1b = memory.of_devices(one_f_one_b(num_devices, num_devices), ends[1::2])
    peaks = memory.of_devices(make(num_devices, num_devices + 1), ends)
    assert max(peaks) == max(of_1f1b) * (num_devices // part + 1) / num_devices
    if num_devices == 100:
        assert max(peaks) == pytest.approx(max(of_1f1b) / part, rel=0.021)
