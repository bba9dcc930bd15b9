"""The errors that this package raises: one tree, in which each is a built-in exception too.

    DecodestepError
        RequestError                a ValueError: what was asked for is not legal
            UnknownFieldError       a TypeError too: of a keyword
        ModelError                  a RuntimeError: a model could not be found, fetched or read
            TemplateProcessError    its chat template could not be rendered, for want of a process
        CacheFullError              a RuntimeError: the model's cache has too few free pages
        CacheFileError              a RuntimeError: a file has no pages that this model's cache can take
        ConstraintError             a RuntimeError: a row's constraint cannot go on
        QueueFullError              a RuntimeError: an engine has too many waiting rows
        EngineClosedError           a RuntimeError: an engine takes no more requests
        MissingExtraError           a ModuleNotFoundError: an optional package is not installed

What a user's own processor or callback raises is passed on as it is.
"""

from __future__ import annotations

_LONGEST = 500  # characters of what an error says it got


class DecodestepError(Exception):
    """The base of all errors of this package."""


class RequestError(DecodestepError, ValueError):
    """An argument violates its contract.

    Args:
        op: what was called, the beginning of the message ``<op>: <arg> must be <rule>; got <got>``.
        arg: the argument or field.
        rule: what it must be.
        got: what it is; of a long text, the beginning.
        code: the kind of the error, for programs; "" for a value outside its rule.
        sentence: what the message says after the op in place of that form, where the form reads badly; "" otherwise.
    """

    def __init__(self, op: str, arg: str, rule: str, got: str, code: str = "", sentence: str = "") -> None:
        got = got if len(got) <= _LONGEST else f"{got[: _LONGEST - 3]}..."
        super().__init__(f"{op}: {sentence or f'{arg} must be {rule}; got {got}'}")
        self.op, self.arg, self.rule, self.got, self.code, self.sentence = op, arg, rule, got, code, sentence

    # An exception is copied and pickled with its message alone.
    def __reduce__(self) -> tuple[type[RequestError], tuple[str, ...], dict[str, object]]:
        return type(self), (self.op, self.arg, self.rule, self.got, self.code, self.sentence), self.__dict__


class UnknownFieldError(RequestError, TypeError):
    """A keyword that is not a field of `SamplingParams`: a RequestError and, as for any function, a TypeError."""


class ModelError(DecodestepError, RuntimeError):
    """A model could not be found, fetched or read; the message says which file and why."""


class TemplateProcessError(ModelError):
    """No process could be started to render a chat template, as for want of memory: neither the template is wrong nor what it
    was given."""


class CacheFullError(DecodestepError, RuntimeError):
    """The cache has too few free pages for the request; nothing has changed."""


class CacheFileError(DecodestepError, RuntimeError):
    """A file is no file of cached pages, or is damaged, or is of another model; nothing has changed."""


class ConstraintError(DecodestepError, RuntimeError):
    """The next token of a row cannot be constrained, or would cost more than the limits allow.

    Args:
        language: of the constraint, "json_schema", "regex" or "grammar".
    """

    def __init__(self, message: str, language: str = "") -> None:
        super().__init__(message)
        self.language = language


class QueueFullError(DecodestepError, RuntimeError):
    """The queue is full. waiting: how many rows wait. retry_after: an estimate of the seconds until there is room again."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(waiting, retry_after)  # which a copy is made of
        self.waiting, self.retry_after = waiting, retry_after

    def __str__(self) -> str:
        return f"{self.waiting} completions are waiting already; try again in {self.retry_after} s"


class EngineClosedError(DecodestepError, RuntimeError):
    """The engine takes no more requests."""


class MissingExtraError(DecodestepError, ModuleNotFoundError):
    """A package is not installed; the message names the extra that installs it."""
