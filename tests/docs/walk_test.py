"""The pages' paths from pip and one's own data to a model that others can use."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo

from tests.docs.pages import SOURCE_ROOT, page, python_blocks

WORDS = {
    "open": "ouvrir",
    "close": "fermer",
    "read": "lire",
    "write": "écrire",
    "file": "fichier",
    "folder": "dossier",
    "user": "nom",
    "disk": "disque",
    "old": "vieux",
    "new": "neuf",
    "first": "premier",
    "last": "dernier",
}
# Stands before what is to run without this project.
_WITHOUT_PROJECT = """
import sys
for name in ("lingvo_pipe", "model_registry", "params"):
    sys.modules[name] = None  # Makes an import fail.
"""


class Install:
    """The package, installed by pip into a folder, and the commands of pages."""

    def __init__(self, folder: Path):
        source, self._target, self.users = (folder / x for x in ("src", "pip", "users"))
        self.users.mkdir()
        source.mkdir()
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(SOURCE_ROOT / name, source)
        for name in ("lingvo_pipe", "model_registry", "params"):
            shutil.copytree(SOURCE_ROOT / name, source / name)
        pip = "-m pip install --no-deps --no-build-isolation --no-index --quiet"
        command = [
            sys.executable,
            *pip.split(),
            "--target",
            str(self._target),
            str(source),
        ]
        subprocess.run(command, check=True, cwd=folder)
        shutil.rmtree(source)

    def run(self, command: str) -> str:
        """Returns the output of a page's command, by the installed programs."""
        command = re.sub(r"^python ", f"{sys.executable} ", command)
        path = f"{self._target / 'bin'}{os.pathsep}{os.environ['PATH']}"
        environment = {"PYTHONPATH": str(self._target), "PATH": path}
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
        program = subprocess.run(
            command,
            shell=True,
            cwd=self.users,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert program.returncode == 0, f"{command}\n{program.stdout}{program.stderr}"
        return program.stdout

    def run_code(self, code: str) -> str:
        """Returns the last line that Python code on a page prints, if any."""
        (self.users / "of_page.py").write_text(code)
        return self.run("python of_page.py").strip().rpartition("\n")[2]

    def write_models(self, text: str) -> None:
        (self.users / "my_models").mkdir(exist_ok=True)
        for path, code in python_blocks(text):
            if path:
                (self.users / path).write_text(code)


def without_project(code: str, folder: Path) -> str:
    """Returns the last line that code prints where this project is not installed."""
    return subprocess.run(
        [sys.executable, "-I", "-c", _WITHOUT_PROJECT + code],
        check=True,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.splitlines()[-1]


def commands(text: str) -> list[str]:
    """Returns the commands on a page."""
    found = re.findall(r"^    ((?:python|lingvo_pipe).*?(?:\\\n.*)*)$", text, re.M)
    return [command for command in found if "..." not in command]


def write_catalogs(folder: Path) -> list[str]:
    """Writes catalogs of messages in French; returns the messages."""
    sampled = random.Random(1)
    messages = {
        " ".join(sampled.choices(list(WORDS), k=sampled.randint(5, 8)))
        for _ in range(400)
    }
    catalog = Catalog(locale="fr")
    for message in sorted(messages):
        catalog.add(message, " ".join(WORDS[word] for word in message.split()))
    catalog.add("some old files here", "de vieux fichiers ici", context="menu")
    catalog.add(("%d new file here", "%d new files here"), ("%d neuf ici", "%d neufs"))
    for source, target in (
        ("too short", "court"),
        ("it is the same", "it is the same"),
        ("one line\nand another one", "une ligne\net une autre"),
        ("not translated at all", ""),
    ):
        catalog.add(source, target)
    (folder / "fr/LC_MESSAGES").mkdir(parents=True)
    with (folder / "fr/LC_MESSAGES/program.mo").open("wb") as file:
        write_mo(file, catalog)
    return [*messages, "some old files here", "%d new file here"]


def text_page(folder: Path) -> str:
    """Returns the page on text, with files in a folder, and small numbers."""
    text = page("text").replace("/tmp/", f"{folder}/")
    text = text.replace("/usr/share/locale", f"{folder}/locale")
    for old, new in (("_SIZE = 4000", "_SIZE = 50"), ("_size=4000", "_size=50")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    assert text.count("MAX_STEPS = 2000") == 1
    text = text.replace("MAX_STEPS = 2000", "MAX_STEPS = 20")
    return text.replace("export/2000", "export/20")


def test_catalogs_become_sentences_held_out_by_more_than_a_word(tmp_path: Path) -> None:
    messages = write_catalogs(tmp_path / "locale")
    _, code = python_blocks(text_page(tmp_path))[0]
    arguments = ["-c", code, "fr", str(tmp_path / "out")]
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE)
    lines = {
        path.name: path.read_text().splitlines()
        for path in (tmp_path / "out").iterdir()
    }
    train, test = lines["train.en"], lines["test.en"]
    assert len(test) > 3
    assert len({*train, *test}) == len(train) + len(test)
    assert {*train, *test} <= {*messages}
    assert len(train) > 0.9 * len(messages)
    of = dict(zip(train + test, lines["train.fr"] + lines["test.fr"], strict=True))
    assert of.pop("some old files here", "de vieux fichiers ici").startswith("de vieux")
    assert of.pop("%d new file here", "%d neuf ici") == "%d neuf ici"
    assert all(v == " ".join(WORDS[w] for w in k.split()) for k, v in of.items())
    for held_out, known in itertools.product(test, train):
        assert edits(held_out.split(), known.split()) > 1


def edits(a: list[str], b: list[str]) -> int:
    """Returns the words to insert, remove or replace, to make `b` of `a`."""
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            last, row[j] = (
                row[j],
                min(row[j] + 1, row[j - 1] + 1, last + (word != other)),
            )
    return row[-1]


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Install:
    return Install(tmp_path_factory.mktemp("install"))


@pytest.mark.exhaustive
def test_from_a_folder_of_images_to_the_class_of_a_file(
    install: Install, tmp_path: Path
) -> None:
    text = page("images").replace("/tmp/", f"{tmp_path}/")
    text = text.replace(f"{tmp_path}/digits", f"{tmp_path}/photos")
    (_, write), (_, _), (_, classify), (_, serve) = python_blocks(text)
    install.write_models(text)
    install.run_code(write)
    assert "1,438" in install.run(*(x for x in commands(text) if "--check" in x))
    train, export = (x for x in commands(text) if "my_models.photos" in x)
    install.run(f"{train} --devices=1 --max_steps=100")
    # Elsewhere: in another folder, on other devices.
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    moved = [
        x.replace(f"{tmp_path}/photos", f"{tmp_path}/elsewhere")
        for x in (train, export)
    ]
    output = install.run(f"{moved[0]} --devices=2")
    assert re.search(r"(?m)^Resumed\b.*\b100\b", output)
    accuracy = re.search(r"step 200: test accuracy (\S+),", output)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.85
    install.run(moved[1])
    sevens = sorted((tmp_path / "data/my_digits/test/7").iterdir())
    served = []
    for seven in sevens[:3]:
        code = serve.replace("seven.png", str(seven)).replace("photos/", "elsewhere/")
        served.append(without_project(code, tmp_path))
    assert served.count("7") >= 2
    code = classify.replace("seven.png", str(sevens[0]))
    code = code.replace('photos"', 'elsewhere", model="my_models.photos.Photos"')
    assert install.run_code(code).split()[0] == served[0]


@pytest.mark.exhaustive
def test_from_two_files_of_text_to_a_translated_sentence(
    install: Install, tmp_path: Path
) -> None:
    write_catalogs(tmp_path / "locale")
    text = text_page(tmp_path)
    *_, (_, load), (_, serve) = python_blocks(text)
    install.write_models(text)
    make, vocabulary, train, decode, of_file, export = (
        x for x in commands(text) if "my_models" in x or "catalogs" in x
    )
    assert "pairs to train on" in install.run(make)
    install.run(vocabulary)
    install.run(train)
    assert "BLEU" in install.run(decode)
    (tmp_path / "letter.en").write_text("cannot open the file\nunknown option\n")
    install.run(of_file)
    install.run(export)
    shutil.move(tmp_path / "en-fr/export/20", tmp_path / "model")
    served = without_project(
        serve.replace(f"{tmp_path}/en-fr/export/20", f"{tmp_path}/model"), tmp_path
    )
    assert served == install.run_code(load)
    assert served == str((tmp_path / "letter.fr").read_text().splitlines())


@pytest.mark.exhaustive
def test_from_a_text_to_its_continuation(install: Install, tmp_path: Path) -> None:
    sampled = random.Random(1)
    for split in ("train", "test"):
        lines = [" ".join(sampled.choices(list(WORDS), k=6)) for _ in range(400)]
        (tmp_path / "novel").mkdir(exist_ok=True)
        (tmp_path / f"novel/{split}.txt").write_text("\n\n".join(lines))
    prompt = " ".join(list(WORDS)[:3])
    text = page("language_models").replace("/tmp/", f"{tmp_path}/")
    text = text.replace("The old man", prompt)
    for old, new in ((" 4000", " 30"), ("=4000", "=30"), ("2000", "20")):
        assert old in text
        text = text.replace(old, new)
    (_, load), (_, serve) = python_blocks(text)[1:]
    install.write_models(text)
    vocabulary, train, of_file, export = (x for x in commands(text) if "novel" in x)
    install.run(vocabulary)
    install.run(train)
    (tmp_path / "prompts.txt").write_text(f"\n{prompt}\n")
    install.run(of_file)
    install.run(export)
    shutil.move(tmp_path / "novel-run/export/20", tmp_path / "model")
    serve = serve.replace(f"{tmp_path}/novel-run/export/20", f"{tmp_path}/model")
    *_, continued = (tmp_path / "texts.txt").read_text().splitlines()
    assert continued.startswith(f"{prompt} ")
    assert continued == without_project(serve, tmp_path) == install.run_code(load)
