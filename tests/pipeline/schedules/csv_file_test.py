import re
from pathlib import Path

import pytest

from lingvo_pipe.pipeline.schedules.csv_file import (
    format_csv,
    parse_csv,
    read_csv,
    write_csv,
)
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from tests.pipeline.schedules.every_schedule import every_schedule
from tests.support.errors import fails

F, R, B, W, *_ = Kind
TWO_DEVICES = Schedule(
    2,
    1,
    (
        (Op(F, 0, 0), Op(R, 0, 0), Op(B, 0, 0), Op(W, 0, 0)),
        (Op(F, 0, 1), Op(B, 0, 1), Op(W, 0, 1)),
    ),
)


def test_round_trip_through_text() -> None:
    for name, schedule in every_schedule():
        assert parse_csv(format_csv(schedule)) == schedule, name


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    write_csv(TWO_DEVICES, tmp_path / "two.csv")
    assert read_csv(tmp_path / "two.csv") == TWO_DEVICES


@pytest.mark.parametrize(
    "text",
    [
        "F0.0,R0.0,B0.0,W0.0\nF0.1,B0.1,W0.1\n",
        "F0.0,,R0.0, ,B0.0,W0.0\r\n,F0.1,B0.1,W0.1,,\r\n,,,,\r\n",
        "F0.0;R0.0;B0.0;W0.0;\n\n;F0.1;B0.1;W0.1",
        '"F0.0"\t"R0.0"\tB0.0\tW0.0\n""\tF0.1\tB0.1\tW0.1',
    ],
    ids=["plain", "laid_out", "semicolons", "tabs"],
)
def test_files_of_spreadsheets_are_read(text: str, tmp_path: Path) -> None:
    assert parse_csv(text) == TWO_DEVICES
    file = tmp_path / "marked.csv"
    file.write_text(text, encoding="utf-8-sig", newline="")
    assert read_csv(file) == TWO_DEVICES


def test_every_cell_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("F0.0,F1\n\n,X0.1,F0.1,f0.0,F-1.0\n")
    with fails(path=str(file)) as error:
        read_csv(file)
    text = str(error.value)
    assert re.search(r"line 1, cell 2: 'F1'.*'F0\.1'", text)
    assert re.search(r"line 3, cell 2: 'X0\.1'.*'X'.* F \(.* W \(", text)
    assert "line 3, cell 4: 'f0.0'" in text
    assert "line 3, cell 5: 'F-1.0'" in text
    assert "cell 1:" not in text
    assert "cell 3:" not in text


def test_many_problems_are_counted() -> None:
    with pytest.raises(ValueError, match=r"\bcell 10: .*\b15\b\D*$") as error:
        parse_csv(",".join(["?"] * 25))
    assert "cell 11" not in str(error.value)


@pytest.mark.parametrize("text", ["", ",,\n , "])
def test_nothing_is_no_schedule(text: str) -> None:
    with fails(got="none"):
        parse_csv(text)


def test_bytes_that_are_no_text_are_no_schedule(tmp_path: Path) -> None:
    file = tmp_path / "bytes.csv"
    file.write_bytes(b"\xff\xfe\x00")
    with fails(path=str(file)):
        read_csv(file)
