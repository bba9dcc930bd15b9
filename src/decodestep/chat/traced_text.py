"""Strings that know which of their characters a chat template wrote itself.

What a template writes may be control tokens, what it is given may not, whatever it spells. The two are told apart by where each
character comes from, so that no content can pose as the template's: there are no marks that it could contain.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from operator import index
from typing import SupportsIndex

Spans = tuple[tuple[int, int], ...]
_COUNT = struct.Struct("<Q")


class TracedText(str):
    """A string, and the spans of it that are the template's own: (begin, end), ascending, with gaps between.

    It is equal to the string of its characters and behaves as that in every test, method and filter. Concatenation, slices,
    strip, split, partition, replace, join and removal of a prefix or suffix keep track of each character; repetition and
    changes of case do of texts that are wholly the template's. What else is made of it is a plain string: none of it is own.
    """

    __slots__ = ("_own",)
    _own: Spans

    def __new__(cls, text: str = "", own: Spans = ()) -> TracedText:
        made = super().__new__(cls, text)
        made._own = own
        return made

    def _cut(self, begin: int, end: int) -> str:
        text = str.__getitem__(self, slice(begin, end))
        own = tuple((max(b - begin, 0), min(e, end) - begin) for b, e in self._own if b < end and e > begin)
        return TracedText(text, own) if own and text else text

    def _cuts(self, parts: Iterable[str], gap: int = 0) -> list[str]:
        """These parts of the text, which follow each other with `gap` characters between them."""
        found, at = [], 0
        for part in parts:
            found.append(self._cut(at, at + len(part)))
            at += len(part) + gap
        return found

    def _as_own(self, text: str) -> str:
        """A text made of this one alone."""
        return own_text(text) if is_own(self) else text

    def __str__(self) -> str:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if not isinstance(key, slice):
            at = range(len(self))[index(key)]
            return self._cut(at, at + 1)
        begin, end, step = key.indices(len(self))
        return self._cut(begin, end) if step == 1 else str.__getitem__(self, key)

    def __add__(self, other: str) -> str:
        return concat((self, other)) if type(other) in (str, TracedText) else NotImplemented  # Markup has its own sums

    def __radd__(self, other: str) -> str:
        return concat((other, self)) if type(other) is str else NotImplemented

    def __mul__(self, count: SupportsIndex) -> str:
        return self._as_own(str.__mul__(self, count))

    __rmul__ = __mul__

    def lower(self) -> str:
        return self._as_own(str.lower(self))

    def upper(self) -> str:
        return self._as_own(str.upper(self))

    def capitalize(self) -> str:
        return self._as_own(str.capitalize(self))

    def title(self) -> str:
        return self._as_own(str.title(self))

    def lstrip(self, chars: str | None = None, /) -> str:
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        return self._cut(0, len(str.rstrip(self, chars)))

    def strip(self, chars: str | None = None, /) -> str:
        begin = len(self) - len(str.lstrip(self, chars))
        return self._cut(begin, begin + len(str.strip(self, chars)))

    def removeprefix(self, prefix: str, /) -> str:
        return self._cut(len(self) - len(str.removeprefix(self, prefix)), len(self))

    def removesuffix(self, suffix: str, /) -> str:
        return self._cut(0, len(str.removesuffix(self, suffix)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._found(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._found(str.rsplit(self, sep, maxsplit), sep)

    def _found(self, parts: list[str], sep: str | None) -> list[str]:
        """The parts of a split. Between those of one at whitespace is whitespace, with which only the first may begin."""
        if sep is not None:
            return self._cuts(parts, len(sep))
        found, at = [], 0
        for part in parts:
            at = self.find(part, at)
            found.append(self._cut(at, at + len(part)))
            at += len(part)
        return found

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = self._cuts(str.splitlines(self, True))
        return lines if keepends else [line[: len(bare)] for line, bare in zip(lines, str.splitlines(self), strict=True)]

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        before, found, after = self._cuts(str.partition(self, sep))
        return before, found, after

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        before, found, after = self._cuts(str.rpartition(self, sep))
        return before, found, after

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if not old:  # between all characters
            return str.replace(self, old, new, count)
        return concat(_between(self.split(old, count), new))

    def join(self, parts: Iterable[str], /) -> str:
        return concat(_between(list(parts), self))


def own_text(text: str) -> TracedText:
    """A text that is wholly the template's."""
    return TracedText(text, ((0, len(text)),) if text else ())


def is_own(text: str) -> bool:
    """Whether a text is wholly the template's."""
    return spans(text) == ((0, len(text)),)


def spans(text: str) -> Spans:
    """What of a text is the template's own."""
    return text._own if isinstance(text, TracedText) else ()


def runs(text: str) -> Iterator[tuple[str, bool]]:
    """A text in plain pieces, each with whether it is the template's own."""
    plain, at = str.__str__(text), 0
    for begin, end in spans(text):
        if at < begin:
            yield plain[at:begin], False
        yield plain[begin:end], True
        at = end
    if at < len(plain):
        yield plain[at:], False


def concat(parts: Iterable[str]) -> str:
    """The parts joined, a plain string if none of it is the template's. TypeError for parts that are no strings."""
    parts = list(parts)
    text = "".join(parts)
    own: list[tuple[int, int]] = []
    at = 0
    for part in parts:
        for begin, end in spans(part):
            if own and own[-1][1] == at + begin:
                own[-1] = (own[-1][0], at + end)
            else:
                own.append((at + begin, at + end))
        at += len(part)
    return TracedText(text, tuple(own)) if own else text


def pack(text: str) -> bytes:
    """A text as bytes: the number of spans that are the template's, their ends, and the characters in UTF-8."""
    ends = [end for span in spans(text) for end in span]
    return struct.pack(f"<{1 + len(ends)}Q", len(ends) // 2, *ends) + text.encode("utf-8", "surrogatepass")


def unpack(data: bytes) -> TracedText:
    """The text that `pack` made these bytes of."""
    (count,) = _COUNT.unpack_from(data)
    ends = struct.unpack_from(f"<{2 * count}Q", data, _COUNT.size)
    text = data[_COUNT.size * (1 + len(ends)) :].decode("utf-8", "surrogatepass")
    return TracedText(text, tuple(zip(ends[::2], ends[1::2], strict=True)))


def _between(parts: Sequence[str], sep: str) -> Iterator[str]:
    for number, part in enumerate(parts):
        if number and sep:
            yield sep
        yield part
