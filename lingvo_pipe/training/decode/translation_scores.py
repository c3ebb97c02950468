"""BLEU and chrF of translations by language pair: numbers, a table, an image.

BLEU counts words by sacrebleu's tokenizer `13a`, or `zh` for Chinese. In languages
written without spaces each character counts as a word, since better tokenizers need
downloads. The signatures name the tokenizer. chrF needs no tokenizer.
"""

import io
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from lingvo_pipe.core.tables import text_table
from lingvo_pipe.training.decode.decoder import Translation

# Tokenizers of sacrebleu for languages that `13a` does not split into words.
_CHARACTERS = ("bo", "dz", "ja", "km", "lo", "my", "th")
_TOKENIZERS = {"zh": "zh", "yue": "zh", **dict.fromkeys(_CHARACTERS, "char")}

_COLORS = {"bleu": "#3f73b0", "chrf": "#4fa37a"}
_TITLES = {"bleu": "BLEU", "chrf": "chrF"}
_DARK = "#262626"

_INCHES_WIDE = 8.0
_INCHES_PER_ROW = 0.24
_INCHES_AROUND = 1.1  # Titles and axes.


@dataclass(frozen=True)
class TranslationScores:
    """Scores of one language pair, from 0 to 100, and sacrebleu's signatures."""

    languages: str
    num_sentences: int
    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


def scores_by_languages(
    translations: Iterable[Translation],
) -> list[TranslationScores]:
    """Returns the scores of each language pair's best hypotheses, sorted by pair."""
    by_pair: dict[tuple[str, str], list[Translation]] = defaultdict(list)
    for translation in translations:
        by_pair[translation.source_language, translation.target_language].append(
            translation
        )
    return [_scores(*pair, by_pair[pair]) for pair in sorted(by_pair)]


def mean_scores(scores: Sequence[TranslationScores]) -> dict[str, float]:
    """Returns the unweighted means over the language pairs, by metric."""
    return {
        metric: sum(getattr(pair_scores, metric) for pair_scores in scores)
        / len(scores)
        for metric in _TITLES
    }


def scores_table(scores: Sequence[TranslationScores]) -> str:
    """Returns a text table of language pairs, with means and sacrebleu's signatures."""
    mean = mean_scores(scores)
    total = sum(pair_scores.num_sentences for pair_scores in scores)
    rows = [("languages", "sentences", "BLEU", "chrF")]
    rows += [
        (s.languages, f"{s.num_sentences:,}", f"{s.bleu:.2f}", f"{s.chrf:.2f}")
        for s in scores
    ]
    rows.append(("mean", f"{total:,}", f"{mean['bleu']:.2f}", f"{mean['chrf']:.2f}"))
    lines = text_table(rows, right=range(1, 4))
    lines += ["", *(f"BLEU: {s}" for s in sorted({x.bleu_signature for x in scores}))]
    lines += [f"chrF: {s}" for s in sorted({x.chrf_signature for x in scores})]
    return "\n".join(lines)


def draw_scores(scores: Sequence[TranslationScores]) -> bytes:
    """Draws a PNG of bars by pair and metric, the best BLEU on top, and of means."""
    # Imported here: it takes half a second, and only decoding draws.
    from matplotlib.figure import Figure

    ranked = sorted(
        scores, key=lambda pair_scores: (pair_scores.bleu, pair_scores.chrf)
    )
    height = len(ranked) * _INCHES_PER_ROW + _INCHES_AROUND
    figure = Figure(figsize=(_INCHES_WIDE, height), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(_TITLES), sharey=True)
    for panel, metric in zip(panels, _TITLES, strict=True):
        _draw_metric(panel, metric, ranked)
    panels[0].set_yticks(
        range(len(ranked)), [pair_scores.languages for pair_scores in ranked]
    )
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _draw_metric(panel: Any, metric: str, ranked: Sequence[TranslationScores]) -> None:
    values, mean = [getattr(s, metric) for s in ranked], mean_scores(ranked)[metric]
    bars = panel.barh(range(len(ranked)), values, color=_COLORS[metric], height=0.78)
    panel.bar_label(bars, fmt="%.1f", padding=2, fontsize=7.5, color=_DARK)
    panel.axvline(mean, color=_DARK, linewidth=0.8, linestyle="--")
    panel.set_title(f"{_TITLES[metric]}, mean {mean:.1f}", fontsize=10, color=_DARK)
    panel.set_xlim(0, max(1.15 * max(values), 1.0))  # Leaves room for the numbers.
    panel.margins(y=0.01)
    panel.tick_params(labelsize=8, length=2, labelcolor=_DARK)
    panel.spines[["right", "top"]].set_visible(False)


def _scores(
    source_language: str, target_language: str, translations: Sequence[Translation]
) -> TranslationScores:
    best = [translation.hypotheses[0].text for translation in translations]
    references = [[translation.reference for translation in translations]]
    # The tokenizer of `zh` also serves `zh_Hant` and `zh-CN`.
    language = re.split("[-_]", target_language)[0].lower()
    bleu = BLEU(tokenize=_TOKENIZERS.get(language, BLEU.TOKENIZER_DEFAULT))
    chrf = CHRF()
    return TranslationScores(
        languages=f"{source_language}-{target_language}",
        num_sentences=len(translations),
        bleu=bleu.corpus_score(best, references).score,
        chrf=chrf.corpus_score(best, references).score,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )
