from .images.image_classifier import ImageClassifier as ImageClassifier
from .keras.keras_task import KerasTask as KerasTask
from .transformer.language_model_task import LanguageModelTask as LanguageModelTask
from .transformer.network import (
    language_model as language_model,
    tied_embeddings as tied_embeddings,
    translation_model as translation_model,
)
from .transformer.translation_task import TranslationTask as TranslationTask
