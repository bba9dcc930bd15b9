"""The tokenizer of a GGUF file."""

from __future__ import annotations

import numpy as np
from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as Engine
from tokenizers.models import BPE
from tokenizers.normalizers import Prepend, Replace
from tokenizers.normalizers import Sequence as Rewrites
from tokenizers.pre_tokenizers import Split

from decodestep._base.byte_alphabet import byte_of
from decodestep.errors import ModelError
from decodestep.files import metadata as md
from decodestep.tokenizers.engine import byte_level_engine, list_merges
from decodestep.tokenizers.infill_tokens import KEYS
from decodestep.tokenizers.pre_tokenizers import BEGINNING, PRE_TOKENIZERS, WHOLE_WORDS
from decodestep.tokenizers.tokenizer import Tokenizer
from decodestep.tokenizers.vocabulary import SPACE, Vocabulary, index_tokens

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # values of tokenizer.ggml.token_type
_NAMES = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id"}
_NEEDED = ("bos_token_id", "eos_token_id")
_MAX_ID = (1 << 32) - 1  # which old converters wrote for -1, none
_ENDS_OF_TEXTS = ("<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "<\uff5cend\u2581of\u2581sentence\uff5c>")
_ENDS_OF_TURNS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<end_of_utterance>", "<EOT>", "_<EOT>", "[EOT]")


class GgufTokenizer(Tokenizer):
    """Text to token ids and back, as a GGUF file describes it.

    metadata: the file's. tokenizer.ggml.model "gpt2" is byte-level BPE, with the file's merges and the pre-tokenizer that it
        names; some of these read a text in Unicode's normal form C, as their models have. "llama" is SentencePiece BPE: the
        pair whose union has the highest score merges first, and characters without a token become byte tokens. "gemma4" is
        that with the file's merges, of texts cut between newlines and others.
    end_token_ids: the file's eos, eot and eom tokens, and control tokens that by their spelling end a text, as in llama.cpp: an
        instruct model's file names the end of a turn alone. Older files name no eot token; in these it is the control token
        that the file's chat template writes after a message, found by its spelling too.

    Raises ModelError for a tokenizer that is not supported, or whose parts do not fit together.
    """

    def __init__(self, metadata: md.Metadata) -> None:
        tokens = md.texts(metadata, "tokenizer.ggml.tokens")
        ids = index_tokens(tokens)
        types = md.numbers(metadata, "tokenizer.ggml.token_type", len(tokens), integers=True)
        kinds: list[int] = [1] * len(tokens) if types is None else types.tolist()
        special = frozenset(i for i, kind in enumerate(kinds) if kind == _CONTROL)
        verbatim = special | {i for i, kind in enumerate(kinds) if kind == _USER_DEFINED}
        byte_tokens = {i: _byte_of(tokens[i]) for i, kind in enumerate(kinds) if kind == _BYTE}
        kind = md.text(metadata, "tokenizer.ggml.model")
        sentencepiece = kind in ("llama", "gemma4")
        build = {"llama": _sentencepiece, "gemma4": _by_merges}.get(kind, _byte_level)
        engine = build(metadata, tokens, kinds, ids)
        spelled = (i for i in sorted(verbatim) if tokens[i])
        engine.add_tokens([AddedToken(tokens[i], normalized=False, special=i in special) for i in spelled])
        begins = sentencepiece or _pre_tokenizer(metadata) in BEGINNING
        named = {name: _special_id(metadata, key, len(tokens)) for name, key in _NAMES.items()}
        super().__init__(
            engine,
            Vocabulary(tokens, special, verbatim, sentencepiece, byte_tokens),
            named_ids={name: i for name, i in named.items() if i is not None},
            end_token_ids=_ends(metadata, tokens, special),
            add_bos=md.flag(metadata, "tokenizer.ggml.add_bos_token", begins),
            infill_ids=_infill_ids(metadata, len(tokens)),
        )


def _pre_tokenizer(metadata: md.Metadata) -> str:
    return md.text(metadata, "tokenizer.ggml.pre", "default")


def _ends(metadata: md.Metadata, tokens: list[str], special: frozenset[int]) -> frozenset[int]:
    eos, eot, eom = (_special_id(metadata, f"{name}_token_id", len(tokens)) for name in ("eos", "eot", "eom"))
    found = {eos, eot, eom} | {i for i in special if tokens[i] in _ENDS_OF_TEXTS}
    if eot is None:
        template = md.text(metadata, "tokenizer.chat_template", "")
        found |= {i for i in special if tokens[i] in _ENDS_OF_TURNS and tokens[i] in template}
    return frozenset(i for i in found if i is not None)


def _infill_ids(metadata: md.Metadata, vocab_size: int) -> dict[str, int]:
    found = {name: [_special_id(metadata, key, vocab_size) for key in keys] for name, keys in KEYS.items()}
    return {name: next(i for i in ids if i is not None) for name, ids in found.items() if any(i is not None for i in ids)}


def _special_id(metadata: md.Metadata, name: str, vocab_size: int) -> int | None:
    """None for an id beyond the vocabulary, as in llama.cpp; a beginning or an end there is refused."""
    key = f"tokenizer.ggml.{name}"
    if key not in metadata:
        return None
    found = md.integer(metadata, key, least=0, most=vocab_size - 1 if name in _NEEDED else _MAX_ID)
    return found if found < vocab_size else None


def _byte_level(metadata: md.Metadata, tokens: list[str], kinds: list[int], ids: dict[str, int]) -> Engine:
    kind = md.text(metadata, "tokenizer.ggml.model")
    pre = _pre_tokenizer(metadata)
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise ModelError(
            f"tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported "
            f"(supported: 'llama', 'gemma4', and 'gpt2' with {', '.join(map(repr, PRE_TOKENIZERS))})"
        )
    return byte_level_engine(ids, _merges(metadata, ids), pre, whole_words=pre in WHOLE_WORDS)


def _merges(metadata: md.Metadata, ids: dict[str, int]) -> list[tuple[str, str]]:
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in md.texts(metadata, "tokenizer.ggml.merges"))]
    for left, right in merges:
        # The package panics if the result is not a token.
        if not (left in ids and right in ids and left + right in ids):
            raise ModelError(f"the tokenizer's merge of {left!r} and {right!r} does not fit its vocabulary")
    return merges


