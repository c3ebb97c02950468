"""The files that come with the project are those that the program makes."""

from pathlib import Path

import pytest
import sentencepiece

from lingvo_pipe.input.cldr.shipped import (
    EIGHT_VOCABULARY,
    ENGLISH_VOCABULARY,
    TEXTS,
    shipped_file,
)
from tools.make_cldr_files import english_sentences, vocabulary


@pytest.mark.exhaustive
@pytest.mark.parametrize("split", ["train", "test"])
def test_texts_are_as_made(split):
    text = "".join(f"{sentence}\n" for sentence in english_sentences(split))
    assert Path(shipped_file(TEXTS[split])).read_text(encoding="utf-8") == text


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [ENGLISH_VOCABULARY, EIGHT_VOCABULARY])
def test_vocabularies_are_as_made(name):
    made, shipped = (
        sentencepiece.SentencePieceProcessor(model_proto=model)
        for model in (vocabulary(name), Path(shipped_file(name)).read_bytes())
    )
    pieces = [
        {processor.id_to_piece(i) for i in range(processor.get_piece_size())}
        for processor in (made, shipped)
    ]
    # Processors that round logarithms differently may choose another few.
    assert len(pieces[0] ^ pieces[1]) <= 0.02 * len(pieces[0])
