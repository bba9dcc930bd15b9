"""The host tiling of MlaProlog: how a call is divided among the device's cores, computed without a device."""

from __future__ import annotations

from dataclasses import dataclass

from decodestep._base.checks import is_int, require, require_choice
from decodestep.ops.mla_prolog.scenarios import NO_QUANT, SCENARIOS, Scenario
from decodestep.ops.mla_prolog.size_limits import ALL_MODES, LATEST, PAGED_MODES, limits_name
from decodestep.ops.mla_prolog.tiling_key import CV_MODES, MlaPrologTilingKey

_OP = "mla_prolog_plan"
_STEP = 128  # tokens at a time
_MOST_TOKENS = 2**20  # of the operator: 65536 sequences of 16
_CKVKR_COLUMNS, _CKVKR_CORES = 64, 9
_SCENARIOS = tuple(s.name for s in SCENARIOS.values() if s.key is not None)
_CACHE_MODES_2026 = {"BSND": 0, "TND": 0, "PA_BSND": 1, "PA_NZ": 2, "PA_BLK_BSND": 3, "PA_BLK_NZ": 4}
_LEAST_CQ_COLUMNS = 64  # of a core in 2026
# In 2026 the cores share the tokens, not the weights, from so many of MXFP8 on, with these hidden sizes and heads.
_SPLIT_M_TOKENS, _SPLIT_M_HIDDEN, _SPLIT_M_HEADS = 8192, (7168, 7680), 128


@dataclass(frozen=True)
class Widths:
    """N, He, Hcq, Hckv, D and Dr of a call."""

    heads: int
    hidden: int
    hcq: int
    hckv: int
    nope: int
    rope: int

    @property
    def head(self) -> int:
        """The columns of a head in MatmulQcQr."""
        return self.nope + self.rope


@dataclass(frozen=True)
class Matmul:
    """An (m, k) by (k, n) product; each of `blocks` cores computes `columns` of n, the last core what is left."""

    name: str
    m: int
    k: int
    n: int
    columns: int
    blocks: int
    batch: int = 1  # products of this size: one for each head in MatmulQn, `heads` of them to a core
    heads: int = 0


@dataclass(frozen=True)
class MlaPrologPlan:
    """The host tiling of one call, as `mla_prolog_plan` computes it."""

    key: MlaPrologTilingKey
    matmuls: tuple[Matmul, ...]  # MatmulCq, MatmulCkvKr (not with empty caches), MatmulQcQr, MatmulQn; empty without tokens
    steps: tuple[int, ...]  # the tokens of each step along M
    block_dim: int  # cube cores launched
    vector_blocks: tuple[int, ...]  # the tokens of each vector core in a full step
    step_heads_dequant: int
    workspace_bytes: int  # without the part that the system adds


