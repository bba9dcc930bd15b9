"""Traced text: it equals a plain string, and knows of each character whether it is the template's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodestep.chat.traced_text import TracedText, concat, is_own, own_text, pack, runs, spans, unpack

OWN = "AB -"  # the characters that are own; the others of ALPHABET are given
ALPHABET = OWN + "ab\n"


def traced(text):
    return TracedText(text, spans(concat(own_text(c) if c in OWN else c for c in text)))


def is_traced(text):
    """Whether each character is known as what it is."""
    return all(set(run) <= set(OWN) if own else set(run).isdisjoint(OWN) for run, own in runs(text))


texts = st.text(ALPHABET, max_size=12).map(traced)
given_texts = st.text("ab\n", max_size=3)
separators = st.one_of(st.none(), st.text(ALPHABET, min_size=1, max_size=2))


@given(texts, st.integers(-14, 14), st.integers(-14, 14))
def test_slices(text, begin, end):
    plain = str.__str__(text)
    assert (text, hash(text), len(text), repr(text)) == (plain, hash(plain), len(plain), repr(plain))
    assert is_traced(text) and str(text) is text
    assert text[begin:end] == plain[begin:end] and is_traced(text[begin:end])
    assert text[begin:end:-2] == plain[begin:end:-2] and not spans(text[begin:end:-2])
    if -len(plain) <= begin < len(plain):
        assert text[begin] == plain[begin] and is_traced(text[begin])
    else:
        with pytest.raises(IndexError):
            text[begin]


@given(texts, separators, st.integers(-1, 4))
def test_parts(text, sep, count):
    plain = str.__str__(text)
    for name in ("split", "rsplit"):
        found = getattr(text, name)(sep, count)
        assert found == getattr(plain, name)(sep, count) and all(map(is_traced, found))
    for keep in (False, True):
        assert text.splitlines(keep) == plain.splitlines(keep) and all(map(is_traced, text.splitlines(keep)))
    for name in ("strip", "lstrip", "rstrip"):
        found = getattr(text, name)(sep)
        assert found == getattr(plain, name)(sep) and is_traced(found)
    for name in ("partition", "rpartition", "removeprefix", "removesuffix"):
        found = getattr(text, name)(sep or "a")
        assert found == getattr(plain, name)(sep or "a")
        assert all(map(is_traced, [found] if isinstance(found, str) else found))


@given(texts, separators, texts, given_texts, st.integers(-1, 4))
def test_sums(text, old, new, other, count):
    plain = str.__str__(text)
    replaced = text.replace(old or "", new, count)
    assert replaced == plain.replace(old or "", str.__str__(new), count) and (is_traced(replaced) or not old)
    joined = new.join([text, other, text])
    assert joined == str.__str__(new).join([plain, other, plain]) and is_traced(joined)
    for found, expected in ((text + new, plain + new), (text + other, plain + other), (other + text, other + plain)):
        assert found == expected and is_traced(found)
    assert unpack(pack(text)) == text and spans(unpack(pack(text))) == spans(text)
    assert list(runs(unpack(pack(plain)))) == ([(plain, False)] if plain else [])


@pytest.mark.parametrize("change", [str.upper, str.lower, str.title, str.capitalize])
def test_changes_of_a_text_that_is_wholly_own(change):
    changed = getattr(own_text("aB c"), change.__name__)()
    assert changed == change("aB c") and is_own(changed)
    assert not spans(getattr(traced("aB c"), change.__name__)())
    assert is_own(own_text("ab") * 2) and is_own(2 * own_text("ab")) and not spans(traced("aA") * 2)


def test_what_is_not_followed_is_given():
    text = own_text("a{}%s")
    for made in (text.format(1), text % 1, text.center(9), text.swapcase(), TracedText(text), "".join([text])):
        assert not spans(made)
    for wrong in (lambda: text + 1, lambda: 1 + text, lambda: text.join([1])):
        with pytest.raises(TypeError):
            wrong()
