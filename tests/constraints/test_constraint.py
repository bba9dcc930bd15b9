"""Constrained rows: their text is of the language whatever else is set, or the row says why not."""

from __future__ import annotations

import calendar
import copy
import json
import re
import subprocess
import sys

import jsonschema
import numpy as np
import pytest

import decodestep as ds
from decodestep.constraints import processor as constraint
from decodestep.constraints import trial as constraint_trial
from decodestep.constraints import worker as constraint_worker
from decodestep.ops.decode_step.steps import AllowBits, unpack_bits
from decodestep.sampling.sampler import Sampler
from support import processes
from support.constrained_rows import END, VOCAB, run, token_bytes

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"enum": ["small", "large"]},
        "parts": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "size", "parts"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "also",
    [
        {},
        {"temperature": 0.0},
        {"top_k": 3, "repetition_penalty": 3.0, "min_p": 0.1},
        {"temperature": 1.5, "typical_p": 0.5, "frequency_penalty": 2.0, "logprobs": 2},
        {"remove_invalid_values": True, "renormalize_logits": True, "xtc_probability": 1.0},
        {"no_repeat_ngram_size": 9, "dry_multiplier": 2.0, "logit_bias": {34: -5.0}, "min_new_tokens": 3},
        {"do_sample": False, "renormalize_logits": True, "watermarking_config": {"bias": 1.5}},
    ],
)
def test_json_of_a_schema_with_any_other_parameters(also, rng):
    for seed in range(3):
        row = run(ds.SamplingParams(json_schema=SCHEMA, seed=seed, max_new_tokens=None, **also), rng)
        if also.get("temperature") == 0.0 and row.reason != "eos":
            continue
        assert row.reason == "eos"
        jsonschema.validate(json.loads(row.text.text), SCHEMA)


def test_an_expression_and_grammars(rng):
    row = run(ds.SamplingParams(regex="[a-c]{3}-[0-9]+x", seed=1), rng)
    assert row.reason == "eos" and re.fullmatch("[a-c]{3}-[0-9]+x", row.text.text)
    for grammar in ('start: "yes" | "no"', 'root ::= "yes" | "no"'):
        row = run(ds.SamplingParams(grammar=grammar, seed=2), rng)
        assert row.reason == "eos" and row.text.text in ("yes", "no")


def is_text_of(grammar, text):
    """Whether a grammar allows a text, written byte by byte, and its end after it."""
    options = {"token_bytes": token_bytes, "vocab_size": VOCAB, "ends": frozenset({END})}
    processor = constraint.ConstraintLogitsProcessor("grammar", grammar, 0, **options)
    tokens = [*text.encode(), END]
    scores = np.zeros((1, VOCAB))
    return all(np.isfinite(processor(np.array([tokens[:i]], np.int64), scores)[0, token]) for i, token in enumerate(tokens))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (r'root ::= "\u00e9ab\U0001F642\x41"', "éab🙂A"),
        (r"root ::= [\u0041-\u0043\u00e0-\u00ef]+", "ABCé"),
        (r"root ::= [a&&b~~]+", "a&~b"),
        (r"root ::= [+--]+", "+,-"),
        (r"root ::= [^^\]-]+", "a["),
        ('root ::= "a\n" . # "b" (', "a\n\n"),
        ('root ::= [a-z]+ word "z"\nword ::= [a-z]*', "abz"),  # whose beginning leaves the end what it needs
        ('start ::= "a"\nroot ::= start', "a"),
        ('root ::= a-b a_b 1 aB\na-b ::= "1"\na_b ::= "2"\n1 ::= "3"\naB ::= "4"', "1234"),
        ('root ::= ("a"{2}){2} ("b"?){2}', "aaaab"),
        ('root ::= "(" root ")" | "." {2}', "((..))"),
        ('root ::= word "z" root | "."\nword ::= [a-z]*', "abzz."),  # a word as one lexeme would take the z
        ('root ::= key | word root | "."\nkey ::= "if("\nword ::= [a-z]+ "("?', "if("),
        ('root ::= ("é" | "èa") root | "."', "éèa."),  # which have the same first byte
        ("root ::= [^è] | ([^è] | [^èé])", "é"),  # for which llguidance fails if it is written so
        ("root ::= (a | root) b\na ::= [ab] [ab]?\nb ::= [b]+", "abbb"),
        ('root ::= "a" x | root "b"\nx ::= "" | x "c"', "accb"),
        ('root ::= "a" {0} "b"+? | root "c"', "bbc"),
    ],
)
def test_gbnf_means_what_it_does_in_llama_cpp(grammar, text):
    assert is_text_of(grammar, text)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (r'root ::= "\u00e9ab"', "\ue9ab"),
        ("root ::= [a&&a]", "&&"),
        ('root ::= ("a"{2}){2}', "aa"),
        ("root ::= [+--]", "*"),
        ("root ::= [^a-zc]", "d"),
        ('root ::= "b" | "a" x\nx ::= x "c" | [^\\x00-\\U0010FFFF]', "a"),
    ],
)
def test_gbnf_allows_nothing_else(grammar, text):
    assert not is_text_of(grammar, text)


