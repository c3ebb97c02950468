from .images.image_input import ImageClassificationInput as ImageClassificationInput
from .text.language_model_input import LanguageModelInput as LanguageModelInput
from .text.text_file_pairs import ParallelFiles as ParallelFiles, TsvFile as TsvFile
from .text.tfds_pairs import TfdsPairs as TfdsPairs
from .text.translation_input import TranslationInput as TranslationInput
