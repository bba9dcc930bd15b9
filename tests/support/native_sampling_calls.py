"""Right calls of the entry points of sampling: decode_step, its rows and their histories, noise, Ascend's samplers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from support.native_call_arguments import Arguments, Held, Source


def decode_step(s: Source) -> Arguments:
    from support import decode_step_cases as cases

    logits, steps, options = cases.call(s.rng)
    own = np.ascontiguousarray(logits) if s.one_of(True, False) else logits
    return {
        "logits": own, "steps": steps, "greedy": options["greedy"], "seed": options["seed"], "position": options["position"],
        "top_logprobs": options.get("top_logprobs"), "need_processed": bool(s.one_of(False, True)), "threads": s.threads(),
    }  # fmt: skip


def prompt(s: Source, end: int = 30) -> list[int]:
    return s.ids(s.one_of(0, 1, 5, 60), end=end).tolist()


def history(s: Source) -> Arguments:
    return {"prompt_ids": prompt(s)}


def append_token(s: Source) -> Arguments:
    return {"history": Held("History", history(s)), "token": s.one_of(0, 7, 2**40)}


def truncate_history(s: Source) -> Arguments:
    return {"history": Held("History", history(s)), "length": s.one_of(0, 1, 5, 60)}


def token_ids(s: Source) -> Arguments:
    return {"history": Held("History", history(s))}


def tally(s: Source) -> Arguments:
    return {"history": Held("History", history(s)), "skipped": s.one_of(0, 3, 70)}


def followers(s: Source) -> Arguments:
    return {"history": Held("History", history(s)), "n": s.one_of(1, 2, 3, 70)}


def sequences(s: Source, end: int = 30) -> Arguments:
    lengths = [s.one_of(1, 1, 2, 2, 3, 9) for _ in range(s.size(12))]
    tokens = s.ids(sum(lengths), end=s.one_of(min(end, 2), end))
    return {"tokens": tokens, "lengths": np.array(lengths, np.int64), "values": s.array(len(lengths))}


def endings(s: Source) -> Arguments:
    return {"history": Held("History", history(s)), "sequences": Held("SequenceEndings", sequences(s))}


def continuations(s: Source) -> Arguments:
    return {"history": Held("History", {"prompt_ids": prompt(s, 3)}), "shortest": s.one_of(1, 2, 50),
            "longest": 50, "breakers": s.ids(s.size(2), end=5), "range": s.one_of(0, 1, 20)}  # fmt: skip


def row(s: Source, vocab: int = 100) -> Arguments:
    from decodestep.ops.decode_step import steps
    from support import decode_step_cases as cases

    parts = [
        tuple(cases.chain(s.rng, vocab)), cases.chain(s.rng, vocab), lambda history: cases.chain(s.rng, vocab),
        steps.PenaliseSeen(s.one_of(0, 2), s.one_of(0.5, 1.3)), steps.AddCounted(s.one_of(0, 2), 0.5, s.one_of(-0.5, 0.0)),
        steps.BanFollowers(s.one_of(1, 2, 3)),
        steps.AddEndings(Held("SequenceEndings", sequences(s, vocab))),
        steps.BanEndings(Held("SequenceEndings", {**sequences(s, vocab), "values": None})),
        steps.AddContinuations(s.rng.normal(size=s.one_of(1, 49)), s.one_of(1, 1, 2), s.ids(s.size(2), end=5), s.one_of(0, 9)),
        steps.While(s.one_of(0, 5), s.one_of(0, 6, 99), tuple(cases.chain(s.rng, vocab))),
    ]  # fmt: skip
    return {
        "vocab": vocab, "history": Held("History", {"prompt_ids": prompt(s, min(vocab, 30))}),
        "parts": [s.one_of(*parts) for _ in range(s.size(3))], "greedy": bool(s.one_of(False, True)),
        "seed": s.one_of(0, 2**64 - 1), "top_logprobs": s.one_of(None, None, 0, 5), "ends": [2], "stops": [5, 3],
        "limit": s.one_of(None, 1, 9),
    }  # fmt: skip


def step_rows(s: Source) -> Arguments:
    from support import decode_step_cases as cases

    vocab, batch, given = int(s.one_of(*cases.VOCABULARIES)), s.size(4), s.size(4)
    places = s.one_of(None, s.ids(batch, end=max(given, 1)).tolist())
    return {"logits": cases.batch_of_logits(s.rng, max(batch, given, 1), vocab)[: batch if places is None else given],
            "rows": [Held("Row", row(s, vocab)) for _ in range(batch)], "threads": s.threads(), "places": places}  # fmt: skip


def accept_tokens(s: Source) -> Arguments:
    vocab, batch = s.one_of(1, 40), s.size(3)
    tokens = [s.one_of(-1, 0, vocab - 1, int(s.rng.integers(vocab))) for _ in range(batch)]
    return {"rows": [Held("Row", row(s, vocab)) for _ in range(batch)], "tokens": tokens, "vocab": vocab}


def noise(dtype: Any) -> Callable[[Source], Arguments]:
    def arguments(s: Source) -> Arguments:
        n = s.size(40)
        columns = {"seed": np.uint64, "position": np.uint32, "token": np.uint32}
        given = {name: s.array(s.one_of(1, n), dtype=type_) for name, type_ in columns.items()}
        return {**given, "out": s.array(n, dtype=np.float32).astype(dtype)}

    return arguments


def logits(s: Source, vocab: int) -> tuple[np.ndarray, int]:
    number = int(s.one_of(0, 1, 2))
    values = s.array(s.size(3), vocab) * s.one_of(0.01, 1, 5)
    if number:
        values = values.astype(np.float16).view(np.uint16)
    return s.rows(values.astype(np.uint16 if number else np.float32)), number


def one_a_row(s: Source, rows: np.ndarray, *choices: Any, dtype: Any = np.float32) -> np.ndarray:
    column = s.array(len(rows), dtype=dtype)
    column[...] = [s.one_of(*choices) for _ in rows]
    return column


def top_k_top_p_sample(s: Source) -> Arguments:
    vocab = s.one_of(1, 2, 15, 16, 17, 100, 511, 513, 1200)
    rows, number = logits(s, vocab)
    batch, m = len(rows), s.one_of(None, 1, 1)
    noise = s.one_of("none", "given", "seeded")
    survivors, masked = s.one_of(False, True), s.one_of(False, True)
    return {
        "logits": rows, "dtype": number, "k": one_a_row(s, rows, 0, 1, 5, vocab, 1024, -7, dtype=np.int32),
        "p": one_a_row(s, rows, 0, 1, 0.5, 0.9, 0.9999, np.nan),
        "m": m and one_a_row(s, rows, 0, 0, 1, 0.1, 1e-40, np.nan), "largest_k": s.one_of(8, 1024, 2**40),
        "input_is_logits": bool(m is None or s.one_of(True, True, False)), "kernel_exact": bool(s.one_of(False, True)),
        "guess": s.one_of(0, 1, 32, 2**31 - 1), "q": s.rows(s.array(batch, vocab)) if noise == "given" else None,
        "seed": s.array(batch, dtype=np.uint64) if noise == "seeded" else None,
        "position": s.array(batch, dtype=np.uint32) if noise == "seeded" else None, "eps": 1e-8,
        "chosen": None if survivors else s.array(batch, dtype=np.int64), "masked": s.array(batch, vocab) if masked else None,
        "ids": s.array(batch, vocab, dtype=np.int64) if survivors else None,
        "values": s.array(batch, vocab) if survivors else None, "threads": s.threads(),
    }  # fmt: skip


def apply_top_k_top_p(s: Source) -> Arguments:
    vocab = s.one_of(1, 2, 15, 16, 17, 100, 511, 513, 1200)
    rows, number = logits(s, vocab)
    k, p = one_a_row(s, rows, 0, 1, 5, vocab, 10**6, -7, dtype=np.int32), one_a_row(s, rows, 0, 1, 0.5, 0.9, 0.9999, np.nan)
    out = s.array(len(rows), vocab, dtype=rows.dtype)
    return {
        "logits": rows, "dtype": number, "k": s.one_of(None, k), "p": s.one_of(None, p), "out": out, "threads": s.threads()
    }  # fmt: skip
