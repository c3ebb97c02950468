"""The page about a run is well-formed, escaped and complete."""

import base64
import errno
import fcntl
import json
import math
import os
import re
from html.parser import HTMLParser

import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.training.report.curves import COLORS
from lingvo_pipe.training.report.html_report import report_end, write_report
from lingvo_pipe.training.run.metrics_log import MetricsLog
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.run.run_parts import RunPart
from lingvo_pipe.training.stability.skipped_batches import SkippedBatches
from tests.support.errors import fails
from tests.training.toy_run import STEPS, Input, batch, make_task, run

MODEL = "toy.Toy"
EVIL = "<script>alert('&amp;\"')</script>"
VOID = {"img", "meta", "!doctype"}


class Page(HTMLParser):
    """A parsed page; parsing fails unless it is well-formed."""

    def __init__(self, text):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def started(tmp_path, params="task.train.max_steps : 50\n"):
    directory = RunDirectory(tmp_path, MODEL)
    directory.write_params(params)
    return directory


def report(directory):
    path = write_report(directory)
    assert path == directory.path / "report.html"
    return Page(path.read_text(encoding="utf-8"))


def has_text(page, pattern):
    """Returns whether one of a page's texts matches a pattern."""
    return any(re.search(pattern, text) for text in page.texts)


def curves(page):
    """Returns the descriptions of the drawings by metric."""
    labels = [a["alt"] for a in page.all("img") if " by step" in a["alt"]]
    return {label.split(" by step")[0]: label for label in labels}


def drawing(page):
    """Returns the SVG of the page's only metric."""
    (image,) = page.all("img")
    data = image["src"].removeprefix("data:image/svg+xml;base64,")
    return base64.b64decode(data).decode()


def png(height=2):
    return tf.io.encode_png(tf.zeros([height, 3, 3], tf.uint8)).numpy()


@pytest.fixture(name="logged", scope="module")
def _logged():
    """The lines that the run of `trained` shows."""
    return []


@pytest.fixture(scope="module")
def trained(tmp_path_factory, logged):
    """Returns the report written at the end of a run."""
    logdir = tmp_path_factory.mktemp("run") / "toy"
    p = make_task(2, report_interval_steps=1).params.Copy().Set(label_smoothing=0.1)
    data = Input(*map(batch, range(STEPS)))
    run(p.Instantiate(), data, logdir, logged.append)
    return Page((logdir / "report.html").read_text(encoding="utf-8"))


def test_a_run_ends_with_its_report(trained):
    assert MODEL in trained.texts
    assert f"{STEPS} steps" in trained.texts
    assert f"Steps 1 to {STEPS}" in trained.texts
    assert has_text(
        trained,
        r"^\S+ \S+ \S+; parameters: 32; stages: 2 \(cpu:0, cpu:1\); micro-batches: 2; "
        r"bubble 3\d\.\d% .*; stages .*% busy .*; time 0:\d\d:\d\d; "
        r"[\d,.]+ examples/s$",
    )
    metrics = {"loss", "accuracy", "learning_rate", "gradient_norm"}
    assert set(curves(trained)) == metrics
    assert re.search(
        r"train from .* at step 1 to .* at step 3; test ", curves(trained)["loss"]
    )
    for software, version in (("tensorflow", tf.__version__), ("lingvo_pipe", None)):
        assert software in trained.texts
        assert version is None or version in trained.texts


def test_the_report_and_the_output_agree(trained, logged):
    """On the speed, and on what only the train loss includes."""
    (speed,) = {x for y in logged for x in re.findall(r"[\d,.]+ examples/s", y)}
    assert has_text(trained, rf"; {re.escape(speed)}$")
    (difference,) = [x for x in logged if "label smoothing" in x]
    assert difference in trained.texts


def test_the_report_names_what_disturbed_the_run(tmp_path):
    directory = started(tmp_path)
    part = RunPart(0, "", last_step=3, cause="worker:1 is gone.")
    part.write(directory.parts_path)
    page = report(directory)
    row = page.texts.index("Disturbed")
    assert "after step 0: worker:1 is gone." in page.texts[row:]


