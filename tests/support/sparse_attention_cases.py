"""Sequences of tokens and keys in the layouts that lightning_indexer and sparse_mla_attention take."""

from __future__ import annotations

import numpy as np

LAYOUTS = [("BSND", "BSND"), ("BSND", "PA_BSND"), ("TND", "TND"), ("TND", "PA_BSND")]
BLOCK_SIZE = 16


def poison(dtype):
    return np.array(-128, np.int8) if dtype == np.int8 else np.array(np.nan, np.float32).astype(dtype)


class Laid:
    """One layout of some sequences: which of their tokens and keys lie where."""

    def __init__(self, tokens, keys, layouts, rng):
        self.tokens, self.keys, (self.of_tokens, self.of_keys) = tokens, keys, layouts
        self.blocks = [-(-n // BLOCK_SIZE) for n in keys]
        self.numbers = rng.permutation(sum(self.blocks) + 2)

    @property
    def options(self):
        """Lengths and the block table; what is not to be read of it leads nowhere."""
        made = {"layout_query": self.of_tokens, "actual_seq_lengths_query": self.tokens}
        if self.of_tokens == "TND":
            made["actual_seq_lengths_query"] = np.cumsum(self.tokens)
        lengths = np.cumsum(self.keys) if self.of_keys == "TND" else np.array(self.keys)
        table = None
        if self.of_keys == "PA_BSND":
            table, first = np.full((len(self.keys), max(self.blocks) + 1), -7), 0
            for row, count in zip(table, self.blocks, strict=True):
                row[:count] = self.numbers[first : first + count]
                first += count
        return made, lengths, table

    def lay_tokens(self, parts):
        """An array of each sequence's tokens, (S1, ...), in one array."""
        if self.of_tokens == "TND":
            return np.concatenate(parts)
        out = np.full((len(parts), max(self.tokens) + 1, *parts[0].shape[1:]), poison(parts[0].dtype))
        for row, part in zip(out, parts, strict=True):
            row[: len(part)] = part
        return out

    def lay_keys(self, parts):
        """An array of each sequence's keys, (S2, D)."""
        if self.of_keys == "TND":
            return np.concatenate(parts)[:, None]
        width = parts[0].shape[1]
        if self.of_keys == "BSND":
            out = np.full((len(parts), max(self.keys) + 1, 1, width), poison(parts[0].dtype))
            for row, part in zip(out, parts, strict=True):
                row[: len(part), 0] = part
            return out
        out = np.full((len(self.numbers), BLOCK_SIZE, 1, width), poison(parts[0].dtype))
        first = 0
        for count, part in zip(self.blocks, parts, strict=True):
            for i, number in enumerate(self.numbers[first : first + count]):
                some = part[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE]
                out[number, : len(some), 0] = some
            first += count
        return out

    def tokens_of(self, array):
        """The rows of every sequence's tokens in a result, and those of padding."""
        if self.of_tokens == "TND":
            return np.split(array, np.cumsum(self.tokens)[:-1]), []
        pairs = zip(array, self.tokens, strict=True)
        return [row[:n] for row, n in pairs], [row[n:] for row, n in zip(array, self.tokens, strict=True)]


def seen(i, tokens, keys, mode):
    """How many first keys token i sees."""
    return keys if mode == 0 else max(0, min(keys, keys - tokens + i + 1))


def integers(rng, *shape, most=3):
    """Whose products are exact in every order, and full of ties."""
    return rng.integers(-most, most + 1, shape).astype(np.float32)


def index_call(rng, tokens, keys, heads=4, width=32, dtype=np.float32, layouts=("BSND", "BSND"), draw=integers):
    """A call of lightning_indexer, and each sequence's queries, keys and weights, in float64 and without scales."""
    laid = Laid(tokens, keys, layouts, rng)
    query = [draw(rng, n, heads, width) for n in tokens]
    key = [draw(rng, n, width) for n in keys]
    weights = [draw(rng, n, heads) for n in tokens]
    made, lengths, table = laid.options
    call = {"query": laid.lay_tokens([q.astype(dtype) for q in query]), "key": laid.lay_keys([k.astype(dtype) for k in key]),
            "weights": laid.lay_tokens(weights), "layout_key": layouts[1], "actual_seq_lengths_key": lengths,
            "block_table": table, **made}  # fmt: skip
    if dtype == np.int8:
        of_query, of_key = ([2.0 ** rng.integers(-1, 2, p.shape[:-1]) for p in parts] for parts in (query, key))
        call["query_dequant_scale"] = laid.lay_tokens([s.astype(np.float32) for s in of_query])
        call["key_dequant_scale"] = laid.lay_keys([s.astype(np.float32)[:, None] for s in of_key])[..., 0]
        query = [q * s[..., None] for q, s in zip(query, of_query, strict=True)]
        key = [k * s[..., None] for k, s in zip(key, of_key, strict=True)]
    exact = [[np.asarray(a, np.float64) for a in parts] for parts in zip(query, key, weights, strict=True)]
    return call, laid, exact


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape, np.float32).astype(dtype)


def named(rng, count, size, block=1):
    """Different blocks of `count` positions, in any order, then -1."""
    made = np.full(size, -1)
    some = rng.permutation(-(-count // block))[: rng.integers(0, size + 1)]
    made[: len(some)] = some
    return made


def attention_call(rng, tokens, keys, *, heads=3, width=24, rope=8, size=40, block=1, layouts=("BSND", "BSND"),
                   dtype=np.float32, cache_dtype=None):  # fmt: skip
    """A call of sparse_mla_attention, and each sequence's arrays."""
    laid, cache_dtype = Laid(tokens, keys, layouts, rng), cache_dtype or dtype
    parts = {
        "query": [normal(rng, n, heads, width, dtype=dtype) for n in tokens],
        "query_rope": [normal(rng, n, heads, rope, dtype=dtype) for n in tokens],
        "key": [normal(rng, n, width, dtype=cache_dtype) for n in keys],
        "key_rope": [normal(rng, n, rope, dtype=cache_dtype) for n in keys],
        "sparse_indices": [
            np.stack([named(rng, k, size, block) for _ in range(n)])[:, None] if n else np.zeros((0, 1, size), int)
            for n, k in zip(tokens, keys, strict=True)
        ],
    }
    made, lengths, table = laid.options
    call = {name: laid.lay_tokens(parts[name]) for name in ("query", "query_rope")}
    call |= {name: laid.lay_keys(parts[name]) for name in ("key", "key_rope")}
    # Those of padding are not read.
    call["sparse_indices"] = np.nan_to_num(laid.lay_tokens([p.astype(np.float64) for p in parts["sparse_indices"]]), nan=99999)
    call["sparse_indices"] = call["sparse_indices"].astype(np.int32)
    call |= {"layout_kv": layouts[1], "actual_seq_lengths_kv": lengths, "block_table": table, **made}
    call |= {"scale_value": (width + rope) ** -0.5, "value": None, "sparse_block_size": block}
    return call, laid, parts
