"""The log-probabilities of a row's tokens, held as numbers: as Python's objects those of long rows would be gigabytes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import overload

from decodestep.ops.decode_step import TokenLogprobs

_Pairs = tuple[tuple[int, float], ...]


class PackedLogprobs(Sequence[TokenLogprobs]):
    """A sequence that grows at its end, equal to a list of the same items: 12 bytes for a token and its value, a tenth of the
    pair."""

    def __init__(self) -> None:
        self._drawn = array("d")  # raw and processed of each item
        self._ids, self._values = array("i"), array("d")  # of all pairs, an item's top_raw before its top_processed
        self._middles, self._ends = array("q"), array("q")  # where an item's top_raw and its top_processed end in them

    def append(self, item: TokenLogprobs) -> None:
        for pairs, ends in ((item.top_raw, self._middles), (item.top_processed, self._ends)):
            self._ids.extend([token for token, _ in pairs])
            self._values.extend([value for _, value in pairs])
            ends.append(len(self._ids))
        self._drawn.extend((item.raw, item.processed))

    def __len__(self) -> int:
        return len(self._drawn) // 2

    @overload
    def __getitem__(self, index: int) -> TokenLogprobs: ...
    @overload
    def __getitem__(self, index: slice) -> list[TokenLogprobs]: ...
    def __getitem__(self, index: int | slice) -> TokenLogprobs | list[TokenLogprobs]:
        if isinstance(index, slice):
            return [self[at] for at in range(len(self))[index]]
        at = range(len(self))[index]
        begin, middle, end = self._ends[at - 1] if at else 0, self._middles[at], self._ends[at]
        raw, processed = self._drawn[2 * at : 2 * at + 2]
        return TokenLogprobs(raw, processed, self._pairs(begin, middle), self._pairs(middle, end))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, PackedLogprobs | list) else NotImplemented

    def _pairs(self, begin: int, end: int) -> _Pairs:
        return tuple(zip(self._ids[begin:end], self._values[begin:end], strict=True))
