"""What a decoding run leaves behind.

    decoder/<split>-<step>.jsonl   a line a sentence: source, reference, hypothesis,
                                   score, and the languages
    decoder/<split>-<step>.txt     BLEU and chrF by pair of languages
    decoder/<split>-<step>.json    the same, for programs
    decoder/<split>-<step>.png     the same as a picture
    decoder/metrics.jsonl          BLEU and chrF of all decoding runs
    decoder/<split>/               the same and the picture for TensorBoard

The same model and sentences give the same bytes, but for the picture and events on
other versions of their libraries.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lingvo_pipe.training.atomic_file import write_atomically
from lingvo_pipe.training.checkpoint_files import stem_of
from lingvo_pipe.training.decoder import Translation
from lingvo_pipe.training.shared_log import shared_log
from lingvo_pipe.training.translation_scores import (
    TranslationScores,
    mean_scores,
    scores_by_languages,
)


def write_report(
    directory: Path, step: int, split: str, translations: Sequence[Translation]
) -> str:
    """Writes all of it. Of several processes, one after another does.

    Args:
        directory: `decoder` of the run.
        step: of the checkpoint.
        split: what was translated, such as `test`.
        translations: at least one.

    Returns:
        The table of scores.
    """
    # Imported here: it takes half a second, and training needs none.
    from lingvo_pipe.training.draw_scores import draw_scores

    scores = scores_by_languages(translations)
    table, picture = scores_table(scores), draw_scores(scores)
    contents: dict[str, str | bytes] = {
        "jsonl": "".join(f"{_line(each)}\n" for each in translations),
        "txt": f"Step {step}, {split}.\n\n{table}\n",
        "json": _document(step, split, scores),
        "png": picture,
    }
    stem = stem_of(step).replace("ckpt", split)
    metrics = _metrics(scores)
    with shared_log(directory) as log:
        for ending, content in contents.items():
            write_atomically(directory / f"{stem}.{ending}", content)
        # A checkpoint that is decoded once more says the same again.
        if not log.holds(step, split, metrics):
            log.write(step, split, metrics)
            log.write_page(step, split, "translations", picture, table)
    return table


def scores_table(scores: Sequence[TranslationScores]) -> str:
    """A line for each pair of languages, their means, and how it was computed."""
    mean = mean_scores(scores)
    total = sum(each.num_sentences for each in scores)
    rows = [("languages", "sentences", "BLEU", "chrF")]
    rows += [
        (s.languages, f"{s.num_sentences:,}", f"{s.bleu:.2f}", f"{s.chrf:.2f}")
        for s in scores
    ]
    rows.append(("mean", f"{total:,}", f"{mean['bleu']:.2f}", f"{mean['chrf']:.2f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
        )
        for row in rows
    ]
    signatures = sorted({s.bleu_signature for s in scores})
    lines += ["", *(f"BLEU: {signature}" for signature in signatures)]
    lines += [f"chrF: {s}" for s in sorted({each.chrf_signature for each in scores})]
    return "\n".join(lines)


def _line(each: Translation) -> str:
    best, *others = each.hypotheses
    record: dict[str, Any] = {
        "source": each.source,
        "reference": each.reference,
        "hypothesis": best.text,
        "score": best.score,
        "source_language": each.source_language,
        "target_language": each.target_language,
    }
    if others:
        record["others"] = [dataclasses.asdict(other) for other in others]
    return json.dumps(record, ensure_ascii=False, allow_nan=False)


def _document(step: int, split: str, scores: Sequence[TranslationScores]) -> str:
    document = {
        "step": step,
        "split": split,
        "mean": mean_scores(scores),
        "languages": [dataclasses.asdict(each) for each in scores],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _metrics(scores: Sequence[TranslationScores]) -> dict[str, float]:
    metrics = mean_scores(scores)
    for each in scores:
        metrics[f"bleu/{each.languages}"] = each.bleu
        metrics[f"chrf/{each.languages}"] = each.chrf
    return metrics
