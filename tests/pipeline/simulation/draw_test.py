from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from lingvo_pipe.pipeline.schedules.by_rule import gpipe, interleaved, zero_bubble
from lingvo_pipe.pipeline.schedules.offload import offloaded
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import COPIES, Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.draw import _COLORS, draw_timelines
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import Timeline

FORWARD, RECOMPUTE, BACKWARD, WEIGHT_GRADIENT = (
    to_rgb(color) for color in ("#3f73b0", "#a184bf", "#e58b45", "#4fa37a")
)


def _timeline(schedule: Schedule) -> Timeline:
    return simulate(schedule, Costs((StageCosts(0.010, 0.020),) * schedule.num_stages))


GPIPE = _timeline(gpipe(2, 8))
OFFLOADED = simulate(
    offloaded(gpipe(2, 8)),
    Costs((StageCosts(0.010, 0.020, offload=0.009, load=0.018),) * 2),
)
RECOMPUTED = _timeline(recomputed(gpipe(2, 8), "always"))


def _draw(path: Path, **timelines: Timeline) -> np.ndarray:
    """Returns the pixels of the image, `[height, width, 3]` from 0 to 1."""
    draw_timelines(timelines, path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    return imread(path)[..., :3]


def _part_of(image: np.ndarray, color: tuple[float, float, float]) -> float:
    return float(np.mean(np.all(np.abs(image - color) < 1 / 256, axis=-1)))


def test_images_show_copies(tmp_path: Path) -> None:
    plain, offloads = (
        _draw(tmp_path / f"{i}.png", name=timeline)
        for i, timeline in enumerate((GPIPE, OFFLOADED))
    )
    for kind in COPIES:
        color = to_rgb(_COLORS[kind])
        assert _part_of(offloads, color) > 0.005 > _part_of(plain, color)


def test_an_image_holds_its_longest_timeline(tmp_path: Path) -> None:
    short = _timeline(gpipe(2, 2))
    image = _draw(tmp_path / "image.png", short=short, long=GPIPE)
    assert _part_of(image, BACKWARD) > 1.7 * _part_of(image, FORWARD)


def test_images_show_the_kinds_of_operations(tmp_path: Path) -> None:
    timelines = {
        "gpipe": GPIPE,
        "recomputed": RECOMPUTED,
        "zero_bubble": _timeline(zero_bubble(2, 8)),
    }
    images = {
        name: _draw(tmp_path / f"{name}.png", name=timeline)
        for name, timeline in timelines.items()
    }
    for one, other in itertools.combinations(images.values(), 2):
        assert one.shape != other.shape or not np.array_equal(one, other)
    for name, image in images.items():
        assert _part_of(image, FORWARD) > 0.05
        assert _part_of(image, BACKWARD) > 0.05
        assert (_part_of(image, RECOMPUTE) > 0.05) == (name == "recomputed")
        assert (_part_of(image, WEIGHT_GRADIENT) > 0.05) == (name == "zero_bubble")
    # A backward pass takes twice as long as a forward pass.
    ratio = _part_of(images["gpipe"], BACKWARD) / _part_of(images["gpipe"], FORWARD)
    assert ratio == pytest.approx(2, rel=0.1)


def test_two_timelines_stand_one_above_the_other(tmp_path: Path) -> None:
    one = _draw(tmp_path / "one.png", predicted=GPIPE)
    two = _draw(tmp_path / "two.png", predicted=GPIPE, measured=RECOMPUTED)
    assert two.shape[1] >= one.shape[1]
    assert two.shape[0] > 1.5 * one.shape[0]
    upper, lower = np.array_split(two[: int(0.8 * len(two))], 2)
    assert _part_of(upper, RECOMPUTE) == 0
    assert _part_of(lower, RECOMPUTE) > 0.05


def test_later_stages_of_a_device_are_lighter(tmp_path: Path) -> None:
    image = _draw(tmp_path / "it.png", it=_timeline(interleaved(2, 4, 2)))
    red, green, blue = (part + (1 - part) * 0.55 for part in FORWARD)
    assert _part_of(image, (red, green, blue)) == pytest.approx(
        _part_of(image, FORWARD), rel=0.15
    )


@pytest.mark.parametrize("ending", ["pdf", "svg"])
def test_vector_formats(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"it.{ending}"
    draw_timelines({"it": GPIPE}, path)
    assert path.stat().st_size > 1000
