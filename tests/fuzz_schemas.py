"""Walks random JSON schemas with random and adversarial models: `python tests/fuzz_schemas.py --schemas 5000`.

A model is a policy that chooses among the allowed tokens: any of them, always the rarest, always the longest name, always one
item more, the end as soon as it may. Whatever it chooses, some token is allowed until the text ends, a text that has ended is
valid, and no step takes more than 50 ms of processor time. `--seed` is the first schema's; a failure tells its own.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from typing import Any

import jsonschema
import numpy as np
from llguidance import LLMatcher, LLParserLimits

from decodestep.constraints.grammar import compile_grammar
from decodestep.constraints.trial import LIMITS
from decodestep.constraints.vocabulary import build_tokenizer

SLOW = 0.05  # seconds
STEPS, CLOSING = 160, 400  # tokens of a text, and then of its end
NAMES = ["age", "age_class", "name", "na", "n", "city", "a", "b", 'q"t', "é", "x-1"]
LONGER = ['": ', '", ', '{"', '"}', "], ", "true", "false", "null", *NAMES[:5], 'a"', '", "', "00", "999", " ", "aaaa", "\\n",
          '\\"', "12", "e9", "[["]  # fmt: skip
TOKENS = [*(bytes([i]) for i in range(256)), *(text.encode() for text in LONGER), b""]
END = len(TOKENS) - 1
POLICIES = ("random", "rarest", "longest name", "more items", "end", "random")
Schema = Any


class SchemaSource:
    """A random schema."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.definitions = ["d0", "d1"]

    def document(self) -> dict[str, Schema]:
        found = self.schema(3)
        whole = {"anyOf": [found]} if isinstance(found, bool) else found
        return {**whole, "$defs": {name: self.schema(2) for name in self.definitions}}

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def value(self, depth: int) -> Any:
        rng = self.rng
        kinds = [None, True, False, rng.choice([0, 1, -3, 12, 2.5, 4.0]), rng.choice(NAMES)]
        if depth:
            kinds += [[self.value(depth - 1) for _ in range(rng.randrange(3))]]
            kinds += [{rng.choice(NAMES): self.value(depth - 1) for _ in range(rng.randrange(3))}]
        return rng.choice(kinds)

    def schema(self, depth: int) -> Schema:
        kind = self.rng.random()
        if depth <= 0 or kind < 0.28:
            return self.leaf()
        if kind < 0.65:
            return self.object(depth - 1)
        if kind < 0.85:
            return self.array(depth - 1)
        key = self.rng.choice(["anyOf", "oneOf", "allOf", "anyOf", "not"])
        if key == "not":
            return {"not": {"enum": [self.value(0), self.value(0)]}, "type": ["string", "integer", "null"]}
        return {key: [self.schema(depth - 1) for _ in range(self.rng.randrange(1, 4))]}

    def leaf(self) -> Schema:
        rng = self.rng
        kinds = [
            {"type": "integer"},
            {"type": "integer", "minimum": rng.randrange(-5, 5), "maximum": rng.randrange(9)},
            {"type": "number", "exclusiveMinimum": rng.choice([0, 0.5, -2]), "maximum": rng.choice([1, 99.5])},
            {"type": "number", "multipleOf": rng.choice([0.5, 3])},
            {"type": "number"},
            {"type": "string"},
            {"type": "string", "maxLength": rng.randrange(4), "minLength": rng.randrange(3)},
            {"type": "string", "pattern": rng.choice(["^a+$", "b", "^(x|yz)?$", "^[a-c]{2,3}$"])},
            {"type": "string", "format": rng.choice(["date", "time", "date-time", "email", "uuid", "ipv6", "uri-reference"])},
            {"type": "boolean"},
            {"type": "null"},
            {"enum": [self.value(1) for _ in range(rng.randrange(1, 4))]},
            {"const": self.value(2)},
            {"type": ["integer", "null"]},
            rng.choice([True, False, {}, {"type": "string"}, {"type": "integer"}]),
            {"$ref": "#/$defs/" + rng.choice(self.definitions)},
        ]
        return rng.choice(kinds)

    def object(self, depth: int) -> Schema:
        rng = self.rng
        properties = {name: self.schema(depth) for name in rng.sample(NAMES, rng.randrange(5))}
        found: dict[str, Schema] = {"type": "object", "properties": properties}
        if self.chance(0.7):
            found["required"] = [name for name in properties if self.chance(0.4)]
        if self.chance(0.6):
            found["additionalProperties"] = False if self.chance(0.65) else self.schema(depth)
        if self.chance(0.15):
            found["patternProperties"] = {rng.choice(["^x", "^(a|b)$", "a", "^n.$"]): self.schema(depth)}
        if self.chance(0.12):
            found["minProperties"] = rng.randrange(3)
        if self.chance(0.12):
            found["maxProperties"] = rng.randrange(4)
        if self.chance(0.1) and len(properties) > 1:
            one, other = rng.sample(list(properties), 2)
            found["dependentRequired"] = {one: [other]}
        if self.chance(0.06):
            found["propertyNames"] = rng.choice([{"enum": ["a", "b", "age"]}, {"maxLength": 3}, {"pattern": "^a"}])
        if self.chance(0.08) and properties:
            found["if"] = {"properties": {rng.choice(list(properties)): {"const": rng.choice([1, "a", None])}}}
            found["then"] = {"required": [rng.choice(NAMES)]}
        if self.chance(0.05):
            found["not"] = {"required": [rng.choice(NAMES)]}
        return found

    def array(self, depth: int) -> Schema:
        rng = self.rng
        found: dict[str, Schema] = {"type": "array"}
        if self.chance(0.85):
            found["items"] = self.schema(depth)
        if self.chance(0.25):
            found["prefixItems"] = [self.schema(depth) for _ in range(rng.randrange(1, 3))]
        if self.chance(0.3):
            found["minItems"] = rng.randrange(4)
        if self.chance(0.4):
            found["maxItems"] = rng.randrange(5)
        if self.chance(0.1):
            found["uniqueItems"] = True
        if self.chance(0.1):
            found["contains"] = self.schema(0)
        return found


