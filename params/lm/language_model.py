"""Base class of registered language models."""

from collections.abc import Sequence

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.text.language_model_input import LanguageModelInput
from lingvo_pipe.input.text.text_files import LINES
from lingvo_pipe.models.transformer.language_model_task import LanguageModelTask
from lingvo_pipe.models.transformer.network import language_model
from params.transformer_model import TransformerModel


class LanguageModel(TransformerModel):
    """A Transformer that predicts each next token."""

    TASK = LanguageModelTask
    STREAMS = ("target",)

    TRAIN_FILES: Sequence[str]
    TEST_FILES: Sequence[str]
    DOCUMENTS = LINES

    def _Input(self, split: str) -> InstantiableParams:
        files = self.TRAIN_FILES if split == "train" else self.TEST_FILES
        return LanguageModelInput.Params().Set(
            # The input refuses any other type, such as a file name.
            files=list(files) if isinstance(files, tuple) else files,
            documents=self.DOCUMENTS,
            vocab_file=self.VOCAB_FILE,
            vocab_size=self.VOCAB_SIZE,
            batch_size=self.BATCH_SIZE,
            length=self.LENGTH,
        )

    def _Cells(self) -> list[InstantiableParams]:
        return self._Network(language_model)
