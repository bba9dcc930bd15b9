"""GBNF as Lark: llguidance accepts the texts that a grammar has, whichever way they are read."""

import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from decodestep.constraints.gbnf.lark import lark_of
from decodestep.constraints.gbnf.nodes import Characters, Choice, Name, Sequence
from decodestep.constraints.gbnf.syntax import read_gbnf
from decodestep.constraints.vocabulary import tokenizer_of

llguidance = pytest.importorskip("llguidance")

LETTERS = "abéè"  # the last two have the same first byte
LONGEST = 4
END = 256


TOKENIZER = tokenizer_of(lambda token: bytes([token]) if token < END else b"", END + 1, frozenset({END}))


def matcher_of(lark):
    return llguidance.LLMatcher(TOKENIZER, llguidance.LLMatcher.grammar_from_lark(lark), log_level=0)


def accepted(lark):
    """The texts of the letters up to the longest that llguidance lets end."""
    texts = set()
    todo = [("", matcher_of(lark))]
    while todo:
        text, matcher = todo.pop()
        assume("panic" not in matcher.get_error())  # llguidance fails for some nested choices of names
        assert not matcher.is_error(), matcher.get_error()
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        if bits[END]:
            texts.add(text)
        for letter in LETTERS if len(text) < LONGEST else "":
            further = matcher.deep_copy()
            if all(further.consume_token(byte) for byte in letter.encode()):
                todo.append((text + letter, further))
    return texts


def texts_of(rules):
    """The texts of the letters up to the longest: those of all rules, from none, until no more are found."""
    texts = {name: frozenset() for name in rules}

    def joined(one, other):
        return frozenset(a + b for a, b in itertools.product(one, other) if len(a + b) <= LONGEST)

    def of(node):
        if isinstance(node, Characters):
            return frozenset(letter for letter in LETTERS if any(first <= ord(letter) <= last for first, last in node.ranges))
        if isinstance(node, Name):
            return texts[node.rule]
        if isinstance(node, Choice):
            return frozenset().union(*map(of, node.parts))
        whole = frozenset({""})
        if isinstance(node, Sequence):
            for part in node.parts:
                whole = joined(whole, of(part))
            return whole
        part = of(node.part)
        for _ in range(node.least):
            whole = joined(whole, part)
        more = LONGEST if node.most is None else node.most - node.least
        for _ in range(min(more, LONGEST)):
            whole |= joined(whole, part)
        return whole

    while (new := {name: of(node) for name, node in rules.items()}) != texts:
        texts = new
    return texts["root"]


LITERALS = st.text(LETTERS, max_size=3).map('"{}"'.format)
CLASSES = st.builds("[{}{}]".format, st.sampled_from(["", "^"]), st.text(LETTERS, min_size=1, max_size=2))
TIMES = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{2,}", "{0}", "+?"])
NAMES = st.sampled_from(["root", "one", "two", "one", "two"])
EXPRESSIONS = st.recursive(
    LITERALS | CLASSES | NAMES,
    lambda part: (
        st.lists(part, min_size=1, max_size=3).map(" ".join)
        | st.lists(part, min_size=1, max_size=3).map(" | ".join).map("({})".format)
        | st.builds("( {} ) {}".format, part, TIMES)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=150)
@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS)
def test_texts_are_those_of_the_grammar(root, one, two):
    grammar = f'root ::= {root} | "bb" root one\none ::= {one}\ntwo ::= {two}'
    texts = texts_of(read_gbnf(grammar))
    if texts:
        assert accepted(lark_of(grammar)) == texts
    else:
        with contextlib.suppress(ValueError):  # there may be longer ones
            assert not accepted(lark_of(grammar))


PARENTHESES = "[(] root [)]"  # make a choice with a rule one that is no lexeme itself


@pytest.mark.parametrize(
    ("root", "one", "lexeme"),
    [
        ("one | root [,] one", "[a-z]+", True),
        ("one | root [z] one", "[a-z]+", False),
        ("one | root one", "[a-z]+", False),
        ("one [a-z]* root | [.]", "[A-Z] [0-9]*", True),
        ("one [é] root | [.]", "[a] [è]*", False),  # of the same first byte
        ("one [b] root | [.]", "[a] [b]?", False),
        (f"one | {PARENTHESES}", "[a-z]+", True),
        (f"(one | {PARENTHESES})+", "[a-z]+", False),
        (f"(one | {PARENTHESES})? [.]", "[a-z]+", True),
        (f"(one | {PARENTHESES}) [,]? [z]", "[a-z]+", False),
        (f"((one | {PARENTHESES}) [,]?) [z]", "[a-z]+", False),
        (f"(one | {PARENTHESES}) [d] | [a] [b] root", "[a] [c] [d]", True),
        *((f"({choice} | {PARENTHESES}) [c]", "[a] [b]* [c] [d]", False) for choice in ("[a] | one", "one | [a]")),
        (f"([a] | one | {PARENTHESES}) [c]", "[a] [b]{0,2} [c] [d]", False),
        (f"([a]{{3,}} | {PARENTHESES}) [b] | one root", "[a] [b] [c]", True),
        (f"([a] [b] | {PARENTHESES}) [d] | one root", "[a] [c] [d]", True),
        ("one root | [.]", "[a]{299}", False),  # more than is looked through
        ("one | [.] root", "[a]{299}", True),  # nothing follows
        ("one+ [a-z]", "[a-z]+", True),  # one expression
    ],
)
def test_a_rule_is_one_lexeme_if_nothing_that_follows_can_belong_to_it(root, one, lexeme):
    assert ("\nR1: " in lark_of(f"root ::= {root}\none ::= {one}")) == lexeme


@pytest.mark.slow
def test_a_grammar_that_takes_too_much_work_is_read_character_by_character():
    for count, whole in ((30, True), (3000, False)):
        words = " | ".join(f'"w{number:04}"' for number in range(count))
        assert ("\nP" in lark_of(f"root ::= root | {words}")) == whole


def test_only_parentheses_are_limited_in_depth():
    deep = "(" * 50 + '"a"' + '"b"*+? | "c")*+?' * 50
    for grammar in ("root ::= root | " + deep, "root ::= " + deep):
        assert matcher_of(lark_of(grammar)).get_error() == ""
    with pytest.raises(ValueError, match="at most 50 parentheses"):
        lark_of("root ::= (" + deep + ")")
    chain = "\n".join(f"r{number} ::= r{number + 1}" for number in range(5000))
    assert lark_of(f'root ::= r0 | root\n{chain}\nr5000 ::= "a"')
