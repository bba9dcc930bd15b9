"""The bytes that each token of a vocabulary adds to a text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from decodestep._base.byte_alphabet import BYTE_OF, byte_of
from decodestep._base.checks import require

# Every token is decoded after this text, because decoders strip spaces at the beginning. Any tokenizer can encode it.
_LEAD = "abcdef"


class TokenText:
    """The bytes, UTF-8, that each token of a tokenizer adds to a text, read once.

    Token i adds pool[starts[i] : starts[i] + lengths[i]]; an id that is not a token has length -1. `in_bytes` says whether a
    token may hold part of a character: the tokenizer's decoder is ByteLevel or has ByteFallback.

    Args:
        tokenizer: one of transformers', or a `tokenizers.Tokenizer`.

    Raises:
        ValueError: for what is no tokenizer, and for one that cannot encode and decode "abcdef".
    """

    def __init__(self, tokenizer: Any) -> None:
        has_tokens = callable(getattr(tokenizer, "get_vocab", None))
        require(has_tokens, "StopStringCriteria", "tokenizer", "one of transformers or tokenizers", tokenizer)
        self._tokenizer = tokenizer
        self._fast = _engine(tokenizer)
        self._mode = matching_mode(tokenizer)
        self.in_bytes = self._mode is not None
        vocabulary: dict[str, int] = (tokenizer if self._fast is None else self._fast).get_vocab()
        tokens = list(vocabulary)
        self._lead = self._tokens(_LEAD)
        decoded = self._decode(self._lead)
        require(_LEAD in decoded, "StopStringCriteria", "tokenizer", f"able to encode and decode {_LEAD!r}", decoded)
        self.pool, starts, lengths = self._read(tokens)
        ids = np.fromiter(vocabulary.values(), np.int64, len(tokens))
        self.starts, self.lengths = np.zeros(ids.max() + 1, np.int64), np.full(ids.max() + 1, -1)
        self.starts[ids], self.lengths[ids] = starts, lengths

    def _read(self, tokens: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pool, starts and lengths of these tokens.

        A byte-level vocabulary is translated all at once, except for the added tokens, which are not in the byte alphabet.
        """
        if self._mode != "byte_level":
            return _pool([self._piece(token) for token in tokens])
        lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
        starts = np.cumsum(lengths) - lengths
        characters = np.frombuffer("".join(tokens).encode("utf-32-le", "surrogatepass"), "<u4")
        read = _ALPHABET[np.minimum(characters, len(_ALPHABET) - 1)]
        added = np.unique(np.searchsorted(starts + lengths, np.flatnonzero(read < 0), side="right"))
        more, at, sizes = _pool([self._piece(tokens[i]) for i in added])
        starts[added], lengths[added] = at + len(read), sizes
        return np.concatenate([read.astype(np.uint8), more]), starts, lengths

    def _piece(self, token: str) -> bytes:
        own = token_bytes(token, self._mode, BYTE_OF)
        if own is not None:
            return own
        text = self._decode([*self._lead, token])
        return text[text.index(_LEAD) + len(_LEAD) :].encode("utf-8", "surrogatepass")

    def _tokens(self, text: str) -> list[str]:
        if self._fast is self._tokenizer:
            return list(self._fast.encode(text, add_special_tokens=False).tokens)
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return [self._tokenizer.convert_ids_to_tokens(i) for i in ids]

    def _decode(self, tokens: list[str]) -> str:
        text: str
        if hasattr(self._tokenizer, "convert_tokens_to_string"):
            text = self._tokenizer.convert_tokens_to_string(tokens)
        else:
            text = " ".join(tokens) if self._fast.decoder is None else self._fast.decoder.decode(tokens)
        return text


def matching_mode(tokenizer: object) -> str | None:
    """How tokens spell parts of characters: "byte_level", "byte_fallback", or None where each token is whole characters."""
    kinds = _decoder_types(getattr(_engine(tokenizer), "decoder", None))
    return "byte_fallback" if "ByteFallback" in kinds else "byte_level" if "ByteLevel" in kinds else None


def token_bytes(token: str, stop_string_matching_mode: str | None, byte_decoder: Mapping[str, int] | None) -> bytes | None:
    """The bytes that a token spells, in the byte alphabet or as <0xEB>; None where only the tokenizer's decoder knows."""
    if stop_string_matching_mode == "byte_level" and byte_decoder is not None and all(c in byte_decoder for c in token):
        return bytes(byte_decoder[c] for c in token)
    return byte_of(token) if stop_string_matching_mode == "byte_fallback" else None


def _pool(pieces: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    return np.frombuffer(b"".join(pieces), np.uint8), np.cumsum(lengths) - lengths, lengths


def _engine(tokenizer: object) -> Any:
    """The `tokenizers.Tokenizer` inside, or None."""
    return tokenizer if hasattr(tokenizer, "id_to_token") else getattr(tokenizer, "backend_tokenizer", None)


def _decoder_types(decoder: object) -> set[str]:
    """The names of the types of a `tokenizers` decoder and of all decoders inside it."""
    state = getattr(decoder, "__getstate__", lambda: None)() if decoder is not None else None
    found: set[str] = set()

    def collect(node: object) -> None:
        if isinstance(node, dict):
            found.add(str(node.get("type")))
        for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            collect(inner)

    if isinstance(state, (str, bytes)):
        with suppress(ValueError):
            collect(json.loads(state))
    return found | {type(decoder).__name__}


# Code point -> byte in the byte alphabet, -1 where it is not in it; the last entry stands for all larger code points.
_ALPHABET = np.full(max(map(ord, BYTE_OF)) + 2, -1, np.int16)
_ALPHABET[[ord(character) for character in BYTE_OF]] = list(BYTE_OF.values())
