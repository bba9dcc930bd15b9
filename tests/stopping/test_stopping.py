"""Stopping criteria: lengths, time, end tokens, confidence, strings, and lists of them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers.generation.stopping_criteria as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from decodestep import stopping as ds
from decodestep._base.byte_alphabet import BYTE_OF
from decodestep.sampling.text_stream import TextStream
from decodestep.stopping.stop_table import stop_table
from decodestep.stopping.token_text import token_bytes
from support.processor_cases import in_numpy, make, numpy_and_torch, same_error

CORPUS = [
    "abcdef the end is near, stop here 끝 하지만",
    "abcdef <stop> naïve café — “quoted”\nnew line\n\nabc",
    "ababab cabbage 🙂",
] * 3


def byte_level() -> Any:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens(["<|the end|>", "<eos>"])
    return tokenizer


def byte_fallback() -> Any:
    words = ["a", "b", "c", "d", "e", "f", "▁", "▁the", "▁end", "en", "nd", "n", "s", "t", "o", "p", "st", "▁st", "끝", "abc"]
    vocab = {token: i for i, token in enumerate(["<unk>", "<eos>", *(f"<0x{b:02X}>" for b in range(256)), *words])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, [("a", "b")][:0], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def word_pieces() -> Any:
    words = ["[UNK]", *"abcdefnstop", *(f"##{c}" for c in "abcdefnstop"), "the", "end", "##ing", "st", "##op", ",", "."]
    tokenizer = tokenizers.Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    return tokenizer


def words_alone() -> Any:
    words = ["[UNK]", "abcdef", "stop", "the", "end", "st", "op"]
    tokenizer = tokenizers.Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Any]] = {f.__name__: f for f in (byte_level, byte_fallback, word_pieces, words_alone)}


@pytest.fixture(scope="module", params=TOKENIZERS)
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A tokenizer of `tokenizers`, and the same as one of transformers."""
    plain = TOKENIZERS[request.param]()
    return plain, PreTrainedTokenizerFast(tokenizer_object=plain)


@numpy_and_torch
def test_by_hand(kind):
    ids = make(kind, [[1, 2, 3], [4, 5, 6]], "int64")
    for criterion, expected in [
        (ds.MaxLengthCriteria(3), [True, True]),
        (ds.MaxLengthCriteria(4), [False, False]),
        (ds.MaxNewTokensCriteria(1, 2), [True, True]),
        (ds.MaxNewTokensCriteria(1, 3), [False, False]),
        (ds.MaxTimeCriteria(1000.0), [False, False]),
        (ds.MaxTimeCriteria(1.0, time.time() - 2), [True, True]),
        (ds.EosTokenCriteria(6), [False, True]),
        (ds.EosTokenCriteria([3, 6]), [True, True]),
        (ds.EosTokenCriteria(5), [False, False]),
        (ds.StoppingCriteriaList([ds.MaxLengthCriteria(9), ds.EosTokenCriteria(3)]), [True, False]),
        (ds.StoppingCriteriaList(), [False, False]),
    ]:
        done = criterion(ids, None)
        assert type(done) is type(ids) and str(done.dtype).endswith("bool") and done.tolist() == expected
    assert ds.EosTokenCriteria(5)(ids, None, new_token_length=2).tolist() == [False, True]
    assert ds.EosTokenCriteria(1)(ids, None, new_token_length=0).tolist() == [True, False]
    assert ds.EosTokenCriteria(256 + 3)(make(kind, [[3]], "uint8"), None).tolist() == [False]
    scores = (None, make(kind, [[0.0, 0.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0]]))
    assert ds.ConfidenceCriteria(0.3)(ids, scores) is True
    assert ds.ConfidenceCriteria(np.float64(0.2))(ids, scores) is False


