"""Constraints: what a packed mask costs a step, the masks of JSON schemas beside llguidance's and xgrammar's, and generation.

    decodestep bench constraint [--cases bits masks generate] [--vocab 32000 128256 256000] [--batch 1 64] [--rounds 15]

bits: a step with top-p 0.9, and the same after an `AllowBits` of a share of the tokens; the first line is without one.
DECODESTEP_ISA=avx2 measures a lower instruction set.
masks: the schemas of measuring/schemas.py. "compile" is from a schema to its first mask, without caches; ours tries costly ones
out in a process of its own. "a mask" takes a token and computes the next one, each at the fastest of the rounds. A peer that is
not installed is left out, and a schema that one of them refuses, or whose text it does not take.
generate: the default model's tokens, free and as an object of four properties, without drafts and with.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import decodestep as ds
from decodestep import steps as s
from decodestep.ops.decode_step.rows import new_row, step_rows
from decodestep.sampling.token_history import TokenHistory
from measuring.harness import Report, duration, options, run_main
from measuring.schemas import SAMPLES, Sample, tokens_of, vocabulary
from peers.grammar_engines import ENGINES

CASES = ("bits", "masks", "generate")
SHARES = (0.99, 0.55, 0.45, 0.1, 0.01, 1e-3, 1e-4)  # of tokens that stay
TOKENS = 96  # generated
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"type": "string", "maxLength": 40},
        "about": {"type": "string", "minLength": 400, "maxLength": 800},
    },
    "required": ["name", "age", "city", "about"],
}
PROMPT = [{"role": "user", "content": "Write a person as JSON, with a long text about them."}]


def verify() -> None:
    """A packed mask leaves what a list of the same tokens does."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((1, 5000)).astype(np.float32)
    for share in SHARES:
        allowed = rng.random(5000) < share
        allowed[7] = True
        calls = ((mask_of(allowed), s.TopP(0.9)), (s.Allow(np.flatnonzero(allowed)), s.TopP(0.9)))
        packed, listed = (ds.decode_step(logits, [steps], seed=3, need_processed=True) for steps in calls)
        assert packed.tokens == listed.tokens and np.array_equal(packed.processed, listed.processed), share


def mask_of(allowed: np.ndarray) -> s.AllowBits:
    padded = np.zeros(-(-len(allowed) // 32) * 32, bool)
    padded[: len(allowed)] = allowed
    return s.AllowBits(np.packbits(padded, bitorder="little").view(np.int32))


def measure_bits(report: Report, vocab: int, batch: int, rounds: int) -> None:
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((batch, vocab)) * 2).astype(np.float32)

    def step(steps: tuple[Any, ...]) -> Callable[[], object]:
        """A step of rows that are asked for their mask at each, as constrained ones are."""
        rest = {"greedy": False, "top_logprobs": None, "ends": (), "stops": (), "limit": None}
        rows = [new_row(vocab, TokenHistory([]), [lambda history: steps], seed=b, **rest) for b in range(batch)]
        return lambda: step_rows(logits, rows)

    calls = {"free": step((s.TopP(0.9),))}
    for share in SHARES:
        calls[f"{share:.4g} of the tokens stay"] = step((mask_of(rng.random(vocab) < share), s.TopP(0.9)))
    report.case(f"bits B={batch} V={vocab} float32 top-p", calls, rounds)


def measure_masks(report: Report, vocab: int, rounds: int) -> None:
    tokens = vocabulary(vocab)
    ids = {token: i for i, token in reversed(list(enumerate(tokens[:-1])))}
    engines = {}
    for name, engine in ENGINES.items():
        try:
            engines[name] = engine(tokens)
        except ImportError as error:
            print(f"{name}: {error.name} is not installed")
    compiled: dict[str, list[float]] = {name: [] for name in engines}
    masks: dict[str, list[float]] = {name: [] for name in engines}
    for sample in SAMPLES:
        text = tokens_of(sample.text, ids)
        try:
            took = {name: _fastest(partial(engine.begin, sample.schema), 3) for name, engine in engines.items()}
            of_tokens = _mask_seconds(engines, sample, text, rounds)
        except (ValueError, RuntimeError) as error:
            print(f"left out: {sample.name}: {error}")
            continue
        for name in engines:
            compiled[name].append(took[name])
            masks[name] += of_tokens[name]
    report.show(f"compile V={vocab}, {len(compiled['ours'])} schemas", compiled, None, "a schema to its first mask")
    report.show(f"a mask V={vocab}, {len(masks['ours'])} tokens", masks, None, "a token and the mask after it")
    for name, seconds in masks.items():
        late = statistics.quantiles(seconds, n=100)[-1]
        print(f"  {name}: 99th percentile {duration(late)}, slowest {duration(max(seconds))}")


def _fastest(call: Callable[[], object], count: int) -> float:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)


def _mask_seconds(engines: dict[str, Any], sample: Sample, text: Sequence[int], rounds: int) -> dict[str, list[float]]:
    """Of each engine, the seconds of each token; the engines take turns."""
    found: dict[str, list[list[float]]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            mask, took = engine.resume(sample.schema), list[float]()
            for place in range(1, len(text) + 1):
                read = list(text[:place])
                began = time.perf_counter()
                mask(read)
                took.append(time.perf_counter() - began)
            found[name].append(took)
    return {name: [min(each) for each in zip(*several, strict=True)] for name, several in found.items()}


def measure_generation(report: Report, rounds: int) -> None:
    model = ds.load()
    usual = {"max_new_tokens": TOKENS, "seed": 1, "top_p": 0.9, "temperature": 0.7}
    for draft in (None, "auto"):
        calls = {}
        for name, more in {
            "free": {"ignore_eos": True},
            "object": {"json_schema": PERSON},
            "object, any order": {"json_schema": PERSON, "json_property_order": "any"},
        }.items():
            calls[name] = partial(ds.generate, model, [PROMPT], ds.SamplingParams(**usual, **more), draft=draft)
            [done] = calls[name]()
            assert len(done.token_ids) == TOKENS, done
        report.case(f"generate {TOKENS} tokens, {'without drafts' if draft is None else 'with drafts'}", calls, rounds)


def main() -> None:
    chosen = options(__doc__, {"cases": CASES}, cases=CASES, vocab=(32000, 128256, 256000), batch=(1, 64))
    verify()
    report = Report("constraint", chosen.threads)
    for vocab in chosen.vocab:
        if "bits" in chosen.cases:
            for batch in chosen.batch:
                measure_bits(report, vocab, batch, chosen.rounds)
        if "masks" in chosen.cases:
            measure_masks(report, vocab, min(chosen.rounds, 5))
    if "generate" in chosen.cases:
        measure_generation(report, chosen.rounds)
    report.save()


if __name__ == "__main__":
    run_main(main)
