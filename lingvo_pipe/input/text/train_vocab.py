r"""Makes a vocabulary of text files, or of a data set of translations.

lingvo_pipe_train_vocab --output=/data/de-en.vocab --vocab_size=8000 \
    --languages=de,en /data/train.de /data/train.en
lingvo_pipe_train_vocab --output=/data/eight.vocab --vocab_size=8000 \
    --dataset=cldr_sentences/8_to_en

Without the package installed, `tools/bazel run //tools:train_vocab --` is the same.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lingvo_pipe.quiet_startup import quiet_startup

_CHUNK_SIZE = 1024


def run() -> None:
    """Entry point of the console script."""
    # `bazel run` starts programs elsewhere, and says where the user is.
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
    sys.path.append(os.getcwd())  # For builders of the user's own.
    main()


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes what the arguments say; exits with a line on what went wrong, if any."""
    flags = _parse(arguments)
    try:
        _check(flags)
        with quiet_startup():
            _start()
        for module in flags.imports:
            importlib.import_module(module)
        _make(flags)
    except ValueError as error:
        sys.exit(f"error: {error}")


def _start() -> None:
    """Imports what takes seconds, and has TensorFlow look for GPUs."""
    import tensorflow as tf

    from lingvo_pipe.input.text import tfds_pairs, vocabulary_training

    del tfds_pairs, vocabulary_training
    tf.config.list_physical_devices("GPU")


def _make(flags: argparse.Namespace) -> None:
    # Imported late: TensorFlow takes seconds to start.
    from lingvo_pipe.input.text.vocabulary import Vocabulary
    from lingvo_pipe.input.text.vocabulary_training import train_vocabulary
    from lingvo_pipe.training.atomic_file import write_atomically

    texts, found = _of_dataset(flags) if flags.dataset else (_of_files(flags), [])
    model = train_vocabulary(
        texts,
        flags.vocab_size,
        flags.languages or found,
        flags.model_type,
        flags.character_coverage,
        flags.normalization,
        flags.split_digits,
    )
    output = _output(flags)
    write_atomically(output, model)
    made = Vocabulary(str(output))
    print(
        f"Vocabulary {output} has {made.size:,} tokens, made of {len(texts):,} texts; "
        f"languages: {', '.join(made.languages) or 'none'}; fingerprint: "
        f"{made.fingerprint}."
    )


def _output(flags: argparse.Namespace) -> Path:
    return Path(os.path.expanduser(flags.output))


def _check(flags: argparse.Namespace) -> None:
    if bool(flags.files) == bool(flags.dataset):
        raise ValueError(
            "A vocabulary must be made of files, or of a data set; got files "
            f"{flags.files} and --dataset={flags.dataset}. Give one of them."
        )
    names = flags.languages
    if any(not n or n.split() != [n] for n in names) or len({*names}) < len(names):
        raise ValueError(
            "--languages must be names, each once, with commas and no spaces between "
            f"them, such as de,en; got {','.join(names)!r}."
        )
    if flags.max_texts < 2:
        raise ValueError(f"--max_texts must be at least 2; got {flags.max_texts}.")
    output = _output(flags)
    if output.is_dir() or not output.parent.is_dir():
        raise ValueError(
            f"--output must be a file in a folder that is there; got {output}."
        )


def _of_files(flags: argparse.Namespace) -> list[str]:
    """The lines that are not blank."""
    from lingvo_pipe.input.text.data_path import data_path
    from lingvo_pipe.input.text.documents import LINES, Documents
    from lingvo_pipe.input.text.line_file import LineFile

    files = [LineFile(data_path(name, flags.data_dir)) for name in flags.files]
    lines = Documents(files, LINES)
    return [
        text.decode()
        for numbers in _chunks(len(lines), flags.max_texts)
        for text in lines.fetch(numbers)
    ]


def _of_dataset(flags: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Sources and targets, and all languages of targets."""
    from lingvo_pipe.input.text.tfds_pairs import TfdsPairs

    p = TfdsPairs.Params().Set(dataset=flags.dataset, split=flags.split)
    languages = p.Instantiate().Languages(flags.data_dir)
    if languages is not None:  # Each text is wanted once, not in each direction.
        p.pairs = [(languages[0], other) for other in languages[1:]]
    pairs = p.Instantiate().Open(flags.data_dir)
    texts, targets = [], set()
    for numbers in _chunks(pairs.num_sentences, flags.max_texts // 2):
        fetched = pairs.Fetch(numbers)
        texts += [text.decode() for text in (*fetched.source, *fetched.target)]
        targets |= set(fetched.target_language)
    return texts, languages or sorted(language.decode() for language in targets)


def _chunks(number: int, most: int) -> list[np.ndarray]:
    """All numbers below `number`, or `most` of them at equal distances."""
    chosen = np.arange(min(number, most)) * number // min(number, most)
    return np.array_split(chosen, -(-len(chosen) // _CHUNK_SIZE))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lingvo_pipe_train_vocab",
        description="Makes a vocabulary of text files, or of a data set.",
    )
    parser.add_argument("files", nargs="*", help="Text files, in UTF-8; lines count.")
    parser.add_argument("--output", required=True, help="The file to write.")
    parser.add_argument(
        "--vocab_size", required=True, type=int, help="How many tokens, in all."
    )
    parser.add_argument(
        "--languages",
        default=[],
        type=lambda text: text.split(","),
        help="Languages to translate to, such as de,en: each gets a token <2xx>. By "
        "default those of the data set, or none.",
    )
    parser.add_argument(
        "--dataset",
        help="Name of TensorFlow Datasets, such as wmt14_translate/de-en, or of your "
        "own.",
    )
    parser.add_argument("--split", default="train", help="Of it; train by default.")
    parser.add_argument("--data_dir", help="Where data sets lie, and files begin.")
    parser.add_argument(
        "--imports",
        default=[],
        type=lambda text: text.split(","),
        help="Modules of your own to import, for the builders they define.",
    )
    parser.add_argument(
        "--max_texts",
        default=10_000_000,
        type=int,
        help="How many texts to make it of: of more, some at equal distances. All are "
        "held in memory.",
    )
    parser.add_argument(
        "--model_type",
        default="unigram",
        choices=["unigram", "bpe"],
        help="Which kind.",
    )
    parser.add_argument(
        "--character_coverage",
        default=0.9995,
        type=float,
        help="Share of all characters that get a token; 1.0: all.",
    )
    parser.add_argument(
        "--normalization",
        default="nmt_nfkc",
        help="Rule of SentencePiece; identity: texts stay as they are.",
    )
    parser.add_argument(
        "--split_digits", action="store_true", help="Each digit is a token by itself."
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run()
