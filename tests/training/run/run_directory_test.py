"""Run directories are created, found again, locked, and rejected if others'."""

import errno
import multiprocessing
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from lingvo_pipe.core.errors import UserDamageError, UserValueError
from lingvo_pipe.training.eval.run_weights import open_run
from lingvo_pipe.training.run.run_directory import RunDirectory
from tests.support.errors import fails
from tests.training.lock_holder import hold_lock

LONG_NAME, LONG_PATH = "x" * 300, "/".join(["x" * 200] * 25)
NO_DIRECTORY = os.strerror(errno.ENOTDIR)
PARAMS = "# a comment of the model's\nname : 'x'\ntrain.max_steps : 3\n"


def test_params_are_read_back(tmp_path):
    run = RunDirectory(tmp_path / "a" / "b", "image.digits.X")
    assert run.read_params() is None
    run.write_params(PARAMS)
    again = RunDirectory(tmp_path / "a" / "b", "image.digits.X")
    assert again.read_params() == PARAMS
    again.write_params("name : 'y'\n")
    assert again.read_params() == "name : 'y'\n"
    assert [path.name for path in again.path.iterdir()] == ["params.txt"]


@pytest.mark.parametrize("logdir", ["new", "new/below", "."])
def test_a_directory_is_created_with_its_params(tmp_path, monkeypatch, logdir):
    """A run that cannot start leaves nothing; relative paths start here."""
    monkeypatch.chdir(tmp_path)
    run = RunDirectory(logdir, "image.digits.X")
    assert run.read_params() is None
    assert not list(tmp_path.iterdir())
    run.write_params(PARAMS)
    assert RunDirectory(tmp_path / logdir, "image.digits.X").read_params() == PARAMS


def test_a_run_killed_while_writing_params_can_start_again(tmp_path):
    (tmp_path / ".params.txt.incomplete").write_text("# mod")
    run = RunDirectory(tmp_path, "image.digits.X")
    assert run.read_params() is None
    run.write_params(PARAMS)
    assert run.read_params() == PARAMS


def a_file(tmp_path):
    (tmp_path / "run").write_text("")


def a_dangling_link(tmp_path):
    (tmp_path / "run").symlink_to(tmp_path / "file" / "below")
    (tmp_path / "file").write_text("")


