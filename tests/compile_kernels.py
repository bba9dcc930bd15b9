"""Compiles every Triton kernel for a GPU that need not be there: `python tests/compile_kernels.py`. Minutes.

The interpreter, which runs the kernels in tests, knows neither the compiler's types nor a GPU's shared memory.
"""

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from decodestep.ops.causal_conv1d import triton as convolution
from decodestep.ops.decode_step.triton import draw, listed, quick, raced
from decodestep.ops.decode_step.triton.step_kernel import finish_left, run_steps
from decodestep.ops.gated_delta_rule import triton as delta_rule
from decodestep.ops.lightning_indexer import triton as indexer
from decodestep.ops.mixture_of_experts.triton import kernels as experts
from decodestep.ops.mla_attention.triton import kernels as attention
from decodestep.ops.mla_attention.triton import tiles as attention_tiles
from decodestep.ops.mla_prolog.triton.products import multiply
from decodestep.ops.mla_prolog.triton.queries import finish_queries, quantise_heads
from decodestep.ops.mla_prolog.triton.rows import finish_rows
from decodestep.ops.selective_state_update import triton as state_space
from decodestep.ops.tensor_scatter import triton as scatter
from decodestep.ops.top_k_top_p_sample.triton import kernels as samplers

TARGET = GPUTarget("cuda", 90, 32)
# By these names, unless they are pointers; other numbers are int32.
FLOATS = ("exponent", "scale", *(f"{name}_{row}" for name in ("share", "epsilon", "alpha") for row in ("cq", "ckv")))

F32, F16, BF16, I8, U8, I32, I64, F64 = "*fp32", "*fp16", "*bf16", "*i8", "*u8", "*i32", "*i64", "*fp64"
SIZES = {"BLOCK": 1024, "PEAKS": 128}
TILE = {"ROWS": 16, "COLUMNS": 32, "DEPTH": 64}
TABLE = {"rows": I32, "integers": I64, "floats": F64, "ids": I32, "values": F32, "masks": I32, "positions": I64}
TABLE |= {"ways": I32}
REPORT = {"chosen": F64, "best_ids": I64, "best_values": F64, "tokens": I64, "wanted": I64}
RACE = {"greedy": I8, "seeds": I64, "positions": I64, "best_totals": F64, "best_tokens": I64, "tokens": I64}
QUICK = RACE | {"logits": BF16, "ways": I32, "amounts": F64, "peaks": F32, "tops": F32, "masses": F64, "above": F64, "left": I8}
QUICK |= {"next_totals": F64, "next_tokens": I64}
LISTS = {"strips": I32, "ids": I32, "scores": F32, "weights": F64}
STRIPS = {"STRIP": 128, "BLOCK": 1024}
RACES = STRIPS | {"PARTS": 64}
CUT = {"LEAST": attention_tiles.LEAST, "MOST": attention_tiles.MOST}
MERGED = {"partial": F32, "states": F32, "lengths": I64, "out": BF16}
INDEXES = {"table": I64, "sequence": I64, "lengths": I64}
ROWS = {"owners": I64, "starts": I64, "read": I64, "written": I64}
CONVOLUTION = {"x": F32, "weight": F32, "bias": F32, "state": F32, "y": F32, **ROWS}
DELTA_RULE = {**dict.fromkeys(("query", "key", "value", "decay", "beta", "state", "out"), F32), **ROWS}
BLOCK_OF_STATE = {"EPSILON": 1e-6, "ROWS": 128, "COLUMNS": 16}
STATE_SPACE = {**dict.fromkeys(("x", "dt", "a", "b", "c", "d", "dt_bias", "state", "y"), F32), **ROWS}
INDEX = {"weights": F32, "key_scale": F32, "table": I64, "sequence": I64, "seen": I64, "scores": F32}
INDEX_TILE = {"KEYS": 64, "HEADS": 16, "WIDTH": 128}
INDEXED = ((F32, F32), (BF16, BF16), (F16, F16), (I8, I8))
SURVIVORS = {"inputs": BF16, "top_k": I32, "top_p": F32, "min_p": F32, "kept": I8, "values": F32, "keys": I64, "counts": I64}


