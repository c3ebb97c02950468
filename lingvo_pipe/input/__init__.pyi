from .images.image_input import ImageClassificationInput
from .text.language_model_input import LanguageModelInput
from .text.text_file_pairs import ParallelFiles, TsvFile
from .text.tfds_pairs import TfdsPairs
from .text.translation_input import TranslationInput
