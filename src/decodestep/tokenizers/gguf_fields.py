"""Converts a folder's tokenizer to the keys of a GGUF file, and verifies it on texts before anything is written."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from gguf.constants import TokenType

from decodestep.errors import ModelError
from decodestep.tokenizers.engine import byte_level_engine
from decodestep.tokenizers.folder_tokenizer import FolderTokenizer
from decodestep.tokenizers.gguf_tokenizer import GgufTokenizer
from decodestep.tokenizers.pre_tokenizers import COMPOSED, PRE_TOKENIZERS, WHOLE_WORDS
from decodestep.tokenizers.vocabulary import SPACE

# What tells the pre-tokenizers apart: numbers, contractions, cases, marks, scripts, runs of spaces and lines, unusual forms.
_TEXTS = (
    "Hello, World! I'm sure they'LL say it's 1 22 333 4444 55555,6666.777 (e.g. x+=y**2; f(a[0])) at 12:30.",
    "def camelCase(HTTPServer, aB):\n    return not_x  # TODO: v1.0\r\n\n\n\t\tend   of \n line  ",
    "  leading, trailing  \n\n \n  \u00a0\u3000x\u200b. ...!!!???\n/path/to//file\\n -> <= >= $5 50% #tag @me `code` ~~ ^_^",
    "Ünïcödé naïve Straße ÉCOLE e\u0301cole ÇA ǅungla ﬁn \uff21\uff11 ½ ² Ⅷ ",
    "漢字とかな交じり文、カタカナ。「引用」 中文\uff0c标点\uff01 한국어 문장입니다 ㅋㅋ",
    "Привет, мир! Ελληνικά שלום עולם مرحبا بالعالم ١٢٣ हिन्दी में ४५ ไทยไม่มีเว้นวรรค ᎠᎡ ʰˢ́ 𝔘𝔫𝔦 😀👍🏽🏳️‍🌈 a😀b",
    "don't DON'T can’t we'Re 's 'S x's\n's I'd 'D",
    "x  1   22\n  333 \t4",
    "one\ttwo\x0bthree\x0cfour\u2028five\u2029six\x85seven a\u0300b \u1100\u1161\u11a8 \uac01",
)
_RANDOM_TEXTS = 100
# Flags of an added token that takes the spaces around it, or is found as a whole word alone.
_BOUNDS = ("lstrip", "rstrip", "single_word")


def tokenizer_fields(tokenizer: FolderTokenizer, vocab_size: int, usual: str | None, where: str) -> dict[str, Any]:
    """tokenizer.ggml's keys. vocab_size: the model's, up to which ids without a token get one. usual: the name that the
    family's files have, of several that cut texts alike; None: any.

    Raises ModelError for a tokenizer that GGUF has no form for, and for one that would give a text other ids.
    """
    definition = tokenizer.definition()
    model = definition["model"]
    if model.get("type") != "BPE":
        raise ModelError(f"{where}: a tokenizer of type {model.get('type')!r} cannot be stored in a GGUF file (only BPE can)")
    tokens = [tokenizer.token(i) if i < len(tokenizer) else "" for i in range(vocab_size)]
    added = {token["id"]: token for token in definition["added_tokens"]}
    bounded = next((token["content"] for token in added.values() if any(token[flag] for flag in _BOUNDS)), None)
    if bounded is not None:
        raise ModelError(f"{where}: a GGUF file cannot say where the added token {bounded!r:.80} ends ({', '.join(_BOUNDS)})")
    cut = next((token for token in tokens if "\0" in token), None)
    if cut is not None:
        raise ModelError(f"{where}: llama.cpp ends a token at a character 0, which {cut!r:.80} has")
    spm = "ByteLevel" not in tokenizer.kinds
    merges = [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]
    if not spm and not merges:
        raise ModelError(f"{where}: llama.cpp does not load a file whose tokenizer has no merges")
    fields: dict[str, Any] = {
        "tokenizer.ggml.tokens": [token or f"[PAD{i}]" for i, token in enumerate(tokens)],
        "tokenizer.ggml.token_type": [int(_type(i, token, added, model, tokenizer)) for i, token in enumerate(tokens)],
        "tokenizer.ggml.add_bos_token": tokenizer.add_bos,
        **_special(tokenizer, where),
    }
    whole_words = bool(model.get("ignore_merges")) and not spm
    texts = [*_TEXTS, *_random_texts(tokens)]
    for form in _forms(tokenizer, tokens, merges, usual, spm=spm, whole_words=whole_words):
        named = fields | {f"tokenizer.ggml.{key}": value for key, value in form.items()}
        rebuilt = GgufTokenizer(named)
        if not _give_same_ids(rebuilt, tokenizer, texts):
            continue
        # Few words that are tokens are not what the merges make of them, so that random texts seldom have one.
        alike = (form["pre"] in WHOLE_WORDS) == whole_words
        if alike or _give_same_ids(rebuilt, tokenizer, ["\n".join(tokenizer.decode([i]) for i in range(len(tokens)))]):
            return named
    raise ModelError(f"{where}: no tokenizer of the GGUF format gives texts the same ids")


def _forms(
    tokenizer: FolderTokenizer,
    tokens: list[str],
    merges: list[list[str]],
    usual: str | None,
    *,
    spm: bool,
    whole_words: bool,
) -> Iterator[dict[str, Any]]:
    """The keys by which a file may say how texts are cut and merged, the likeliest first."""
    by_merges = {"merges": [" ".join(merge) for merge in merges]}
    if not spm:
        composed = "NFC" in str(tokenizer.definition().get("normalizer"))
        for name in _pre_tokenizers(tokenizer, usual, whole_words, composed):
            yield {"model": "gpt2", "pre": name, **by_merges}
        return
    if usual == "gemma4":
        yield {"model": "gemma4", "pre": "gemma4", **by_merges}
    yield {"model": "llama", "pre": "default", "scores": _scores(tokens, merges), "add_space_prefix": _adds_space(tokenizer)}


def _give_same_ids(written: GgufTokenizer, tokenizer: FolderTokenizer, texts: Sequence[str]) -> bool:
    return all(written.encode(text) == tokenizer.encode(text) for text in texts)


def _adds_space(tokenizer: FolderTokenizer) -> bool:
    """Whether a text begins with a space before its own characters."""
    first = tokenizer.encode_rendered("a")[:1]
    return bool(first) and tokenizer.token(first[0]).startswith(SPACE)


def _type(i: int, token: str, added: dict[int, Any], model: dict[str, Any], tokenizer: FolderTokenizer) -> TokenType:
    if i in added:
        return TokenType.CONTROL if added[i]["special"] else TokenType.USER_DEFINED
    if token and token == model.get("unk_token"):
        return TokenType.UNKNOWN
    if tokenizer.is_byte(i):
        return TokenType.BYTE
    return TokenType.NORMAL if token else TokenType.UNUSED


def _special(tokenizer: FolderTokenizer, where: str) -> dict[str, int]:
    """The ids that have keys. A file has three for tokens that end a text."""
    named = tokenizer.named_ids
    ends = sorted(tokenizer.end_token_ids, key=lambda i: (i != tokenizer.eos_token_id, i))
    if len(ends) > 3:
        raise ModelError(f"{where}: a GGUF file has keys for three tokens that end a text, not for {len(ends)}")
    found = dict(zip(("eos", "eot", "eom"), ends, strict=False)) | {"bos": named.get("bos")}
    found |= {"unknown": named.get("unk"), "padding": named.get("pad")}
    return {f"tokenizer.ggml.{name}_token_id": i for name, i in found.items() if i is not None}


def _scores(tokens: list[str], merges: list[list[str]]) -> list[float]:
    """SentencePiece merges into the token of the highest score first: the order of the merges."""
    order: dict[str, int] = {}
    for left, right in merges:
        order.setdefault(left + right, len(order))
    return [-float(order.get(token, len(order))) for token in tokens]


def _pre_tokenizers(tokenizer: FolderTokenizer, usual: str | None, whole_words: bool, composed: bool) -> list[str]:
    """The names whose patterns cut the texts as the tokenizer does, the likeliest first."""
    theirs = [tokenizer.pieces(text) for text in _TEXTS]
    names = []
    for name in PRE_TOKENIZERS:
        cut = byte_level_engine({}, [], name, whole_words=False).pre_tokenizer
        if (name in COMPOSED) == composed and [[p for p, _ in cut.pre_tokenize_str(text)] for text in _TEXTS] == theirs:
            names.append(name)
    return sorted(names, key=lambda name: (name != usual, (name in WHOLE_WORDS) != whole_words))


def _random_texts(tokens: list[str]) -> Iterator[str]:
    """Of whole tokens and of cut ones, the same every time."""
    source = random.Random(0)
    for _ in range(_RANDOM_TEXTS):
        parts = [source.choice(tokens)[: source.choice((1, 2, 99))] for _ in range(8)]
        yield "".join(source.choice(("", " ")) + part.replace(SPACE, " ").replace("\u0120", " ") for part in parts)