def somebody_elses(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("")


def another_models(tmp_path):
    RunDirectory(tmp_path / "run", "image.digits.Y").write_params(PARAMS)


def another_programs(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "params.txt").write_text("name : 'x'\n")


def a_run_without_params(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)


@pytest.mark.parametrize(
    ("prepare", "got"),
    [
        (a_file, rf"/run \({NO_DIRECTORY}\)"),
        (a_dangling_link, rf"/run \({NO_DIRECTORY}\)"),
        (somebody_elses, r"/run, which has files but no params\.txt"),
        (another_models, r"/run, one of image\.digits\.Y"),
    ],
)
def test_other_paths_are_rejected_untouched(tmp_path, prepare, got):
    prepare(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with fails(path="--logdir") as info:
        RunDirectory(tmp_path / "run", "image.digits.X")
    assert re.search(got, info.value.got)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("prepare", [another_programs, a_run_without_params])
def test_a_run_without_its_name_is_damaged(tmp_path, prepare):
    prepare(tmp_path)
    with fails(UserDamageError, path=str(tmp_path / "run" / "params.txt")):
        RunDirectory(tmp_path / "run", "image.digits.X")


@pytest.mark.parametrize(
    "logdir", ["/proc/run", "/proc/runs/run", "file/run", LONG_NAME, LONG_PATH]
)
def test_a_directory_that_cannot_be_created_is_rejected(tmp_path, logdir):
    (tmp_path / "file").write_text("")
    with fails(path="--logdir") as info:
        RunDirectory(tmp_path / logdir, "image.digits.X")
    assert info.value.got.startswith(f"{tmp_path / logdir} (")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_an_error_of_damaged_params_names_their_file(tmp_path):
    """Once the error named the line only, as if it came from the command line."""
    run = RunDirectory(tmp_path, "image.digits.X")
    run.write_params(PARAMS + "bogus\n")
    with fails(UserDamageError, path=f"{tmp_path}/params.txt") as info:
        run.read_params()
    assert info.value.got == "bogus"


def test_a_lock_is_held_until_its_process_is_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    holder = context.Process(target=hold_lock, args=(tmp_path, there))
    holder.start()
    try:
        number = here.recv()
        with fails(path=str(tmp_path)) as info:
            RunDirectory(tmp_path, "toy.Toy").lock()
        assert f"process {number} " in info.value.got
    finally:
        holder.kill()
        holder.join()
    lock = RunDirectory(tmp_path, "toy.Toy")
    lock.lock()
    assert f"process {os.getpid()} " in (tmp_path / "lock").read_text()
    lock.unlock()


def test_a_lock_that_is_a_hard_link_is_not_written_to(tmp_path: Path) -> None:
    """The file that it links to was emptied."""
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("content")
    (tmp_path / "run" / "lock").hardlink_to(tmp_path / "precious")
    lock = RunDirectory(tmp_path / "run", "toy.Toy")
    lock.lock()
    assert (tmp_path / "precious").read_text() == "content"
    lock.unlock()


def test_a_lock_may_be_taken_twice_and_again(tmp_path: Path) -> None:
    lock, other = RunDirectory(tmp_path, "toy.Toy"), RunDirectory(tmp_path, "toy.Toy")
    lock.lock()
    lock.lock()
    with fails(path=str(tmp_path)):
        other.lock()
    lock.unlock()
    lock.unlock()
    other.lock()
    other.unlock()


def test_a_directory_with_nothing_but_a_lock_is_new(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", "toy.Toy")
    directory.lock()  # As if killed before it wrote the params.
    directory.unlock()
    again = RunDirectory(tmp_path / "run", "toy.Toy")
    again.lock()
    again.unlock()


def _belonging_to_another(path: Path) -> None:
    try:
        os.chown(path, 12345, -1)
    except OSError as error:  # A user who is not root, or a sandbox.
        pytest.skip(str(error))


def _leading_elsewhere(path: Path) -> None:
    """Moves a file away, and puts a link there."""
    elsewhere = path.parent.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


FOREIGN = [_belonging_to_another, _leading_elsewhere]


@pytest.mark.parametrize("name", ["params.txt", "checkpoints", "below/file"])
@pytest.mark.parametrize("make", FOREIGN)
def test_files_of_others_are_refused_unless_allowed(tmp_path, make, name):
    run = RunDirectory(tmp_path / "run", "image.digits.X")
    run.write_params(PARAMS)
    run.checkpoints_path.mkdir()
    (run.path / "below").mkdir()
    (run.path / "below" / "file").touch()
    make(run.path / name)
    with fails(path="--logdir") as info:
        RunDirectory(run.path, "image.digits.X")
    assert info.value.got.startswith(f"{run.path / name}, ")
    if name == "params.txt" and (run.path / name).is_symlink():
        with pytest.raises(UserValueError, match=rf"^{run.path / name}:"):
            RunDirectory(run.path, "image.digits.X", allow_foreign=True)
    else:
        RunDirectory(run.path, "image.digits.X", allow_foreign=True)


def test_an_attackers_directory_overwrites_no_file(tmp_path):
    """Once one that held only a lock was taken as new, and its links were followed."""
    victim = tmp_path / "victim"
    victim.write_text("years of work")
    (tmp_path / "run").mkdir()
    for name in ("lock", ".params.txt.incomplete"):
        (tmp_path / "run" / name).symlink_to(victim)
    _belonging_to_another(tmp_path / "run")
    got = f"{tmp_path}/run, which belongs to another user (12345)"
    with fails(path="--logdir", got=got):
        RunDirectory(tmp_path / "run", "image.digits.X")
    run = RunDirectory(tmp_path / "run", "image.digits.X", allow_foreign=True)
    with pytest.raises(UserValueError, match=rf"^{tmp_path}/run/lock:"):
        run.lock()
    run.write_params(PARAMS)
    assert victim.read_text() == "years of work"


def test_a_link_to_a_directory_of_ones_own_is_followed(tmp_path):
    (tmp_path / "large").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "large")
    RunDirectory(tmp_path / "run", "image.digits.X").write_params(PARAMS)
    assert (tmp_path / "large" / "params.txt").exists()


@pytest.mark.parametrize("name", ["lr=[0.1]", "a?", "a*", r"a\b"])
def test_a_path_that_tensorflow_takes_for_a_pattern_is_refused(tmp_path, name):
    """Once such a run trained, and none of its checkpoints could be read."""
    with fails(path="--logdir", got=str(tmp_path / name)):
        RunDirectory(tmp_path / name, "image.digits.X")


def test_a_run_is_read_where_nothing_can_be_written(tmp_path, monkeypatch):
    RunDirectory(tmp_path, "image.digits.X").write_params(PARAMS)

    def refuse(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert open_run(tmp_path, "image.digits.X").read_params() == PARAMS
    with fails(path="--logdir"):
        open_run(tmp_path, "image.digits.X", writes=True)


def test_a_url_is_refused_and_makes_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with fails(path="--logdir", got="gs://runs/a"):
        RunDirectory("gs://runs/a", "image.digits.X")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("replace", [False, True])
def test_a_directory_that_is_gone_is_noticed(tmp_path, replace):
    run = RunDirectory(tmp_path / "run", "image.digits.X")
    run.lock()
    run.check_present()
    shutil.rmtree(run.path)
    if replace:
        other = RunDirectory(tmp_path / "run", "image.digits.X")
        other.lock()
    with pytest.raises(UserValueError, match=rf"^{run.path}:"):
        run.check_present()
