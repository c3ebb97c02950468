"""The embedded translations as a data set."""

import re
import socket

import pytest
import tensorflow_datasets as tfds

from lingvo_pipe.input.cldr.language import EIGHT, LANGUAGES
from lingvo_pipe.input.cldr.sentences import draw_sentence
from lingvo_pipe.input.embedded.cldr_sentences import CldrSentences, Translations
from lingvo_pipe.input.prepared_dataset import find_builder


def small(name, **options):
    return Translations(
        name=name, description="Small.", num_train=12, num_test=3, **options
    )


@pytest.fixture(params=[True, False], ids=["to English", "from English"])
def builder(request, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the embedded data set must not use the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    config = small("small", languages=("de", "ja"), to_english=request.param)
    builder = CldrSentences(config=config, data_dir=str(tmp_path))
    builder.download_and_prepare(file_format="array_record")
    return builder


def read(builder, split):
    source = builder.as_data_source(split)
    return [
        {name: text.decode() for name, text in source[index].items()}
        for index in range(len(source))
    ]


def test_examples_are_the_sentences(builder):
    for split, size in (("train", 12), ("test", 3)):
        examples = read(builder, split)
        assert len(examples) == 2 * size
        for place, example in enumerate(examples):
            language = ("de", "ja")[place % 2]
            pair = (language, "en")
            if not builder.builder_config.to_english:
                pair = pair[::-1]
            sentence = draw_sentence(language, split, place // 2)
            assert example == {
                "source": sentence.text(pair[0]),
                "target": sentence.text(pair[1]),
                "source_language": pair[0],
                "target_language": pair[1],
            }


def test_its_making_is_announced(builder, capsys, tmp_path):
    # `builder` has made it once, while the test was set up.
    config = builder.builder_config
    again = CldrSentences(config=config, data_dir=str(tmp_path / "again"))
    capsys.readouterr()
    again.download_and_prepare(file_format="array_record")
    output = capsys.readouterr()
    assert re.fullmatch(r".*\b30\b.*\bcldr_sentences/small\b.*\n", output.err)
    assert output.out == ""


def test_tensorflow_datasets_knows_its_configurations(tmp_path):
    assert list(CldrSentences.builder_configs) == [
        "8_to_en",
        "en_to_8",
        "all_to_en",
        "en_to_all",
    ]
    for name, config in CldrSentences.builder_configs.items():
        builder = find_builder(f"cldr_sentences/{name}", str(tmp_path))
        assert builder.builder_config == config
        assert config.languages == (EIGHT if "8" in name else tuple(LANGUAGES))
        assert config.to_english == name.endswith("to_en")
        assert config.num_train >= 10 * config.num_test > 0


def test_tensorflow_datasets_knows_its_licence(builder):
    info = builder.info
    assert info.as_proto.redistribution_info.license == "Unicode License v3"
    assert isinstance(info.features["source"], tfds.features.Text)
