"""The tokenizer of a GGUF file, built with the `tokenizers` package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property

import numpy as np
from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as Engine
from tokenizers.models import BPE
from tokenizers.normalizers import NFC, Prepend, Replace
from tokenizers.normalizers import Sequence as Rewrites
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as Steps

from decodestep.models import metadata as md
from decodestep.models.control_tokens import ControlTokens
from decodestep.models.errors import ModelError
from decodestep.models.pre_tokenizers import BEGINNING, COMPOSED, PRE_TOKENIZERS, WHOLE_WORDS
from decodestep.stopping.byte_alphabet import BYTE_OF, byte_of

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # values of tokenizer.ggml.token_type
_SPACE = "\u2581"  # SentencePiece's character for a space
_LONG = 2**14  # characters of a text that is encoded without the GIL
_BEFORE = ("\n", "a", "0")  # texts with which a text that follows them rarely shares a token
_ENDS_OF_TURNS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<end_of_utterance>", "<EOT>", "_<EOT>", "[EOT]")

# Every cut of a SentencePiece token into two may be a merge, so that long tokens cost the square of their length. Vocabularies
# have tokens of up to some hundred characters, and some million characters of tokens and of merges.
_MAX_TOKEN = 1 << 10  # characters
_MAX_TOTAL = 1 << 24  # characters of all tokens, and of all merges


class Tokenizer:
    """Text to token ids and back, as a GGUF file describes it.

    metadata: the file's. tokenizer.ggml.model "gpt2" is byte-level BPE, with the file's merges and the pre-tokenizer that it
        names; "qwen2" reads a text in Unicode's normal form C, as its models have. "llama" is SentencePiece BPE: the pair whose
        union has the highest score merges first, and characters without a token become byte tokens.
    special: the ids of the control tokens. bos_token_id, eos_token_id: an id, or None if the file names none.
    end_token_ids: the ids that end a text: the file's eos, eot and eom tokens. Older files name no eot token; in these it is
        the control token that the file's chat template writes after a message, found by its spelling as in llama.cpp.
    add_bos: whether `encode` puts the beginning token first.

    Raises ModelError for a tokenizer that is not supported, or whose parts do not fit together.
    """

    def __init__(self, metadata: md.Metadata) -> None:
        self._tokens = md.texts(metadata, "tokenizer.ggml.tokens")
        vocabulary = vocabulary_of(self._tokens)
        types = md.numbers(metadata, "tokenizer.ggml.token_type", len(self._tokens), integers=True)
        kinds: list[int] = [1] * len(self._tokens) if types is None else types.tolist()
        self.special: frozenset[int] = frozenset(i for i, kind in enumerate(kinds) if kind == _CONTROL)
        self._verbatim = self.special | {i for i, kind in enumerate(kinds) if kind == _USER_DEFINED}
        self._byte_tokens = {i: _byte_of(self._tokens[i]) for i, kind in enumerate(kinds) if kind == _BYTE}
        self._sentencepiece = md.text(metadata, "tokenizer.ggml.model") == "llama"
        build = _sentencepiece if self._sentencepiece else _byte_level
        self._engine = build(metadata, self._tokens, kinds, vocabulary)
        verbatim = (i for i in sorted(self._verbatim) if self._tokens[i])
        self._engine.add_tokens([AddedToken(self._tokens[i], normalized=False, special=i in self.special) for i in verbatim])
        names = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id"}
        ids = {name: self._special_id(metadata, key) for name, key in names.items()}
        self.named_ids = {name: i for name, i in ids.items() if i is not None}  # under the names of chat templates
        self.bos_token_id, self.eos_token_id = ids["bos"], ids["eos"]
        ends = {self.eos_token_id, *(self._special_id(metadata, name) for name in ("eot_token_id", "eom_token_id"))}
        if "tokenizer.ggml.eot_token_id" not in metadata:
            template = str(metadata.get("tokenizer.chat_template", ""))
            ends |= {i for i in self.special if self._tokens[i] in _ENDS_OF_TURNS and self._tokens[i] in template}
        self.end_token_ids = frozenset(i for i in ends if i is not None)
        begins = self._sentencepiece or metadata.get("tokenizer.ggml.pre") in BEGINNING
        self.add_bos = md.flag(metadata, "tokenizer.ggml.add_bos_token", begins)

    def _special_id(self, metadata: md.Metadata, name: str) -> int | None:
        key = f"tokenizer.ggml.{name}"
        return md.integer(metadata, key, least=0, most=len(self) - 1) if key in metadata else None

    def __len__(self) -> int:
        return len(self._tokens)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Special tokens spelt out in it become those tokens. With `add_bos` the beginning token comes
        first, unless the text begins with it. Raises UnicodeEncodeError for a lone surrogate, and ModelError for a text that
        has a character without a token where there is no token for an unknown one."""
        return self._with_bos(_ids(self._engine, text))

    def encode_rendered(self, text: str) -> list[int]:
        """As `encode`, for a text rendered by the chat template."""
        return self.encode(text)

    def encode_within(self, text: str) -> list[int]:
        """As `encode`, for a text that follows another one: without a beginning token, and without the space that
        SentencePiece puts before the first word."""
        for before in _BEFORE:
            first, ids = _ids(self._engine, before), _ids(self._engine, before + text)
            if ids[: len(first)] == first:
                return ids[len(first) :]
        return _ids(self._engine, text)

    def encode_pieces(self, pieces: Iterable[tuple[str, bool]]) -> list[int]:
        """As `encode`, for a text in pieces, each with whether it is a control token; those spelled in other pieces are text.

        If none are spelled, the ids are those of `encode` for the joined pieces.
        """
        ids: list[int] = []
        for piece, is_control in pieces:
            spelled = not is_control and self.control_tokens.occur_in(piece)
            ids += _ids(self._text_engine if spelled else self._engine, piece)
        return self._with_bos(ids)

    @cached_property
    def control_tokens(self) -> ControlTokens:
        return ControlTokens([self._tokens[i] for i in self.special])

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
        if token_id in self.special or not 0 <= token_id < len(self):
            return b""
        token = self._tokens[token_id]
        if self._sentencepiece:
            return self._byte_tokens.get(token_id) or token.replace(_SPACE, " ").encode()
        if token_id in self._verbatim or any(c not in BYTE_OF for c in token):
            return token.encode()
        return bytes(BYTE_OF[c] for c in token)

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of token ids without control tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def token(self, token_id: int | None) -> str:
        """A token as it is written in the vocabulary; '' for None."""
        return "" if token_id is None else self._tokens[token_id]


@contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Converts exceptions of the `tokenizers` package, and its panics on inconsistent files, to ModelError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ModelError(f"{what}: {str(error)[:200]}") from error


def _ids(engine: Engine, text: str) -> list[int]:
    """The ids of a text. A long one is encoded as a batch, since `encode` holds the GIL until it is done, which
    stops every thread; a short one is not, since after a batch the package prints a warning in every process that is forked."""
    text.encode()
    with engine_errors("the tokenizer cannot read this text"):
        if len(text) <= _LONG:
            return list(engine.encode(text, add_special_tokens=False).ids)
        [found] = engine.encode_batch_fast([text], add_special_tokens=False)
        return list(found.ids)


def vocabulary_of(tokens: Sequence[str]) -> dict[str, int]:
    """Token -> id, without tokens that have no spelling."""
    if not tokens:
        raise ModelError("the tokenizer's vocabulary is missing or empty")
    longest = max(map(len, tokens))
    if longest > _MAX_TOKEN or sum(map(len, tokens)) > _MAX_TOTAL:
        raise ModelError(
            f"the tokenizer's tokens are too long: {longest} characters (at most {_MAX_TOKEN}; {_MAX_TOTAL} of all together)"
        )
    vocabulary = {token: i for i, token in enumerate(tokens) if token}
    if len(vocabulary) < sum(map(bool, tokens)):
        twice = next(token for i, token in enumerate(tokens) if token and vocabulary[token] != i)
        raise ModelError(f"the tokenizer has the token {twice!r} twice")
    return vocabulary


def _byte_level(metadata: md.Metadata, tokens: list[str], kinds: list[int], vocabulary: dict[str, int]) -> Engine:
    kind = md.text(metadata, "tokenizer.ggml.model")
    pre = md.text(metadata, "tokenizer.ggml.pre", "default")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise ModelError(
            f"tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported "
            f"(supported: 'llama', and 'gpt2' with {', '.join(map(repr, PRE_TOKENIZERS))})"
        )
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in md.texts(metadata, "tokenizer.ggml.merges"))]
    for left, right in merges:
        # The package panics if the result is not a token.
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise ModelError(f"the tokenizer's merge of {left!r} and {right!r} does not fit its vocabulary")
    return byte_level_engine(vocabulary, merges, pre, whole_words=pre in WHOLE_WORDS)


def byte_level_engine(vocabulary: dict[str, int], merges: list[tuple[str, str]], pre: str, *, whole_words: bool) -> Engine:
    """Byte-level BPE with a pre-tokenizer by its name. whole_words: whether a word that is a token is taken as it is."""
    engine = Engine(BPE(vocabulary, merges, ignore_merges=whole_words))
    if pre in COMPOSED:
        engine.normalizer = NFC()
    splits = [Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[pre]]
    engine.pre_tokenizer = Steps([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])
    return engine


def _sentencepiece(metadata: md.Metadata, tokens: list[str], kinds: list[int], vocabulary: dict[str, int]) -> Engine:
    scores = md.numbers(metadata, "tokenizer.ggml.scores", len(tokens))
    if scores is None:
        raise ModelError("the tokenizer's scores are missing")
    # Merges into tokens of a higher score come first.
    order = np.argsort(-scores.astype(np.float64), kind="stable").tolist()
    merges = merges_of((tokens[i] for i in order if kinds[i] not in (_UNKNOWN, _CONTROL, _BYTE)), vocabulary)
    unknown = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == _UNKNOWN and token), None)
    engine = Engine(BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=_BYTE in kinds))
    spaces = [Replace(" ", _SPACE)]
    prefix = [Prepend(_SPACE)] if md.flag(metadata, "tokenizer.ggml.add_space_prefix", True) else []
    engine.normalizer = Rewrites([*prefix, *spaces])
    return engine


def merges_of(tokens: Iterable[str], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Every cut of every token into two tokens, in the order of the tokens."""
    merges: list[tuple[str, str]] = []
    total = 0
    for token in tokens:
        pairs = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        cuts = [(left, right) for left, right in pairs if left in vocabulary and right in vocabulary]
        total += len(cuts) * len(token)
        if total > _MAX_TOTAL:
            raise ModelError(f"the tokenizer's merges have more than {_MAX_TOTAL} characters")
        merges += cuts
    return merges


def _byte_of(token: str) -> bytes:
    byte = byte_of(token)
    if byte is None:
        raise ModelError(f"the tokenizer's byte token {token!r} is not <0xNN>")
    return byte
