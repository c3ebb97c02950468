r"""Translation with the data of the WMT evaluations, from TensorFlow Datasets.

`TransformerBig` needs a vocabulary of 32,000 tokens in `--data_dir`:

    lingvo_pipe_train_vocab --output=/data/wmt14_de_en.vocab \
        --vocab_size=32000 --languages=de,en --dataset=wmt14_translate/de-en
"""

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.text.tfds_pairs import TfdsPairs
from params.mt.translation_model import BigTransformer


@model_registry.RegisterSingleTaskModel
class TransformerBig(BigTransformer):
    """From German to English: 375.1 million parameters.

    GPipe's study of batches (1811.06965, table 5 of version 5) trained such a model on
    260 thousand, one million and four million tokens a step; this is the first.
    """

    VOCAB_FILE = "wmt14_de_en.vocab"
    VOCAB_SIZE = 32_000
    BATCH_SIZE = 1024
    NUM_MICRO_BATCHES = 32

    def _Data(self, split: str) -> list[InstantiableParams]:
        data = TfdsPairs.Params().Set(dataset="wmt14_translate/de-en", split=split)
        return [data.Set(pairs=[("de", "en")])]
