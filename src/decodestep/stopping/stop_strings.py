"""Stopping at a string, regardless of token boundaries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from array_api_compat import array_namespace, device

from decodestep._base.array_api import Namespace
from decodestep._base.arrays import Array
from decodestep._base.checks import require
from decodestep.stopping.criteria import StoppingCriteria
from decodestep.stopping.stop_table import stop_table
from decodestep.stopping.token_text import TokenText

_OP = "StopStringCriteria"


class StopStringCriteria(StoppingCriteria):
    """Stops a sequence in whose newest token a stop string ends.

        text = piece(ids[0]) + piece(ids[1]) + ...;  done = some stop string ends in text within piece(ids[-1])

    Pieces are compared as UTF-8 bytes, so a character may be spread over tokens where the tokenizer's decoder is ByteLevel or
    has ByteFallback. The newest token may go on after the string. An id that is not a token separates the text before it from
    the text after it; an empty piece never ends a string. Only the newest ids are read: as many as the longest stop string has
    bytes, or characters where no token holds part of one. The empty string always stops.
    A call consists of array operations and never branches on a value, so torch.compile(fullgraph=True) traces it.

    Args:
        tokenizer: one of transformers', a `tokenizers.Tokenizer`, or a `TokenText` of one. Reading a vocabulary takes longer
            than everything else here, so keep a TokenText where criteria are built often.
        stop_strings: a string or a list of strings, at least one; some token must be able to end one of them.

    Raises:
        ValueError: where no token can end any stop string, and for a tokenizer that cannot decode "abcdef".

    Source:
        transformers 5.23's class of this name, whose decisions these are.
    """

    def __init__(self, tokenizer: object, stop_strings: str | Sequence[str]) -> None:
        several = stop_strings if isinstance(stop_strings, Iterable) else ()
        self.stop_strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(several)
        ok = bool(self.stop_strings) and all(isinstance(stop, str) for stop in self.stop_strings)
        require(ok, _OP, "stop_strings", "a string or a non-empty list of strings", stop_strings)
        text = tokenizer if isinstance(tokenizer, TokenText) else TokenText(tokenizer)
        self.num_stop_strings = len(self.stop_strings)
        self.maximum_token_len = max(len(stop.encode() if text.in_bytes else stop) for stop in self.stop_strings)
        table = stop_table(text, [stop for stop in self.stop_strings if stop])
        if "" in self.stop_strings:
            table.ends[:] = True
        require(
            bool(table.ends[table.ends_row].any()),
            _OP,
            "stop_strings",
            "one that some token of the tokenizer can end",
            stop_strings,
        )
        self._table = table
        self._placed: dict[Any, list[Any]] = {}  # device -> the table as arrays on it

    def __call__(self, input_ids: Array, scores: Array | None, **kwargs: object) -> Array:
        xp = array_namespace(input_ids)
        after_row, after, ends_row, ends = self._table_on(xp, device(input_ids))
        vocab = after_row.shape[0] - 1
        ids = xp.astype(input_ids[:, -max(self.maximum_token_len, 1) :], xp.int64)
        ids = xp.where((ids >= 0) & (ids < vocab), ids, vocab)
        rows = after_row[ids[:, :-1]]
        state = xp.sum(rows[:, :0], axis=1)  # 0 for each sequence
        for i in range(rows.shape[1]):
            state = after[rows[:, i], state]
        return xp.any(ends[ends_row[ids[:, -1:]], state[:, None]], axis=1)

    def _table_on(self, xp: Namespace, where: object) -> list[Any]:
        if where not in self._placed:
            self._placed[where] = [xp.asarray(array, device=where) for array in self._table]
        return self._placed[where]