def test_criteria_equal_transformers():
    rng = np.random.default_rng(61)
    for _ in range(60):
        ids = torch.from_numpy(rng.integers(0, 6, (3, int(rng.integers(1, 7)))))
        scores = (torch.from_numpy(rng.standard_normal((3, 6))),)
        pair = rng.integers(0, 6, 2)
        eos = [int(pair[0]), pair.tolist(), torch.from_numpy(pair)][int(rng.integers(3))]
        for name, arguments in [("MaxLengthCriteria", (4,)), ("EosTokenCriteria", (eos,)), ("ConfidenceCriteria", (0.2,))]:
            ours, theirs = getattr(ds, name)(*arguments), getattr(hf, name)(*arguments)
            more = {"new_token_length": int(rng.integers(1, 4))}
            assert np.array_equal(ours(ids, scores, **more), theirs(ids, scores, **more))
            assert np.array_equal(ours(in_numpy(ids), [in_numpy(scores[0])], **more), theirs(ids, scores, **more))


def test_lists_know_their_length(caplog):
    limits = ds.StoppingCriteriaList([ds.EosTokenCriteria(1), ds.MaxLengthCriteria(7), ds.MaxLengthCriteria(9)])
    assert limits.max_length == 7
    assert ds.StoppingCriteriaList([ds.MaxNewTokensCriteria(2, 3)]).max_length == 5
    assert ds.StoppingCriteriaList().max_length is None
    assert ds.validate_stopping_criteria(ds.StoppingCriteriaList(), 5).max_length == 5
    with pytest.warns(UserWarning, match="7"):
        assert ds.validate_stopping_criteria(limits, 5).max_length == 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ds.validate_stopping_criteria(limits, 7).max_length == 7
    for _ in range(2):
        ds.MaxLengthCriteria(9, max_position_embeddings=3)(np.zeros((1, 4)), None)
        ds.MaxLengthCriteria(9, max_position_embeddings=4)(np.zeros((1, 4)), None)
        ds.MaxLengthCriteria(4, max_position_embeddings=2)(np.zeros((1, 4)), None)  # ends there
    assert len(caplog.records) == 1


@numpy_and_torch
def test_stop_strings_by_hand(kind):
    tokenizer = byte_level()
    stop = ds.StopStringCriteria(tokenizer, ["end", "끝", "\n\n"])

    def stops(text: str, *, after: str = "") -> list[bool]:
        ids = tokenizer.encode(text).ids + tokenizer.encode(after).ids
        return [stop(make(kind, [ids[:n]], "int64"), None).tolist()[0] for n in range(1, len(ids) + 1)]

    assert stops("the end")[-1]
    assert not any(stops("the en"))
    letters = [tokenizer.token_to_id(c) for c in "xend"]
    assert [bool(stop(make(kind, [letters[:n]], "int64"), None)[0]) for n in range(1, 5)] == [False, False, False, True]
    assert stops("하지만 끝")[-1]
    assert stops("a\n\nb")[-1] is False  # the string ended in an earlier token
    assert any(stops("a\n\nb"))
    assert not stops("the end", after=" x")[-1]
    assert stop(make(kind, [letters], "int16"), None).tolist() == [True]
    beyond = make(kind, [[letters[1], 10**6, *letters[2:]]], "int64")
    assert stop(beyond, None).tolist() == [False]  # an id that is not a token ends the text to its left


def substrings(rng: np.random.Generator, tokenizer: Any, count: int) -> list[str]:
    """Stop strings cut from random text, so that they begin and end inside tokens."""
    found = []
    for _ in range(count):
        text = tokenizer.decode(rng.integers(0, len(tokenizer), 6).tolist())
        start = int(rng.integers(0, max(len(text) - 1, 1)))
        found.append(text[start : start + int(rng.integers(1, 6))] or "e")
    return found


@pytest.mark.slow
def test_stop_strings_equal_transformers(both):
    plain, tokenizer = both
    rng = np.random.default_rng(62)
    found = 0
    for _ in range(60):
        strings = substrings(rng, tokenizer, int(rng.integers(1, 4)))
        try:
            theirs = hf.StopStringCriteria(tokenizer, strings)
        except ValueError:
            with pytest.raises(ValueError, match="StopStringCriteria"):
                ds.StopStringCriteria(tokenizer, strings)
            continue
        ours, direct = ds.StopStringCriteria(tokenizer, strings), ds.StopStringCriteria(plain, strings)
        assert (ours.maximum_token_len, ours.num_stop_strings) == (theirs.maximum_token_len, theirs.num_stop_strings)
        for _ in range(12):
            rows = [random_row(rng, plain, strings) for _ in range(3)]
            ids = torch.tensor([row[-min(map(len, rows)) :] for row in rows])
            expected = theirs(ids, None)
            assert torch.equal(ours(ids, None), expected), (strings, ids)
            assert np.array_equal(direct(in_numpy(ids), None), expected)
            found += int(expected.sum())
    assert found > 100