def test_a_row_whose_text_cannot_be_ended_ends_with_the_reason(rng):
    """In Lark a rule without any text may be begun; the end tokens that llguidance then allows would end an incomplete text."""
    with pytest.raises(constraint.ConstraintError, match="grammar: no text of it begins so"):
        is_text_of('start: "b" | "a" x\nx: x "c"', "a")


def test_rows_without_a_constraint_and_fused_masks_change_no_token(rng):
    """The mask as steps of the core and the processor called step by step draw the same tokens."""
    logits = rng.normal(size=(60, VOCAB)).astype(np.float32)
    params = ds.SamplingParams(json_schema=SCHEMA, seed=4, top_p=0.9)
    both = Sampler(
        [params, params, ds.SamplingParams(seed=4, top_p=0.9)], vocab_size=VOCAB, eos_token_id=END, token_bytes=token_bytes
    )
    alone = Sampler(ds.SamplingParams(seed=4, top_p=0.9), vocab_size=VOCAB, eos_token_id=END, prompt_ids=[[]])
    processor = both.rows[1].plan.processors[0]
    by_hand = both.new_row(ds.SamplingParams(seed=4, top_p=0.9))
    slow = Sampler([], vocab_size=VOCAB, eos_token_id=END, processors=[lambda ids, scores: processor(ids, scores)])
    slow.resume(slow.new_row(by_hand.params))
    for row in logits:
        tokens = both.step(np.stack([row, row, row])).tokens
        assert tokens[0] == tokens[1] == slow.step(row[None]).tokens[0]
        assert tokens[2] == alone.step(row[None]).tokens[0]
        if both.rows[0].reason:
            break


@pytest.mark.parametrize(
    "params",
    [
        {"json_schema": SCHEMA},
        {"json_schema": SCHEMA, "temperature": 0.0, "max_new_tokens": 60},
        {"json_schema": SCHEMA, "max_new_tokens": 9, "repetition_penalty": 3.0, "top_k": 2},
        {"regex": "[xy]{2}, and then the end[0-9]", "min_new_tokens": 3, "xtc_probability": 1.0},
        {"regex": "a much longer text than may be drawn at once[0-9]", "stop_strings": ("may b",)},
        {"regex": "[xy]: banned", "bad_words_ids": [[98]]},
        {"regex": "abc", "logprobs": 1},
        {"regex": "(.*a){40}.{200}(b.*){40}", "max_new_tokens": 20},
    ],
)
def test_tokens_that_the_constraint_decides_are_those_that_steps_would_draw(params):
    def row_of(draft):
        options = {"vocab_size": VOCAB, "eos_token_id": END, "token_bytes": token_bytes, "prompt_ids": [[65, 66]]}
        sampler = Sampler(ds.SamplingParams(seed=5, **params), **options)
        [row], text, steps = sampler.rows, "", 0
        while not row.reason and steps < 400:
            drafted, n = draft(row), len(row.history)
            logits = [np.random.default_rng(n + i).normal(size=VOCAB).astype(np.float32) for i in range(len(drafted) + 1)]
            text += "".join(result.text[0] for _, result in sampler.steps(np.stack(logits), [drafted]))
            steps += 1
        assert text == row.text.text
        return row, steps

    (one, steps), (other, fewer) = row_of(lambda row: []), row_of(lambda row: row.constraint.forced_tokens(row.history.tokens))
    assert other.history.tokens == one.history.tokens and (other.reason, other.text.text) == (one.reason, one.text.text)
    assert list(other.logprobs) == list(one.logprobs) and (fewer < steps) == ("{40}" not in str(params))


def test_a_text_that_a_processor_forbids_is_not_drawn_because_it_is_forced():
    options = {"vocab_size": VOCAB, "eos_token_id": END, "token_bytes": token_bytes, "prompt_ids": [[65, 66]]}
    forbids = lambda ids, scores: np.where(np.arange(VOCAB) == 98, -np.inf, scores)  # noqa: E731
    sampler = Sampler(ds.SamplingParams(regex="abc"), processors=[forbids], **options)
    [row] = sampler.rows
    forced = row.constraint.forced_tokens(row.history.tokens)
    assert forced == [97, 98, 99]
    list(sampler.steps(np.zeros((4, VOCAB), np.float32), [forced]))
    assert row.history.tokens == [65, 66, 97] and row.reason == "no_candidate"


def ids_of(steps, vocab):
    """The tokens that the mask of a constraint allows."""
    (mask,) = steps
    assert type(mask) is AllowBits
    return np.flatnonzero(unpack_bits(mask.bits, vocab)).tolist()