def _single_n(n: int, cores: int, align: int) -> int:
    return -(-n // (align * cores)) * align


def _matmul(name: str, m: int, k: int, n: int, columns: int) -> Matmul:
    return Matmul(name, m, k, n, columns, -(-n // columns))


def mla_prolog_plan(
    tokens: int,
    heads: int,
    *,
    hidden: int = 7168,
    hcq: int = 1536,
    hckv: int = 512,
    nope: int = 128,
    rope: int = 64,
    scenario: str = "NO_QUANT",
    cache_mode: str = "PA_BSND",
    empty_cache: bool = False,
    aic: int = 24,
    aiv: int = 48,
    merged: bool = True,
    limits: str | None = None,
) -> MlaPrologPlan:
    """Computes the host tiling of a MlaProlog call: its key, the split of its four products, steps, vector blocks, workspace.

    Args:
        tokens: T or B * S, in [0, 1048576].
        heads: N > 0.
        hidden: He > 0.
        hcq: Hcq > 0.
        hckv: Hckv > 0.
        nope: D > 0.
        rope: Dr > 0.
        scenario: "NO_QUANT", "PARTIAL", "PARTIAL_KV", "FULL" or "FULL_KV"; with limits="2026" any of `mla_prolog_v3`.
        cache_mode: "PA_BSND" or "PA_NZ"; with limits="2026" any of `mla_prolog_v3`.
        empty_cache: whether the caches have no blocks.
        aic: the number of cube cores, > 0.
        aiv: the number of vector cores, > 0; with limits="2026" aic or 2 * aic, and aic only in NO_QUANT with PA_BSND or PA_NZ.
        merged: whether the tokens are (T, He), which matters with block ids alone.
        limits: "2026", or "latest", plans as the host of July 2026 does, anything else as that of November 2025: MatmulCq has
            at least 64 columns a core, eight-bit floats are dequantised head by head with any number of heads, and from 8192
            tokens on, in MXFP8 with 128 heads, two vector cores to a cube core and He 7168 or 7680, the cores share the tokens.

    Returns:
        A `MlaPrologPlan`.

    Raises:
        ValueError: for anything else.

    Notes:
        The group computation needs eight key-value heads; the operator has one, so it is never chosen. With nine cube cores or
        more MatmulCkvKr is split into blocks of 64 columns.

    Source:
        Ascend MlaProlog, host tiling (CANN ops-transformer, November 2025 and July 2026).
    """
    later = limits_name(_OP, limits) == LATEST
    sizes = {"heads": heads, "hidden": hidden, "hcq": hcq, "hckv": hckv, "nope": nope, "rope": rope, "aic": aic, "aiv": aiv}
    require(is_int(tokens) and 0 <= tokens <= _MOST_TOKENS, _OP, "tokens", f"an integer in [0, {_MOST_TOKENS}]", tokens)
    for name, size in sizes.items():
        require(is_int(size) and size > 0, _OP, name, "an integer > 0", size)
    for name, flag in (("empty_cache", empty_cache), ("merged", merged)):
        require(isinstance(flag, bool), _OP, name, "a bool", flag)
    require_choice(_OP, "scenario", scenario, tuple(SCENARIOS) if later else _SCENARIOS)
    require_choice(_OP, "cache_mode", cache_mode, ALL_MODES if later else PAGED_MODES)
    s = SCENARIOS[scenario]
    dequant, empty = int(_dequantises(s, heads)), 2 if tokens == 0 else int(empty_cache)
    split_m = later and _splits_m(s, tokens, heads, hidden, aiv == 2 * aic)
    if later:
        single = s is NO_QUANT and cache_mode in PAGED_MODES
        rule = "aic or 2 * aic" if single else "2 * aic in this scenario and cache mode"
        require(aiv == 2 * aic or (single and aiv == aic), _OP, "aiv", f"{rule} under limits={limits!r}", aiv)
        by_sequence = int(merged and cache_mode.startswith("PA_BLK"))
        fields = (_CACHE_MODES_2026[cache_mode], 2 if s.partial else 1, s.key_2026, dequant, 0, empty)
        key = MlaPrologTilingKey(*fields, by_sequence, int(split_m), CV_MODES[aiv // aic])
    else:
        key = MlaPrologTilingKey(PAGED_MODES.index(cache_mode) + 1, 2 if s.partial else 1, s.key or 0, dequant, 0, empty)
    heads_dequant = min(64 if nope == 128 else 16, heads)
    if tokens == 0:
        return MlaPrologPlan(MlaPrologTilingKey.decode(key.encode()), (), (), 1, (), heads_dequant, 0)

    step = min(_STEP, tokens)
    widths = Widths(heads, hidden, hcq, hckv, nope, rope)
    matmuls = _whole_matmuls(step, widths, aic) if split_m else _matmuls(s, step, widths, aic, _LEAST_CQ_COLUMNS * later)
    if empty_cache:
        matmuls = (matmuls[0], *matmuls[2:])
    cores = min(step, aiv)
    return MlaPrologPlan(
        key,
        matmuls,
        tuple(min(_STEP, tokens - t) for t in range(0, tokens, _STEP)),
        aic,
        tuple(step // cores + (i < step % cores) for i in range(cores)),
        heads_dequant,
        _workspace(s, step, widths, aic if split_m else 1),
    )


def _splits_m(s: Scenario, tokens: int, heads: int, hidden: int, two_to_one: bool) -> bool:
    large = tokens >= _SPLIT_M_TOKENS and heads == _SPLIT_M_HEADS and hidden in _SPLIT_M_HIDDEN
    return s.blocks and two_to_one and large


def _matmuls(s: Scenario, step: int, widths: Widths, aic: int, least: int) -> tuple[Matmul, ...]:
    """The products of a step and their split over the cube cores. least: columns of a core in MatmulCq."""
    heads, hidden, hcq, hckv, nope = widths.heads, widths.hidden, widths.hcq, widths.hckv, widths.nope
    down, up = 32 if s.full else 16, 32 if s.partial else 16  # the columns that 32 bytes of a weight hold
    unit = widths.head if _dequantises(s, heads) else up  # whole heads
    latent, projected = hckv + widths.rope, heads * widths.head
    core_heads = -(-heads // aic)
    return (
        _matmul("MatmulCq", step, hidden, hcq, max(_single_n(hcq, aic, down), least)),
        _matmul("MatmulCkvKr", step, hidden, latent, _CKVKR_COLUMNS if aic >= _CKVKR_CORES else _single_n(latent, aic, down)),
        _matmul("MatmulQcQr", step, hcq, projected, _single_n(projected, aic, unit)),
        Matmul("MatmulQn", step, nope, hckv, hckv, -(-heads // core_heads), heads, core_heads),
    )


def _whole_matmuls(step: int, widths: Widths, aic: int) -> tuple[Matmul, ...]:
    """The products of a step where each core has tokens of its own and all columns."""
    heads, hcq, hckv, projected = widths.heads, widths.hcq, widths.hckv, widths.heads * widths.head
    latent = hckv + widths.rope
    return (
        Matmul("MatmulCq", step, widths.hidden, hcq, hcq, aic),
        Matmul("MatmulCkvKr", step, widths.hidden, latent, latent, aic),
        Matmul("MatmulQcQr", step, hcq, projected, projected, aic),
        Matmul("MatmulQn", step, widths.nope, hckv, hckv, aic, heads, heads),
    )


def _dequantises(s: Scenario, heads: int) -> bool:
    """Whether queries are dequantised head by head, beside the products."""
    return s.partial and (heads >= 8 or s.code != "int8")


def _workspace(s: Scenario, step: int, widths: Widths, cores: int) -> int:
    """Bytes of the workspace: int32 for int8 products, else bfloat16; four bytes a value for the heads' part in any case.

    cores: those that have tokens, and a workspace, of their own; 1 where all share them."""
    heads, hcq, hckv, rope = widths.heads, widths.hcq, widths.hckv, widths.rope
    if s.full:
        token = hcq * 4 + hcq * 2 + (hckv + rope) * 4 + (heads * hckv * 2 if s.query_quantised else 0)
    else:
        token = hcq * 2 * 2 + (hckv + rope) * 2
    copies = 2 if cores > 1 and s.kv != "tile" else 1  # of the heads' nope parts
    token += heads * widths.head * 4 + copies * heads * widths.nope * 2 + (32 if _dequantises(s, heads) else 0)
    return step * token * cores
