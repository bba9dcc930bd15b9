"""The tokenizer that a GGUF file describes, built with the `tokenizers` package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as Engine
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as Steps

from decodestep.models.errors import ModelError

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# tokenizer.ggml.pre -> the patterns that split the text, one after the other, before the byte-level merges.
_PRE_TOKENIZERS = {
    "smollm": (r"\p{N}", _GPT2),
    "gpt-2": (_GPT2,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "llama-bpe": (_LLAMA3 % 3,),
    "qwen2": (_LLAMA3 % 1,),
}


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary: itself where printable, else 256 and on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


class Tokenizer:
    """Text to token ids and back: byte-level BPE with the vocabulary, merges and pre-tokenizer that a GGUF file names."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        kind = metadata.get("tokenizer.ggml.model")
        pre = metadata.get("tokenizer.ggml.pre", "default")
        if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
            raise ModelError(
                f"tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported "
                f"(supported: 'gpt2' with {', '.join(map(repr, _PRE_TOKENIZERS))})"
            )
        self._tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])
        types = metadata.get("tokenizer.ggml.token_type") or [1] * len(self._tokens)
        merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", [])]
        if not self._tokens or len(types) != len(self._tokens) or any(len(merge) != 2 for merge in merges):
            raise ModelError("the tokenizer's vocabulary, token types or merges are missing or do not fit each other")
        vocabulary = {token: i for i, token in enumerate(self._tokens)}
        self.special = frozenset(i for i, type_ in enumerate(types) if type_ == _CONTROL)
        self._verbatim = self.special | {i for i, type_ in enumerate(types) if type_ == _USER_DEFINED}
        try:
            model = BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe")
        except Exception as error:  # the package raises bare Exception for merges outside the vocabulary
            raise ModelError(f"the tokenizer's merges do not fit its vocabulary: {error}") from error
        self._engine = Engine(model)
        self._engine.pre_tokenizer = _pre_tokenizer(_PRE_TOKENIZERS[pre])
        self._engine.add_special_tokens([AddedToken(self._tokens[i], normalized=False) for i in sorted(self._verbatim)])
        self._bytes = _byte_alphabet()
        self.bos_token_id = self._special_id(metadata, "bos_token_id")
        self.eos_token_id = self._special_id(metadata, "eos_token_id")
        ends = (self._special_id(metadata, name) for name in ("eos_token_id", "eot_token_id", "eom_token_id"))
        self.end_token_ids = frozenset(i for i in ends if i is not None)
        self.add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", False))

    def _special_id(self, metadata: dict[str, Any], name: str) -> int | None:
        token = metadata.get(f"tokenizer.ggml.{name}")
        if token is not None and not (isinstance(token, int) and 0 <= token < len(self)):
            raise ModelError(f"the tokenizer's {name} is {token!r}, outside its vocabulary of {len(self)}")
        return token

    def __len__(self) -> int:
        return len(self._tokens)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Special tokens spelt out in it become those tokens; a beginning token is put first if the
        model asks for one and the text does not begin with it. UnicodeEncodeError for a lone surrogate."""
        text.encode()
        ids = self._engine.encode(text, add_special_tokens=False).ids
        if self.add_bos and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            ids = [self.bos_token_id, *ids]
        return list(ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text; none for a control token or an id behind the vocabulary."""
        if token_id in self.special or not 0 <= token_id < len(self):
            return b""
        token = self._tokens[token_id]
        if token_id in self._verbatim or any(c not in self._bytes for c in token):
            return token.encode()
        return bytes(self._bytes[c] for c in token)

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of token ids, control tokens left out; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def token(self, token_id: int | None) -> str:
        """A token as the vocabulary spells it; '' for None."""
        return "" if token_id is None else self._tokens[token_id]


def _pre_tokenizer(patterns: Sequence[str]) -> PreTokenizer:
    splits = [Split(Regex(pattern), "isolated") for pattern in patterns]
    return Steps([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])
