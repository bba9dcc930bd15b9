"""TextStream: whole characters, and stop strings wherever the tokens fall."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from decodestep.text import TextStream


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
    # As if the text were looked at after every token: the first moment at which some stop string is complete decides.
    seen = b""
    want = text
    for piece in pieces:
        seen += piece
        whole = seen.decode("utf-8", "ignore")
        found = [whole.find(stop) for stop in stops if stop in whole]
        if found:
            want = whole[: min(found)]
            break
    assert "".join(out) == result.text == want
