"""A decoding run: translates a data set with a checkpoint, and scores the result.

decoder/<split>-<step>.jsonl   a line per sentence: source, reference, hypothesis,
                               score, and the languages
decoder/<split>-<step>.txt     BLEU and chrF by language pair, also as .json for
                               programs, and as an image, .png
decoder/metrics.jsonl          BLEU and chrF of all decoding runs
decoder/<split>/               the same scores and the image, for TensorBoard

The same model and sentences give the same bytes, except for images and events.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import tqdm

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.training.checkpoint.checkpoint_files import stem_of
from lingvo_pipe.training.decode.decoder import Decoder, Hypothesis, Translation
from lingvo_pipe.training.decode.translation_scores import (
    draw_scores,
    mean_scores,
    scores_by_languages,
    scores_table,
)
from lingvo_pipe.training.report.html_report import report_end
from lingvo_pipe.training.run.metrics_log import shared_log
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.run.run_vocabulary import check_vocabulary
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.protocols import DecodeInput


def check_decode_input(input_generator: Any) -> DecodeInput:
    """Returns the input if it has sentences to translate.

    Raises:
        ValueError: if the input is not a DecodeInput, or its data cannot be read.
    """
    if not isinstance(input_generator, DecodeInput):
        raise UserValueError(
            path="input",
            expected="DecodeBatches and a vocabulary, as a TranslationInput has",
            got=Words(type(input_generator).__name__),
            hint="A language model continues the lines of --input_file.",
        )
    input_generator.DecodeBatches()
    return input_generator


def decode(
    task: BaseTask,
    data: DecodeInput,
    directory: RunDirectory,
    split: str,
    steps: Iterable[int],
    log: Callable[[str], None],
) -> None:
    """Translates a data set with one or more checkpoints, and writes the results.

    `steps` restores checkpoints into `task`, one after another (see `weights_in_turn`).

    Raises:
        ValueError: if the task or a checkpoint is unusable, or there are no sentences.
    """
    decoder = Decoder(task, data.vocabulary)
    check_vocabulary(directory.path, data)
    batches = data.DecodeBatches()  # Made once, since TensorFlow frees no data set.
    for step in steps:
        log(f"Decoding {split} with the checkpoint of step {step}.")
        decoded = decoder(batches)
        bar = tqdm.tqdm(decoded, unit=" sentences", disable=None, leave=False)
        translations = sorted(bar, key=lambda translation: translation.position)
        if not translations:
            raise UserValueError(path=split, expected="at least 1 sentence", got=0)
        log(write_report(directory.decoder_path, step, split, translations))
        report_end(directory, log)


def write_report(
    directory: Path, step: int, split: str, translations: Sequence[Translation]
) -> str:
    """Writes the translations and scores of a step, and returns a table of scores."""
    scores = scores_by_languages(translations)
    table, image = scores_table(scores), draw_scores(scores)
    # The baseline of a model's scores: each source as its own translation.
    copied = [
        dataclasses.replace(x, hypotheses=(Hypothesis(x.source, 0.0),))
        for x in translations
    ]
    document = {
        "step": step,
        "split": split,
        "mean": mean_scores(scores),
        "source_copied": mean_scores(scores_by_languages(copied)),
        "languages": [dataclasses.asdict(pair_scores) for pair_scores in scores],
    }
    contents: dict[str, str | bytes] = {
        "jsonl": "".join(f"{_line(translation)}\n" for translation in translations),
        "txt": f"Step {step}, {split}.\n\n{table}\n",
        "json": json.dumps(document, indent=2, ensure_ascii=False) + "\n",
        "png": image,
    }
    stem = stem_of(step).replace("ckpt", split)
    metrics = mean_scores(scores)
    for pair_scores in scores:
        metrics[f"bleu/{pair_scores.languages}"] = pair_scores.bleu
        metrics[f"chrf/{pair_scores.languages}"] = pair_scores.chrf
    with shared_log(directory) as log:
        for ending, content in contents.items():
            write_atomically(directory / f"{stem}.{ending}", content)
        # A checkpoint that is decoded again has the same metrics.
        if not log.contains(step, split, metrics):
            log.write(step, split, metrics)
            log.write_page(step, split, "translations", image, table)
    return table


def _line(translation: Translation) -> str:
    best, *alternatives = translation.hypotheses
    record: dict[str, Any] = {
        "source": translation.source,
        "reference": translation.reference,
        "hypothesis": best.text,
        "score": best.score,
        "source_language": translation.source_language,
        "target_language": translation.target_language,
    }
    if alternatives:
        record["others"] = [
            dataclasses.asdict(hypothesis) for hypothesis in alternatives
        ]
    return json.dumps(record, ensure_ascii=False, allow_nan=False)