def test_each_metric_has_a_curve_for_each_split(tmp_path):
    directory = started(tmp_path)
    with MetricsLog(tmp_path) as log:
        for step in range(10, 60, 10):
            log.write(step, "train", {"loss": 5 / step, "a/b": step, "weird name": 1})
        log.write(50, "test", {"loss": 0.5})
    with MetricsLog(directory.evaler_path) as log:
        log.write(50, "dev", {"loss": 0.25, "only here": 3})
    page = report(directory)
    assert set(curves(page)) == {"loss", "a/b", "weird name", "only here"}
    assert "train from 0.5 at step 10 to 0.1 at step 50" in curves(page)["loss"]
    assert "; test 0.5 at step 50; dev, evaler 0.25 at step 50." in curves(page)["loss"]
    assert "50 of 50 steps" in page.texts
    # The best of a falling loss is the last; other metrics have no known direction.
    rows = [text for text in page.texts if text in ("0.1", "50")]
    assert rows.count("0.1") >= 2


def test_what_was_written_of_a_replaced_run_are_no_steps(tmp_path):
    directory = started(tmp_path)
    for path, step in ((tmp_path, 20), (directory.evaler_path, 539)):
        with MetricsLog(path) as log:
            log.write(step, "test", {"loss": 0.5})
    assert "20 of 50 steps" in report(directory).texts


def test_a_page_is_written_where_nothing_can_be_locked(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert MODEL in report(started(tmp_path)).texts


def test_values_that_are_not_finite_are_noted(tmp_path):
    directory = started(tmp_path)
    with MetricsLog(tmp_path) as log:
        for step, loss in ((1, 2.0), (2, math.nan), (3, math.inf), (4, 1.0)):
            log.write(step, "train", {"loss": loss, "all_wrong": math.nan})
    page = report(directory)
    assert has_text(page, r"^train: 2\b.*\bnan\b.*\b2\.$")
    assert has_text(page, r"^train: 4\b.*\bnan\b.*\b1\.$")
    assert list(curves(page)) == ["loss"]
    assert "nan" not in drawing(page)


def test_one_report_is_a_visible_point(tmp_path):
    directory = started(tmp_path)
    with MetricsLog(tmp_path) as log:
        log.write(0, "test", {"loss": 0.0})
    assert len(re.findall(f"<use[^>]*{COLORS[0]}", drawing(report(directory)))) == 1


def test_many_reports_make_few_points(tmp_path):
    directory = started(tmp_path)
    lines = [{"step": n, "split": "train", "loss": n % 7} for n in range(5000)]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text)
    page = report(directory)
    assert len(re.findall(f"<use[^>]*{COLORS[0]}", drawing(page))) <= 201
    assert has_text(page, r"\bmean\b.*\b25\b")


@pytest.mark.parametrize("params", ["", "task.train.max_steps : None\n"])
def test_an_empty_run_has_a_page(tmp_path, params):
    page = report(started(tmp_path, params))
    assert has_text(page, "^Nothing")
    assert "0 steps" in page.texts


def test_contents_of_files_are_escaped(tmp_path):
    directory = RunDirectory(tmp_path, EVIL)
    directory.write_params(f"task.name : {EVIL!r}\ntask.train.max_steps : 5\n")
    line = {"step": 1, "split": EVIL, EVIL: 1.0}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(line)}\n")
    directory.best_path.write_text(json.dumps({"step": 1, EVIL: 1.0}))
    with MetricsLog(tmp_path) as log:
        log.write_images(1, "test", {EVIL: png()})
    directory.profile_path.mkdir()
    (directory.profile_path / "step-3.png").write_bytes(png())
    (directory.profile_path / "step-3.txt").write_text(
        f"t\n{EVIL}\n\na b\n{EVIL}  1  2"
    )
    page = report(directory)
    assert page.all("script") == []
    assert sum(EVIL in text for text in page.texts) >= 8
    assert all(EVIL in image["alt"] for image in page.all("img")[:2])


