"""sparse_mla_attention: absorbed attention over chosen entries of the latent cache."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from decodestep._base import arrays, devices
from decodestep._base.arrays import Array, ArrayT, Integers, IntegerTable
from decodestep._base.checks import require
from decodestep._base.devices import choose_triton
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep.ops.lightning_indexer.layouts import ALL_TOKENS, CAUSAL
from decodestep.ops.sparse_mla_attention import cpu, reference
from decodestep.ops.sparse_mla_attention.arguments import ABSORBED, OP, Call, bind, is_same


@overload
def sparse_mla_attention(
    query: ArrayT,
    key: Array,
    value: Array | None,
    sparse_indices: Array,
    scale_value: float,
    *,
    query_rope: Array,
    key_rope: Array | None = None,
    actual_seq_lengths_query: Integers | None = None,
    actual_seq_lengths_kv: Integers | None = None,
    block_table: IntegerTable | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = CAUSAL,
    pre_tokens: int = ALL_TOKENS,
    next_tokens: int = ALL_TOKENS,
    attention_mode: int = ABSORBED,
    sinks: Array | None = None,
    rounding: str | None = None,
    return_softmax_lse: Literal[False] = False,
    backend: str = "auto",
) -> ArrayT: ...


@overload
def sparse_mla_attention(
    query: ArrayT,
    key: Array,
    value: Array | None,
    sparse_indices: Array,
    scale_value: float,
    *,
    query_rope: Array,
    key_rope: Array | None = None,
    actual_seq_lengths_query: Integers | None = None,
    actual_seq_lengths_kv: Integers | None = None,
    block_table: IntegerTable | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = CAUSAL,
    pre_tokens: int = ALL_TOKENS,
    next_tokens: int = ALL_TOKENS,
    attention_mode: int = ABSORBED,
    sinks: Array | None = None,
    rounding: str | None = None,
    return_softmax_lse: Literal[True],
    backend: str = "auto",
) -> tuple[ArrayT, ArrayT, ArrayT]: ...


def sparse_mla_attention(
    query: ArrayT,
    key: Array,
    value: Array | None,
    sparse_indices: Array,
    scale_value: float,
    *,
    query_rope: Array,
    key_rope: Array | None = None,
    actual_seq_lengths_query: Integers | None = None,
    actual_seq_lengths_kv: Integers | None = None,
    block_table: IntegerTable | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = CAUSAL,
    pre_tokens: int = ALL_TOKENS,
    next_tokens: int = ALL_TOKENS,
    attention_mode: int = ABSORBED,
    sinks: Array | None = None,
    rounding: str | None = None,
    return_softmax_lse: bool = False,
    backend: str = "auto",
) -> ArrayT | tuple[ArrayT, ArrayT, ArrayT]:
    """Attends from every token to the positions that `sparse_indices` names, in the latent space.

        for every token t, head n, and j over the positions of sparse_indices[t] that the token sees, ascending:
            score[j] = scale_value * (query[t, n] . key[j] + query_rope[t, n] . key_rope[j])
            out[t, n] = sum over j of softmax(score)[j] * key[j]
            softmax_max[t, n] = max over j of score[j];  softmax_sum[t, n] = sum over j of e^(score[j] - softmax_max[t, n])
            with sinks their score is one more, without a value

    The arguments, layouts and masks are those of CANN's sparse_flash_attention, which is another name of this operator.

    Args:
        query: (B, S1, N, Dc), or (T1, N, Dc) in the layout TND; float32, float64, float16 or bfloat16.
        key: (B, S2, 1, Dc); TND: (T2, 1, Dc); PA_BSND: (blocks, block size, 1, Dc). The latents, of any of these dtypes. Or,
            without key_rope, rows of a latent quantised by tiles and its rope key, as `mla_attention` takes them: int8 or
            float8_e4m3fn, 656 wide for 512 and 64.
        value: key itself, or None: values are the latents.
        sparse_indices: integers (B, S1, 1, size) or (T1, 1, size): positions in the token's sequence, or blocks of
            sparse_block_size of them, as `lightning_indexer` returns them; all different, in any order. What follows a -1 is
            not read, and of a token that sees n positions no more than the first ceil(n / sparse_block_size) are.
        scale_value: factor of the scores, finite.
        query_rope: (B, S1, N, Dr) or (T1, N, Dr), Dr even, of query's dtype.
        key_rope: as key, of width Dr: the shared keys after their rope. None where rows of key hold them.
        actual_seq_lengths_query: (B,) integers. BSND: the tokens of each sequence, at most S1; None: S1 each. TND: prefix sums
            of the sequences' lengths.
        actual_seq_lengths_kv: (B,) integers, the same of keys; PA_BSND: the keys of each sequence. None in BSND alone.
        block_table: PA_BSND: (B, M) integers, the blocks of each sequence in order. Entries past its keys are not read.
        sparse_block_size: a power of two, at most 128; in PA_BSND a divisor of the block size.
        layout_query: "BSND" or "TND".
        layout_kv: "BSND", "TND" or "PA_BSND".
        sparse_mode: 0, a token sees all positions of its sequence; or 3, token i of S1 sees the first S2 - S1 + i + 1 of S2. A
            position that it does not see is left out.
        pre_tokens: 2^63 - 1.
        next_tokens: 2^63 - 1.
        attention_mode: 2, absorbed.
        sinks: float32 (N,), a score of each head without a value, which takes a part of the weights; None: there are none.
        rounding: None, or "device": the softmax's weights, and rows that were quantised, are rounded to query's dtype, as
            CANN's kernels do. Only "reference" has that.
        return_softmax_lse: whether the softmax's maxima and sums are wanted too, by which results over parts of the keys can be
            joined.
        backend: "auto", "cpu", "triton" or "reference"; "cpu" serves everything but float64 and roundings. "triton" takes
            tensors on a GPU, and serves everything but float64, roundings, sinks, quantised rows and return_softmax_lse;
            lengths, block_table and sparse_indices are read on the host.

    Returns:
        out, of query's shape, dtype and kind; zeros for a token that attends to nothing, and past a sequence's tokens. With
        return_softmax_lse (out, softmax_max, softmax_sum), these (B, 1, S1, N) or (1, T1, N), float32, or float64 with float64
        arguments; zeros where out is, but for sinks.

    Raises:
        ValueError: for a dtype, shape, length, block, position or option outside the rules.

    Notes:
        Everything is float32 inside, float64 with float64 arguments; results are rounded once. The positions are summed in
        ascending order, whatever their order in sparse_indices, in the blocks and splits of `mla_attention`: a token that
        attends to all positions has the bits of `mla_attention`. Except with "reference", a token's bits depend neither on the
        other tokens of the call nor on the thread count. NaN spreads to its token and head alone, and from entries that are not
        named not at all. CANN takes Dc = 512, Dr = 64 and N <= 128.

    Source:
        DeepSeek-V3.2-Exp (2025), section 2.1; CANN's sparse_flash_attention and kv_quant_sparse_flash_attention
        (ops-transformer, 2026).
    """
    require(isinstance(return_softmax_lse, bool), OP, "return_softmax_lse", "a bool", return_softmax_lse)
    call = Call(
        query,
        key,
        value,
        sparse_indices,
        scale_value,
        query_rope,
        key_rope,
        actual_seq_lengths_query,
        actual_seq_lengths_kv,
        block_table,
        sparse_block_size,
        layout_query,
        layout_kv,
        sparse_mode,
        pre_tokens,
        next_tokens,
        attention_mode,
        sinks,
        rounding,
    )
    if devices.goes_to_triton(backend, query):
        return _on_device(call, backend, return_softmax_lse)
    problem = bind(call)
    backend = choose(OP, backend, {"cpu": cpu.obstacle(problem), "reference": None})
    out, softmax = run(OP, backend, (cpu if backend == "cpu" else reference).attend, problem)
    shape = arrays.view(OP, "query", query).shape
    made = arrays.like(query, out.reshape(shape).astype(problem.arrays.query.dtype, copy=False))
    if not return_softmax_lse:
        return made
    largest, sums = (arrays.like(query, np.expand_dims(part.reshape(shape[:-1]), -3)) for part in softmax)
    return made, largest, sums


sparse_flash_attention = sparse_mla_attention

_INDEXES = ("sparse_indices", "actual_seq_lengths_query", "actual_seq_lengths_kv", "block_table")  # whose values are checked
_TENSORS = ("query", "key", "query_rope", "key_rope")


def _on_device(call: Call, backend: str, with_softmax: bool) -> Any:
    query: Any = call.query
    lacks = {
        "roundings of devices": call.rounding is not None,
        "sinks": call.sinks is not None,
        "quantised rows": call.key_rope is None,
        "maxima and sums of its own": with_softmax,
    }
    choose_triton(OP, backend, query, next((f"has no {what}" for what, asked in lacks.items() if asked), None))
    from decodestep.ops.sparse_mla_attention import triton

    bound: dict[str, Any] = {name: devices.outline(OP, name, getattr(call, name), query.device) for name in _TENSORS}
    bound |= {name: devices.to_host(getattr(call, name)) for name in _INDEXES}
    bound["value"] = bound["key"] if is_same(call.key, call.value) else call.value
    problem = bind(call._replace(**bound), outlined=True)
    choose_triton(OP, "triton", query, "has no float64" if problem.has_float64 else None)
    return devices.run_there(OP, query.device, triton.attend, problem, call).view(query.shape).to(query.dtype)