def test_a_constraint_follows_one_row_and_its_copy_another():
    options = {"token_bytes": token_bytes, "vocab_size": VOCAB, "ends": frozenset([END])}
    one = constraint.ConstraintLogitsProcessor("regex", "a|bc", 2, **options)
    allowed = lambda processor, *tokens: ids_of(processor.steps([65, 66, *tokens]), VOCAB)  # noqa: E731
    other = copy.deepcopy(one)
    assert allowed(one) == [97, 98] and allowed(one, 97) == [END]
    assert allowed(other, 98) == [99] and allowed(copy.deepcopy(other)) == [97, 98]
    with pytest.raises(constraint.ConstraintError, match="^a constrained row cannot go back$"):
        allowed(one)
    for _ in range(2):
        with pytest.raises(constraint.ConstraintError, match="^regex: "):
            allowed(other, 98, 97)
    with pytest.raises(ValueError, match="^Sampler: regex must be given to rows that have an end token; got none$"):
        constraint.ConstraintLogitsProcessor("regex", "a", 0, **options | {"ends": frozenset()})


@pytest.mark.parametrize("vocab", [258, 287, 288, 289, 320])
def test_masks_fit_any_vocabulary(vocab, rng):
    """llguidance's have a word more where the vocabulary fills its words."""
    options = {"eos_token_id": END, "token_bytes": lambda token: bytes([token]) if token < END else b""}
    sampler = Sampler(ds.SamplingParams(regex="[ab]{2}c", seed=1), vocab_size=vocab, **options)
    while not sampler.rows[0].reason:
        sampler.step(rng.normal(size=(1, vocab)).astype(np.float32))
    assert sampler.rows[0].reason == "eos" and re.fullmatch("[ab]{2}c", sampler.rows[0].text.text)


def test_a_row_ends_with_nothing_after_the_text(rng):
    """The text of a token is that of its row, also where the token ends it."""
    with pytest.raises(ValueError, match=r"eos_token_id must be of tokens without text beside regex; got \[46\]"):
        run(ds.SamplingParams(regex="[ab]{2}", eos_token_id=[END, 46]), rng)
    row = run(ds.SamplingParams(regex="[ab]{2}", eos_token_id=[END, VOCAB - 1], seed=1), rng)
    assert row.reason == "eos" and re.fullmatch("[ab]{2}", row.text.text)


def test_a_row_that_cannot_go_on_says_why(rng):
    row = run(ds.SamplingParams(regex="ab", seed=1, bad_words_ids=[[98]]), rng)
    assert (row.reason, row.text.text) == ("no_candidate", "a")
    row = run(ds.SamplingParams(json_schema=SCHEMA, seed=1, max_new_tokens=4), rng)
    assert row.reason == "length"


PATTERNS = [f".*a.{{{i}}}b.*" for i in range(1, 30)]


