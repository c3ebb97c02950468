r"""Makes a vocabulary from text files, or from a data set of translations.

lingvo_pipe vocab --output=/data/de-en.vocab --vocab_size=8000 \
    --languages=de,en /data/train.de /data/train.en

lingvo_pipe vocab --output=/data/eight.vocab --vocab_size=8000 \
    --dataset=cldr_sentences/8_to_en
"""

import argparse
import importlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lingvo_pipe.core.checks import check_counts
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.programs import check_writable, program, write_output
from lingvo_pipe.core.tensorflow_startup import importing_tensorflow

_CHUNK_SIZE = 1024


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the vocabulary. After a user's error, exits with a message of one line."""
    flags = _parse(arguments)
    with program(["vocab"], ImportError, OSError):
        _check(flags)
        with importing_tensorflow():  # Slow imports, and TensorFlow's search for GPUs.
            import tensorflow as tf

            import lingvo_pipe.input.text.tfds_pairs  # noqa: F401

            tf.config.list_physical_devices("GPU")
        for module in flags.imports:
            importlib.import_module(module)
        _make(flags)


def _make(flags: argparse.Namespace) -> None:
    # Imported late: TensorFlow takes seconds to start.
    from lingvo_pipe.input.text.vocabulary import Vocabulary, train_vocabulary

    texts, dataset_languages = (
        _read_dataset(flags) if flags.dataset else (_read_files(flags), [])
    )
    model = train_vocabulary(
        texts,
        flags.vocab_size,
        flags.languages or dataset_languages,
        flags.model_type,
        flags.character_coverage,
        flags.normalization,
        flags.split_digits,
    )
    write_output(flags.output, model)
    vocabulary = Vocabulary(str(flags.output))
    print(
        f"Vocabulary {flags.output} has {vocabulary.size:,} tokens, made from "
        f"{len(texts):,} texts; languages: "
        f"{', '.join(vocabulary.languages) or 'none'}; "
        f"fingerprint: {vocabulary.fingerprint}."
    )


def _check(flags: argparse.Namespace) -> None:
    if bool(flags.files) == bool(flags.dataset):
        expected = "either files or a data set"
        got = Words(f"files {flags.files} and --dataset={flags.dataset}")
        raise UserValueError(path="--dataset", expected=expected, got=got)
    if flags.files and flags.split != "train":
        expected = "a split only with --dataset"
        raise UserValueError(path="--split", expected=expected, got=flags.split)
    names = flags.languages
    if any(not n or n.split() != [n] for n in names) or len({*names}) < len(names):
        expected = "different names with commas and no spaces, such as de,en"
        raise UserValueError(path="--languages", expected=expected, got=",".join(names))
    check_counts({"--max_texts": flags.max_texts}, minimum=2)
    if flags.output.exists() and not flags.output.is_file():  # It is read again.
        expected = "a file"
        raise UserValueError(path="--output", expected=expected, got=str(flags.output))
    check_writable(flags.output, "--output")


def _read_files(flags: argparse.Namespace) -> list[str]:
    from lingvo_pipe.input.text.text_files import LINES, Documents, LineFile, data_path

    files = [LineFile(data_path(name, flags.data_dir)) for name in flags.files]
    lines = Documents(files, LINES)
    chunks = map(lines.fetch, _chunks(len(lines), flags.max_texts))
    return [text.decode() for text in itertools.chain.from_iterable(chunks)]


def _read_dataset(flags: argparse.Namespace) -> tuple[list[str], list[str]]:
    from lingvo_pipe.input.text.tfds_pairs import TfdsPairs

    p = TfdsPairs.Params().Set(dataset=flags.dataset, split=flags.split)
    languages = p.Instantiate().Languages(flags.data_dir)
    if languages is not None:  # Each text once, not once per direction.
        p.pairs = [(languages[0], target) for target in languages[1:]]
    pairs = p.Instantiate().Open(flags.data_dir)
    texts, targets = [], set()
    for numbers in _chunks(pairs.num_sentences, flags.max_texts // 2):
        fetched = pairs.Fetch(numbers)
        texts += [text.decode() for text in (*fetched.source, *fetched.target)]
        targets |= set(fetched.target_language)
    return texts, languages or sorted(language.decode() for language in targets)


def _chunks(number: int, maximum: int) -> list[np.ndarray]:
    """Returns up to `maximum` evenly spaced numbers below `number`, in chunks."""
    chosen = np.arange(min(number, maximum)) * number // min(number, maximum)
    return np.array_split(chosen, -(-len(chosen) // _CHUNK_SIZE))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lingvo_pipe vocab",
        description="Makes a vocabulary from text files, or from a data set.",
    )
    add = parser.add_argument
    names: dict[str, Any] = {"default": [], "type": lambda text: text.split(",")}
    add("files", nargs="*", help="Text files in UTF-8; each line is a text.")
    add(
        "--output",
        required=True,
        type=lambda name: Path(os.path.expanduser(name)),
        help="The file to write.",
    )
    add("--vocab_size", required=True, type=int, help="Total number of tokens.")
    add(
        "--languages",
        **names,
        help="Languages to translate to, such as de,en; each gets a token <2xx>. By "
        "default the languages of the data set, or none.",
    )
    add(
        "--dataset",
        help="Name in TensorFlow Datasets, such as wmt14_translate/de-en, or your own.",
    )
    add("--split", default="train", help="Split of the data set; train by default.")
    add("--data_dir", help="Folder of data sets, and of relative file names.")
    add(
        "--imports", **names, help="Your modules that define builders, to import first."
    )
    add(
        "--max_texts",
        default=10_000_000,
        type=int,
        help="Maximum number of texts in memory; of more, evenly spaced ones are used.",
    )
    add(
        "--model_type",
        default="unigram",
        choices=["unigram", "bpe"],
        help="Kind of SentencePiece model.",
    )
    add(
        "--character_coverage",
        default=0.9995,
        type=float,
        help="Share of all characters that get a token, up to 1.0.",
    )
    add(
        "--normalization",
        default="nmt_nfkc",
        help="Normalization rule of SentencePiece. identity keeps all characters but "
        "spaces; none keeps texts unchanged, with all their spaces and newlines.",
    )
    add("--split_digits", action="store_true", help="Make each digit a separate token.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
