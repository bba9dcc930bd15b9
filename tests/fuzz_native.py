"""Calls every entry point of the native core with arguments right and wrong: `python tests/fuzz_native.py --seconds 10`.

Whatever it is given, the core returns or raises; it never reads or writes outside an array. Only a build with the
address sanitizer sees all of that: `--core` names one, tests/test_sanitizers.py makes one. The calls follow from `--seed`
alone, and `--first N` starts at the call that a failure named.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

Arguments = dict[str, Any]
ROW_BYTES = [lambda k: 4 * k, lambda k: 2 * k, lambda k: 2 * k,
             lambda k: k // 32 * 18, lambda k: k // 32 * 20, lambda k: k // 32 * 34,
             lambda k: k // 256 * 144, lambda k: k // 256 * 176, lambda k: k // 256 * 210,
             lambda k: k // 32 * 22, lambda k: k // 32 * 24, lambda k: k // 32 * 18, lambda k: k // 256 * 136,
             lambda k: k // 32 * 17]  # fmt: skip
# Inputs of a block of panels and its bytes for 32 outputs, by format.
PANEL_BLOCKS = ((32, 4096), (32, 2048), (32, 2048), (32, 576), (32, 640), (32, 1088), (256, 4736), (256, 5760), (256, 6720),
                (32, 704), (32, 768), (32, 576), (256, 4416), (32, 544))  # fmt: skip

STEP_PARTS = 7
NO_BLOCK = ([], False, [None] * 3)

FILE_BYTES = 1 << 16
FILE = tempfile.TemporaryFile()  # noqa: SIM115, what weights are read from, to the end
FILE.write(np.random.default_rng(0).integers(0, 120, FILE_BYTES, np.uint8).tobytes())
FILE.flush()


def panel_bytes(number: int, inputs: int, outputs: int) -> int:
    block, size = PANEL_BLOCKS[number]
    return -(-inputs // block) * -(-outputs // 32) * size


def formats_of(inputs: int) -> list[int]:
    """The formats that rows of so many inputs can have."""
    return [n for n, (block, _) in enumerate(PANEL_BLOCKS) if n < 3 or inputs % block == 0]


class Held:
    """An object of the core, by its class and arguments: the core in use makes it."""

    def __init__(self, name: str, arguments: Arguments) -> None:
        self.name, self.arguments = name, arguments


def built(native: ModuleType, value: Any) -> Any:
    if isinstance(value, Held):
        return getattr(native, value.name)(**{key: built(native, argument) for key, argument in value.arguments.items()})
    if type(value) is list and any(isinstance(item, Held) for item in value):
        return [built(native, item) for item in value]
    return value


class Source:
    """The random choices of one call."""

    def __init__(self, *seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one_of(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def size(self, most: int = 5) -> int:
        return int(self.one_of(0, 1, 1, 2, 3, *range(most + 1)))

    def width(self) -> int:
        return int(self.one_of(0, 1, 2, 4, 15, 16, 17, 31, 32, 33, 64, 100, 256))

    def threads(self) -> int:
        return int(self.one_of(1, 1, 2, 3))

    def array(self, *shape: int, dtype: Any = np.float32) -> np.ndarray:
        """Memory of its own and of just this size, so that one step beyond it is seen."""
        array = np.empty(shape, dtype)
        if array.dtype.kind == "f":
            array[...] = self.rng.normal(size=shape)
            if array.size and self.one_of(*[False] * 9, True):
                array.flat[int(self.rng.integers(array.size))] = self.one_of(np.nan, np.inf, -np.inf, 1e38, 1e-45)
        else:
            info = np.iinfo(dtype)
            array[...] = self.rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        return array

    def ids(self, *shape: int, end: int, start: int = 0) -> np.ndarray:
        return self.rng.integers(start, max(end, start + 1), shape, np.int64)

    def rows(self, array: np.ndarray, *, ascending: bool = False) -> np.ndarray:
        """The matrix itself, or its rows further apart, in the other direction, or all the same."""
        how = self.one_of("same", "same", "apart", "turned", "repeated")
        if how == "apart":
            space = np.zeros((array.shape[0], array.shape[1] + 3), array.dtype)
            space[:, 1:-2] = array
            return space[:, 1:-2]
        if how == "turned" and not ascending:
            return array[::-1]
        if how == "repeated" and array.shape[0]:
            return np.lib.stride_tricks.as_strided(array, array.shape, (0, array.strides[1]))
        return array

    def weight(self, inputs: int, outputs: int) -> tuple[np.ndarray, int]:
        number = int(self.one_of(*formats_of(inputs)))
        rows = self.array(outputs, ROW_BYTES[number](inputs), dtype=np.uint8)
        return self.rows(rows, ascending=True), number


def linear(s: Source) -> Arguments:
    tokens, inputs, outputs = s.size(9), s.width(), s.size(40)
    w, number = s.weight(inputs, outputs)
    x, y = s.rows(s.array(tokens, inputs)), s.array(tokens, outputs)
    return {"x": x, "w": w, "format": number, "y": y, "threads": s.threads()}


def head_products(s: Source) -> Arguments:
    tokens, inputs, heads, of_head = s.size(9), s.width(), s.one_of(1, 2, 5), s.size(70)
    w, number = s.weight(inputs, heads * of_head)
    first = s.size(of_head)
    count, transposed = s.size(70) if s.one_of(*[False] * 9, True) else max(of_head - first, 0), s.one_of(False, True)
    width = count if transposed else inputs
    x = s.array(tokens, heads, 3 + width)[:, :, s.one_of(0, 3) :][:, :, :width]
    y = s.array(tokens, heads, inputs if transposed else count)
    return {"x": x, "w": w, "format": number, "inputs": inputs, "first": first, "count": count,
            "transposed": transposed, "y": y, "threads": s.threads()}  # fmt: skip


def pack_linear_panels(s: Source) -> Arguments:
    inputs, outputs = s.width(), s.size(70)
    w, number = s.weight(inputs, outputs)
    made = s.one_of(number, number, 2, 5 if inputs % 32 == 0 else number)
    panels = np.zeros(panel_bytes(made, inputs, outputs), np.uint8)
    return {"w": w, "format": number, "inputs": inputs, "panels": panels, "panel_format": made,
            "threads": s.threads()}  # fmt: skip


def read_file_rows(s: Source) -> Arguments:
    inputs, counts = s.width() or 32, [s.size(40) for _ in range(s.size(3))]
    number = int(s.one_of(*formats_of(inputs)))
    size, outputs = ROW_BYTES[number](inputs), sum(counts)
    parts = [[FILE.fileno(), s.one_of(0, 1, size, 1 << 20, FILE_BYTES), count] for count in counts]
    made = s.one_of(number, 2, 5 if inputs % 32 == 0 else number)
    packs = s.one_of(True, False)
    return {"parts": np.array(parts, np.int64).reshape(-1, 3), "format": number, "inputs": inputs,
            "memory": None if packs else np.zeros((outputs, size), np.uint8),
            "panels": np.zeros(panel_bytes(made, inputs, outputs), np.uint8) if packs else None, "panel_format": made,
            "threads": s.threads()}  # fmt: skip


def linear_panels(s: Source) -> Arguments:
    tokens, inputs, outputs = s.size(9), s.width(), s.size(70)
    panels, number, _ = panels_of(s, inputs, outputs)
    x, y = s.rows(s.array(tokens, inputs)), s.array(tokens, outputs)
    return {"x": x, "panels": panels, "format": number, "y": y, "threads": s.threads()}


def panels_of(s: Source, inputs: int, outputs: int) -> tuple[np.ndarray, int, int]:
    number = int(s.one_of(*formats_of(inputs)))
    return s.array(panel_bytes(number, inputs, outputs), dtype=np.uint8), number, outputs


def feed_forward(s: Source, hidden: int, width: int, count: int = 1) -> tuple[Any, ...]:
    """With a gate or without."""
    wide = [(hidden, count * width)] * s.one_of(1, 2)
    lengths = (count * width * (len(wide) > 1), count * width, count * hidden)
    biases = [s.one_of(None, s.array(length)) if length else None for length in lengths]
    return [panels_of(s, *size) for size in (*wide, (width, count * hidden))], s.one_of(False, True), biases


def decoder(s: Source) -> Arguments:
    hidden, inner, width, groups = s.one_of(32, 64), s.one_of(32, 96), s.one_of(16, 32, 48), s.one_of(1, 2, 3)
    heads = groups * s.one_of(1, 2, 3, 13)
    values = width - s.one_of(0, 0, 1, 15)

    def vector(size: int) -> np.ndarray | None:
        return s.one_of(None, s.array(size)) if size else None

    def grouped() -> Arguments:
        queries, keys = heads * width, groups * width
        norms = s.one_of([None, None], [s.array(values), s.array(values)])
        return {"query": panels_of(s, hidden, queries), "values_keys": panels_of(s, hidden, 2 * keys),
                "output": panels_of(s, heads * values, hidden), "query_bias": vector(queries),
                "values_keys_bias": vector(2 * keys), "output_bias": vector(hidden), "query_norm": norms[0],
                "key_norm": norms[1], "window": s.one_of(0, 1, 5, 20), "rope": s.one_of(0, 0, 1)}  # fmt: skip

    def by_latents() -> Arguments:
        nope, rope, latent, value = (sizes[name] for name in ("nope", "rope", "latent", "value"))
        down = s.one_of(0, 64)
        return {"query_down": panels_of(s, hidden, down) if down else None, "query_norm": s.array(down) if down else None,
                "query_down_bias": vector(down), "query": panels_of(s, down or hidden, heads * width),
                "latent": panels_of(s, hidden, latent + rope), "latent_norm": s.array(latent),
                "latent_bias": vector(latent + rope), "key_up": panels_of(s, nope, heads * latent),
                "value_up": panels_of(s, latent, heads * value), "output": panels_of(s, heads * value, hidden),
                "output_bias": vector(hidden)}  # fmt: skip

    def mixture() -> Arguments:
        experts = s.one_of(4, 6)
        rule = {"used": s.one_of(1, 2), "scores": s.one_of(0, 1), "groups": 2, "kept_groups": s.one_of(1, 2),
                "group_score": s.one_of(0, 1), "normalise": s.one_of(True, False), "scale": 1.5}  # fmt: skip
        return {"router": panels_of(s, hidden, experts), "rule": rule, "bias": vector(experts),
                "routed": feed_forward(s, hidden, 32, experts),
                "shared": s.one_of(NO_BLOCK, feed_forward(s, hidden, 64))}  # fmt: skip

    def layer() -> Arguments:
        mixed = s.one_of(False, True)
        block = {"mixture": mixture()} if mixed else {"mixture": None, "feed_forward": feed_forward(s, hidden, inner)}
        return {"attention_norm": s.array(hidden), "ffn_norm": s.array(hidden), "attention_post_norm": vector(hidden),
                "ffn_post_norm": None if mixed else vector(hidden),
                "attention": (by_latents if sizes else grouped)(), **block}  # fmt: skip

    latents = {"nope": 32, "rope": s.one_of(16, 32), "latent": s.one_of(32, 64), "value": 32, "eps": 1e-6}
    sizes = s.one_of(None, latents)
    if sizes:
        groups, heads, width = 1, 2 * s.one_of(1, 2, 8), sizes["nope"] + sizes["rope"]
        values = width
    embedding, number = s.weight(hidden, 1 + s.size(9))
    return {"heads": heads, "kv_heads": groups, "head_dim": width, "head_values": values, "latent": sizes, "norm_eps": 1e-5,
            "scale": 0.25, "embedding_scale": 2.0, "residual_scale": s.one_of(1.0, 0.5), "logits_scale": 0.5,
            "layers": [layer() for _ in range(s.one_of(1, 2))], "norm": s.array(hidden),
            "logits": panels_of(s, hidden, 1 + s.size(40)), "embedding": embedding, "embedding_format": number}  # fmt: skip


def decoder_forward(s: Source) -> Arguments:
    made = decoder(s)
    tokens, sequences, room, pages, positions = (
        s.size(9),
        1 + s.size(2),
        s.one_of(1, 2, 20),
        1 + s.size(3),
        s.one_of(1, 16, 300),
    )
    slabs = s.one_of(1, 2)
    layers, groups, width, sizes = len(made["layers"]), made["kv_heads"], made["head_dim"], made["latent"]
    half = key_bytes = False
    if sizes:
        width, keys = sizes["rope"], (slabs, layers, pages, 16, sizes["rope"])
        in_bytes = s.one_of(False, True)
        values = (slabs, layers, pages, 16, sizes["latent"] + 4 * in_bytes)
    else:
        in_bytes = key_bytes = s.one_of(False, False, True)
        half = s.one_of(False, True)
        block = (slabs, layers, groups, pages, width // 16, 18 if in_bytes else 16, 16)
        pairs = (slabs, layers, groups, pages, width // 2, 16, 2), (slabs, layers, groups, pages, 8, width, 2)
        keys, values = (block, block) if in_bytes or half else pairs
    wanted = s.ids(s.size() if tokens else 0, end=tokens)
    return {
        "decoder": Held("Decoder", made), "ids": s.ids(tokens, end=len(made["embedding"])),
        "sequence": s.ids(tokens, end=sequences),
        "positions": s.ids(tokens, end=min(positions, 16 * room)), "sin": s.array(2, positions, width // 2),
        "cos": s.array(2, positions, width // 2),
        "keys": s.array(*keys, dtype=np.int8 if key_bytes else np.uint16),
        "values": s.array(*values, dtype=np.int8 if in_bytes else np.uint16), "half": half,
        "page_table": s.ids(sequences, room, end=slabs * pages), "wanted": wanted,
        "logits": s.array(len(wanted), made["logits"][2]), "threads": s.threads(),
        "costs": s.one_of(None, s.array(STEP_PARTS, 2, dtype=np.float64)),
    }  # fmt: skip


def gather_rows(s: Source) -> Arguments:
    inputs, outputs, count = s.width(), s.size(9), s.size()
    w, number = s.weight(inputs, outputs)
    return {"w": w, "format": number, "ids": s.ids(count, end=outputs), "values": s.array(count, inputs),
            "threads": s.threads()}  # fmt: skip


def rms_norm(s: Source) -> Arguments:
    rows, width = s.size(), s.width()
    gamma = s.one_of(None, s.array(width))
    return {"x": s.rows(s.array(rows, width)), "gamma": gamma, "eps": 1e-5, "alpha": 1.0, "y": s.array(rows, width),
            "threads": s.threads()}  # fmt: skip


def swiglu(s: Source) -> Arguments:
    rows, width = s.size(), s.width()
    return {"gate": s.rows(s.array(rows, width)), "up": s.rows(s.array(rows, width)), "y": s.array(rows, width),
            "threads": s.threads()}  # fmt: skip


def expert_router(s: Source) -> Arguments:
    groups, in_group = s.one_of(1, 2, 4), s.one_of(1, 2, 5, 16, 17)
    experts, tokens, kept = groups * in_group, s.size(), s.one_of(*range(1, groups + 1))
    used = s.one_of(1, kept * in_group, *range(1, kept * in_group + 1))
    return {"logits": s.rows(s.array(tokens, experts)), "bias": s.one_of(None, s.array(experts)),
            "experts": s.array(tokens, used, dtype=np.int64), "weights": s.array(tokens, used), "used": used,
            "scores": s.one_of(0, 1), "groups": groups, "kept_groups": kept, "group_score": s.one_of(0, 1),
            "normalise": s.one_of(True, False), "scale": 2.5, "threads": s.threads()}  # fmt: skip


def mixture_of_experts(s: Source) -> Arguments:
    hidden, tokens, used, count = s.one_of(32, 64), s.size(9), s.size(3), s.one_of(1, 3, 5)

    return {"x": s.rows(s.array(tokens, hidden)), "experts": s.ids(tokens, used, end=count),
            "weights": s.array(tokens, used), "routed": feed_forward(s, hidden, s.one_of(32, 96), count),
            "count": count, "shared": s.one_of(NO_BLOCK, feed_forward(s, hidden, 64)),
            "y": s.array(tokens, hidden), "threads": s.threads()}  # fmt: skip


def cache(s: Source, blocks: int, block_size: int, width: int, dtype: Any = np.float32) -> np.ndarray:
    """A paged cache whose blocks may lie apart."""
    gap = s.one_of(0, 0, 3)
    return s.array(blocks, block_size + gap, 1, width, dtype=dtype)[:, :block_size]


REALS = (np.float32, np.uint16)  # a bfloat16 goes by the integer of its bits


def panel_values(inputs: int, outputs: int, dtype: Any) -> int:
    """The length of a packed weight."""
    size = np.dtype(dtype).itemsize
    return -(-outputs // 64) * (-(-inputs * size // 4) + (size == 1)) * 256 // size


def columns(s: Source, inputs: int, outputs: int, dtype: Any, count: int = 0) -> np.ndarray:
    """A weight whose values of one input lie together, as it is, NZ, or packed."""
    form = s.one_of("plain", "packed") if count else s.one_of("plain", "NZ", "packed")
    if form == "packed":
        return s.array(max(count, 1) * panel_values(inputs, outputs, dtype), dtype=dtype)
    gap = s.one_of(0, 0, 2)
    if form == "NZ":
        width = s.one_of(1, 8, 16, 32)
        return s.array(-(-outputs // width), inputs + s.one_of(0, 5), width + gap, dtype=dtype)[..., :width]
    return s.array(*(count,) * (count > 0), inputs, outputs + gap, dtype=dtype)[..., :outputs]


def pack_panels(s: Source) -> Arguments:
    inputs, outputs, count = s.size(40), s.one_of(s.size(40), s.size(200)), s.one_of(0, 0, s.size(3))
    dtype = s.one_of(*REALS, np.int8)
    w = columns(s, inputs, outputs, dtype, count)
    while w.ndim == 1:
        w = columns(s, inputs, outputs, dtype, count)
    length = max(count, 1) * panel_values(inputs, outputs, dtype) * w.itemsize
    return {"w": w, "inputs": inputs, "outputs": outputs, "count": count, "to": s.array(length, dtype=np.uint8),
            "threads": s.threads()}  # fmt: skip


def mla_prolog(s: Source) -> Arguments:
    real, kind = s.one_of(*REALS), s.one_of(0, 0, 0, 1, 2, 3)
    partial = kind > 0 or s.one_of(True, False)
    full = kind == 2 or (partial and s.one_of(True, False))
    real = np.uint16 if kind == 3 else real
    tokens, hidden, groups = s.one_of(s.size(), 40, 100), s.one_of(1, 16, 32, 63, 64), s.one_of(1, 1, 2, 3)
    heads, nope, latent = groups * s.one_of(1, 2), s.one_of(0, 1, 8, 16), groups * s.one_of(1, 8, 16, 70)
    rope = 2 * groups * s.one_of(1, 4, 8)
    nz = bool(kind < 3 and s.one_of(False, True))
    latent = 128 * s.one_of(1, 2) if kind == 3 else 32 * groups if nz else latent
    rope = 32 * groups if nz else rope
    has_down = full or s.one_of(True, False)
    width = s.one_of(15, 16, 32, 48) if has_down else hidden
    up = heads * (nope + rope // groups)

    def weight(inputs: int, outputs: int, int8: bool) -> tuple[np.ndarray, int, np.ndarray | None]:
        if int8 or s.one_of(True, True, False):
            return (columns(s, inputs, outputs, np.int8 if int8 else real), -1, s.array(outputs) if int8 else None)
        if s.one_of(True, False):
            return (*panels_of(s, inputs, outputs)[:2], None)
        return (*s.weight(inputs, outputs), None)

    def vector(length: int, wanted: bool) -> np.ndarray | None:
        return s.array(length) if wanted else None

    def cache_of(width: int, dtype: Any) -> np.ndarray | None:
        rows = cache(s, blocks, block_size, width, dtype)
        return s.one_of(rows, rows, rows[::-1], np.repeat(rows, 2, -1)[..., ::2])

    down = weight(hidden, width, full) if has_down else (None, 0, None)
    w_uq_qr, w_dkv_kr = weight(width, up, partial), weight(hidden, latent + rope, full)
    blocks, block_size = s.size(3), s.size(4)
    slots = s.ids(tokens, end=blocks * block_size, start=-1) if blocks * block_size else np.full(tokens, -1)
    row = latent + 2 * rope + latent // 32 if kind == 3 else latent
    query_type = np.int8 if kind == 2 else real
    return {
        "x": s.array(tokens, hidden, dtype=np.int8 if full else real), "x_scale": vector(tokens, full), "width": width,
        "heads": heads, "nope": nope, "latent": latent, "rope_groups": groups,
        "w_dq": down[0], "w_dq_format": down[1], "w_dq_scale": down[2],
        "w_uq_qr": w_uq_qr[0], "w_uq_qr_format": w_uq_qr[1], "w_uq_qr_scale": w_uq_qr[2],
        "w_dkv_kr": w_dkv_kr[0], "w_dkv_kr_format": w_dkv_kr[1], "w_dkv_kr_scale": w_dkv_kr[2],
        "w_uk": columns(s, nope, latent, real, heads),
        "gamma_cq": s.one_of(None, s.array(width)), "gamma_ckv": s.one_of(None, s.array(latent)),
        "eps_cq": 1e-5, "eps_ckv": 1e-5, "alpha_cq": 1.0, "alpha_ckv": 1.0,
        "sin": s.array(tokens, rope), "cos": s.array(tokens, rope), "smooth": vector(width, partial and s.one_of(True, False)),
        "slots": slots, "kv_cache": cache_of(row, np.int8 if kind else real),
        "kr_cache": None if kind == 3 else cache_of(rope, np.int8 if kind == 1 else real), "nz": nz, "cache_scale": kind,
        "ckv_scale": vector(latent if kind == 1 else 1, kind in (1, 2)), "ckr_scale": vector(rope, kind == 1), "clip": 0.8,
        "query": s.array(tokens, heads, latent, dtype=query_type) if kind == 2 or s.one_of(True, False) else None,
        "query_scale": s.array(tokens, heads) if kind == 2 else None, "half_away": bool(s.one_of(False, True)),
        "query_rope": s.array(tokens, heads, rope, dtype=real),
        "query_norm": s.one_of(None, s.array(tokens, width, dtype=np.int8 if partial else real)),
        "norm_scale": vector(tokens, partial and s.one_of(True, False)), "threads": s.threads(),
    }  # fmt: skip


def mla_attention(s: Source) -> Arguments:
    tokens, groups = s.size(), s.one_of(1, 1, 2, 3)
    heads, latent, rope = groups * s.one_of(0, 1, 2, 5), groups * s.one_of(0, 1, 8, 16, 20), 2 * groups * s.one_of(0, 1, 4, 8)
    blocks, block_size, sequences, room = 1 + s.size(4), 1 + s.one_of(0, 1, 4, 99), 1 + s.size(2), 1 + s.size(3)
    kv, kr = (s.one_of(np.float32, np.float16, np.uint16, np.int8) for _ in range(2))
    return {
        "query": s.one_of(None, s.array(tokens, heads, latent)), "query_rope": s.array(tokens, heads, rope),
        "kv_cache": cache(s, blocks, block_size, latent, kv), "kr_cache": cache(s, blocks, block_size, rope, kr),
        "kv_scale": s.one_of(None, s.array(latent)), "kr_scale": s.one_of(None, s.array(rope)),
        "block_table": s.ids(sequences, room, end=blocks), "sequence": s.ids(tokens, end=sequences),
        "lengths": s.ids(tokens, start=1, end=room * block_size + 1), "scale": 0.5, "groups": groups,
        "out": s.array(tokens, heads, latent // groups), "threads": s.threads(),
    }  # fmt: skip


def decode_step(s: Source) -> Arguments:
    import decode_step_cases as cases

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


def tally(s: Source) -> Arguments:
    return {"history": Held("History", history(s)), "skipped": s.one_of(0, 3, 70)}


def followers(s: Source) -> Arguments:
    return {"history": Held("History", history(s)), "n": s.one_of(1, 2, 3, 70)}


def row(s: Source, vocab: int = 100) -> Arguments:
    import decode_step_cases as cases
    from decodestep.ops.decode_step import steps

    parts = [
        tuple(cases.chain(s.rng, vocab)), cases.chain(s.rng, vocab), lambda history: cases.chain(s.rng, vocab),
        steps.PenaliseSeen(s.one_of(0, 2), s.one_of(0.5, 1.3)), steps.AddCounted(s.one_of(0, 2), 0.5, s.one_of(-0.5, 0.0)),
        steps.BanFollowers(s.one_of(1, 2, 3)),
        steps.While(s.one_of(0, 5), s.one_of(0, 6, 99), tuple(cases.chain(s.rng, vocab))),
    ]  # fmt: skip
    return {
        "vocab": vocab, "history": Held("History", {"prompt_ids": prompt(s, min(vocab, 30))}),
        "parts": [s.one_of(*parts) for _ in range(s.size(3))], "greedy": bool(s.one_of(False, True)),
        "seed": s.one_of(0, 2**64 - 1), "top_logprobs": s.one_of(None, None, 0, 5), "ends": [2], "stops": [5, 3],
        "limit": s.one_of(None, 1, 9),
    }  # fmt: skip


def step_rows(s: Source) -> Arguments:
    import decode_step_cases as cases

    vocab, batch = int(s.one_of(*cases.VOCABULARIES)), s.size(4)
    return {"logits": cases.batch_of_logits(s.rng, max(batch, 1), vocab)[:batch],
            "rows": [Held("Row", row(s, vocab)) for _ in range(batch)], "threads": s.threads()}  # fmt: skip


def accept_tokens(s: Source) -> Arguments:
    vocab, batch = s.one_of(1, 40), s.size(3)
    tokens = [s.one_of(-1, 0, vocab - 1, int(s.rng.integers(vocab))) for _ in range(batch)]
    return {"rows": [Held("Row", row(s, vocab)) for _ in range(batch)], "tokens": tokens, "vocab": vocab}


def tensor_scatter(s: Source) -> Arguments:
    batch, outer, rows, run = s.size(3), s.size(3), s.size(6), s.size(9)
    steps = int(s.rng.integers(rows + 1))

    def bytes_of(length: int) -> np.ndarray:
        order = s.one_of((0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 2, 1))
        sizes = (batch, outer, length)
        array = s.array(*(sizes[i] for i in order), run + s.one_of(0, 0, 2), dtype=np.uint8)[..., :run]
        array = array.transpose(*np.argsort(order), 3)
        return array[::-1, :, :: s.one_of(1, -1)] if s.one_of(True, False) else array

    return {"cache": bytes_of(rows), "update": bytes_of(steps), "start": s.array(batch, dtype=np.int64)}


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


# Every entry point that takes arguments, and what it may be called with.
CALLS: dict[str, Callable[[Source], Arguments]] = {
    "linear": linear,
    "head_products": head_products,
    "pack_linear_panels": pack_linear_panels,
    "read_file_rows": read_file_rows,
    "linear_panels": linear_panels,
    "Decoder": decoder,
    "decoder_forward": decoder_forward,
    "gather_rows": gather_rows,
    "rms_norm": rms_norm,
    "swiglu": swiglu,
    "expert_router": expert_router,
    "mixture_of_experts": mixture_of_experts,
    "pack_panels": pack_panels,
    "mla_prolog": mla_prolog,
    "mla_attention": mla_attention,
    "decode_step": decode_step,
    "History": history,
    "append_token": append_token,
    "tally": tally,
    "followers": followers,
    "Row": row,
    "step_rows": step_rows,
    "accept_tokens": accept_tokens,
    "tensor_scatter": tensor_scatter,
    "noise_bits": noise(np.uint32),
    "uniform": noise(np.float32),
    "exponential": noise(np.float32),
    "gumbel": noise(np.float32),
    "top_k_top_p_sample": top_k_top_p_sample,
    "apply_top_k_top_p": apply_top_k_top_p,
}
WITHOUT_ARGUMENTS = {"isa"}
# The address of a function that ctypes made: no other number is its caller's to give.
ADDRESSES = {"set_onnxruntime_registrar"}


def wrong_array(s: Source, a: np.ndarray) -> Any:
    """An array that differs from the right one in shape, values, type, layout or rights."""

    def longer(axis: int, by: int) -> np.ndarray:
        shape = list(a.shape)
        shape[axis] = max(shape[axis] + by, 0)
        if math.prod(shape) > 2**20:
            return a
        return np.resize(a, shape).astype(a.dtype) if a.size else np.ones(shape, a.dtype)

    def at(value: int) -> np.ndarray:
        changed = a.copy()
        if a.size:
            changed.flat[int(s.rng.integers(a.size))] = value
        return changed

    def misaligned() -> np.ndarray:
        return np.ndarray(a.shape, a.dtype, bytearray(1) + bytearray(a.tobytes()), 1)

    def read_only() -> np.ndarray:
        frozen = a.copy()
        frozen.flags.writeable = False
        return frozen

    axis = int(s.rng.integers(a.ndim)) if a.ndim else 0
    changes: list[Callable[[], Any]] = [
        lambda: a.astype(s.one_of(np.float64, np.int8, np.float16, np.bool_, np.int64, np.uint64)),
        lambda: np.zeros(a.shape, "m8[s]"), lambda: a.astype(a.dtype.newbyteorder()), misaligned, read_only,
        lambda: a[..., None], lambda: a.reshape(-1),
        lambda: np.zeros((), a.dtype), lambda: np.broadcast_to(a, a.shape), lambda: np.asfortranarray(a),
        lambda: np.repeat(a, 2, -1)[..., ::2] if a.ndim else a, lambda: a[..., ::-1] if a.ndim else a, lambda: [1, 2],
    ]  # fmt: skip
    if a.ndim:
        changes += [lambda: longer(axis, 1), lambda: longer(axis, -1), lambda: longer(axis, 1000), lambda: a[:0],
                    lambda: np.zeros((2**20, 0, 1, 7, 9)[: a.ndim] if a.ndim > 1 else 0, a.dtype)]  # fmt: skip
    if a.dtype.kind in "iu":
        info = np.iinfo(a.dtype)
        changes += [lambda: at(s.one_of(info.min, info.max, 2**31 % info.max, 1000 % info.max, 0))] * 4
    return s.one_of(*changes)()


def wrong(s: Source, value: Any) -> Any:
    if isinstance(value, np.ndarray) and s.one_of(*[True] * 9, False):
        return wrong_array(s, value)
    if isinstance(value, (list, tuple)) and value and s.one_of(*[True] * 9, False):
        place = s.one_of(*range(len(value)))
        items = [wrong(s, item) if i == place else item for i, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict) and value and s.one_of(*[True] * 9, False):
        name = s.one_of(*value)
        without = {key: item for key, item in value.items() if key != name}
        return without if s.one_of(*[False] * 9, True) else without | {name: wrong(s, value[name])}
    if isinstance(value, (int, float)) and s.one_of(*[True] * 9, False):
        return s.one_of(-1, 0, 1, 2, 3, 6, 257, 2**31 - 1, 2**31, 2**62, 2**63, 2**64 - 1, 2**70, -(2**31), 0.5, np.nan, np.inf)
    return s.one_of(None, "text", 7, 1.5, [], object(), np.zeros(3), b"bytes", {})


def call(native: ModuleType, seed: int, number: int, counts: Counter[str]) -> None:
    s = Source(seed, number)
    name = s.one_of(*CALLS)
    arguments = {key: built(native, value) for key, value in CALLS[name](s).items()}
    for _ in range(s.one_of(0, 0, 1, 1, 1, 2, 3)):
        key = s.one_of(*arguments)
        arguments[key] = wrong(s, arguments[key])
    if s.one_of(*[False] * 30, True):
        arguments.pop(s.one_of(*arguments))
    try:
        getattr(native, name)(**arguments)
    except (TypeError, ValueError, MemoryError) as error:  # MemoryError: sizes that are right but for the machine
        counts[f"{name}: {type(error).__name__}"] += 1
    else:
        counts[f"{name}: result"] += 1


def run(
    native: ModuleType, *, seconds: float = math.inf, calls: float = math.inf, seed: int = 0, first: int = 0
) -> Counter[str]:
    """Calls until the time is up or so many are made; how often each entry point gave which kind of end."""
    np.seterr(all="ignore")
    counts: Counter[str] = Counter()
    end, number = time.monotonic() + seconds, first
    while number == first or (number < first + calls and time.monotonic() < end):
        try:
            call(native, seed, number, counts)
        except BaseException:
            print(f"--seed {seed} --first {number}", file=sys.stderr)
            raise
        number += 1
    return counts


def load(path: str) -> ModuleType:
    """The core from a file; its module is named as in the package."""
    spec = importlib.util.spec_from_file_location("_native", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so many; the default is 10 without --calls")
    parser.add_argument("--calls", type=float, default=math.inf, help="stop after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--core", help="the extension module to call, in place of the installed one")
    options = parser.parse_args()
    if options.core:
        native = load(options.core)
    else:
        from decodestep import _native as native
    if math.isinf(options.seconds) and math.isinf(options.calls):
        options.seconds = 10.0
    counts = run(native, seconds=options.seconds, calls=options.calls, seed=options.seed, first=options.first)
    for key, count in sorted(counts.items()):
        print(f"{count:8d}  {key}")
    print(f"{counts.total():8d}  calls on {native.isa()}")


if __name__ == "__main__":
    main()