def nested(patterns):
    """A schema that asks for all patterns at once, without allOf."""
    schema = {"type": "string"}
    for each in patterns:
        schema = {"type": "string", "pattern": each, "anyOf": [schema]}
    return schema


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"json_schema": {"type": "nothing"}}, "json_schema"),
        ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": {"type": "string", "pattern": "(?=a)b"}}, "json_schema"),
        ({"json_schema": {"x": object}}, "json_schema"),
        ({"json_schema": {"$ref": "https://example.com/a"}}, "json_schema"),
        ({"regex": "("}, "regex"),
        ({"regex": "a\\"}, "regex must be one that can be compiled; got a backslash at the end"),
        ({"regex": "\\\\\\"}, "regex must be one that can be compiled; got a backslash at the end"),
        ({"json_schema": {"items": {"type": "string", "pattern": "a\\"}}}, "got a backslash at the end"),
        ({"json_schema": {"type": "object", "patternProperties": {"a\\": {}}}}, "got a backslash at the end"),
        ({"grammar": "start: nothing"}, "grammar"),
        *(({"grammar": f"root ::= {begin}"}, "grammar must be one that can be compiled") for begin in '[("'),
        ({"grammar": "start: start"}, "grammar must be one that can be compiled; got one that no text satisfies"),
        ({"grammar": "root ::= a\na ::= root"}, "got one that no text satisfies"),
        ({"regex": "[a&&b]"}, "regex must be one that can be compiled; got one that no text satisfies"),
        ({"grammar": 'start: x\nx: x "a"'}, "got one that no text satisfies"),
        ({"grammar": r'root ::= "\U00110000"'}, "expected a character of Unicode"),
        ({"grammar": r'root ::= "\xZZ"'}, "line 1: expected an escape of llama.cpp's; got"),
        ({"grammar": 'root ::= "a"\n  a_b ::= c'}, "line 2: expected a rule named c; got 'c'"),
        ({"grammar": 'x ::= "a"\n'}, "line 2: expected a rule named root; got the end"),
        ({"grammar": 'root ::= "a" )'}, r"line 1: expected a part of a rule or the end of the line; got '\)'"),
        ({"grammar": 'root := "a"'}, "line 1: expected the name of a rule and ::=; got ':'"),
        ({"grammar": "root ::= [b-a]"}, "expected a range whose second character is not before its first"),
        ({"grammar": "root ::= [^]"}, "expected a part of a rule"),
        ({"grammar": "root ::= .{3,2}"}, "expected a repetition whose second number is not below its first"),
        ({"grammar": "root ::= .****"}, "got '\\*'"),
        ({"grammar": "x" * 300_000}, "grammar"),
        *(({"grammar": "root ::= " + begin * 200_000}, "grammar must be one that can be compiled") for begin in "[{("),
        ({"grammar": "\n" * 200_000}, "grammar must be one that can be compiled"),
        ({"json_schema": {"type": "integer", "multipleOf": 99999999}}, "costs too much"),
        ({"json_schema": '{"type": "integer", "multiple\\u004ff": 99999999}'}, "costs too much"),
        ({"json_schema": {"allOf": [{"type": "string", "pattern": each} for each in PATTERNS]}}, "costs too much"),
        ({"json_schema": nested(PATTERNS)}, "costs too much"),
        ({"grammar": "start: T\nT: " + " & ".join(f"/{each}/" for each in PATTERNS)}, "costs too much"),
        ({"json_schema": {"type": "object", "minProperties": 2}}, "minProperties is not at most the number of required names"),
        (
            {"json_schema": {"type": "object", "minProperties": 3, "required": ["a", "b", "a"]}},
            "minProperties is not at most the number of required names",
        ),
        (
            {"json_schema": {"anyOf": [{"properties": {"default": {"minProperties": 2}}}]}},
            "#/anyOf/0/properties/default/minProp",
        ),
        ({"json_schema": {"minProperties": 2, "patternProperties": {"^x": {}}, "additionalProperties": False}}, "minP"),
        *(({"json_schema": {"pattern": one}}, "of patterns without") for one in ("\x1b", r"\x1b", r"\x{1B}", r"\u001b", r"\v")),
        *(({"json_schema": text}, "json_schema must be an object or a bool; got") for text in ("[1]", "1", "null")),
        ({"json_schema": {"type": "string", "pattern": "^[[:alpha:]]$"}}, r"whose classes have \\\[ for \["),
        ({"json_schema": {"type": "string", "pattern": "^[^a&&b]$"}}, "and no &&"),
        ({"json_schema": {"patternProperties": {r"^[\]--/]$": {}}}}, "and no &&"),
        (
            {"json_schema": {"$ref": "#/x/default/a~1b~0%20c/1", "x": {"default": {"a/b~ c": [{}, {"pattern": "[[a]]"}]}}}},
            "and no &&",
        ),
        ({"json_schema": {"items": {"type": "number", "multipleOf": -0.01}}}, "#/items/multipleOf is not a number above 0"),
        ({"json_schema": {"multipleOf": 0}}, "#/multipleOf is not a number above 0"),
        (
            {"json_schema": {"properties": {"a": {"type": "null", "required": True}}}},
            "#/properties/a/required is not a list of names",
        ),
        ({"json_schema": {"type": "number", "minimum": 2**53 + 1}}, "#/minimum is not a number of 53 bits"),
        (
            {"json_schema": {"type": "integer", "exclusiveMinimum": 10**30, "multipleOf": 3}},
            "#/exclusiveMinimum is not a number of 53 bits",
        ),
        ({"json_schema": {"type": "number", "maximum": -(2**53) - 1}}, "#/maximum is not a number of 53 bits"),
        ({"json_schema": {"type": "integer", "minimum": 10**101}}, "#/minimum is not a number of at most 100 digits"),
        (
            {"json_schema": {"allOf": [{"type": "integer", "minimum": 2**60 + 1}, {"multipleOf": 5}]}},
            "# is not without multipleOf beside bounds of more than 53 bits",
        ),
        ({"regex": "a", "grammar": "start: b"}, "grammar must be None beside regex"),
        ({"regex": "a", "num_beams": 2}, "regex must be None beside several beams"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_cannot_be_compiled_is_refused(given, message, rng):
    with pytest.raises(ValueError, match=message):
        run(ds.SamplingParams(**given), rng, 1)


def test_an_expression_that_costs_too_much_ends_its_row_alone(rng):
    hostile = ds.SamplingParams(regex="(.*a){40}.{200}(b.*){40}", seed=1, max_new_tokens=30)
    plain = ds.SamplingParams(seed=1, max_new_tokens=30)
    sampler = Sampler([hostile, plain], vocab_size=VOCAB, eos_token_id=END, token_bytes=token_bytes)
    alone = Sampler(plain, vocab_size=VOCAB, eos_token_id=END, prompt_ids=[[]])
    for _ in range(30):
        logits = rng.normal(size=(1, VOCAB)).astype(np.float32)
        assert sampler.step(np.concatenate([logits, logits])).tokens[1] == alone.step(logits).tokens[0]
    assert sampler.rows[0].reason in ("error", "length")


def runs_of_x(token):
    """Tokens that walk through a literal: x to 200 of them, other letters, and the end token."""
    return b"x" * (token + 1) if token < 200 else [b"a", b"b", b""][token - 200]


def step_on(text, first):
    """The row of an expression, after one step that draws this token."""
    params = ds.SamplingParams(regex=text, do_sample=False)
    sampler = Sampler(params, vocab_size=203, eos_token_id=202, token_bytes=runs_of_x, prompt_ids=[[0]])
    for _ in range(2):
        sampler.step(np.eye(203, dtype=np.float32)[None, first])
    return sampler.rows[0]


def test_a_long_literal_does_not_hold_up_other_rows(monkeypatch):
    """Each mask takes a time that is proportional to its length: 10 to 80 ms with so small a vocabulary."""
    monkeypatch.setattr(constraint, "_FIRST_SECONDS", 0.003)
    monkeypatch.setattr(constraint, "_STEP_SECONDS", 0.002)
    with pytest.raises(ValueError, match="regex must be one that can be compiled; got one that costs too much"):
        step_on("x{100000}", 0)
    row = step_on("(b|a)x{100000}", 200)  # where it does not come first
    assert row.reason == "error" and isinstance(row.error, constraint.ConstraintError)
    assert str(row.error) == "regex: a token costs too much"
    monkeypatch.undo()  # a slow machine needs more than that for a short one
    assert step_on("(b|a)x{10}", 200).reason == ""


def test_the_fields_are_values():
    one, two = ds.SamplingParams(json_schema=SCHEMA), ds.SamplingParams(json_schema=json.dumps(SCHEMA))
    assert one == two and hash(one) == hash(two)


NODE = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9a-f]{4}$"},
        "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
    },
    "required": ["id", "kids"],
    "additionalProperties": False,
}
PRICE = {"type": "object", "properties": {"price": {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 99}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
        {"$defs": {"node": NODE}, "anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        {"allOf": [{**PRICE, "required": ["price"]}, {"properties": {"in": {"type": "boolean"}}, "required": ["in"]}]},
        {"$defs": {f"t{i}": {**NODE, "properties": {**NODE["properties"], "next": {"$ref": f"#/$defs/t{(i + 1) % 40}"}}}
                   for i in range(40)} | {"node": NODE}, "$ref": "#/$defs/t0"},
        *({"type": "number", "multipleOf": step, "minimum": 0, "maximum": 10**6} for step in (0.01, 5, 100, 1000)),
        {"type": "object", "minProperties": 1, "additionalProperties": {"type": "boolean"}},
        {"type": "integer", "minimum": -(2**53), "maximum": 2**64 - 1},
        {"enum": ["\t\n\x80", {"\1": 1}]},
        {"type": "string", "pattern": r"^[^\x00-\x1f\\\]]\\x1b\t\x41$", "maxLength": 9},
        {"type": "string", "pattern": r"^[-\[\]&~][^-\-][a\--][+-]\[[a]]$", "maxLength": 9},
        {"enum": [2**53, [-(2**53)], 0.1, 5e-7]},
        {"type": "object", "minProperties": 2, "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a", "b"]},
        {"type": "object", "properties": {"minProperties": {"const": {"minProperties": 3}}}, "required": ["minProperties"],
         "additionalProperties": False},
        {"type": "object",
         "properties": {"key": {"type": "string", "format": "password", "maxLength": 9},
                        "tags": {"type": "array", "items": {"enum": ["a"]}, "uniqueItems": False, "maxItems": 3}},
         "required": ["key", "tags"], "propertyNames": True, "unevaluatedItems": True, "additionalProperties": False},
    ],
)  # fmt: skip
def test_ordinary_schemas_are_not_refused(schema, rng):
    ended = [row for seed in range(3) if (row := run(ds.SamplingParams(json_schema=schema, seed=seed), rng)).reason == "eos"]
    for row in ended:
        value = json.loads(row.text.text)
        if "multipleOf" in schema:  # jsonschema divides floats, where 0.07 / 0.01 is not whole
            assert round(value, 2) == value
        else:
            jsonschema.validate(value, schema)