def attend(tiles: attention_tiles.Tiles, cache: str, nz: int = 0) -> tuple[Any, dict[str, str], dict[str, Any]]:
    narrow = cache == BF16
    query = BF16 if narrow else F32
    pointers = {"query": query, "query_rope": query, "kv_cache": cache, "kr_cache": cache, "kv_scale": F32, "kr_scale": F32}
    constants = {"KV_SCALED": cache == I8, "KR_SCALED": cache == I8, "NARROW": narrow, "PRECISION": "ieee", "HAS_QUERY": True}
    constants |= {"HEADS": tiles.heads, "KEYS": tiles.keys, "LATENT": 512, "WIDTH": 64, **CUT}
    constants |= {"WHOLE": narrow, "FAR": cache == I8, "KV_NZ": nz, "KR_NZ": nz}
    constants |= {"num_warps": tiles.warps, "num_stages": tiles.stages}
    return attention.attend, pointers | INDEXES | {"partial": F32, "states": F32}, constants


def rows_of(kind: int, kv: str, kr: str, code: str = I8) -> tuple[Any, dict[str, str], dict[str, Any]]:
    """code: of what is quantised; eight-bit floats have a compressed query in blocks where the cache is not."""
    in_bytes = kind > 1 or code == U8
    product = F32 if code == U8 or not in_bytes else I32
    pointers = {"raw": product, "rows": product, "cq": code if in_bytes else BF16, "slots": I64, "kv": kv, "kr": kr}
    pointers |= dict.fromkeys(("gamma_cq", "gamma_ckv", "sin", "cos"), BF16)
    scales = ("raw_x_scale", "raw_w_scale", "x_scale", "w_scale", "kv_scale", "kr_scale", "cq_scale", "smooth")
    constants = {"KIND": kind, "HAS_SMOOTH": in_bytes, "RAW_SCALED": in_bytes}
    constants |= {"SCALED": in_bytes, "RAW_PARTS": 8, "PARTS": 8, "KV_NZ": 16 * (kind < 3), "KR_NZ": 16 * (kind < 3)}
    constants |= {"WIDTH": 2048, "LATENT": 512, "HALF": 32, "TILE": 128, "BFLOAT16": True, "OVERLAPS": True}
    blocks = {"cq_scale": U8} if code == U8 and kv == BF16 else {}
    return finish_rows, pointers | dict.fromkeys(scales, F32) | blocks, constants


def products(given: str, parts: str) -> list[tuple[Any, dict[str, str], dict[str, Any]]]:
    """A product of the inputs and what reads it, which for bytes has bfloat16 as its result."""
    tile = TILE | {"COLUMNS": 64, "OVERLAPS": True}
    pointers = {"x": given, "first": given, "second": given, "first_parts": parts, "second_parts": parts}
    pointers |= dict.fromkeys(("x_scale", "first_scale", "second_scale"), given)
    made: list[tuple[Any, dict[str, str], dict[str, Any]]] = [
        (multiply, pointers, {"PARTS": 1, "GROUP": 16, "AHEAD": 5, "REMAINING": 4, "BLOCK": block, **tile})
        for block in ((0, 32) if given == U8 else (0,))
    ]
    real = F32 if given == F32 else BF16
    pointers = {"q": parts, "x_scale": F32, "w_scale": F32, **dict.fromkeys(("sin", "cos", "w", "query", "query_rope"), real)}
    constants = {"PARTS": 1, "SCALED": given in (I8, U8), "HALF": 32, "BFLOAT16": real == BF16}
    return [*made, (finish_queries, pointers, constants | tile)]


