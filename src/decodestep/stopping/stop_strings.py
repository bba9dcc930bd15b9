"""Stopping at a string, wherever the tokens are cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from array_api_compat import array_namespace, device

from decodestep.checks import require
from decodestep.stopping.criteria import StoppingCriteria
from decodestep.stopping.token_text import Piece, TokenText, matching_mode

_OP = "StopStringCriteria"


class StopStringCriteria(StoppingCriteria):
    """Stops a sequence in whose newest token a stop string ends.

        text = piece(ids[0]) + piece(ids[1]) + ...;  done = some stop string ends in text within piece(ids[-1])

    tokenizer: one of transformers', or a `tokenizers.Tokenizer`.
    stop_strings: a string or a list of strings, at least one, for one of which some token can be the end.

    Pieces are compared as UTF-8 bytes where the tokenizer's decoder is ByteLevel or has ByteFallback, so a character may be
    spread over tokens; else as characters. The newest token may go on past the string. An id that is no token ends the text
    to its left; an empty piece never ends a string; of the ids, the newest count, as many as the longest stop string has
    units. The empty string stops always.
    Raises ValueError where no token can end any stop string, and for a tokenizer that cannot decode "abcdef".

    Source: transformers 5.23's class of this name, whose decisions these are. Deviation: it prepares every token of the
    vocabulary, anew for each criterion built with a fast tokenizer; here a token is read when it is first met, on the host, so
    that torch.compile(fullgraph=True) cannot trace a call.
    """

    # Under the name by which transformers' own tests ask for it.
    _get_stop_string_matching_mode = staticmethod(matching_mode)

    def __init__(self, tokenizer: Any, stop_strings: str | Sequence[str]) -> None:
        self.stop_strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
        ok = bool(self.stop_strings) and all(isinstance(stop, str) for stop in self.stop_strings)
        require(ok, _OP, "stop_strings", "a string or a non-empty list of strings", stop_strings)
        self._text = TokenText(tokenizer)
        self._stops: list[Any] = [self._text.units(stop) for stop in self.stop_strings]
        self.num_stop_strings = len(self._stops)
        self.maximum_token_len = max(len(stop) for stop in self._stops)
        ok = any(self._has_an_end(text, stop) for text, stop in zip(self.stop_strings, self._stops, strict=True))
        require(ok, _OP, "stop_strings", "one that some token of the tokenizer can end", stop_strings)

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        xp = array_namespace(input_ids)
        tails = input_ids[:, -self.maximum_token_len :].tolist()
        return xp.asarray([self._ends(ids) for ids in tails], dtype=xp.bool, device=device(input_ids))

    def _ends(self, ids: list[int]) -> bool:
        if "" in self.stop_strings:
            return True
        last: Any = self._text.piece(ids[-1]) if ids else None
        if not last:
            return False
        before: Any = last[:0]
        for token in reversed(ids[:-1]):
            piece: Any = self._text.piece(token)
            if piece is None or len(before) >= self.maximum_token_len - 1:
                break
            before = piece + before
        # A match in the last len(stop) - 1 units before the newest token and in that token must end in that token.
        return any(stop in before[max(len(before) - len(stop) + 1, 0) :] + last for stop in self._stops)

    def _has_an_end(self, text: str, stop: Piece) -> bool:
        """Whether any token can be the end of `stop`: most often the last of its own tokens is, else all are tried."""
        own = self._text.encode(text)[-1:]
        return any(_may_end(self._text.piece(token), stop) for token in chain(own, range(len(self._text))))


def _may_end(piece: Any, stop: Any) -> bool:
    return bool(piece) and (not stop or stop in piece or any(stop.endswith(piece[:n]) for n in range(1, len(piece) + 1)))
