"""What users are told of an error: one line, and the lines of their own code."""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lingvo_pipe.fault_line import OURS, fault_line

# How many lines of their code users are shown: the innermost.
_MOST_FRAMES = 4

# Where code that is neither ours nor the user's lies.
_INSTALLED = ("site-packages", "dist-packages")
_PYTHON = Path(sysconfig.get_path("stdlib")).resolve()

# What TensorFlow puts around the message of an operation that fails.
_AROUND = re.compile(
    r"Graph execution error:\s*"
    r"|Detected at node .* defined at \(most recent call last\):\n"
    r"(?:<stack traces unavailable>\n|[ \t].*\n|\n)*"
    r"|\{\{function_node [^}]*\}\}\s*"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+: "
    r"|\s*\[\[\{\{node [^}]*\}\}\]\]"
    r"|\s*Hint: If you want to see a list of allocated tensors.*"
    r"|\s*\[Op:\w+\](?: name: ?\S*)?"
)

# What stands between the message and the traceback of an error in a Python function
# that TensorFlow called, and a frame of this one.
_CALLED = "\nTraceback (most recent call last):\n"
_FRAME = re.compile(r'^\s*File "(.*)", line (\d+), in (.*)$', re.M)


def error_text(error: Exception) -> str:
    """The text of an error, and below it where the user's own code led to it.

    The text of an error that one of our checks raised says all. That of another begins
    with its kind. One in a Python function that TensorFlow called, such as an input's,
    is told as if it had not passed through TensorFlow.
    """
    line = fault_line(error)
    if line is not None:
        return line + frames_text(traceback.extract_tb(error.__traceback__))
    message, has_called, called = plain_message(str(error)).partition(_CALLED)
    if has_called:
        return " ".join(message.split()) + frames_text(_frames_in(called))
    frames = list(traceback.extract_tb(error.__traceback__))
    if isinstance(error, SyntaxError) and error.filename:  # It is in no frame.
        message = error.msg
        there = (error.filename, error.lineno, "its source")
        frames.append(traceback.FrameSummary(*there))
    return f"{type(error).__name__}: {message}{frames_text(frames)}"


def plain_message(message: str) -> str:
    """An error's message without what TensorFlow puts around an operation's."""
    return _AROUND.sub("", message).strip()


def _frames_in(text: str) -> list[traceback.FrameSummary]:
    """The stack frames of a traceback that was written down."""
    return [
        traceback.FrameSummary(match[1], int(match[2]), match[3])
        for match in _FRAME.finditer(text)
    ]


def frames_text(frames: Iterable[Any]) -> str:
    """The user's own among stack frames, as lines to put below a message.

    They are those within what of ours runs, if there are any, not what calls it.

    Args:
        frames: outermost first; of Python's traceback, or the like of TensorFlow's.
    """
    flat = list(frames)
    first = next((i for i, x in enumerate(flat) if _is_in(x.filename, OURS)), 0)
    within = [frame for frame in flat[first:] if _is_users(frame.filename)]
    own = within or [frame for frame in flat if _is_users(frame.filename)]
    text = ""
    for frame in own[-_MOST_FRAMES:]:
        text += f'\n  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
        code = linecache.getline(frame.filename, frame.lineno).strip()
        text += f"\n    {code}" if code else ""
    return text


def _is_users(filename: str) -> bool:
    is_installed = set(_INSTALLED).intersection(Path(filename).resolve().parts)
    is_frozen = filename.startswith("<")  # A part of Python itself.
    return not (is_frozen or is_installed or _is_in(filename, (*OURS, _PYTHON)))


def _is_in(filename: str, folders: Iterable[Path]) -> bool:
    path = Path(filename).resolve()
    return any(path.is_relative_to(folder) for folder in folders)