def accepts(schema, text, *, order="schema", closed=False):
    """Whether a text may be written under a schema, by its letter, a byte at a time, and end there."""
    given = {
        "token_bytes": lambda token: bytes([token]) if token < END else b"",
        "vocab_size": END + 1,
        "ends": frozenset({END}),
    }
    processor = constraint.ConstraintLogitsProcessor(
        "json_schema", ds.SamplingParams(json_schema=schema).json_schema, 0, closed=closed, order=order, **given
    )
    scores = np.zeros((1, END + 1), np.float32)
    tokens = [*text.encode(), END]
    return all(np.isfinite(processor(np.array([tokens[:i]], np.int64), scores)[0, token]) for i, token in enumerate(tokens))


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ({"exclusiveMinimum": 0}, ["0.00001", "1"], ["0." + "0" * 330 + "1", "0"]),
        ({"minimum": -1, "exclusiveMaximum": 0}, ["-0.01", "-1"], ["-0." + "0" * 330 + "1", "0"]),
        ({"minimum": -0.9191990929144587}, ["-0.905"], ["-0.9191990929144588"]),
        ({"exclusiveMaximum": 0.9999999999999999}, ["0.98"], ["1", "0.9999999999999999"]),
        ({"exclusiveMinimum": 0.5}, ["0.5000000000000001", "0.51", "7"], ["0.5", "0.50", "0.500000000000000000000999"]),
        ({"exclusiveMaximum": 1}, ["0.9999999999999999", "0", "-3.5"], ["1", "1.0", "0.99999999999999999"]),
        ({"minimum": -0.49, "maximum": 99.95}, ["99.9", "99.95", "99.90", "-0.4", "-0.10", "-0.0"], ["99.951", "-0.5", "100"]),
        ({"multipleOf": 0.25, "minimum": -3.27}, ["0.5", "0.50", "1", "-3.25", "1.75"], ["0.3", "-3.5"]),
        ({"multipleOf": 0.05, "maximum": 0.95}, ["0.9", "0.95", "0"], ["0.94", "1"]),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 4, "type": "integer"}, ["1", "3"], ["0", "4"]),
    ],
)
def test_numbers_that_parsers_round_are_within_their_bounds(bounds, inside, outside):
    """Parsers read 0.000...1 as 0, and llguidance's own is not exact for all numbers of more than 15 digits."""
    schema = {"type": "number", **bounds}
    assert all(accepts(schema, text) for text in inside)
    assert not any(accepts(schema, text) for text in outside)


