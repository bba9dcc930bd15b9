"""TextStream: whole characters, and stop strings wherever the tokens fall; the automaton that finds them."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from decodestep.generation.model_search import _stop_rule
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.text_stream import TextStream
from decodestep.stopping.stop_automaton import StopAutomaton


def stream(pieces: list[bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    """Pushes token 0, 1, ... that stand for `pieces`, as a row does: until it stops."""
    text = TextStream(pieces.__getitem__, stops)
    out = []
    for token in range(len(pieces)):
        out.append(text.push(token))
        if text.stopped:
            break
    return [*out, text.finish()], text


def test_a_character_comes_out_whole():
    assert stream([b"\xe4\xbd", b"\xa0", b"!"])[0] == ["", "你", "!", ""]


def test_a_character_cut_short_becomes_a_replacement():
    assert stream([b"a", b"\xf0\x9f"])[0] == ["a", "", "\ufffd"]


def test_the_text_ends_before_a_stop_string_across_tokens():
    out, text = stream([b"one S", b"TO", b"P two"], ("STOP",))
    assert out == ["one ", "", "", ""]
    assert text.stopped
    assert text.text == "one "


def test_text_that_only_looked_like_a_stop_string_is_released():
    assert stream([b"S", b"TO", b"AST"], ("STOP",))[0] == ["", "", "STOA", "ST"]
    assert stream([b"aS", b"T"], ("STOP",))[0] == ["a", "", "ST"]


def test_the_earliest_stop_string_cuts():
    assert stream([b"xx-b-a"], ("a", "b"))[1].text == "xx-"


@given(
    st.text(alphabet="abé你", max_size=12),
    st.lists(st.text(alphabet="abé你", min_size=1, max_size=3), max_size=3),
    st.lists(st.integers(1, 3), min_size=1, max_size=40),
)
def test_equals_cutting_the_whole_text(text, stops, sizes):
    data, pieces = text.encode(), []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    pieces.append(data)
    out, result = stream(pieces, tuple(stops))
    assert "".join(out) == result.text == cut(text.encode(), stops).decode()


def cut(data: bytes, stops: list[str]) -> bytes:
    """What is left of a text by the rule: the first byte at which stop strings are complete, and the longest of those."""
    for end in range(1, len(data) + 1):
        ending = [len(stop.encode()) for stop in stops if data[:end].endswith(stop.encode())]
        if ending:
            return data[: end - max(ending)]
    return data


def test_what_ends_first_cuts_and_of_several_the_longest():
    assert StopAutomaton(["bcd", "abcde", "cd", "d"]).read(0, b"xabcde")[1] == [(2, 5), (1, 6)]
    automaton = StopAutomaton(["aab"])
    assert automaton.read(0, b"aaab")[1] == [(1, 4)]
    assert automaton.read(automaton.read(0, b"aaa")[0], b"b")[1] == [(-2, 1)]
    assert StopAutomaton([]).read(0, b"abc") == (0, [])
    assert stream([b"xabcd", b"e"], ("bcd", "abcde", "d"))[1].text == "xa"
    assert stream([b"xabcde"], ("bcd", "abcde", "d"))[1].text == "xa"  # wherever the tokens are cut


def test_a_character_cut_short_before_a_stop_string_comes_out_at_once():
    assert stream([b"\xe4\xbd", b"S", b"TOP"], ("STOP",))[0] == ["", "\ufffd", "", ""]
    assert stream([b"\xe4\xbd", b"S", b"T", b"\xa0"], ("STOP",))[0] == ["", "\ufffd", "", "ST\ufffd", ""]


def test_nothing_follows_a_stop_string():
    text = stream([b"ab", b"c"], ("b",))[1]
    assert text.push(1) == text.finish() == ""
    assert text.text == "a"


def test_a_stop_string_may_be_long_and_almost_there_for_long():
    stop = "a" * 5000 + "b"
    out, text = stream([b"aa"] * 20000 + [b"b!"], (stop,))
    assert text.stopped and text.text == "a" * 35000
    assert out[:2500] == [""] * 2500 and out[2500:2503] == ["aa"] * 3


# Few bytes, so that strings overlap, share starts and ends, and so that characters are cut short and bytes are not UTF-8.
STOPS = st.lists(st.text(alphabet="ab\u00e9\u00e8\u4f60\U0001f600", min_size=1, max_size=4), max_size=4)
PIECES = st.lists(
    st.one_of(
        st.text(alphabet="ab\u00e9\u00e8\u4f60\U0001f600", max_size=5).map(str.encode),
        st.lists(st.sampled_from(b"ab\xc3\xa9\xa8\xe4\xbd\xa0\xf0\x9f\x98\x80\xff"), max_size=4).map(bytes),
    ),
    max_size=12,
)


@example(["ab", "bc"], [b"abc"])  # one string's end begins another that comes later
@given(STOPS, PIECES)
def test_the_automaton_finds_what_ends_at_each_byte(stops, pieces):
    automaton, seen, read = StopAutomaton(stops), b"", 0
    (following, final), state = automaton.table(), 0
    assert automaton.longest == max((len(stop.encode()) for stop in stops), default=0)
    for piece in pieces:
        want, before = [], len(seen)
        for byte in piece:
            seen += bytes([byte])
            ending = [len(stop.encode()) for stop in stops if seen.endswith(stop.encode())]
            want += [(len(seen) - before - max(ending), len(seen) - before)] if ending else []
            state = following[state, byte]
            assert final[state] == bool(ending)
        read, found = automaton.read(read, piece)
        assert found == want and read == state
        starts = {stop.encode()[:n] for stop in stops for n in range(len(stop.encode()) + 1)} | {b""}
        assert automaton.possible(read) == max(n for n in range(len(seen) + 1) if seen[len(seen) - n :] in starts)


@given(STOPS, PIECES)
def test_streaming_holds_back_what_may_still_stop_and_no_more(stops, pieces):
    text, seen, shown = TextStream(pieces.__getitem__, stops), b"", ""
    ends = [stop.encode() for stop in stops]
    for token, piece in enumerate(pieces):
        seen += piece
        shown += text.push(token)
        assert text.stopped == any(stop in seen for stop in ends)
        if text.stopped:
            assert shown == cut(seen, stops).decode("utf-8", "replace")
            assert text.stop in stops and seen.startswith(cut(seen, stops) + text.stop.encode())
            break
        held = max((n for stop in ends for n in range(1, len(stop)) if seen.endswith(stop[:n])), default=0)
        sure = seen[: len(seen) - held]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        assert shown == (sure.decode("utf-8", "replace") if held else decoder.decode(sure))
    else:
        assert shown + text.finish() == seen.decode("utf-8", "replace")
    assert text.finish() == ""


@example(["aab"], [b"a", b"a", b"b"], 0)  # all tokens of the beam
@example(["ab", "caaaa"], [b"ab", b"c"], 1)  # one that was complete too early
@given(STOPS, PIECES, st.integers(0, 4))
def test_a_beam_stops_at_the_token_at_which_its_text_does(stops, pieces, early):
    stop = _stop_rule(pieces.__getitem__, SamplingParams(stop_strings=stops, min_tokens=early))
    text = TextStream(pieces.__getitem__, stops, min_tokens=early)
    for token in range(len(pieces)):
        text.push(token)
        assert stop(list(range(token + 1))) == text.stopped
        if text.stopped:
            break


NAMES = st.sampled_from([b"<a>", b"b>", b"ab"])


@example(["aé"], [(b"a\xc3", True), (b"<a>", False), (b"\xa9", True)], 0)  # a name does not cut a character short
@example(["<a>b"], [(b"a\xc3", True), (b"<a>", False), (b"\xa9", True)], 0)
@given(STOPS, st.lists(st.one_of(PIECES.map(lambda pieces: (b"".join(pieces), True)), NAMES.map(lambda name: (name, False)))),
       st.integers(0, 4))  # fmt: skip
def test_stop_strings_are_found_in_names_of_tokens_and_not_before_min_tokens(stops, pieces, early):
    """Names are no part of the text."""
    texts, spelled = [data if is_text else b"" for data, is_text in pieces], [data for data, _ in pieces]
    stops = [*stops, "<a>", "a<", ">b"][: len(pieces) % 7]
    text = TextStream(texts.__getitem__, stops, spelled_bytes=spelled.__getitem__, min_tokens=early)
    seen, adds, end, out = b"", b"", None, ""
    for token, (data, is_text) in enumerate(pieces):
        ends = range(len(seen) + 1, len(seen) + len(data) + 1) if token >= early else ()
        seen, adds = seen + data, adds + bytes([is_text]) * len(data)
        found = [(at, -len(stop.encode())) for at in ends for stop in stops if seen[:at].endswith(stop.encode())]
        out += text.push(token)
        assert text.stopped == bool(found)
        if found:
            at, size = min(found)
            end = at + size
            break
    want = bytes(byte for byte, is_text in zip(seen[:end], adds, strict=False) if is_text).decode("utf-8", "replace")
    assert out + text.finish() == text.text == want


@pytest.mark.parametrize(
    ("given_", "rule"),
    [
        (["a", ""], "strings must be non-empty strings; got ''"),
        ([b"a"], "strings must be non-empty strings; got b'a'"),
        (["\ud800"], "strings must be encodable as UTF-8; got "),
    ],
)
def test_refusals(given_, rule):
    with pytest.raises(ValueError, match=f"^StopAutomaton: {rule}"):
        TextStream(lambda token: b"", given_)
