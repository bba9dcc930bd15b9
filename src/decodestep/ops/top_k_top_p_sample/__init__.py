"""Top-k, top-p, min-p and the exponential race in one: TopKTopPSample, TopKTopPSampleV2 and ApplyTopKTopP of Ascend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from decodestep._base import arrays, devices
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.checks import require
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep.ops.top_k_top_p_sample import arguments, cpu, reference
from decodestep.ops.top_k_top_p_sample.rules import Rules

_INT32_MAX = 2**31 - 1


# One value for all rows, or one per row.
Column: TypeAlias = "float | Sequence[float] | Array"


class TopKTopPSample(NamedTuple):
    """The results of `top_k_top_p_sample`; `logits_top_kp_select` is None where it was not requested."""

    logits_select_idx: Array
    logits_top_kp_select: Array | None


class TopKTopPSampleV2(NamedTuple):
    """The results of `top_k_top_p_sample_v2`; None for what a call does not produce."""

    logits_select_idx: Array
    logits_top_kp_select: Array | None
    logits_idx: Array | None
    logits_sort_masked: Array | None


def top_k_top_p_sample(
    logits: Array,
    top_k: Column,
    top_p: Column,
    q: Array | None = None,
    *,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
    seed: Column | None = None,
    position: Column | None = None,
    kernel_exact: bool = False,
    backend: str = "auto",
) -> TopKTopPSample:
    """Draws one token per row from the top-k, top-p part of softmax(logits), or takes the most probable one.

        for every row b, with k = top_k[b], p = top_p[b] and V the vocabulary size:
            if 1 <= k <= min(V, 1024):
                ids = the k largest logits, descending;     probs = softmax(logits[ids])
                if 0 < p < 1:  keep ids through the first whose running sum of probs is > p
                value = softmax(logits[ids])
            elif 0 < p < 1:
                ids = all, descending by logit;             probs = softmax(logits)
                keep ids through the first whose running sum of probs is > p
                value = softmax(logits[ids])                # of probs[ids] where kernel_exact
            else:
                ids = all, in vocabulary order;             value = softmax(logits)
            i = first argmax of value[i] / (|q[b, i]| + eps)    # of value[i] without noise
            logits_select_idx[b] = ids[i]

    Args:
        logits: (batch, V), float16 or bfloat16, not empty, V <= 2^20, any strides.
        top_k: int32, (batch,) or (batch, 1); or a Python int, or a list with one per row, in the range of int32. Any k outside
            [1, min(V, 1024)] skips top-k.
        top_p: of the dtype of logits, (batch,) or (batch, 1); or a Python number, or a list with one per row, rounded to that
            dtype before it is judged. p <= 0 (not greedy here), p >= 1 and NaN skip top-p.
        q: None, or float32 (batch, V): the noise of the race, Exp(1) for a draw from `value`, indexed by the position i
            among the survivors, not by vocabulary id. 0 is legal.
        eps: a finite float32 >= 0, added to |q| and used nowhere else.
        is_need_logits: whether to return logits_top_kp_select.
        top_k_guess: an integer in [0, 2^31): how many leading tokens top-p alone tries first. A hint for speed; changes no
            result.
        seed: None, or integers in [0, 2^64) where q is None: a scalar, (batch,) or (batch, 1) of any integer dtype. The noise
            of a token is then `decodestep.random.exponential(seed, position, token)`.
        position: given where seed is: integers in [0, 2^32), in any of its forms.
        kernel_exact: True takes the device kernel's softmax of probabilities where p acts without k.
        backend: "auto", "cpu", "triton", for tensors on a GPU, or "reference"; all give the same bits.

    Returns:
        A `TopKTopPSample` in the kind of logits:

        - logits_select_idx: (batch,) int64.
        - logits_top_kp_select: (batch, V) float32, the logits of the survivors and -inf elsewhere; None unless is_need_logits.

    Raises:
        ValueError: for an argument outside these rules.

    Notes:
        The arithmetic is float32; a running sum within 3e-8 V + 2e-6 of p may fall on either side. Equal logits rank
        by the lower id, and exactly k survive. A NaN ranks below -inf and has probability 0; tokens at +inf share
        probability 1 equally; a row of -inf loses nothing and gives id 0. A NaN score loses to every other.
        Seeded noise belongs to a vocabulary id, a given q to a rank. The distribution is the same, but a token keeps its seeded
        noise whatever its rank and whatever else survives. Rows with the same seed and position share their noise.

    Source:
        TopKTopPSample of the Ascend CANN operators (ops-nn, August 2026). By its documentation k <= 0 skips top-k, by
        its kernel it is out of range: here it skips. Without q, kernel_exact makes no difference.
    """
    op = "top_k_top_p_sample"
    on_device = devices.goes_to_triton(backend, logits)
    if on_device:
        top_k, top_p, seed, position = _columns_on_host(op, backend, logits, top_k, top_p, seed, position)
    rows = arguments.logits_view(op, _outline(op, "logits", logits, logits, on_device), arguments.HALVES)
    k, p = _cuts(op, rows, top_k, top_p)
    rules = Rules(
        noise=arguments.noise(op, _outline(op, "q", q, logits, on_device), seed, position, rows.shape),
        eps=arguments.epsilon(op, eps),
        guess=arguments.integer(op, "top_k_guess", top_k_guess, 0, _INT32_MAX),
        kernel_exact=arguments.flag(op, "kernel_exact", kernel_exact),
        need_logits=arguments.flag(op, "is_need_logits", is_need_logits),
    )
    if on_device:
        return TopKTopPSample(*_on_device(op, logits, k, p, None, q, rules)[:2])
    backend = choose(op, backend, {"cpu": None, "reference": None})
    sample = cpu.sample_v1 if backend == "cpu" else reference.sample_v1
    outputs = run(op, backend, sample, rows, k, p, rules)
    return TopKTopPSample(*_like(logits, outputs[:2]))


def top_k_top_p_sample_v2(
    logits: Array,
    top_k: Column,
    top_p: Column,
    q: Array | None = None,
    *,
    min_ps: Column | None = None,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
    ks_max: int = 1024,
    input_is_logits: bool = True,
    is_need_sample_result: bool = False,
    seed: Column | None = None,
    position: Column | None = None,
    post_sample: str = "qSample",
    generator: None = None,
    backend: str = "auto",
) -> TopKTopPSampleV2:
    """Draws one token per row from what top-k, top-p and min-p leave, or returns the survivors and their values.

        for every row b, with k = top_k[b], p = top_p[b], m = min_ps[b], V the vocabulary size, x = logits[b], and
                weigh = softmax where input_is_logits, else the identity:
            if p <= 0:
                ids = the largest x;                        value = weigh(x[ids])       # greedy, whatever k
            elif 0 < k <= min(V, 1024, ks_max rounded up to a multiple of 8):
                ids = the k largest x, descending;          value = weigh(x[ids])
                if p < 1:  keep ids through the first whose running sum of value is >= p
            elif p < 1:
                ids = all, descending by x;                 value = weigh(x)[ids]
                keep ids through the first whose running sum of value is >= p
            else:
                ids = all, in vocabulary order;             value = weigh(x)
            if m >= 1:      keep the first largest value alone
            elif m > 0:     keep every value >= m * max(value), and the largest in any case
            i = first argmax of value[i] / (|q[b, i]| + eps)    # of value[i] without noise
            logits_select_idx[b] = ids[i]

    No value is renormalised after a cut.

    Args:
        logits: (batch, V), float16, bfloat16 or float32, not empty, V <= 2^20, any strides.
            Logits, or probabilities in [0, 1] where input_is_logits is False.
        top_k: int32, (batch,) or (batch, 1); or a Python int, or a list with one per row, in the range of int32. Any k outside
            the range above skips top-k.
        top_p: of the dtype of logits, (batch,) or (batch, 1); or a Python number, or a list with one per row, rounded to that
            dtype before it is judged, so 0.9999 with bfloat16 logits is 1. p >= 1 and NaN skip top-p.
        q: None, or float32 (batch, V): the noise of the race, Exp(1) for a draw from `value`, indexed by the position i
            among the survivors, not by vocabulary id. 0 is legal. Not together with is_need_sample_result.
        min_ps: None, or as top_p. None, m <= 0 and NaN skip min-p.
        eps: a finite float32 >= 0, added to |q| and used nowhere else.
        is_need_logits: whether to return logits_top_kp_select.
        top_k_guess: an integer in [0, 2^31): how many leading tokens top-p alone tries first. A hint for speed; changes no
            result.
        ks_max: an integer in [1, 1024].
        input_is_logits: whether a softmax comes first.
        is_need_sample_result: True returns the survivors in place of a token.
        seed: None, or integers in [0, 2^64) where q is None: a scalar, (batch,) or (batch, 1) of any integer dtype. The noise
            of a token is then `decodestep.random.exponential(seed, position, token)`. Not together with is_need_sample_result.
        position: given where seed is: integers in [0, 2^32), in any of its forms.
        post_sample: of npu_top_k_top_p_sample: "qSample", or "None", which takes the largest value and no noise. "multiNomial"
            is refused, since what it draws with is not specified.
        generator: None: what torch_npu draws from one is not specified either; seed and position name a draw.
        backend: "auto", "cpu", "triton", for tensors on a GPU, or "reference"; all give the same bits.

    Returns:
        A `TopKTopPSampleV2` in the kind of logits:

        - logits_select_idx: (batch,) int64; None where is_need_sample_result.
        - logits_top_kp_select: (batch, V) float32, the inputs of the survivors, elsewhere -inf (0 where input_is_logits is
          False); None unless is_need_logits.
        - logits_idx: (batch, V) int64, the survivors' ids at the front of each row, in the order of `ids`, then zeros; None
          unless is_need_sample_result.
        - logits_sort_masked: (batch, V) float32, their values, likewise.

    Raises:
        ValueError: for an argument outside these rules.

    Notes:
        The arithmetic is float32; a running sum within 3e-8 V + 2e-6 of p may fall on either side. Equal inputs rank
        by the lower id, and exactly k survive. A NaN ranks below -inf and has value 0; tokens at +inf share probability 1
        equally; a row of -inf has probabilities 0, loses nothing to top-p or to m < 1, and gives id 0. A NaN score loses to
        every other.
        Seeded noise belongs to a vocabulary id, a given q to a rank. The distribution is the same, but a token keeps its seeded
        noise whatever its rank and whatever else survives. Rows with the same seed and position share their noise.

    Source:
        TopKTopPSampleV2 of the Ascend CANN operators (ops-nn, August 2026), which leaves the tail of logits_idx
        unwritten.
    """
    op = "top_k_top_p_sample_v2"
    arguments.check_post_sample(op, post_sample, generator, q, seed)
    on_device = devices.goes_to_triton(backend, logits)
    if on_device:
        columns = (top_k, top_p, seed, position, min_ps)
        top_k, top_p, seed, position, min_ps = _columns_on_host(op, backend, logits, *columns)
    rows = arguments.logits_view(op, _outline(op, "logits", logits, logits, on_device), arguments.FLOATS)
    k, p = _cuts(op, rows, top_k, top_p)
    m = arguments.float_column(op, "min_ps", 0.0 if min_ps is None else min_ps, len(rows), rows.dtype)
    rules = Rules(
        noise=arguments.noise(op, _outline(op, "q", q, logits, on_device), seed, position, rows.shape),
        eps=arguments.epsilon(op, eps),
        guess=arguments.integer(op, "top_k_guess", top_k_guess, 0, _INT32_MAX),
        largest_k=-(-arguments.integer(op, "ks_max", ks_max, 1, 1024) // 8) * 8,
        input_is_logits=arguments.flag(op, "input_is_logits", input_is_logits),
        need_logits=arguments.flag(op, "is_need_logits", is_need_logits),
        need_survivors=arguments.flag(op, "is_need_sample_result", is_need_sample_result),
    )
    for arg, value in (("q", q), ("seed", seed)):
        require(value is None or not rules.need_survivors, op, arg, "None where is_need_sample_result is True", value)
    if on_device:
        return TopKTopPSampleV2(*_on_device(op, logits, k, p, m, q, rules))
    backend = choose(op, backend, {"cpu": None, "reference": None})
    sample = cpu.sample_v2 if backend == "cpu" else reference.sample_v2
    outputs = run(op, backend, sample, rows, k, p, m, rules)
    return TopKTopPSampleV2(*_like(logits, outputs))


def apply_top_k_top_p(logits: ArrayT, p: Column | None = None, k: Column | None = None, *, backend: str = "auto") -> ArrayT:
    """Sets to -inf every logit that top-k, then top-p, removes.

    The arguments are in the order of npu_top_k_top_p, p before k: the opposite of `top_k_top_p_sample`. Pass them by name.

        for every row b:
            x = logits[b], ascending and stable
            if 1 <= k[b] <= V:  remove all x < x[V - k[b]]                  # all that tie with the k-th largest stay
            if p is given:      remove all but the last x[i] whose running sum of softmax(x) is <= 1 - p[b]

    Args:
        logits: (batch, V), float16, bfloat16 or float32, not empty, V <= 2^20, any strides.
        p: None, or of the dtype of logits, (batch,) or (batch, 1); or a Python number, or a list with one per row, rounded to
            that dtype. p <= 0 leaves the largest logit alone; p = 1 removes what has probability 0 in float32; p > 1 and
            NaN skip.
        k: None, or int32, (batch,) or (batch, 1); or a Python int, or a list with one per row. Outside [1, V] it skips.
        backend: "auto", "cpu", "triton", for tensors on a GPU, or "reference"; all give the same bits.

    Returns:
        A new array of the shape, dtype and kind of logits.

    Raises:
        ValueError: for an argument outside these rules.

    Notes:
        top-p walks up from the smallest, so of equal logits the lower id goes first: here the highest id wins a tie.
        A running sum within 3e-8 V + 2e-6 of 1 - p may fall on either side. A NaN ranks below -inf and has
        probability 0; tokens at +inf share probability 1 equally.

    Source:
        npu_top_k_top_p of torch_npu, the operator ApplyTopKTopP (ops-nn, August 2026). Older pages limit k to
        [1, 1024].
    """
    op = "apply_top_k_top_p"
    on_device = devices.goes_to_triton(backend, logits)
    if on_device:
        k, p = _columns_on_host(op, backend, logits, k, p)
    rows = arguments.logits_view(op, _outline(op, "logits", logits, logits, on_device), arguments.FLOATS)
    p = None if p is None else arguments.float_column(op, "p", p, len(rows), rows.dtype)
    k = None if k is None else arguments.int32_column(op, "k", k, len(rows))
    if on_device:
        from decodestep.ops.top_k_top_p_sample import triton

        on_gpu: Any = logits
        return devices.run_there(op, on_gpu.device, triton.apply, on_gpu.detach(), p, k)
    backend = choose(op, backend, {"cpu": None, "reference": None})
    masked: ArrayT = arrays.like(logits, run(op, backend, cpu.apply if backend == "cpu" else reference.apply, rows, p, k))
    return masked


def _cuts(op: str, rows: np.ndarray, top_k: Column, top_p: Column) -> tuple[np.ndarray, np.ndarray]:
    return (
        arguments.int32_column(op, "top_k", top_k, len(rows)),
        arguments.float_column(op, "top_p", top_p, len(rows), rows.dtype),
    )


def _columns_on_host(op: str, backend: str, logits: object, *columns: object) -> list[Any]:
    """Small arguments, of which the checks need the values."""
    devices.choose_triton(op, backend, logits)
    return [devices.to_host(column) for column in columns]


def _outline(op: str, arg: str, value: Any, logits: Any, on_device: bool) -> Any:
    return devices.optional_outline(op, arg, value, logits.device) if on_device else value


def _on_device(
    op: str, logits: Any, k: np.ndarray, p: np.ndarray, m: np.ndarray | None, q: Any, rules: Rules
) -> tuple[Any, ...]:
    from decodestep.ops.top_k_top_p_sample import triton

    return devices.run_there(
        op, logits.device, triton.sample, logits.detach(), k, p, m, None if q is None else q.detach(), rules
    )


def _like(logits: Array, outputs: tuple[np.ndarray | None, ...]) -> list[Any]:
    return [None if output is None else arrays.like(logits, output) for output in outputs]