def test_hostnames_are_not_longer_than_names_may_be():
    name = ".".join(["a" * 62] * 4)
    schema = {"type": "string", "format": "hostname"}
    assert accepts(schema, f'"{name}a"') and not accepts(schema, f'"{name}.aa"')


def test_the_name_of_a_property_has_one_spelling():
    """Parsers read "\\u0061" as "a"; where further properties are allowed, it must not be one of them."""
    given = ({"additionalProperties": True}, {"additionalProperties": {"type": "boolean"}})
    for open_ in (*given, {"patternProperties": {"^a": {"type": "integer"}}}):
        schema = {"type": "object", "properties": {"ab": {"type": "integer"}}, **open_}
        assert accepts(schema, '{"ab": 1}') and accepts(schema, '{"b": true}')
        for name in ("\\u0061b", "a\\u0062"):
            assert not accepts(schema, f'{{"{name}": true}}'), schema
    assert accepts({"type": "string"}, r'"\"\\\n\t"')


def closed(properties=("a",), required=("a",), **others):
    """A schema of objects of nulls, so that texts are short, and no names but those given."""
    named = {name: {"type": "null"} for name in properties}
    return {"type": "object", "properties": named, "required": list(required), "additionalProperties": False, **others}


def patterns(*given, value={"type": "null"}):  # noqa: B006
    return {"patternProperties": dict.fromkeys(given, value)}


EXHAUSTED = [
    closed(**patterns("^a$")),
    closed(**patterns("^(a|b)$")),
    closed(**patterns("^[ab]$")),
    closed(**patterns("^ab?$")),
    closed(**patterns("^a$", "^b$")),
    closed(**patterns("^(a|b)$", "^bc?$")),  # which overlap
    closed(("a", "b"), (), **patterns("^(a|b)$")),
    closed((), ("a", "b"), **patterns("^[ab]$")),  # names that the patterns alone describe
    closed(**patterns("^[a\\x01]$", '^\\"$', "^\\\\$", "^é$")),  # with names that need escapes, and one that cannot be written
    closed(**patterns("[^\\s\\S]")),  # which no name has
    closed(**patterns("^(a|b|c|d)$"), maxProperties=1),
    closed(("a",), (), **patterns("^a$"), minProperties=1),
    {**closed((), (), **patterns("^a$", "^b$", value=False)), "additionalProperties": {"type": "null"}, "maxProperties": 1},
    {"type": "object", **patterns("", value=False)},  # only the empty object
    {"type": "object", **patterns("^.", "^\\n", value=False), "additionalProperties": {"type": "null"}},  # one name is left
    {"allOf": [closed(required=()), {**patterns("^a$"), "properties": {}}]},
    {"$defs": {"open": patterns("^[ab]$"), "a": {"required": ["a"]}}, "allOf": [{"$ref": "#/$defs/open"}, {"$ref": "#/$defs/a"},
     closed((), (), **patterns("^[ab]$"))]},
    {"type": "array", "maxItems": 1, "items": closed(**patterns("^a$", value=closed(**patterns("^a$"))), properties={})},
]  # fmt: skip


@pytest.mark.parametrize("schema", EXHAUSTED, ids=json.dumps)
def test_no_text_leads_nowhere_after_the_last_name(schema, rng):
    """Whatever is drawn, the text can be ended: a row that draws on, ends or is long."""
    for seed in range(12):
        row = run(ds.SamplingParams(json_schema=schema, seed=seed, max_new_tokens=None), rng, 80)
        assert row.reason in ("", "eos"), (row.text.text, row.error)
        if row.reason:
            jsonschema.validate(json.loads(row.text.text), schema)


