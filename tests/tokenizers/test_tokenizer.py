"""The tokenizer against llama.cpp's ids, and its way back to text."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decodestep.models import ModelError
from decodestep.tokenizers.gguf_tokenizer import GgufTokenizer
from decodestep.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from support.project import TESTS

VECTORS = json.loads((TESTS / "vectors" / "tokenizer.json").read_text())["cases"]


def test_ids_equal_llama_cpp(model):
    wrong = [(text, ids) for text, ids in VECTORS if model.tokenizer.encode(text) != ids]
    assert not wrong


def test_ids_of_long_texts_are_those_of_their_lines(model):
    line = "A line of some words, 12345 numbers and <|im_end|> too.\n"
    ids, count = model.tokenizer.encode(line), 1000
    assert len(line) * count > 2**15 and model.tokenizer.encode(line * count) == ids * count


def test_text_comes_back(model):
    tokenizer = model.tokenizer
    for text, ids in VECTORS:
        plain = not any(i in tokenizer.special for i in ids)
        if plain:
            assert tokenizer.decode(ids) == text


def test_control_tokens_add_no_text(model):
    ids = model.tokenizer.encode("<|im_start|>user\nhi<|im_end|>")
    assert ids[0] == 1
    assert ids[-1] == 2
    assert model.tokenizer.decode(ids) == "user\nhi"
    for kind in (tuple, iter, np.array, torch.tensor):
        assert model.tokenizer.decode(kind(ids)) == "user\nhi"


def test_a_byte_that_the_vocabulary_lacks_is_left_out(model):
    tokenizer = model.tokenizer
    lacking = [chr(i) for i in range(256) if tokenizer.decode(tokenizer.encode(chr(i))) != chr(i)]
    assert all(tokenizer.encode(f"a{c}b") == tokenizer.encode("a") + tokenizer.encode("b") for c in lacking)
    assert all(ord(c) < 32 for c in lacking)


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({}, ["</s>"]),
        ({"chat_template": "{{ m }}<|eot_id|>"}, ["</s>", "<|eot_id|>"]),
        ({"chat_template": "{{ m }}</s>"}, ["</s>"]),
        ({"chat_template": "{{ m }}<|eot_id|>", "eot_token_id": 0}, ["</s>", "a"]),
        ({"chat_template": "{{ m }}<|eot_id|>", "eot_token_id": 4}, ["</s>", "<|eot_id|>"]),
    ],
    ids=str,
)
def test_ends_of_turns_that_only_the_template_tells(changes, ends):
    tokens = ["a", "</s>", "<|eot_id|>", "<|end|>"]
    keys = {"model": "gpt2", "tokens": tokens, "merges": [], "token_type": [1, 3, 3, 3], "eos_token_id": 1}
    template = {"tokenizer.chat_template": changes["chat_template"]} if "chat_template" in changes else {}
    ids = {f"tokenizer.ggml.{name}": value for name, value in (keys | changes).items() if name != "chat_template"}
    assert GgufTokenizer(ids | template).end_token_ids == {tokens.index(end) for end in ends}


def test_ends_of_texts_are_known_by_their_spelling():
    """The file of an instruct model names the end of a turn alone, as Llama 3's and Qwen's do, whose folders name all three."""
    tokens = ["a", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|endoftext|>", "<|begin_of_text|>"]
    keys = {"model": "gpt2", "tokens": tokens, "merges": [], "token_type": [1, 3, 3, 3, 1, 3], "eos_token_id": 1}
    tokenizer = GgufTokenizer({f"tokenizer.ggml.{name}": value for name, value in keys.items()})
    assert tokenizer.end_token_ids == {1, 2, 3}  # the fourth is a word


@pytest.mark.parametrize("name", ["padding", "unknown", "eot", "eom"])
@pytest.mark.parametrize("beyond", [98, 2**32 - 1])
def test_an_id_beyond_the_vocabulary_names_no_token(name, beyond):
    """As in llama.cpp. Without its end or its beginning a model would not run as it is meant to."""
    tokenizer, plain = GgufTokenizer(metadata(**{f"{name}_token_id": beyond})), GgufTokenizer(metadata())
    assert tokenizer.named_ids == plain.named_ids and tokenizer.end_token_ids == plain.end_token_ids
    for key in ("eos_token_id", "bos_token_id"):
        with pytest.raises(ModelError, match=rf"{key} must be an integer in \[0, 97\]"):
            GgufTokenizer(metadata(**{key: beyond}))


def test_ids_outside_the_vocabulary_add_nothing(model):
    assert model.tokenizer.token_bytes(len(model.tokenizer)) == b""
    assert model.tokenizer.token_bytes(-1) == b""


def metadata(**changes):
    tokens = [chr(c) for c in range(ord("!"), ord("~") + 1)] + ["ab", "<s>", "</s>", "¿"]
    base = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 3) + [3, 3, 4],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": len(tokens) - 3,
        "tokenizer.ggml.eos_token_id": len(tokens) - 2,
        "tokenizer.ggml.add_bos_token": True,
    }
    return base | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def test_a_beginning_token_is_put_first_once():
    tokenizer = GgufTokenizer(metadata())
    assert tokenizer.encode("ab") == tokenizer.encode("<s>ab")
    assert len(tokenizer.encode("ab")) == 2


@pytest.mark.parametrize(("pre", "first"), [("llama-bpe", True), ("tekken", True), ("qwen2", False), ("smollm", False)])
def test_a_beginning_token_is_put_first_where_llama_cpp_does(pre, first):
    """Of a file without add_bos_token, as many of Llama 3 are: as llama_cpp.Llama(..., vocab_only=True).tokenize."""
    silent = metadata(pre=pre)
    del silent["tokenizer.ggml.add_bos_token"]
    tokenizer = GgufTokenizer(silent)
    assert tokenizer.encode("ab") == ([tokenizer.bos_token_id] if first else []) + [tokenizer.encode("ab")[-1]]
    assert len(GgufTokenizer(metadata(pre=pre, add_bos_token=False)).encode("ab")) == 1


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_keeps_the_text(pre):
    tokenizer = GgufTokenizer(metadata(pre=pre, add_bos_token=False))
    assert tokenizer.decode(tokenizer.encode("ab!a12,b--")) == "ab!a12,b--"


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "llama"},
        {"model": 3},
        {"model": np.ones(2, bool)},
        {"pre": "unheard-of"},
        {"pre": ["gpt-2"]},
        {"tokens": []},
        {"tokens": 5},
        {"tokens": "abc"},
        {"tokens": [1, 2, 3]},
        {"tokens": np.arange(98)},
        {"tokens": ["ab"] * 98},
        {"tokens": ["a" * (1 << 20)], "token_type": [1], "merges": []},
        {"token_type": [1]},
        {"token_type": 5},
        {"token_type": "n" * 98},
        {"token_type": [1.0] * 98},
        {"token_type": np.ones((98, 1), np.int32)},
        {"token_type": [6] * 98},
        {"merges": ["a"]},
        {"merges": ["a ü"]},
        {"merges": ["a c"]},
        {"merges": [" "]},
        {"tokens": ["a", "b"], "token_type": [1, 1], "merges": ["a b"]},  # the tokenizers package would panic
        {"merges": [""]},
        {"merges": 5},
        {"merges": "a b"},
        {"merges": [["a", "b"]]},
        {"eos_token_id": 10_000},
        {"eos_token_id": -1},
        {"eos_token_id": 1.0},
        {"eos_token_id": True},
        {"bos_token_id": "x"},
        {"padding_token_id": [1]},
        {"padding_token_id": -1},
        {"add_bos_token": 1},
        {"add_bos_token": np.ones(2, bool)},
    ],
    ids=lambda changes: ",".join(f"{key}={value!r:.20}" for key, value in changes.items()),
)
def test_refuses_what_it_cannot_read(changes):
    with pytest.raises(ModelError):
        GgufTokenizer(metadata(**changes))


def test_tokens_of_nothing_are_no_duplicates():
    tokens = [*metadata()["tokenizer.ggml.tokens"], "", ""]
    tokenizer = GgufTokenizer(metadata(tokens=tokens, token_type=[1] * 95 + [3, 3, 4, 3, 1]))
    assert tokenizer.encode("ab") == [tokens.index("<s>"), tokens.index("ab")]
    assert tokenizer.decode([tokens.index("ab"), len(tokens) - 1, len(tokens) - 2]) == "ab"


SPM_WORDS = ["▁the", "▁t", "he", "th", "▁th", "▁", "t", "h", "e", "é", "ab", "a", "b"]


def sentencepiece(**changes):
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *SPM_WORDS]
    base = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(SPM_WORDS)],
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(SPM_WORDS))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return base | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes():
    tokenizer = GgufTokenizer(sentencepiece())
    spelt = [tokenizer.token(i) for i in tokenizer.encode("the abé 你")]
    assert spelt == ["<s>", "▁the", "▁", "ab", "é", "▁", "<0xE4>", "<0xBD>", "<0xA0>"]
    assert tokenizer.decode(tokenizer.encode("the abé 你")) == " the abé 你"
    assert [tokenizer.token(i) for i in tokenizer.encode("<s>the</s>he")] == ["<s>", "▁the", "</s>", "▁", "he"]
    bare = GgufTokenizer(sentencepiece(add_space_prefix=False, add_bos_token=False))
    assert [bare.token(i) for i in bare.encode("the")] == ["t", "he"]  # of "th" and "he" the one that scores higher


@pytest.mark.parametrize("changes", [{}, {"add_space_prefix": False}, {"add_bos_token": False}])
def test_a_text_within_another_has_the_tokens_that_it_has_there(changes):
    tokenizer = GgufTokenizer(sentencepiece(**changes))
    whole = tokenizer.encode("ab the\nhe")
    for text, before in ((" the\nhe", "ab"), ("\nhe", "ab the"), ("he", "ab the\n"), ("", "ab the\nhe")):
        assert tokenizer.encode_within(text) == whole[len(tokenizer.encode(before)) :]
    assert [tokenizer.token(i) for i in tokenizer.encode_within("the")] == ["t", "he"]
    assert GgufTokenizer(metadata()).encode_within("bab") == GgufTokenizer(metadata()).encode("bab")[1:]


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": []},
        {"scores": 5},
        {"scores": "1" * 272},
        {"scores": [0.0] * 271 + [math.nan]},
        {"scores": [0.0] * 271 + [-math.inf]},
        {"scores": ["0"] * 272},
        {"token_type": [6] * 272},
        {"bos_token_id": 999},
        {"add_space_prefix": 3},
        # Each of these would be cut in two at a million places, or has more merges than fit into memory.
        {"tokens": ["▁" * (1 << 20)], "scores": [0.0], "token_type": [1]},
        {"tokens": ["a" * n for n in range(1, 1024)], "scores": [0.0] * 1023, "token_type": [1] * 1023},
    ],
    ids=lambda changes: ",".join(f"{key}={value!r:.20}" for key, value in changes.items()),
)
def test_sentencepiece_refuses_what_does_not_fit(changes):
    with pytest.raises(ModelError):
        GgufTokenizer(sentencepiece(**changes))


def is_repetition(piece):
    """Three or more times one string: both unions in `[aa, a, aa]` are it, with one score, and packages differ on ties."""
    return any(piece == piece[:n] * (len(piece) // n) for n in range(1, len(piece) // 3 + 1))


def spm_pieces(text, scores):
    """SentencePiece's rule in plain Python: the neighbours whose union has the highest score are merged, the leftmost first."""
    parts = list(text)
    while len(parts) > 1:
        unions = [(scores.get(left + right, -math.inf), -at) for at, (left, right) in enumerate(itertools.pairwise(parts))]
        score, place = max(unions)
        if score == -math.inf:
            break
        parts[-place : 2 - place] = [parts[-place] + parts[1 - place]]
    return parts


