"""Paths of the vocabularies and texts that `python -m tools.make_cldr_files` makes."""

from importlib import resources

# Vocabularies of English, of English and EIGHT, and of English and all LANGUAGES. The
# last two have a token for each of their languages.
ENGLISH_VOCABULARY = "english.vocab"
EIGHT_VOCABULARY = "eight.vocab"
ALL_VOCABULARY = "all.vocab"
# Tokens in each vocabulary.
VOCABULARY_SIZES = {
    ENGLISH_VOCABULARY: 1_000,
    EIGHT_VOCABULARY: 4_000,
    ALL_VOCABULARY: 16_000,
}

# English sentences, one a line, for language models.
TEXTS = {"train": "english.train.txt", "test": "english.test.txt"}


def shipped_file(name: str) -> str:
    """Returns the path of an included file, given by one of the names above."""
    return str(resources.files("lingvo_pipe.input.cldr") / "data" / name)
