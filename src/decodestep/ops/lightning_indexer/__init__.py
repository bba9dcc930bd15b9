"""lightning_indexer: which keys each token of a sparse attention attends to."""

from __future__ import annotations

from typing import Any, NamedTuple

from decodestep._base import arrays, devices
from decodestep._base.arrays import Array, Integers, IntegerTable
from decodestep._base.devices import choose_triton
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep.ops.lightning_indexer import cpu, reference
from decodestep.ops.lightning_indexer.arguments import OP, Call, bind
from decodestep.ops.lightning_indexer.layouts import ALL_TOKENS, CAUSAL


class LightningIndexerResult(NamedTuple):
    """What `lightning_indexer` returns."""

    sparse_indices: Any
    sparse_values: Any


def lightning_indexer(
    query: Array,
    key: Array,
    weights: Array,
    *,
    query_dequant_scale: Array | None = None,
    key_dequant_scale: Array | None = None,
    actual_seq_lengths_query: Integers | None = None,
    actual_seq_lengths_key: Integers | None = None,
    block_table: IntegerTable | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = CAUSAL,
    pre_tokens: int = ALL_TOKENS,
    next_tokens: int = ALL_TOKENS,
    return_value: bool = False,
    ordered: bool = True,
    rounding: str | None = None,
    backend: str = "auto",
) -> LightningIndexerResult:
    """Selects, for every token, the positions whose keys have the largest scores.

        for every token t of a sequence, and its keys s that the token sees:
            score[s] = sum over n of weights[t, n] * max(query[t, n] . key[s], 0)
            int8: weights[t, n] * max(query_dequant_scale[t, n] * key_dequant_scale[s] * (query[t, n] . key[s]), 0)
        sparse_indices[t] = the positions of the sparse_count largest scores, or all, if they are fewer; then -1

    Args:
        query: (B, S1, N, D), or (T1, N, D) in the layout TND. float32, float64, float16 or bfloat16; or int8, D < 2^17.
        key: (B, S2, 1, D); TND: (T2, 1, D); PA_BSND: (blocks, block size, 1, D). One of the same dtypes; int8 with int8
            queries.
        weights: (B, S1, N) or (T1, N), one of the float dtypes. Every scale of the scores belongs in them: D^-0.5 and N^-0.5.
        query_dequant_scale: of int8, float32 or float16, (B, S1, N) or (T1, N), numbers >= 0 for tokens of the sequences.
        key_dequant_scale: of int8, float32 or float16, (B, S2, 1), (T2, 1) or (blocks, block size, 1), numbers >= 0 where they
            are read.
        actual_seq_lengths_query: (B,) integers. BSND: the tokens of each sequence, at most S1; None: S1 each. TND: prefix sums
            of the sequences' lengths.
        actual_seq_lengths_key: (B,) integers, the same of keys; PA_BSND: the keys of each sequence. None in BSND alone.
        block_table: PA_BSND: (B, M) integers, the blocks of each sequence in order. Entries past its keys are not read.
        layout_query: "BSND" or "TND".
        layout_key: "BSND", "TND" or "PA_BSND".
        sparse_count: an integer > 0 and < 2^31.
        sparse_mode: 0, a token sees all keys of its sequence; or 3, token i of S1 sees the first S2 - S1 + i + 1 of S2 keys.
        pre_tokens: 2^63 - 1.
        next_tokens: 2^63 - 1.
        return_value: whether sparse_values is wanted.
        ordered: whether the positions are in the order of their scores; else they ascend, as attention reads them.
        rounding: None, scores are float32; or "device", as CANN's kernels round: a score to bfloat16; of int8, the product
            / 1024 and the weight times its scale to float16. Only "reference" has that.
        backend: "auto", "cpu", "triton" or "reference"; "cpu" serves everything but float64, roundings, and keys that are not
            aligned or not in C order inside a block. "triton" takes tensors on a GPU, and serves everything but float64 and
            roundings; lengths and block_table may be on the host.

    Returns:
        A tuple, by names:
        sparse_indices: int32 (B, S1, 1, sparse_count) or (T1, 1, sparse_count), positions within the sequence, then -1; rows
            past a sequence's tokens are -1.
        sparse_values: float32 of the same shape, the scores, -inf where the index is -1; None unless return_value.

    Raises:
        ValueError: for a dtype, shape, length, block or option outside the rules.

    Notes:
        Of equal scores the lower position comes first; 0 and -0 are equal; NaN comes after all numbers. Scores are float32
        inside, float64 with float64 arguments; the product of int8 is exact, and its score is multiplied by the key's scale in
        the end. Except with "reference", a token's bits depend neither on the other tokens of the call nor on the thread count:
        a product is one ascending sum over the columns and a score one over the heads. CANN takes D = 128, N <= 64,
        sparse_count <= 8192.

    Source:
        DeepSeek-V3.2-Exp (2025), section 2.1; CANN's lightning_indexer and quant_lightning_indexer (ops-transformer, 2026).
    """
    call = Call(
        query,
        key,
        weights,
        query_dequant_scale,
        key_dequant_scale,
        actual_seq_lengths_query,
        actual_seq_lengths_key,
        block_table,
        layout_query,
        layout_key,
        sparse_count,
        sparse_mode,
        pre_tokens,
        next_tokens,
        return_value,
        ordered,
        rounding,
    )
    if devices.goes_to_triton(backend, query):
        selected, values = _on_device(call, backend)
        return LightningIndexerResult(selected, values)
    problem = bind(call)
    backend = choose(OP, backend, {"cpu": cpu.obstacle(problem), "reference": None})
    made = run(OP, backend, (cpu if backend == "cpu" else reference).select, problem)
    return LightningIndexerResult(*(None if a is None else arrays.like(query, a.reshape(problem.shape)) for a in made))


_INDEXES = ("actual_seq_lengths_query", "actual_seq_lengths_key", "block_table")  # whose values are checked on the host
_TENSORS = ("query", "key", "weights", "query_dequant_scale", "key_dequant_scale")


def _on_device(call: Call, backend: str) -> tuple[Any, Any]:
    choose_triton(OP, backend, call.query, None if call.rounding is None else "has no roundings of devices")
    from decodestep.ops.lightning_indexer import triton

    device: Any = call.query.device
    bound: dict[str, Any] = {name: devices.optional_outline(OP, name, getattr(call, name), device) for name in _TENSORS}
    bound |= {name: devices.to_host(getattr(call, name)) for name in _INDEXES}
    problem = bind(call._replace(**bound))
    choose_triton(OP, "triton", call.query, "has no float64" if problem.has_float64 else None)
    selected, values = devices.run_there(OP, device, triton.select, problem, call)
    return selected.view(problem.shape), None if values is None else values.view(problem.shape)