WORD = st.text("ab▁é", min_size=2, max_size=7).filter(lambda piece: not is_repetition(piece))


@pytest.mark.slow
@settings(max_examples=300)
@given(
    words=st.lists(WORD, unique=True, max_size=25),
    seed=st.integers(0, 1000),
    texts=st.lists(st.text("ab é", max_size=20), min_size=1, max_size=5),
)
def test_sentencepiece_is_that_of_plain_python(words, seed, texts):
    tokens = ["<unk>", "<s>", *"ab▁é", *words]
    scores = np.random.default_rng(seed).permutation(len(tokens)).astype(float) - len(tokens)
    types = [2, 3, *[1] * (len(tokens) - 2)]
    tokenizer = GgufTokenizer(sentencepiece(tokens=tokens, token_type=types, scores=scores.tolist(), eos_token_id=1))
    known = dict(zip(tokens[2:], scores[2:].tolist(), strict=True))
    for text in texts:
        pieces = [tokenizer.token(i) for i in tokenizer.encode(text)[1:]]
        assert pieces == (spm_pieces("▁" + text.replace(" ", "▁"), known) if text else [])


def test_merges_of_texts_that_are_not_cut_at_spaces():
    """Gemma 4's files: the merges of the file, spaces as a letter of words, bytes for what has no token."""
    letters = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"ab\u2581\n"]
    tokens = [*letters, "ab", "\u2581a", "\n\n", "ab\u2581a", "\u2581\u2581"]
    merges = ["a b", "\u2581 a", "\n \n", "ab \u2581a", "\u2581 \u2581"]
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3, 3, 3, 2, *[6] * 256, *[1] * (len(tokens) - 260)]),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
    }
    tokenizer = GgufTokenizer(metadata)
    spelled = [tokens[i] for i in tokenizer.encode("ab a  b\n\n\na\u00e9")]
    assert spelled == ["<bos>", "ab\u2581a", "\u2581\u2581", "b", "\n\n", "\n", "a", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("ab a  b\n\n\na\u00e9")) == "ab a  b\n\n\na\u00e9"
    assert tokenizer.add_bos