def random_row(rng: np.random.Generator, tokenizer: Any, strings: list[str]) -> list[int]:
    """Random ids, some past the vocabulary, and often a stop string, cut into tokens in a context of its own."""
    size = tokenizer.get_vocab_size()
    head, tail = (rng.integers(0, size + 2, int(rng.integers(1, 4))).tolist() for _ in range(2))
    middle = tokenizer.encode("".join(rng.choice(["a", "e", ""], 2)) + str(rng.choice(strings)), add_special_tokens=False).ids
    return head + middle * (rng.random() < 0.8) + tail[: int(rng.integers(0, 2))]


@pytest.mark.slow
@settings(max_examples=150)
@given(
    pieces=st.lists(st.text("ab", max_size=4), min_size=1, max_size=12, unique=True),
    stops=st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=4),
    data=st.data(),
)
def test_the_table_reads_as_the_bytes_do(pieces, stops, data):
    """Every token from every text against a search: strings in each other, tokens in strings, strings in tokens."""
    lengths = np.array([len(piece) for piece in [*pieces, ""]])
    lengths[-1] = -1  # the last id is no token
    text = SimpleNamespace(
        pool=np.frombuffer("".join(pieces).encode() or b" ", np.uint8), starts=np.cumsum(lengths) - lengths, lengths=lengths
    )
    table, state, said = stop_table(text, stops), 0, ""
    for token in data.draw(st.lists(st.integers(0, len(pieces) + 1), max_size=12)):
        piece = pieces[token] if token < len(pieces) else None
        before, said = said, "" if piece is None else said + piece
        ended = any(len(before) < i + len(stop) for stop in stops for i in range(len(said)) if said.startswith(stop, i))
        assert table.ends[table.ends_row[token], state] == ended
        state = table.after[table.after_row[token], state]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")  # array-api-compat's own
def test_a_call_is_traced_whole():
    for plain, text, string in [
        (byte_level(), "대화 끝", "끝"),
        (byte_fallback(), "abc 끝!", "끝"),
        (words_alone(), "the stop", "stop"),
    ]:
        criterion = ds.StopStringCriteria(plain, [string, "end"])
        ids = torch.tensor([plain.encode(text, add_special_tokens=False).ids])
        traced = torch.compile(criterion, backend="eager", fullgraph=True)
        for n in range(1, ids.shape[1] + 1):
            assert torch.equal(traced(ids[:, :n], scores=None), criterion(ids[:, :n], None))


def test_a_vocabulary_is_read_once(both):
    plain, wrapped = both
    text = ds.TokenText(wrapped)
    for strings in (["end"], ["op", "th"]):
        for n in range(20):
            ids = np.random.default_rng(n).integers(-1, plain.get_vocab_size() + 1, (4, 5))
            assert (
                ds.StopStringCriteria(text, strings)(ids, None).tolist()
                == ds.StopStringCriteria(plain, strings)(ids, None).tolist()
            )


def test_a_vocabulary_with_gaps():
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"abcdef": 3, "stop": 9, "[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ids = np.array([[9], [4], [8], [10], [-1], [-2]])
    assert ds.StopStringCriteria(tokenizer, "stop")(ids, None).tolist() == [True, *[False] * 5]
    assert ds.StopStringCriteria(tokenizer, "stop")(ids[:, :0], None).tolist() == [False] * 6


WORDS = ["ab", "ae", "cab", "be", "d", "bab"]


@settings(max_examples=60)
@given(stop=st.text("abe", min_size=1, max_size=5), words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=7))
def test_a_string_stops_where_it_ends(stop, words):
    tokenizer = byte_level()
    ids = [i for word in words for i in tokenizer.encode(word).ids]
    pieces = [tokenizer.decode([i]) for i in ids]
    criterion = ds.StopStringCriteria(tokenizer, stop)
    for n in range(1, len(ids) + 1):
        text, before = "".join(pieces[:n]), "".join(pieces[: n - 1])
        ends = [i + len(stop) for i in range(len(text)) if text.startswith(stop, i)]
        assert bool(criterion(np.array([ids[:n]]), None)[0]) == any(end > len(before) for end in ends)