@pytest.mark.slow
def test_names_that_a_pattern_allows_are_written_once():
    for pattern, name in (("^(a|b)$", "b"), ("^[ab]$", "b"), ("^ab?$", "ab")):
        schema = closed(**patterns(pattern))
        assert accepts(schema, '{"a": null}') and accepts(schema, f'{{"a": null, "{name}": null}}')
        for text in ('{"a": null, ', f'{{"a": null, "{name}": null, ', f'{{"a": null, "{name}": null, "{name}": null}}'):
            assert not accepts(schema, text), text
    both = closed((), ("a",), **patterns("^a$", value={"maximum": 3, "type": "integer"}))
    assert accepts(both, '{"a": 3}') and not accepts(both, '{"a": 4}')  # the pattern's schema is that of a
    assert accepts(closed(**patterns("^x-")), '{"a": null, "x-b": null, "x-a": null}')
    free = {"type": "object", **patterns("^(en|de)$"), "maxProperties": 2}
    for schema in (free, {"type": "array", "items": [closed(("a", "b"), ()), free]}):  # whose names are not those of the other
        begin = "[{}, " if "items" in schema else ""
        assert accepts(schema, begin + '{"en": null, "de": null}' + "]" * bool(begin))


def test_patterns_within_patterns_do_not_multiply_a_schema(rng):
    schema = {"type": "null"}
    for _ in range(8):
        schema = closed((), (), **patterns("^[a-m]$", value=schema))
    assert run(ds.SamplingParams(json_schema=schema), rng, 1).error is None


LENIENT = {"x-guidance": {"lenient": True}}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"json_schema": {"type": "object", "not": {}, **LENIENT}}, "json_schema"),
        ({"json_schema": '{"x\\u002dguidance": {"whitespace_flexible": true}}'}, "json_schema"),
        ({"json_schema": {"properties": {"a": {"items": LENIENT}}}}, "json_schema"),
        ({"json_schema": {"$ref": "#/x", "x": {"anyOf": [LENIENT]}}}, "json_schema"),
        ({"grammar": f"start: %json {json.dumps(LENIENT)}"}, "grammar"),
        ({"grammar": 'start: a\na: "b" %json{"x-\\u0067uidance":\n{"coerce_one_of": true}}'}, "grammar"),
        ({"grammar": f'start: %json {{"const": 1}} | %json {json.dumps({"items": LENIENT})}'}, "grammar"),
    ],
)
def test_a_schema_cannot_change_how_it_is_read(given, field, rng):
    with pytest.raises(ValueError, match=f"{field} must be without x-guidance; got"):
        run(ds.SamplingParams(**given), rng, 1)
    named = {
        "type": "object",
        "properties": {"x-guidance": {"const": 1}},
        "required": ["x-guidance"],
    }  # a property of this name
    assert accepts({**named, "additionalProperties": False}, '{"x-guidance": 1}')


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"json_schema": {"type": "boolean"}, "min_tokens": 64}, "true|false"),
        ({"json_schema": {"type": "boolean"}, "min_new_tokens": 64}, "true|false"),
        ({"regex": "ab?", "suppress_tokens": [END, 98]}, "a"),
        ({"regex": "ab?", "allowed_token_ids": [97]}, "a"),
        ({"grammar": 'start: "ab"', "logit_bias": {END: -np.inf}, "do_sample": False}, "ab"),
    ],
)
def test_a_complete_text_whose_end_is_forbidden_is_complete(given, text, rng):
    for seed in range(3):
        row = run(ds.SamplingParams(seed=seed, **given), rng)
        assert row.reason == "eos" and re.fullmatch(text, row.text.text)
        sampler = Sampler(ds.SamplingParams(seed=seed, **given), vocab_size=VOCAB, eos_token_id=END, token_bytes=token_bytes)
        while not (row := sampler.rows[0]).reason:
            forced = row.constraint.forced_tokens(row.history.tokens)
            list(sampler.steps(rng.normal(size=(len(forced) + 1, VOCAB)).astype(np.float32), [forced]))
        assert row.reason == "eos" and re.fullmatch(text, row.text.text)


def pairs(text):
    """A tokenizer that prefers pairs of letters to longer tokens."""
    ids = []
    while text:
        size = 2 if text[:2] in ("ab", "bc", "ca") else 1
        ids.append(["a", "b", "c", "ab", "bc", "ca"].index(text[:size]))
        text = text[size:]
    return ids


def test_forced_text_is_written_in_the_tokens_of_the_tokenizer():
    """All of them where the text ends; those at its end that might go on with more are left to the row. The masks agree."""
    texts = [b"a", b"b", b"c", b"ab", b"bc", b"ca", b"abc", b""]

    def forced(regex, *before, encode=pairs):
        options = {"token_bytes": texts.__getitem__, "encode": encode, "vocab_size": 8, "ends": frozenset({7})}
        processor = constraint.ConstraintLogitsProcessor("regex", regex, 0, **options)
        tokens, known = list(before), [*before, *processor.forced_tokens(before)]
        while 7 not in tokens and len(allowed := ids_of(processor.steps(tokens), 8)) == 1:
            tokens += allowed
        assert tokens in (known, [*known, 7])
        return tokens

    assert forced("abcabc") == [3, 5, 4, 7] and forced("abcabc", encode=None) == [6, 6, 7]
    assert forced("[ab]abcabc", 0) == [0, 3, 5, 4, 7]  # after a text that goes on within a token
    assert forced("abca[bc]*") == [3]  # ca may be c and ab
    assert forced("abcabc", encode=lambda text: [6]) == forced("abcabc", encode=lambda text: 1 / 0) == [6, 6, 7]
    assert forced("abcabc", encode=lambda text: [100]) == [6, 6, 7]  # tokens that the row has not


