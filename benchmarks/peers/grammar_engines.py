"""Engines that compute the mask of the next token under a JSON schema: ours, and those of other libraries."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from decodestep.constraints import grammar, json_schema, trial
from decodestep.constraints.processor import ConstraintLogitsProcessor

SEPARATORS = (", ", ": ")  # those of json.dumps, which all of them write


class Ours:
    """`ConstraintLogitsProcessor`, as rows have it."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._options: dict[str, Any] = {
            "token_bytes": tokens.__getitem__,
            "vocab_size": len(tokens),
            "ends": frozenset({len(tokens) - 1}),
        }
        self.begin({"type": "null"})  # reads the vocabulary, once for all schemas

    def begin(self, schema: dict[str, Any]) -> Callable[[list[int]], np.ndarray]:
        """Compiles a schema; returns what tells the mask after tokens, one more at each call. The first mask is known."""
        for cached in (grammar.compile_grammar, json_schema.schema_rules, trial._answers):
            cached.cache_clear()
        return self.resume(schema)

    def resume(self, schema: dict[str, Any]) -> Callable[[list[int]], np.ndarray]:
        """As `begin`, of a schema that has been compiled."""
        row = ConstraintLogitsProcessor("json_schema", json.dumps(schema), 0, **self._options)
        return lambda tokens: row.steps(tokens)[0].bits


class LLGuidance:
    """llguidance's own compiler of schemas."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        from decodestep.constraints.vocabulary import build_tokenizer

        self._tokenizer = build_tokenizer(tokens.__getitem__, len(tokens), frozenset({len(tokens) - 1}))

    def begin(self, schema: dict[str, Any]) -> Callable[[list[int]], np.ndarray]:
        from llguidance import LLMatcher

        form = {"whitespace_flexible": False, "item_separator": SEPARATORS[0], "key_separator": SEPARATORS[1]}
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_json_schema(json.dumps({**schema, "x-guidance": form})))

        def mask(tokens: list[int]) -> np.ndarray:
            if tokens and not matcher.consume_token(tokens[-1]):
                raise ValueError(f"llguidance: {matcher.get_error() or 'another text'}")
            return np.frombuffer(matcher.compute_bitmask(), np.int32)

        mask([])
        return mask

    resume = begin


class XGrammar:
    """xgrammar's compiler, without its cache, on one thread."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        import xgrammar

        self._module = xgrammar
        end = len(tokens) - 1
        encoded = [token or b"</s>" for token in tokens]
        info = xgrammar.TokenizerInfo(encoded, xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[end])
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._size = len(tokens)
        self._compiled: dict[str, Any] = {}

    def begin(self, schema: dict[str, Any]) -> Callable[[list[int]], np.ndarray]:
        text = json.dumps(schema)
        self._compiled[text] = self._compiler.compile_json_schema(text, any_whitespace=False, separators=SEPARATORS)
        return self.resume(schema)

    def resume(self, schema: dict[str, Any]) -> Callable[[list[int]], np.ndarray]:
        matcher = self._module.GrammarMatcher(self._compiled[json.dumps(schema)])
        bits = self._module.allocate_token_bitmask(1, self._size)
        row: np.ndarray = bits.numpy()[0]

        def mask(tokens: list[int]) -> np.ndarray:
            if tokens and not matcher.accept_token(tokens[-1]):
                raise ValueError("xgrammar: another text")
            matcher.fill_next_token_bitmask(bits)
            return row

        mask([])
        return mask


ENGINES = {"ours": Ours, "llguidance": LLGuidance, "xgrammar": XGrammar}