def test_images_are_embedded(tmp_path):
    directory = started(tmp_path)
    with MetricsLog(tmp_path) as log:
        log.write_images(10, "test", {"confusion": png(4)})
        log.write_images(20, "test", {"confusion": png(5)})
    directory.profile_path.mkdir()
    table = "        predicted  measured  difference\nstep  1.0 ms  2.0 ms  +100%"
    for step in (7, 20):
        (directory.profile_path / f"step-{step}.png").write_bytes(png())
        text = f"Step {step}: predicted, and measured.\nA note.\n\n{table}\n\nmean\n"
        (directory.profile_path / f"step-{step}.txt").write_text(text)
    page = report(directory)
    assert "confusion, step 20" in page.texts
    assert "confusion, step 10" not in page.texts
    assert sum("A note." in text and table in text for text in page.texts) == 2
    assert [a.get("open") for a in page.all("details")] == ["", None, None]
    images = page.all("img")
    assert len(images) == 3
    assert all(a["src"].startswith("data:image/png;base64,") for a in images)
    assert all(a["alt"] for a in images)
    # The page needs no network.
    references = [a.get(k) for _, a in page.tags for k in ("src", "href", "data")]
    assert all(r is None or r.startswith("data:") for r in references)


def test_the_last_translations_have_their_scores(tmp_path):
    directory = started(tmp_path)
    directory.decoder_path.mkdir()
    for step, bleu in ((5, 1.0), (12, 88.678)):
        scores = {"bleu": bleu, "chrf": 2.0}
        document = {
            "step": step,
            "split": "test",
            "mean": scores,
            "languages": [{"languages": "de-en", "num_sentences": 2500, **scores}],
            "source_copied": {"bleu": 3.125, "chrf": 4.0},
        }
        path = directory.decoder_path / f"test-{step:08d}.json"
        lines = [
            json.dumps({"source": f"s{n}", "reference": f"<r{n}>", "hypothesis": EVIL})
            for n in range(25)
        ]
        path.with_suffix(".jsonl").write_text("\n".join(lines))
        path.write_text(json.dumps(document))
        with MetricsLog(directory.decoder_path) as log:
            log.write(step, "test", {**scores, "bleu/de-en": bleu})
    page = report(directory)
    assert has_text(page, r"^Translations\b.*\btest\b.*\b12$")
    assert {"de-en", "2,500", "88.68", "mean", "3.12"} <= set(page.texts)
    for row in (["s0", "<r0>", EVIL], ["s18", "<r18>", EVIL]):
        start = page.texts.index(row[0])
        assert page.texts[start : start + 3] == row
    assert not {"s1", "s20"} & set(page.texts)
    assert set(curves(page)) == {"bleu", "chrf"}


def test_checkpoints_are_listed(tmp_path):
    directory = started(tmp_path)
    directory.checkpoints_path.mkdir()
    (tmp_path / "metrics.jsonl").touch()
    for step in (600, 1200):
        for ending in ("index", "data-00000-of-00001"):
            path = directory.checkpoints_path / f"ckpt-{step:08d}.{ending}"
            path.write_bytes(bytes(2**20))
    directory.best_path.write_text('{"step": 600, "accuracy": 0.5}')
    page = report(directory)
    assert "step 600: accuracy 0.5" in page.texts
    assert {"the best, 600", "1,200", "2.0 MiB"} <= set(page.texts)
    assert "1,200 of 50 steps" in page.texts


def test_skipped_batches_are_counted(tmp_path):
    directory = started(tmp_path)
    skipped = SkippedBatches(directory.skipped_batches_path)
    skipped.skip(4, 7)
    skipped.skip(7, 9)
    assert has_text(report(directory), r"^5 batches\b")


def test_missing_metrics_are_named(tmp_path):
    directory = started(tmp_path)
    directory.checkpoints_path.mkdir()
    (tmp_path / "checkpoints/ckpt-00000007.index").write_text("{\n")
    with fails(UserDamageError, path=f"{tmp_path}/metrics.jsonl"):
        write_report(directory)
    assert not directory.report_path.exists()
    # A run that has ended is complete all the same.
    lines: list[str] = []
    report_end(directory, lines.append)
    (line,) = lines
    assert f"{tmp_path}/metrics.jsonl: " in line
    assert f"--mode=report --logdir={tmp_path}" in line


def test_a_truncated_events_file_keeps_earlier_images(tmp_path):
    directory = started(tmp_path)
    with MetricsLog(tmp_path) as log:
        log.write_images(1, "test", {"first": png()})
        log.write_images(2, "test", {"second": png()})
    (events,) = (tmp_path / "test").iterdir()
    events.write_bytes(events.read_bytes()[:-5])
    page = report(directory)
    assert "first, step 1" in page.texts
    assert "second, step 2" not in page.texts
