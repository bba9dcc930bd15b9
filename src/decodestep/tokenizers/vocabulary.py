"""A vocabulary: the tokens by id, and the bytes that each adds to a text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from decodestep._base.byte_alphabet import BYTE_OF
from decodestep.errors import ModelError

SPACE = "\u2581"  # SentencePiece's character for a space

# Every cut of a SentencePiece token into two may be a merge, so that long tokens cost the square of their length. Vocabularies
# have tokens of up to a few hundred characters, and a few million characters of tokens and of merges.
_MAX_TOKEN = 1 << 10  # characters
MAX_TOTAL = 1 << 24  # characters of all tokens, and of all merges


@dataclass(frozen=True)
class Vocabulary:
    """tokens: their spellings, by id. special: the ids of the control tokens, which add nothing to a text.

    sentencepiece: whether SentencePiece spells them; otherwise the spellings are byte-level, but those of `verbatim`, ids of
    tokens that are spelled as they are in a text. byte_tokens: the bytes that tokens of SentencePiece such as <0x0A> stand for.
    """

    tokens: Sequence[str]
    special: frozenset[int]
    verbatim: Collection[int]
    sentencepiece: bool
    byte_tokens: Mapping[int, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text; none for a control token or an id outside the vocabulary."""
        if token_id in self.special or not 0 <= token_id < len(self):
            return b""
        token = self.tokens[token_id]
        if self.sentencepiece:
            return self.byte_tokens.get(token_id) or token.replace(SPACE, " ").encode()
        if token_id in self.verbatim or any(c not in BYTE_OF for c in token):
            return token.encode()
        return bytes(BYTE_OF[c] for c in token)


def ids_of(tokens: Sequence[str]) -> dict[str, int]:
    """Token -> id, without tokens that have no spelling. Raises ModelError if there are none, or some are too long or equal."""
    if not tokens:
        raise ModelError("the tokenizer's vocabulary is missing or empty")
    longest = max(map(len, tokens))
    if longest > _MAX_TOKEN or sum(map(len, tokens)) > MAX_TOTAL:
        raise ModelError(
            f"the tokenizer's tokens are too long: {longest} characters (at most {_MAX_TOKEN}; {MAX_TOTAL} of all together)"
        )
    ids = {token: i for i, token in enumerate(tokens) if token}
    if len(ids) < sum(map(bool, tokens)):
        twice = next(token for i, token in enumerate(tokens) if token and ids[token] != i)
        raise ModelError(f"the tokenizer has the token {twice!r} twice")
    return ids
