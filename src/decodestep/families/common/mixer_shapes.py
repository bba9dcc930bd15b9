"""The parts of mixers with a state and of indexers, and the shapes that a model's sizes give them; the tables are `names`'."""

from __future__ import annotations

from collections.abc import Callable

from decodestep.decoding.config import Config

Shape = tuple[int, ...]


INDEX_PARTS = ("index_query", "index_key", "index_norm", "index_norm_bias", "index_by_head")


def indexer_shapes(config: Config, i: int) -> dict[str, Shape]:
    """Layers for next-token prediction have one of their own."""
    latent = config.latent_attention
    if latent is None or latent.indexer is None or (i < config.layers and not latent.indexer.full[i]):
        return {}
    x, rank = latent.indexer, latent.query_rank
    assert rank is not None
    vector: Shape = (x.head_dim,)
    weights: tuple[Shape, ...] = (
        (x.heads * x.head_dim, rank),
        (x.head_dim, config.hidden),
        vector,
        vector,
        (x.heads, config.hidden),
    )
    return dict(zip(INDEX_PARTS, weights, strict=True))


def delta_shapes(config: Config, table: dict[str, str], has: Callable[[str], bool], i: int) -> dict[str, Shape]:
    """Products of queries, keys, values and gates may be one weight, by key heads; likewise those of beta and decays."""
    d, hidden = config.delta, config.hidden
    assert d is not None
    shapes: dict[str, Shape] = {"convolution": (d.channels, d.taps), "gated_norm": (d.value_dim,)}
    if "delta_qkvz" in table and ("delta_qkv" not in table or has(table["delta_qkvz"].format(i=i))):
        shapes["delta_qkvz"] = (d.channels + d.values, hidden)
    else:
        shapes |= {"delta_qkv": (d.channels, hidden), "delta_gate": (d.values, hidden)}
    if "delta_beta_alpha" in table:
        shapes["delta_beta_alpha"] = (2 * d.value_heads, hidden)
    else:
        shapes |= {"delta_beta": (d.value_heads, hidden), "delta_alpha": (d.value_heads, hidden)}
    decay = "decay" if "decay" in table else "decay_logarithm"
    return {**shapes, decay: (d.value_heads,), "step_bias": (d.value_heads,), "mixer_output": (hidden, d.values)}


def mamba_shapes(config: Config, table: dict[str, str]) -> dict[str, Shape]:
    m = config.mamba
    assert m is not None
    in_gguf = "decay" in table
    shapes: dict[str, Shape] = {
        "mixer_input": (m.inner + m.channels + m.heads, config.hidden),
        "convolution": (m.channels, m.taps),
        "decay" if in_gguf else "decay_logarithm": (m.heads, 1),
        "step_bias": (m.heads,),
        "skip": (m.heads, 1),
        "gated_norm": (m.groups, m.inner // m.groups) if in_gguf else (m.inner,),
        "mixer_output": (config.hidden, m.inner),
    }
    return shapes | ({"convolution_bias": (m.channels,)} if m.bias else {})


def convolution_shapes(config: Config) -> dict[str, Shape]:
    c, hidden = config.convolution, config.hidden
    assert c is not None
    shapes: dict[str, Shape] = {
        "mixer_input": (3 * hidden, hidden),
        "convolution": (hidden, c.taps),
        "mixer_output": (hidden, hidden),
    }
    return shapes | ({f"{part}_bias": shape[:1] for part, shape in shapes.items()} if c.bias else {})
