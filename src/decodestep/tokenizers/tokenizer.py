"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from functools import cached_property
from operator import index

from tokenizers import Tokenizer as Engine

from decodestep.tokenizers.control_tokens import ControlTokens
from decodestep.tokenizers.engine import encode
from decodestep.tokenizers.infill_tokens import find_infill_tokens
from decodestep.tokenizers.shown_tokens import ShownTokens
from decodestep.tokenizers.vocabulary import Vocabulary

_BEFORE = ("\n", "a", "0")  # texts with which a text that follows them rarely shares a token


class Tokenizer:
    """Text to token ids and back, with a vocabulary and an engine of the `tokenizers` package.

    named_ids: the ids of special tokens under the names of chat templates: "bos", "eos", "unk", "pad" ...
    bos_token_id, eos_token_id: of these, None if they are not named. special: the ids of the control tokens.
    end_token_ids: the ids that end a text. add_bos: whether `encode` puts the beginning token first. infill_ids: those of
    `InfillTokens` that the file names. infill: the tokens for a text between two others; None without.
    """

    def __init__(
        self,
        engine: Engine,
        vocabulary: Vocabulary,
        *,
        named_ids: Mapping[str, int],
        end_token_ids: frozenset[int],
        add_bos: bool,
        infill_ids: Mapping[str, int] | None = None,
    ) -> None:
        self._engine, self._vocabulary = engine, vocabulary
        self.infill = find_infill_tokens(vocabulary.tokens, vocabulary.verbatim, infill_ids or {})
        self.named_ids = dict(named_ids)
        self.bos_token_id, self.eos_token_id = self.named_ids.get("bos"), self.named_ids.get("eos")
        self.end_token_ids = end_token_ids
        self.add_bos = add_bos
        self._showing: dict[frozenset[int], ShownTokens] = {}

    @property
    def special(self) -> frozenset[int]:
        return self._vocabulary.special

    def __len__(self) -> int:
        return len(self._vocabulary)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Special tokens spelt out in it become those tokens. With `add_bos` the beginning token comes
        first, unless the text begins with it. Raises UnicodeEncodeError for a lone surrogate, and ModelError for a text that
        has a character without a token where there is no token for an unknown one."""
        return self._with_bos(encode(self._engine, text))

    def encode_rendered(self, text: str) -> list[int]:
        """As `encode`, for a text rendered by the chat template."""
        return self.encode(text)

    def encode_plain(self, text: str, *, with_control_tokens: bool = False) -> list[int]:
        """As `encode`, without what comes before and after a text, and, unless `with_control_tokens`, with the spelt ones as
        text."""
        return encode(self._engine if with_control_tokens else self._text_engine, text)

    def encode_whole(self, text: str) -> list[int]:
        """As `encode`, with control tokens that are spelt out as text."""
        return self._with_bos(self.encode_plain(text))

    def encode_within(self, text: str) -> list[int]:
        """As `encode`, for a text that follows another one: without a beginning token, and without the space that
        SentencePiece puts before the first word."""
        for before in _BEFORE:
            first, ids = encode(self._engine, before), encode(self._engine, before + text)
            if ids[: len(first)] == first:
                return ids[len(first) :]
        return encode(self._engine, text)

    def encode_pieces(self, pieces: Iterable[tuple[str, bool]]) -> list[int]:
        """As `encode`, for a text in pieces, each with whether it is a control token; those spelled in other pieces are text.

        If none are spelled, the ids are those of `encode` for the joined pieces.
        """
        ids: list[int] = []
        for piece, is_control in pieces:
            spelled = not is_control and self.control_tokens.occur_in(piece)
            ids += encode(self._text_engine if spelled else self._engine, piece)
        return self._with_bos(ids)

    @cached_property
    def control_tokens(self) -> ControlTokens:
        return ControlTokens([self._vocabulary.tokens[i] for i in self.special])

    @cached_property
    def _text_engine(self) -> Engine:
        """The engine that treats spelled control tokens as text."""
        engine = deepcopy(self._engine)
        engine.encode_special_tokens = True
        return engine

    def _with_bos(self, ids: list[int]) -> list[int]:
        if self.add_bos and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            return [self.bos_token_id, *ids]
        return list(ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text; none for a control token or an id outside the vocabulary."""
        return self._vocabulary.token_bytes(token_id)

    def spelled_bytes(self, token_id: int) -> bytes:
        """As `token_bytes`, and the name of a control token."""
        return self.token(token_id).encode() if token_id in self.special else self.token_bytes(token_id)

    def spell(self, token_ids: Iterable[int]) -> str:
        """The text that `encode` reads as these ids: with the names of control tokens."""
        return b"".join(map(self.spelled_bytes, token_ids)).decode("utf-8", "replace")

    def showing(self, names: Collection[str]) -> Tokenizer | ShownTokens:
        """The tokenizer, with these names of control tokens, of those that do not end a text, in its texts. The same object for
        the same tokens; other names are ignored."""
        ids = self.control_ids(names)
        return self._showing.setdefault(ids, ShownTokens(self, ids)) if ids else self

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of token ids without control tokens; bytes that are not UTF-8 become U+FFFD."""
        # index: a tensor's items are tensors, which equal their numbers and are not found among them
        return b"".join(self.token_bytes(index(token)) for token in token_ids).decode("utf-8", "replace")

    def control_ids(self, names: Collection[str]) -> frozenset[int]:
        """The ids of the control tokens with these spellings, without those that end a text."""
        return frozenset(i for i in self.special - self.end_token_ids if self.token(i) in names)

    def token(self, token_id: int | None) -> str:
        """A token as it is written in the vocabulary; '' for None, and for an id beyond it: a model may have more rows."""
        return "" if token_id is None or not 0 <= token_id < len(self) else self._vocabulary.tokens[token_id]