def _by_merges(metadata: md.Metadata, tokens: list[str], kinds: list[int], ids: dict[str, int]) -> Engine:
    engine = Engine(BPE(ids, _merges(metadata, ids), unk_token=_unknown(tokens, kinds), fuse_unk=True, byte_fallback=True))
    engine.normalizer, engine.pre_tokenizer = Replace(" ", SPACE), Split(Regex(r"\n+"), "isolated")
    return engine


def _unknown(tokens: list[str], kinds: list[int]) -> str | None:
    return next((token for token, kind in zip(tokens, kinds, strict=True) if kind == _UNKNOWN and token), None)


def _sentencepiece(metadata: md.Metadata, tokens: list[str], kinds: list[int], ids: dict[str, int]) -> Engine:
    scores = md.numbers(metadata, "tokenizer.ggml.scores", len(tokens))
    if scores is None:
        raise ModelError("the tokenizer's scores are missing")
    # Merges into tokens of a higher score come first.
    order = np.argsort(-scores.astype(np.float64), kind="stable").tolist()
    merges = list_merges((tokens[i] for i in order if kinds[i] not in (_UNKNOWN, _CONTROL, _BYTE)), ids)
    engine = Engine(BPE(ids, merges, unk_token=_unknown(tokens, kinds), fuse_unk=True, byte_fallback=_BYTE in kinds))
    spaces = [Replace(" ", SPACE)]
    prefix = [Prepend(SPACE)] if md.flag(metadata, "tokenizer.ggml.add_space_prefix", True) else []
    engine.normalizer = Rewrites([*prefix, *spaces])
    return engine


def _byte_of(token: str) -> bytes:
    byte = byte_of(token)
    if byte is None:
        raise ModelError(f"the tokenizer's byte token {token!r} is not <0xNN>")
    return byte
