"""What each token of a tokenizer adds to the text, looked up when it is first asked for."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

from decodestep.checks import require
from decodestep.text import BYTE_OF

Piece = str | bytes

# A text that any tokenizer takes letter by letter or as words: a token is decoded behind it, so that nothing is stripped.
_LEAD = "abcdef"


class TokenText:
    """Pieces of text, as characters, or as bytes where the tokenizer's tokens may hold parts of a character.

    tokenizer: one of transformers', or a `tokenizers.Tokenizer`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._fast = _engine(tokenizer)
        self._mode = matching_mode(tokenizer)
        self.in_bytes = self._mode is not None
        self._lead = [self._token(i) for i in self.encode(_LEAD)]
        decoded = self._decode(self._lead)
        require(_LEAD in decoded, "StopStringCriteria", "tokenizer", f"able to encode and decode {_LEAD!r}", repr(decoded))
        self._known: dict[int, Piece | None] = {}

    def __len__(self) -> int:
        size: int = self._fast.get_vocab_size() if self._fast is not None else len(self._tokenizer)
        return size

    def encode(self, text: str) -> list[int]:
        if self._fast is self._tokenizer:
            return list(self._fast.encode(text, add_special_tokens=False).ids)
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def units(self, text: str) -> Piece:
        """A string in the units of the pieces."""
        return text.encode() if self.in_bytes else text

    def piece(self, token_id: int) -> Piece | None:
        """What the token adds to the text; None for an id that is no token."""
        if token_id not in self._known:
            token = self._token(token_id) if token_id >= 0 else None
            self._known[token_id] = None if token is None else self._read(token)
        return self._known[token_id]

    def _token(self, token_id: int) -> str | None:
        if self._fast is not None:
            token: str | None = self._fast.id_to_token(token_id) if token_id < 2**32 else None
        else:
            token = self._tokenizer.convert_ids_to_tokens(token_id) if token_id < len(self) else None
        return token

    def _read(self, token: str) -> Piece:
        if self._mode == "byte_level" and all(character in BYTE_OF for character in token):
            return bytes(BYTE_OF[character] for character in token)
        if self._mode == "byte_fallback" and _BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(token[3:5])
        text = self._decode([*self._lead, token])
        return self.units(text[text.index(_LEAD) + len(_LEAD) :])

    def _decode(self, tokens: list[Any]) -> str:
        text: str
        if hasattr(self._tokenizer, "convert_tokens_to_string"):
            text = self._tokenizer.convert_tokens_to_string(tokens)
        else:
            text = " ".join(tokens) if self._fast.decoder is None else self._fast.decoder.decode(tokens)
        return text


def matching_mode(tokenizer: Any) -> str | None:
    """How a tokenizer's tokens hold parts of characters: "byte_level", "byte_fallback", or None where they hold none."""
    kinds = _decoder_types(getattr(_engine(tokenizer), "decoder", None))
    return "byte_fallback" if "ByteFallback" in kinds else "byte_level" if "ByteLevel" in kinds else None


def _engine(tokenizer: Any) -> Any:
    """The `tokenizers.Tokenizer` inside, or None."""
    return tokenizer if hasattr(tokenizer, "id_to_token") else getattr(tokenizer, "backend_tokenizer", None)


def _decoder_types(decoder: Any) -> set[str]:
    """The types of a decoder of `tokenizers` and of every decoder inside it."""
    state = getattr(decoder, "__getstate__", lambda: None)() if decoder is not None else None
    found: set[str] = set()

    def collect(node: Any) -> None:
        if isinstance(node, dict):
            found.add(str(node.get("type")))
        for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            collect(inner)

    if isinstance(state, (str, bytes)):
        with suppress(ValueError):
            collect(json.loads(state))
    return found | {type(decoder).__name__}


_BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")
