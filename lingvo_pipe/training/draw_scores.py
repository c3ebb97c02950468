"""A picture of BLEU and chrF by pair of languages. Needs matplotlib; no TensorFlow."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lingvo_pipe.training.translation_scores import TranslationScores, mean_scores

_COLORS = {"bleu": "#3f73b0", "chrf": "#4fa37a"}
_TITLES = {"bleu": "BLEU", "chrf": "chrF"}
_DARK = "#262626"

_INCHES_WIDE = 8.0
_INCHES_PER_ROW = 0.24
_INCHES_AROUND = 1.1  # titles and axes


def draw_scores(scores: Sequence[TranslationScores]) -> bytes:
    """A PNG: a bar for each pair of languages and metric, the best BLEU above.

    Dashed lines are the means over the pairs.

    Args:
        scores: at least one.
    """
    ranked = sorted(scores, key=lambda each: (each.bleu, each.chrf))
    height = len(ranked) * _INCHES_PER_ROW + _INCHES_AROUND
    figure = Figure(figsize=(_INCHES_WIDE, height), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(_TITLES), sharey=True)
    for panel, metric in zip(panels, _TITLES, strict=True):
        _draw(panel, metric, ranked)
    panels[0].set_yticks(range(len(ranked)), [each.languages for each in ranked])
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _draw(panel: Axes, metric: str, ranked: Sequence[TranslationScores]) -> None:
    values, mean = [getattr(s, metric) for s in ranked], mean_scores(ranked)[metric]
    bars = panel.barh(range(len(ranked)), values, color=_COLORS[metric], height=0.78)
    panel.bar_label(bars, fmt="%.1f", padding=2, fontsize=7.5, color=_DARK)
    panel.axvline(mean, color=_DARK, linewidth=0.8, linestyle="--")
    panel.set_title(f"{_TITLES[metric]}, mean {mean:.1f}", fontsize=10, color=_DARK)
    panel.set_xlim(0, max(1.15 * max(values), 1.0))  # with room for the numbers
    panel.margins(y=0.01)
    panel.tick_params(labelsize=8, length=2, labelcolor=_DARK)
    panel.spines[["right", "top"]].set_visible(False)
