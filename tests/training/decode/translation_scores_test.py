"""Scores are sacrebleu's, each language pair separately."""

from __future__ import annotations

import pytest
import sacrebleu

from lingvo_pipe.training.decode.translation_scores import (
    TranslationScores,
    mean_scores,
    scores_by_languages,
    scores_table,
)
from tests.training.decoder_examples import translation

HYPOTHESES = ["the cat sat on the mat .", "there is a dog in the garden", "yes"]
REFERENCES = ["the cat sat on a mat .", "there was a dog in my garden", "yes"]


def test_each_pair_has_the_score_of_its_sentences() -> None:
    pairs = list(zip(HYPOTHESES, REFERENCES, strict=True))
    both = [translation(*pairs[0], "fr"), *(translation(*pair) for pair in pairs)]
    both.append(translation(*pairs[2], "fr"))
    german, french = scores_by_languages(both)
    assert (german.languages, french.languages) == ("de-en", "fr-en")
    assert (german.num_sentences, french.num_sentences) == (3, 2)
    for scores, rows in ((german, [0, 1, 2]), (french, [0, 2])):
        hypotheses = [HYPOTHESES[i] for i in rows]
        references = [[REFERENCES[i] for i in rows]]
        want = sacrebleu.corpus_bleu(hypotheses, references).score
        assert scores.bleu == want
        assert scores.chrf == sacrebleu.corpus_chrf(hypotheses, references).score
    assert 0 < german.bleu != french.bleu > 0
    assert mean_scores([german, french]) == pytest.approx(
        {
            "bleu": (german.bleu + french.bleu) / 2,
            "chrf": (german.chrf + french.chrf) / 2,
        }
    )


def test_the_table_has_means_and_signatures() -> None:
    scores = [
        TranslationScores("de-en", 1200, 20.0, 40.5, "tok:13a", "nc:6"),
        TranslationScores("zh-en", 30, 5.126, 100.0, "tok:zh", "nc:6"),
    ]
    assert scores_table(scores).splitlines() == [
        "languages  sentences   BLEU    chrF",
        "de-en          1,200  20.00   40.50",
        "zh-en             30   5.13  100.00",
        "mean           1,230  12.56   70.25",
        "",
        "BLEU: tok:13a",
        "BLEU: tok:zh",
        "chrF: nc:6",
    ]


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        ("en", "13a"),
        ("zh", "zh"),
        ("zh_Hant", "zh"),
        ("zh-CN", "zh"),
        ("ja", "char"),
    ],
)
def test_words_are_those_of_the_target_language(language: str, tokenizer: str) -> None:
    (scores,) = scores_by_languages([translation("a b", "a c", target=language)])
    assert f"|tok:{tokenizer}|" in scores.bleu_signature
    assert "version:" in scores.chrf_signature


def test_languages_without_spaces_are_compared_by_characters() -> None:
    thai = translation("สวัสดีครับ", "สวัสดีค่ะ", target="th")
    (scores,) = scores_by_languages([thai] * 2)
    assert scores.bleu > 10