@settings(max_examples=50)
@given(
    stops=st.lists(
        st.sampled_from(["<|the end|>", "<|the end|> ", "here<|the end|>", "end|><eos>", "e end", "<eos>"]), min_size=1
    ),
    words=st.lists(st.sampled_from(["<|the end|>", " here", "the end", "<eos>", " ", "<|the"]), max_size=8),
)
def test_the_text_of_a_row_stops_where_the_criterion_does(stops, words):
    """Also at the names of special tokens, which are no part of the text."""
    tokenizer = byte_level()
    text, special = ds.TokenText(tokenizer), {tokenizer.token_to_id(name) for name in ("<|the end|>", "<eos>")}
    ids = [i for word in words for i in tokenizer.encode(word).ids]

    def spelled_bytes(token):
        start = text.starts[token]
        return text.pool[start : start + text.lengths[token]].tobytes()

    stream = TextStream(lambda token: b"" if token in special else spelled_bytes(token), stops, spelled_bytes=spelled_bytes)
    criterion = ds.StopStringCriteria(text, stops)
    for n, token in enumerate(ids, 1):
        stream.push(token)
        assert stream.stopped == bool(criterion(np.array([ids[:n]]), None)[0])
        if stream.stopped:
            break


@pytest.mark.parametrize("strings", [[], "", ["", "end"], "\u2603", ["\u2603", "end"], "zq\u2603"])
def test_the_same_strings_are_refused(both, strings):
    _, tokenizer = both
    same_error(lambda: ds.StopStringCriteria(tokenizer, strings), lambda: hf.StopStringCriteria(tokenizer, strings))


@pytest.mark.parametrize(
    ("tokenizer", "strings", "message"),
    [
        (byte_level(), 5, r"stop_strings must be a string or a non-empty list of strings; got 5"),
        ("gpt2", "end", r"tokenizer must be one of transformers or tokenizers; got 'gpt2'"),
    ],
)
def test_what_is_no_string_and_no_tokenizer_is_refused(tokenizer, strings, message):
    with pytest.raises(ValueError, match=f"StopStringCriteria: {message}"):
        ds.StopStringCriteria(tokenizer, strings)


def test_the_empty_string_always_stops():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level())
    ids = torch.tensor([[3], [10**6]])
    for module in (ds, hf):
        assert module.StopStringCriteria(tokenizer, ["zzz", ""])(ids, None).tolist() == [True, True]


def test_a_tokenizer_that_cannot_spell_is_refused():
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"x": 0, "[UNK]": 1}, unk_token="[UNK]"))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    same_error(lambda: ds.StopStringCriteria(wrapped, "x"), lambda: hf.StopStringCriteria(wrapped, "x"))


def test_a_tokenizer_in_python():
    class Letters:
        """The least that a tokenizer of transformers must be able to do: one token a letter."""

        def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
            return {"input_ids": [ord(c) - 97 for c in text]}

        def get_vocab(self) -> dict[str, int]:
            return {chr(97 + n): n for n in range(26)}

        def convert_ids_to_tokens(self, i: int) -> str:
            return [chr(97 + n) for n in range(26)][i]

        def convert_tokens_to_string(self, tokens: list[str]) -> str:
            return "".join(tokens)

    criterion = ds.StopStringCriteria(Letters(), "end")
    assert criterion(np.array([[0, 4, 13, 3], [4, 13, 3, 0], [99, 4, 13, 3], [4, 99, 13, 3]]), None).tolist() == [1, 0, 1, 0]


@pytest.mark.slow
@settings(max_examples=100)
@given(
    token=st.text("aĠé끝\x00<", max_size=5) | st.from_regex(r"<0x[0-9a-gA-G+ ]{0,3}>?\n?", fullmatch=True),
    mode=st.sampled_from(["byte_level", "byte_fallback", None]),
    decoder=st.sampled_from([BYTE_OF, None]),
)
def test_the_bytes_of_a_token(token, mode, decoder):
    assert token_bytes(token, mode, decoder) == hf.StopStringCriteria._token_to_bytes(token, mode, decoder)