def cases() -> list[tuple[Any, dict[str, str], dict[str, Any]]]:
    """(kernel, its pointers' types, its constants and the compiler's options)."""
    scores = {"scores": F32, "peaks": F32}
    made = [
        (draw.make_scores, scores | {"logits": BF16}, {"BLOCK": 1024}),
        (draw.race, {"scores": F32} | RACE, {"BLOCK": 1024}),
        (draw.finish, {name: RACE[name] for name in ("best_totals", "best_tokens", "tokens")}, {"PARTS": 64}),
        (draw.report, scores | REPORT, SIZES),
        *((run_steps, scores | TABLE, {"LEADING": False, "KINDS": k, **SIZES}) for k in (63, *(1 << n for n in range(6, 17)))),
        (run_steps, scores | TABLE, {"LEADING": True, "KINDS": 63, **SIZES}),
        (finish_left, scores | TABLE | RACE | {"logits": BF16, "left": I8}, {"COPIED": True, "KINDS": 63, **SIZES}),
        *((quick.sweep, QUICK, {"WAYS": ways, **STRIPS}) for ways in (1, 2, 4)),
        (listed.choose_listed, QUICK | LISTS, {"WAYS": 1, "STRIP": 128, "PEAKS": 1024, "LIST": 512, "PARTS": 64}),
        *(
            (kernel, QUICK, RACES | {"REPEATED": a})
            for kernel in (raced.weigh_before, raced.judge_winners)
            for a in (False, True)
        ),
        (raced.settle, QUICK, RACES),
        *(
            (kernel, CONVOLUTION, {"HAS_BIAS": True, "SILU": True, "TAPS": 4, "BLOCK": 256})
            for kernel in (convolution._sums, convolution._keep)
        ),
        *(
            (delta_rule._attend, DELTA_RULE, {"HAS_DECAY": has, "HAS_BETA": has, "NORMED": has, "TILED": has, **BLOCK_OF_STATE})
            for has in (False, True)
        ),
        (state_space._update, STATE_SPACE, {"HAS_D": True, "HAS_BIAS": True, "ROWS": 128, "COLUMNS": 16}),
        *((indexer._score, INDEX | {"query": q, "keys": k}, INDEX_TILE | {"IN_BYTES": q == I8}) for q, k in INDEXED),
        (scatter._scatter, {"target": I64, "source": I64, "starts": I64}, {"BLOCK": 1024}),
        *(attend(tiles, BF16) for tiles in attention_tiles.NARROW),
        *(attend(attention_tiles.WIDE, cache) for cache in (F32, I8)),
        *(
            attend(tiles, cache, nz)
            for tiles, cache, nz in ((attention_tiles.NARROW[0], BF16, 16), (attention_tiles.WIDE, I8, 32))
        ),
        (attention.merge, MERGED, {"KEYS": 64, "COLUMNS": 128, **CUT}),
        *(rows_of(kind, *caches) for kind, caches in enumerate(((BF16, BF16), (I8, I8), (I8, BF16), (I8, I8)))),
        *(rows_of(*given, U8) for given in ((0, BF16, BF16), (2, U8, BF16), (3, U8, U8))),
        *(each for types in ((BF16, BF16), (BF16, F32), (F32, F32), (I8, I32), (U8, F32)) for each in products(*types)),
    ]
    for kind, (given, precision) in enumerate(((F32, "ieee"), (F16, "tf32x3"), (BF16, "tf32x3"))):
        constants = {"NARROW": given == BF16, "PIECES": 4 if given == BF16 else 1, "PRECISION": precision, **TILE}
        pointers = {"x": F32, "tokens": I64, "tiles": I64, "gate": given, "up": given, "out": F32}
        made.append((experts.gate_up, pointers, constants | {"KIND": kind}))
        made.append((experts.down, {"between": F32, "tiles": I64, "weights": given, "out": F32}, constants))
    pointers = {"outputs": F32, "of_shared": F32, "weights": F32, "places": I64, "columns": I64, "y": F32}
    made.append((experts.add_outputs, pointers, {"SHARED": True, "COLUMNS": 32}))
    pointers = {name: SURVIVORS[name] for name in ("inputs", "top_k", "top_p", "kept")}
    made.append((samplers.apply_cuts, pointers, {"HAS_K": True, "HAS_P": True, "BLOCK": 1024}))
    for away, out in ((False, I8), (True, I8), (False, U8)):
        pointers = {"query": BF16, "out": out, "out_scale": F32, "query_rope": BF16, "kv_scale": F32}
        made.append((quantise_heads, pointers, {"AWAY": away, "WIDTH": 512, "ROPE": 64, "OVERLAPS": True}))
    for first, raw in ((True, False), (False, False), (False, True)):
        made.append((samplers.survive, SURVIVORS, {"FIRST": first, "RAW": raw, "TWICE": first, "BLOCK": 1024}))
    noise = {"q": F32, "order": I64, "seeds": I64, "positions": I64, "chosen": I64}
    pointers = {name: SURVIVORS[name] for name in ("values", "keys", "counts")} | noise
    for given, seeded in ((True, False), (False, True), (False, False)):
        made.append((samplers.choose, pointers, {"GIVEN": given, "SEEDED": seeded, "BLOCK": 1024}))
    return made


def main() -> int:
    failed = 0
    for kernel, pointers, constants in cases():
        names = kernel.arg_names
        types = {n: "constexpr" if n in constants else pointers.get(n, "fp32" if n in FLOATS else "i32") for n in names}
        source = ASTSource(kernel, types, {(names.index(name),): constants[name] for name in names if name in constants})
        options = {"enable_fp_fusion": False} | {name: value for name, value in constants.items() if name not in names}
        try:
            compiled = triton.compile(source, target=TARGET, options=options)
            print(f"{kernel.__name__}: {compiled.metadata.shared} bytes of shared memory", flush=True)
        except Exception as error:
            failed += 1
            print(f"{kernel.__name__} with {constants}: {error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
