"""Errors that a user can fix. Each is also an error of one of Python's own types."""

from collections.abc import Iterable, Sequence
from typing import Any

from lingvo_pipe.core.near_names import did_you_mean

_MAX_SHOWN = 200


class Words(str):
    """A description in place of a value. Errors show it without quotes."""

    def __repr__(self) -> str:
        return str(self)


_NOTHING = Words()


class UserError(Exception):
    """An error that a user can fix: "PATH: expected EXPECTED, got GOT. HINT".

    Args:
        message: sentences in the place of "PATH: expected EXPECTED, got GOT.", for
            errors that are not about a wrong value.
        path: what is wrong, such as the path of a param: "task.pipeline.splits".
        expected: what is allowed there, such as "at most 8 stages (one per cell)".
        got: what was given: the value itself, or Words about it.
        names: names that `got` may be a misspelling of.
        hint: what to do, as sentences.

    Attributes:
        problems: the errors that this one joins, if it joins several.
        exit_code: the exit code of a program that ends with this error.
    """

    exit_code = 1

    def __init__(
        self,
        message: str = "",
        *,
        path: str = "",
        expected: str = "",
        got: Any = _NOTHING,
        names: Iterable[str] = (),
        hint: str = "",
    ) -> None:
        near = did_you_mean(got, names).strip() if isinstance(got, str) else ""
        self.path, self.expected, self.got = path, expected, got
        self.hint = " ".join(filter(None, [near, hint]))
        self.problems: tuple[UserError, ...] = ()
        super().__init__(
            " ".join(filter(None, [message or self._sentence(), self.hint]))
        )

    def __str__(self) -> str:
        return str(self.args[0])

    def within(self, path: str) -> "UserError":
        """Returns a copy of this error with `path` in front of the error's own path."""
        joined = f"{path}.{self.path}" if self.path else path
        if not self.expected:
            return type(self)(f"{path}.{self}", path=joined)
        fields = {"expected": self.expected, "got": self.got, "hint": self.hint}
        return type(self)(path=joined, **fields)

    def _sentence(self) -> str:
        subject = f"{self.path}: " if self.path else ""
        if self.got is _NOTHING:
            return f"{subject}expected {self.expected}."
        comma = ";" if "," in self.expected else ","
        got = shown(self.got)
        got = got.rstrip(".") if isinstance(self.got, Words) else got
        return f"{subject}expected {self.expected}{comma} got {got}."


class UserValueError(UserError, ValueError):
    """A value that is not allowed."""


class UserLayerError(UserValueError):
    """A layer whose outputs or FPropMeta are not allowed."""


class UserDamageError(UserValueError):
    """A file of a run that does not hold what was written there."""

    exit_code = 3


class UserNameError(UserValueError, AssertionError):
    """A name that no param or key may have. Lingvo raises AssertionError for it."""


class UserTypeError(UserError, TypeError):
    """A value of a type that is not allowed."""


class UserAttributeError(UserError, AttributeError):
    """An attribute that does not exist or cannot be set."""


class UserPathError(UserAttributeError, AssertionError):
    """A path below a value that has no parts. Lingvo raises AssertionError for it."""


class UserLookupError(UserError, LookupError):
    """A name that is not known."""


class UserKeyError(UserLookupError, KeyError):
    """A key that does not exist."""


class UserIndexError(UserLookupError, IndexError):
    """An index beyond the end."""


class UserAssertionError(UserError, AssertionError):
    """A result that differs from what it must be."""


class UserRuntimeError(UserError, RuntimeError):
    """A call at a time when it is not allowed."""


class UserNumberError(UserError, FloatingPointError):
    """A number that is not finite, or a loss that rises too far."""


class UserImportError(UserError, ImportError):  # type: ignore[misc]  # Its `path`.
    """A module that cannot be imported."""


class UserConnectionError(UserError, ConnectionError):
    """Another process that cannot be reached, or must not be."""


class UserClusterError(UserConnectionError):
    """A task of the cluster that does not answer. A rerun may succeed."""

    exit_code = 4


def exit_code_of(error: Exception) -> int:
    """Returns the exit code of a program that ends with an error."""
    return error.exit_code if isinstance(error, UserError) else UserError.exit_code


def raise_problems(problems: Sequence[UserError | str], hint: str = "") -> None:
    """Raises one UserValueError that lists all problems, if there are any."""
    if not problems:
        return
    text = "; ".join(str(problem).removesuffix(".") for problem in problems)
    error = UserValueError(text if text.endswith("?") else f"{text}.", hint=hint)
    error.problems = tuple(p for p in problems if isinstance(p, UserError))
    if len(problems) == len(error.problems) == 1:
        only = error.problems[0]
        error.path, error.expected, error.got = only.path, only.expected, only.got
        error.hint = only.hint or hint
    raise error


def shown(value: Any) -> str:
    """Returns a value as text for an error. Params show their class. Cuts long text."""
    if isinstance(cls := getattr(value, "cls", None), type):
        text = f"{cls.__name__}.Params()"
    elif type(value) in (list, tuple):
        items = ", ".join(map(shown, value))
        comma = "," if len(value) == 1 else ""
        text = f"[{items}]" if isinstance(value, list) else f"({items}{comma})"
    else:
        text = repr(value)
    is_long = len(text) > _MAX_SHOWN and not isinstance(value, Words)
    return f"{text[:_MAX_SHOWN]}..." if is_long else text
