"""Batches of running text for language models: B rows of T tokens."""

import functools

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.checks import check_counts, is_sequence
from lingvo_pipe.core.near_names import first_names
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.hyperparams.param_rules import SWITCH, Rule, check_params
from lingvo_pipe.input.data_fingerprint import DataFingerprint
from lingvo_pipe.input.text import text_files
from lingvo_pipe.input.text.text_input import TextInput
from lingvo_pipe.input.text.token_rows import column, cut_rows, token_positions
from lingvo_pipe.input.text.token_stream import BatchSpans, TokenStream
from lingvo_pipe.input.tf_data import call_numpy, make_batches, map_plainly
from lingvo_pipe.nested_map import NestedMap

_CHUNK_SIZE = 256
_MAX_NAMED = 3
_INTEGERS = ("ids", "labels", "segment_ids", "segment_pos")


class LanguageModelInput(TextInput):
    """Rows of tokens, cut from the concatenated documents of text files.

    A batch is a NestedMap of

    - ids, segment_ids, segment_pos: int32 `[B, T]`.
    - labels: int32 `[B, T]`, one token ahead of the `ids`.
    - weights: float32 `[B, T]`, 1 for a token and 0 for padding.

    The labels of a document are its tokens and the end token. Its `ids` are the begin
    token and its tokens. Documents in a row are segments 1, 2, ..., and no segment
    attends to another. A document longer than the rest of its row continues in another
    row. Batches depend only on the params, the data and the step.

    Raises:
        ValueError: if a param is unset or out of range, or the data cannot be used.
    """

    SIZES = ("batch_size", "length", "vocab_size")

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("files", [], "Names of text files, in UTF-8.")
        p.Define(
            "documents",
            text_files.LINES,
            "lines: each line that is not blank is a document; blank_lines: blank "
            "lines separate documents. A blank line has only ASCII spaces and control "
            "codes.",
        )
        p.Define(
            "data_dir",
            None,
            "Folder of relative file names. If None, the working directory.",
        )
        p.Define("length", None, "T, tokens in a row.")
        p.Define("shuffle", True, "If True, training shuffles documents and rows.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        kinds = (text_files.LINES, text_files.BLANK_LINES)
        rules = {
            "documents": Rule(lambda x: x in kinds, " or ".join(kinds)),
            "files": Rule(
                lambda x: is_sequence(x) and len(x) > 0,
                "a list of names of text files",
            ),
            "shuffle": SWITCH,
        }
        check_params(params, rules)

    @property
    def element_spec(self) -> NestedMap:
        shape = (self.params.batch_size, self.params.length)
        return NestedMap(
            dict.fromkeys(_INTEGERS, tf.TensorSpec(shape, tf.int32)),
            weights=tf.TensorSpec(shape, tf.float32),
        )

    def TrainBatches(self, start_step: int = 0, place: str = "") -> tf.data.Dataset:
        """Returns the endless batches of training, from step `start_step` on.

        Logs a warning if `place`, from `Place`, is from other data.
        """
        check_counts(start_step=start_step, minimum=0)
        self.data_fingerprint.check(place)
        size = self.params.batch_size
        firsts = tf.data.Dataset.counter(start_step * size, size)
        return self._batches(firsts, self._training_stream, None)

    def Place(self, step: int) -> str:
        """Returns a fingerprint of the documents, which is the same at any step."""
        return self.data_fingerprint.text

    def EvalBatches(self) -> tf.data.Dataset:
        """Returns batches with all tokens once, in order. Last rows may be padding."""
        p = self.params
        stream = TokenStream(self._lengths, p.length, None)
        firsts = tf.data.Dataset.range(0, stream.rows_per_epoch, p.batch_size)
        return self._batches(firsts, stream, stream.rows_per_epoch)

    def PromptBatch(self, texts: tf.Tensor) -> NestedMap:
        """Returns the tokens of unfinished documents, string `[B]`, one in each row.

        `ids`, int32 `[B, T]`, start with the begin token. `lengths` are int32 `[B]`.
        """
        tokens, vocabulary = self.vocabulary.Tokenize(texts), self.vocabulary
        ids = tf.concat([column(tokens, vocabulary.bos_id), tokens], 1)
        return NestedMap(
            ids=ids.to_tensor(vocabulary.pad_id),
            lengths=tf.cast(ids.row_lengths(), tf.int32),
        )

    @functools.cached_property
    def _documents(self) -> text_files.Documents:
        p = self.params
        files = [
            text_files.LineFile(text_files.data_path(name, p.data_dir))
            for name in p.files
        ]
        return text_files.Documents(files, p.documents)

    @functools.cached_property
    def _lengths(self) -> np.ndarray:
        """The number of labels of each document: its tokens and the end token."""
        vocabulary, documents = self.vocabulary, self._documents

        def count(numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            tokens = vocabulary.Tokenize(self._fetch(numbers))
            return tokens.row_lengths(), vocabulary.NumUnknown(tokens)

        chunks = tf.data.Dataset.range(len(documents)).batch(_CHUNK_SIZE)
        counts = zip(*map_plainly(chunks, count).as_numpy_iterator(), strict=True)
        num_tokens, num_unknown = map(np.concatenate, counts)
        share = num_unknown.sum() / max(num_tokens.sum(), 1)
        files = first_names([str(name) for name in self.params.files], _MAX_NAMED)
        vocabulary.WarnOfUnknown({files: share})
        return num_tokens + 1

    @functools.cached_property
    def data_fingerprint(self) -> DataFingerprint:
        """A fingerprint of the documents' numbers of tokens."""
        return DataFingerprint(len(self._lengths), [self._lengths])

    @functools.cached_property
    def _training_stream(self) -> TokenStream:
        p = self.params
        seed = p.random_seed if p.shuffle else None
        stream = TokenStream(self._lengths, p.length, seed)
        self._warn_of_repeats(stream.rows_per_epoch)
        return stream

    def _fetch(self, numbers: tf.Tensor) -> tf.Tensor:
        return call_numpy(
            lambda chosen: np.array(self._documents.fetch(chosen), object),
            numbers,
            tf.TensorSpec([None], tf.string),
        )

    def _batches(
        self, firsts: tf.data.Dataset, stream: TokenStream, end: int | None
    ) -> tf.data.Dataset:
        size = self.params.batch_size
        specs = [tf.TensorSpec(shape, tf.int64) for shape in ([None], [size], [size])]

        def spans(row: np.ndarray) -> list[np.ndarray]:
            return list(stream.spans(int(row), size, end))

        def make(first: tf.Tensor) -> NestedMap:
            return self._batch(BatchSpans(*call_numpy(spans, first, specs)))

        return make_batches(firsts, make)

    def _batch(self, batch: BatchSpans) -> NestedMap:
        vocabulary = self.vocabulary
        length, pad_id = self.params.length, vocabulary.pad_id
        tokens = vocabulary.Tokenize(self._fetch(batch.documents))
        ids = tf.concat([column(tokens, vocabulary.bos_id), tokens], 1)
        labels = tf.concat([tokens, column(tokens, vocabulary.eos_id)], 1)
        # Without this check, rows would change silently after a file was edited.
        tf.debugging.assert_equal(
            labels.row_lengths(),
            call_numpy(
                lambda numbers: self._lengths[numbers],
                batch.documents,
                tf.TensorSpec([None], tf.int64),
            ),
            "The data have changed.",
        )

        def rows(values: tf.Tensor, padding: int) -> tf.Tensor:
            return cut_rows(values, batch.starts, batch.sizes, length, padding)

        documents = rows(labels.value_rowids(), -1)
        has_token = documents >= 0
        return NestedMap(
            ids=rows(ids.flat_values, pad_id),
            labels=rows(labels.flat_values, pad_id),
            segment_ids=tf.where(has_token, documents - documents[:, :1] + 1, 0),
            # A document continued from another row restarts at position 0.
            segment_pos=tf.minimum(rows(token_positions(labels), 0), tf.range(length)),
            weights=tf.cast(has_token, tf.float32),
        )
