"""How a text is cut before its merges: ids against an implementation in plain Python, with patterns from other packages."""

from __future__ import annotations

import inspect
import unicodedata
from collections.abc import Callable
from functools import cache

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine
from tokenizers import models, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import Qwen2Converter, TikTokenConverter
from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX

from decodestep._base.byte_alphabet import BYTE_OF
from decodestep.tokenizers.gguf_tokenizer import GgufTokenizer

CORPUS = [
    "The quick brown foxes aren't what they'd been; they'll see, I'M sure WE'RE fine. it's 2024, 12345 and 100000 times",
    "def f(x):\n    return x**2 + 1\n\n\n\tif a != b:  # naïve café — “quoted”\r\n\r\n        pass\n",
    "Zürich, straße, ελληνικά, русский текст, 漢字かな交じり文, 한국어, العربية ١٢٣, 🙂🙃 e\u0301 \u00e9 ½ ² Ⅷ",
] * 3
CHARACTERS = {byte: character for character, byte in BYTE_OF.items()}


@cache
def trained() -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level vocabulary, over letters, digits, spaces and newlines, trained on uncut text."""
    engine = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    engine.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False))
    vocabulary = engine.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    known, merges = set(tokens[:256]), []
    for token in tokens:  # in the order of their merges: each is two tokens from before it
        if token not in known:
            cuts = ((token[:n], token[n:]) for n in range(1, len(token)))
            left, right = next((left, right) for left, right in cuts if left in known and right in known)
            merges.append(f"{left} {right}")
            known.add(token)
    return tokens, merges


def merged(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Byte-pair merges of one word, the first of the lowest rank at each step."""
    parts = [CHARACTERS[byte] for byte in word.encode()]
    while len(parts) > 1:
        rank, at = min((ranks.get((parts[i], parts[i + 1]), len(ranks)), i) for i in range(len(parts) - 1))
        if rank == len(ranks):
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def by_pattern(*patterns: str) -> Callable[[str], list[str]]:
    """Cuts a text at the matches of each pattern, one after the other; what lies between two matches is a piece too."""

    def cut(pieces: list[str], pattern: str) -> list[str]:
        found = (piece for text in pieces for piece in regex.split(f"({pattern})", text) if piece)
        return list(found)

    def words(text: str) -> list[str]:
        pieces = [text] if text else []
        for pattern in patterns:
            pieces = cut(pieces, pattern)
        return pieces

    return words


def words_of_gpt2(text: str) -> list[str]:
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str(text)
    return [bytes(BYTE_OF[c] for c in word).decode() for word, _ in cut]


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = inspect.signature(TikTokenConverter).parameters["pattern"].default
QWEN2 = regex.search(r'r"""(.*?)"""', inspect.getsource(Qwen2Converter))[1]
QWEN35 = PRETOKENIZE_REGEX
# The words of GPT-4o's tokenizer, from OpenAI's tiktoken; in Kimi's no letter of theirs is Han, and a run of Han is a word.
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
REST = r"|\p{N}{1,%d}| ?[^\s\p{L}\p{N}]+[\r\n%s]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def by_case(upper: str, lower: str, marks: str, digits: int = 3) -> str:
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}{upper}*{lower}+{SUFFIX}|{before}{upper}+{lower}*{SUFFIX}" + REST % (digits, marks)


def not_han(letters: str) -> str:
    return rf"(?:(?!\p{{Han}}){letters})"