class FoundError(Exception):
    """What must not happen."""


class Walk:
    """A text that a policy writes under a grammar."""

    def __init__(self, grammar: str, policy: str, rng: random.Random) -> None:
        tokenizer = build_tokenizer(TOKENS.__getitem__, len(TOKENS), frozenset({END}))
        self.matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**LIMITS))
        self.policy, self.rng = policy, rng
        self.text = b""
        self.slowest = 0.0

    def run(self) -> bytes | None:
        """The text; None if it has not ended by then, though it always might."""
        for step in range(STEPS + CLOSING):
            allowed = self.allowed()
            if END in allowed and (step >= STEPS or self.ends(allowed)):
                return self.text
            token = self.choose([each for each in allowed if each != END], closing=step >= STEPS)
            self.timed(lambda token=token: self.matcher.consume_token(token) or self.fail("not taken", TOKENS[token]))
            self.text += TOKENS[token]
        return None

    def allowed(self) -> list[int]:
        bits = self.timed(self.matcher.compute_bitmask)
        if self.matcher.is_error():
            self.fail("corner", self.matcher.get_error()[:200])
        found = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), count=len(TOKENS), bitorder="little")).tolist()
        if not found or self.matcher.is_accepting() != (END in found):
            self.fail("no token, or an end that is none", found[:5])
        return found

    def ends(self, allowed: list[int]) -> bool:
        return len(allowed) == 1 or self.policy == "end" or (self.policy == "random" and self.rng.random() < 0.5)

    def choose(self, tokens: list[int], *, closing: bool) -> int:
        if closing:
            ends = [token for token in tokens if TOKENS[token] in (b"}", b"]", b'"')] or tokens
            return ends[0] if self.rng.random() < 0.8 else self.rng.choice(ends)
        if self.policy == "rarest":
            return max(tokens, key=lambda token: (token < 128, -len(TOKENS[token]), token * 7919 % 257))
        liked = {
            "longest name": lambda data: not data.startswith((b'"', b"]", b"}")) and b'"' not in data,
            "more items": lambda data: data.startswith((b",", b"{", b"[")),
            "end": lambda data: data.startswith((b"}", b"]", b'"')),
        }.get(self.policy, lambda data: True)
        return self.rng.choice([token for token in tokens if liked(TOKENS[token])] or tokens)

    def timed(self, call: Any) -> Any:
        began = time.thread_time()
        found = call()
        took = time.thread_time() - began
        self.slowest = max(self.slowest, took)
        if took > SLOW:
            self.fail("slow", f"{took * 1e3:.0f} ms")
        return found

    def fail(self, what: str, more: object) -> None:
        raise FoundError(f"{what} {more!r} after {self.text!r}, written by {self.policy!r}")


def check(seed: int, counts: Counter[str]) -> float:
    """Walks one schema with every policy; returns the slowest step's seconds."""
    source = SchemaSource(seed)
    schema = source.document()
    closed, order = source.chance(0.5), source.rng.choice(["schema", "any"])
    try:
        grammar = compile_grammar("json_schema", json.dumps(schema), closed=closed, order=order)
    except ValueError as error:
        counts["refused"] += 1
        counts[str(error).split(" is not ", 1)[-1][:60]] += 1
        return 0.0
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["date", "uuid", "ipv6"]))
    slowest = 0.0
    for policy in POLICIES:
        walk = Walk(grammar, policy, source.rng)
        try:
            text = walk.run()
            counts["texts" if text is not None else "without an end yet"] += 1
            if text is not None and not validator.is_valid(json.loads(text)):
                walk.fail("invalid", "")
        except (FoundError, ValueError) as error:
            raise FoundError(f"seed {seed}, closed {closed}, order {order}: {error}\n{json.dumps(schema)}") from error
        slowest = max(slowest, walk.slowest)
    return slowest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    sys.setrecursionlimit(20_000)  # the validator's, in texts of many arrays within each other
    counts: Counter[str] = Counter()
    slowest, failed = 0.0, 0
    for seed in range(chosen.seed, chosen.seed + chosen.schemas):
        try:
            slowest = max(slowest, check(seed, counts))
        except FoundError as error:
            failed += 1
            print(error, flush=True)
    print(f"{chosen.schemas} schemas, {failed} failed, slowest step {slowest * 1e3:.1f} ms; {dict(counts.most_common(16))}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