@pytest.mark.slow
def test_dates_and_times_are_those_that_parsers_read():
    """jsonschema's checker, pydantic and datetime know no 29th of February of 2023 and no second 60."""
    date = {"type": "string", "format": "date"}
    for year in (1, 4, 1900, 2000, 2023, 2024, 9999):
        for month in range(1, 13):
            for day in (0, 1, 28, 29, 30, 31, 32):
                real = 1 <= day <= calendar.monthrange(year, month)[1]
                assert accepts(date, f'"{year:04}-{month:02}-{day:02}"') == real, (year, month, day)
    assert not accepts(date, '"0000-01-01"') and not accepts({**date, "pattern": "^20"}, '"1999-01-01"')
    moment = {"type": ["string", "null"], "format": "date-time"}
    assert accepts(moment, "null") and accepts(moment, '"2024-02-29T23:59:59.125+02:00"')
    assert not accepts(moment, '"2023-02-29T00:00:00Z"') and not accepts(moment, '"2024-01-01T10:00:60Z"')
    assert accepts({"type": "string", "format": "time"}, '"00:00:00Z"')


def test_a_format_that_json_schema_defines_is_kept():
    address = {"type": "string", "format": "ipv4"}
    assert accepts(address, '"127.0.0.1"') and not accepts(address, '"local"')
    assert accepts({**address, "format": "password"}, '"local"')


def test_a_schema_is_tried_out_once_for_all_rows(rng, monkeypatch):
    commands, run_to_end = [], subprocess.run

    def counted(command, **options):
        commands.append(command)
        return run_to_end(command, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    params = [ds.SamplingParams(json_schema={"type": "integer", "multipleOf": 17}, seed=seed) for seed in range(5)]
    for each in params:
        assert int(run(each, rng).text.text) % 17 == 0
    assert len(commands) == 1
    text = {"type": "string", "maxLength": 5}
    cheap = [text, {"allOf": [text, {"enum": ["two"]}]}, {"$defs": {"text": text}, "$ref": "#/$defs/text"}]
    for schema, count in [({"type": "string", "pattern": "^two$"}, 1), *((each, 0) for each in cheap)]:
        commands.clear()
        assert run(ds.SamplingParams(json_schema=schema), rng, 1).error is None and len(commands) == count


def test_a_trial_takes_no_more_memory_than_the_user_may():
    script = """
import resource, runpy, sys

resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))
runpy.run_path(sys.argv[1])["_limit"](2**40, 60.0)
assert resource.getrlimit(resource.RLIMIT_AS) == (2**34, 2**34)
"""
    run = processes.run([sys.executable, "-c", script, constraint_worker.__file__])
    assert (run.returncode, run.stderr) == (0, "")


def test_a_process_that_cannot_try_a_schema_out_is_an_error_of_its_own(rng, monkeypatch):
    monkeypatch.setattr(constraint_worker, "__file__", "nowhere.py")
    with pytest.raises(RuntimeError, match="did not start"):
        run(ds.SamplingParams(json_schema={"type": "integer", "multipleOf": 19}), rng, 1)


def test_a_program_that_is_no_python_is_not_started_to_try_a_schema_out(rng, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/usr/bin/uwsgi")
    with pytest.raises(RuntimeError, match="this process runs in /usr/bin/uwsgi, which is not a Python: set DECODESTEP_PYTHON"):
        run(ds.SamplingParams(json_schema={"type": "integer", "multipleOf": 23}), rng, 1)
    monkeypatch.setenv("DECODESTEP_PYTHON", "in-process")
    monkeypatch.setattr(constraint_trial.subprocess, "run", None)
    run(ds.SamplingParams(json_schema={"type": "integer", "multipleOf": 23}), rng, 1)


def test_a_grammar_with_too_many_ways_to_read_a_text_is_refused_for_that(rng, monkeypatch):
    monkeypatch.setitem(constraint_trial.LIMITS, "step_max_items", 1)
    with pytest.raises(ValueError, match="grammar must be one that can be compiled; got .*Too many items"):
        run(ds.SamplingParams(grammar='root ::= "" | . root | root .'), rng, 1)


def test_what_one_row_uses_up_is_no_other_rows(rng, monkeypatch):
    """The limit on states ends a row; rows of the same expression that begin later still have all of it."""
    monkeypatch.setitem(constraint_trial.LIMITS, "max_lexer_states", 300)
    params = [ds.SamplingParams(regex="[^x]*x[^y]{3,40}y.*", seed=seed, max_new_tokens=300) for seed in range(6)]
    logits = rng.normal(size=(300, 1, VOCAB)).astype(np.float32)

    def end(each):
        return (row := run(each, _Given(logits), 300)).reason, row.history.tokens

    alone = [end(each) for each in params]
    assert "error" in {reason for reason, _ in alone} and [end(each) for each in reversed(params)] == alone[::-1]


class _Given:
    """A generator of numbers that are given."""

    def __init__(self, logits):
        self._rest = iter(logits)

    def normal(self, size):
        return next(self._rest)