WORDS = {
    "gpt-4o": by_pattern(by_case(UPPER, LOWER, "/")),
    # From Mistral's tokenizer.json: GPT-4o's words without their suffixes, digits one by one.
    "tekken": by_pattern(by_case(UPPER, LOWER, "/", 1).replace(SUFFIX, "")),
    "kimi-k2": by_pattern(r"\p{Han}+|" + by_case(not_han(UPPER), not_han(LOWER), "")),
    "glm4": by_pattern(LLAMA3),
    "falcon3": by_pattern(LLAMA3),
    "dbrx": by_pattern(LLAMA3),
    "deepseek-r1-qwen": by_pattern(QWEN2),
    # From llama.cpp: no package has them.
    "deepseek-v3": by_pattern(
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        r"""[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    ),
    "youtu": by_pattern(
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+",
        by_case(UPPER, LOWER, "/", 1),
    ),
    # From their tokenizer.json, as llama.cpp quotes it.
    "seed-coder": by_pattern(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "minicpm5": by_pattern(
        r"\p{N}{1,3}",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "deepseek-coder": by_pattern(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[\u0800-\u9fa5\uac00-\ud7ff]+", r"\p{N}"),
    "gpt-2": words_of_gpt2,
    "smollm": lambda text: [word for piece in regex.split(r"(\p{N})", text) if piece for word in words_of_gpt2(piece)],
    "refact": lambda text: [word for piece in regex.split(r"(\p{N})", text) if piece for word in words_of_gpt2(piece)],
    "llama-bpe": by_pattern(LLAMA3),
    "qwen2": lambda text: by_pattern(QWEN2)(unicodedata.normalize("NFC", text)),
    "qwen35": lambda text: by_pattern(QWEN35)(unicodedata.normalize("NFC", text)),
    # From llama.cpp, whose default it is: no package has it.
    "default": by_pattern(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
# Those that take a word that is a token as it is.
TAKEN = ("llama-bpe", "falcon3", "tekken", "glm4", "minicpm5", "youtu")


@cache
def ours(pre: str, *more: str) -> GgufTokenizer:
    """more: tokens that no merges make."""
    tokens, merges = trained()
    return GgufTokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": [*tokens, *more],
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.add_bos_token": False,
        }
    )


def expected(pre: str, text: str) -> list[int]:
    tokens, merges = trained()
    ids = {token: i for i, token in enumerate(tokens)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    result: list[int] = []
    for word in WORDS[pre](text):
        whole = "".join(CHARACTERS[byte] for byte in word.encode())
        taken = pre in TAKEN and whole in ids
        result += [ids[whole]] if taken else [ids[part] for part in merged(word, ranks)]
    return result


SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200d", "\x00"]
WORDS_AND_MARKS = ["'s", "'LL", "'", "don't", "abc", "É", "e\u0301", "ſ", "漢字", "!", "...", "$+<=>^~|", "—", "🙂", "_"]
NUMBERS = ["0", "12", "1234567", "١٢", "½", "²", "Ⅷ"]
# Of what is not assigned yet, engines with tables of different versions of Unicode think differently.
CHARACTER = st.characters(exclude_categories=["Cs", "Cn"])
TEXT = st.lists(
    st.sampled_from(SPACES) | st.sampled_from(WORDS_AND_MARKS) | st.sampled_from(NUMBERS) | st.text(CHARACTER, max_size=4),
    max_size=12,
).map("".join)


@pytest.mark.slow
@pytest.mark.parametrize("pre", WORDS)
@settings(max_examples=300)
@given(text=TEXT)
def test_ids_are_those_of_plain_python(pre, text):
    assert ours(pre).encode(text) == expected(pre, text)


@pytest.mark.parametrize("pre", WORDS)
def test_ids_of_whole_texts(pre):
    text = "\n".join(CORPUS)
    ids = ours(pre).encode(text)
    assert ids == expected(pre, text)
    assert len(ids) < len(text)  # merges are made
    back = ours(pre).decode(ids)
    assert back == (unicodedata.normalize("NFC", text) if pre in ("qwen2", "qwen35") else text)


@pytest.mark.parametrize("pre", WORDS)
def test_a_word_that_is_a_token_but_no_merge(pre):
    ids = ours(pre, "zyzzyva").encode("zyzzyva")
    assert (ids == [len(trained()[0])]) == (pre in TAKEN)


def test_the_patterns_differ():
    text = "I'M 12345!\n\n  x"
    assert len({tuple(expected(pre, text)) for pre in WORDS}) > 3
