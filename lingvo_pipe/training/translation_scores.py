"""BLEU and chrF of translations, by pair of languages, as sacrebleu computes them.

BLEU counts words, and what a word is depends on the language: sacrebleu's own choice is
`13a`, and `zh` for Chinese. In languages that are written without spaces each character
is taken for a word, for want of a better tokenizer without further downloads. The
signatures say which one it was. chrF needs none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF

from lingvo_pipe.training.decoder import Translation

# Tokenizers of sacrebleu for languages that `13a` would not cut into words.
_CHARACTERS = ("bo", "dz", "ja", "km", "lo", "my", "th")
_TOKENIZERS = {"zh": "zh", "yue": "zh", **dict.fromkeys(_CHARACTERS, "char")}


@dataclass(frozen=True)
class TranslationScores:
    """How good the translations between two languages are.

    Attributes:
        languages: source and target, as in `de-en`.
        num_sentences: how many.
        bleu: from 0 to 100.
        chrf: from 0 to 100.
        bleu_signature: how it was computed, as sacrebleu tells it.
        chrf_signature: likewise.
    """

    languages: str
    num_sentences: int
    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


def scores_by_languages(
    translations: Iterable[Translation],
) -> list[TranslationScores]:
    """The scores of the best hypotheses, each pair of languages by itself, by name."""
    by_pair: dict[tuple[str, str], list[Translation]] = defaultdict(list)
    for each in translations:
        by_pair[each.source_language, each.target_language].append(each)
    return [_scores(*pair, by_pair[pair]) for pair in sorted(by_pair)]


def mean_scores(scores: Sequence[TranslationScores]) -> dict[str, float]:
    """The means over the pairs of languages, each counting alike, by metric."""
    return {
        "bleu": sum(each.bleu for each in scores) / len(scores),
        "chrf": sum(each.chrf for each in scores) / len(scores),
    }


def _scores(
    source_language: str, target_language: str, translations: Sequence[Translation]
) -> TranslationScores:
    best = [each.hypotheses[0].text for each in translations]
    references = [[each.reference for each in translations]]
    bleu, chrf = BLEU(tokenize=_tokenizer(target_language)), CHRF()
    return TranslationScores(
        languages=f"{source_language}-{target_language}",
        num_sentences=len(translations),
        bleu=bleu.corpus_score(best, references).score,
        chrf=chrf.corpus_score(best, references).score,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


def _tokenizer(language: str) -> str:
    """For `zh`, also as in `zh_Hant` and `zh-CN`."""
    return _TOKENIZERS.get(
        re.split("[-_]", language)[0].lower(), BLEU.TOKENIZER_DEFAULT
    )
