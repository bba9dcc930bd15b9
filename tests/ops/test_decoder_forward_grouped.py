"""What layers of grouped-query attention may have in decoder_forward: biases, norms, windows, ropes by layer, padded heads,
sinks, soft caps, parallel blocks, GELU, and keys in a format of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import decodestep as ds
from decodestep.ops.decoder_forward import LayerInput
from decodestep.weights import Format, PackedWeight
from support.decoder_forward_cases import Sizes, copied, matrix, norm, step, weights

# Windows below, at and above a page of 16 and a split of 256; heads that are padded, and an odd number of them.
CASES = {
    "biases": ({}, {"biases": True}),
    "norms of heads": ({"head_dim": 48, "heads": 3, "kv_heads": 1}, {"head_norms": True, "biases": True}),
    "norms after blocks": ({}, {"post_norms": True, "activation": "gelu"}),
    "norms of rows": ({"heads": 6, "kv_heads": 2, "head_dim": 48}, {"head_norms": True, "row_norms": True, "biases": True}),
    "norms of rows of padded heads": (
        {"head_dim": 32, "heads": 5, "kv_heads": 5},
        {"head_values": 20, "head_norms": True, "row_norms": True},
    ),
    "norms after blocks alone": ({}, {"post_norms": True, "pre_norms": False}),
    "no norms of blocks": ({}, {"pre_norms": False}),
    "padded heads": ({"head_dim": 32, "heads": 5, "kv_heads": 5}, {"head_values": 20, "head_norms": True}),
    "windows of 1 and 7": ({}, {"windows": (1, 7)}),
    "windows of 16 and 300": ({"heads": 6, "kv_heads": 1, "head_dim": 16}, {"windows": (16, 300)}),
    "window of 257, ropes": ({"heads": 3, "kv_heads": 3}, {"windows": (0, 257), "ropes": (1, 0)}),
    # 48 values: a panel and a half
    "keys apart": ({"heads": 6, "kv_heads": 3, "head_dim": 16}, {"keys": True, "biases": True}),
    "norms after the rope": ({"head_dim": 48, "heads": 4, "kv_heads": 2}, {"head_norms": True, "after_rope": True}),
    "norms of rows after the rope, padded": (
        {"head_dim": 32, "heads": 5, "kv_heads": 5},
        {"head_values": 20, "head_norms": True, "row_norms": True, "after_rope": True},
    ),
    "a rope of queries": ({}, {"ropes": (0, 1), "query_ropes": (1, None)}),
    "a rope of queries and norms": ({}, {"query_ropes": (1, 0), "head_norms": True}),
    "sinks": ({"heads": 6, "kv_heads": 2}, {"sinks": True}),
    "sinks, window of 257": ({"heads": 3, "kv_heads": 3}, {"sinks": True, "windows": (0, 257)}),
    "capped scores and logits": ({}, {"score_cap": 1.5, "logits_cap": 4.0}),
    "capped scores, sinks, windows of 16 and 300": (
        {"heads": 6, "kv_heads": 1, "head_dim": 16},
        {"score_cap": 1.5, "sinks": True, "windows": (16, 300)},
    ),
    "centred norms": ({}, {"centred": True, "post_norms": True, "biases": True}),
    "parallel blocks": ({}, {"parallel": True, "centred": True}),
    "clamped activation": ({}, {"activation": "clamped_silu"}),
    "norms of values": ({"heads": 6, "kv_heads": 2, "head_dim": 48}, {"head_norms": True, "value_norm": True, "biases": True}),
    "inputs and scales of layers": ({}, {"inputs": True, "post_norms": True, "scale": 0.7}),
    "layers of two sizes": (
        {"heads": 4, "kv_heads": 4, "head_dim": 48},
        {"sizes": ((2, 32, 32), (4, 48, 48)), "head_norms": True, "value_norm": True, "windows": (20, 0)},
    ),
    "layers of two padded sizes": (
        {"heads": 4, "kv_heads": 2, "head_dim": 48},
        {"sizes": ((1, 16, 10), (2, 48, 40)), "head_norms": True, "row_norms": True, "head_values": 40},
    ),
    "keys of another layer": ({}, {"keys_of": (None, 0), "windows": (0, 20), "head_norms": True, "value_norm": True}),
    "keys of another layer without norms": ({"heads": 6, "kv_heads": 2}, {"keys_of": (None, 0), "biases": True}),
    "keys apart, norms": ({"heads": 8, "kv_heads": 4, "head_dim": 32}, {"keys": True, "head_norms": True}),
}
INPUT = 32  # the width of a layer's input
FORMAT_OF_KEYS = Format.BF16  # apart: read with activations of the same form as float32, of another than Q8_0


def made(name, format_, rng, **changes):
    sizes, more = CASES[name]
    sizes = Sizes(**sizes, **changes)
    w = weights(sizes, format_, rng)

    def vector(length, wanted, heads_of=0, values=0):
        """heads_of: the size of a head, of which those after its values are zeros."""
        if not wanted:
            return None
        made = rng.normal(size=length).astype(np.float32)
        if heads_of:
            made.reshape(-1, heads_of)[:, values:] = 0
        return made

    def attention(a, number):
        has_biases, has_norms, of_rows = (more.get(option, False) for option in ("biases", "head_norms", "row_norms"))
        usual = (sizes.kv_heads, sizes.head_dim, more.get("head_values", sizes.head_dim))
        kv_heads, head_dim, values = more.get("sizes", (usual, usual))[number]
        source = more.get("keys_of", (None, None))[number]
        queries, keys = sizes.heads * head_dim, 2 * kv_heads * head_dim
        if "sizes" in more:
            a = replace(
                a, query=matrix(sizes.hidden, queries, format_, rng), values_keys=matrix(sizes.hidden, keys, format_, rng)
            )
        values_keys, keys_apart = matrix_of_heads(a.values_keys, values, head_dim, format_), None
        if more.get("keys"):
            both = values_keys.rows().values().T
            values_keys, keys_apart = (
                type(a.query).pack(PackedWeight.from_array(np.ascontiguousarray(part)), own)
                for part, own in zip(np.split(both, 2, axis=1), (format_, FORMAT_OF_KEYS), strict=True)
            )
        whole = values == sizes.head_dim and "sizes" not in more
        return replace(
            a,
            query=matrix_of_heads(a.query, values, head_dim, format_),
            values_keys=values_keys if source is None else None,
            keys=keys_apart,
            output=a.output if whole else matrix(sizes.heads * values, sizes.hidden, format_, rng),
            query_bias=vector(queries, has_biases, head_dim, values),
            values_keys_bias=vector(keys, has_biases, head_dim, values),
            output_bias=vector(sizes.hidden, has_biases),
            query_norm=norm(values * (sizes.heads if of_rows else 1), rng) if has_norms else None,
            key_norm=norm(values * (kv_heads if of_rows else 1), rng) if has_norms and source is None else None,
            norms_of_rows=of_rows,
            window=more.get("windows", (0, 0))[number],
            rope=more.get("ropes", (0, 0))[number],
            norms_after_rope=more.get("after_rope", False),
            query_rope=more.get("query_ropes", (None, None))[number],
            score_cap=more.get("score_cap", 0.0),
            value_norm=more.get("value_norm", False),
            keys_of=source,
            sinks=vector(sizes.heads, more.get("sinks", False)),
            **({"kv_heads": kv_heads, "head_dim": head_dim, "head_values": values} if "sizes" in more else {}),
        )

    def layer_input():
        gate, output = matrix(sizes.hidden, INPUT, format_, rng), matrix(INPUT, sizes.hidden, format_, rng)
        return LayerInput(gate, output, norm(sizes.hidden, rng)) if more.get("inputs") else None

    after = norm(sizes.hidden, rng) if more.get("post_norms") else None
    layers = tuple(
        replace(
            layer,
            mixer=attention(layer.mixer, number),
            attention_norm=layer.attention_norm if more.get("pre_norms", True) else None,
            ffn_norm=layer.ffn_norm if more.get("pre_norms", True) else None,
            attention_post_norm=after,
            ffn_post_norm=after,
            parallel=more.get("parallel", False),
            input=layer_input(),
            scale=more.get("scale", 1.0),
            feed_forward=replace(layer.feed_forward, activation=more.get("activation", "silu")),
        )
        for number, layer in enumerate(w.layers)
    )
    factors = {"logits_cap": more.get("logits_cap", 0.0), "centred_norms": more.get("centred", False)}
    return replace(w, layers=layers, head_values=more.get("head_values", sizes.head_dim), **factors)


def matrix_of_heads(panels, values, head_dim, format_):
    """The weight with zeros for the outputs that pad a head."""
    if values == head_dim:
        return panels
    rows = panels.rows().values().reshape(-1, head_dim, panels.inputs).copy()
    rows[:, values:] = 0
    return type(panels).pack(PackedWeight.from_array(rows.reshape(-1, panels.inputs).T), format_)


def build_call(w, lengths, rng, **options):
    call = step(w, lengths, rng, **options)
    angle = np.arange(max(lengths))[:, None] * 0.4 ** np.arange(w.head_dim // 2)
    dtype = call["sin"].dtype
    sin, cos = (np.stack([call[key], table(angle).astype(dtype)]) for key, table in (("sin", np.sin), ("cos", np.cos)))
    tokens, width = len(call["token_ids"]), w.input_width
    inputs = rng.normal(size=(tokens, len(w.layers), width)).astype(dtype) if width else None
    return call | {"sin": sin, "cos": cos, "layer_inputs": inputs}


@pytest.mark.parametrize("name", CASES)
def test_against_the_reference_in_float64(name, rng):
    """A rounding to bfloat16 that falls to the other side moves a few logits by as much."""
    w = made(name, Format.F32, rng)
    call = build_call(w, [330 if "300" in name or "257" in name else 40, 3], rng)
    exact = copied(call) | {name: call[name].astype(np.float64) for name in ("sin", "cos")}
    if call["layer_inputs"] is not None:
        exact["layer_inputs"] = call["layer_inputs"].astype(np.float64)
    expected = ds.decoder_forward(**exact, backend="reference")
    apart = np.abs(ds.decoder_forward(**copied(call), backend="cpu") - expected)
    assert np.median(apart) < 2e-3 * np.abs(expected).max() and apart.max() < 0.03 * np.abs(expected).max()


def forward(call, which):
    """The logits of some of a call's tokens, all of them wanted."""
    some = {name: call[name][which] for name in ("token_ids", "sequence", "positions")}
    inputs = call.get("layer_inputs")
    some["layer_inputs"] = None if inputs is None else inputs[which]
    return ds.decoder_forward(**{**call, **some, "wanted": np.arange(len(which))})


@pytest.mark.parametrize("name", CASES)
def test_blocks_batches_and_threads_change_no_bit(name, rng):
    odd = "padded" in name or name == "norms of heads"  # whose output has inputs that blocks of 32 do not fill
    w, length = made(name, Format.BF16 if odd else Format.Q8_0, rng), 600 if "300" in name else 40
    call = build_call(w, [length], rng)
    with ds.use_threads(1):
        whole = ds.decoder_forward(**copied(call)).view(np.uint32)
    beside = build_call(w, [9, length, 17], rng)
    own = beside["sequence"] == 1
    beside["token_ids"][own] = call["token_ids"]
    if call["layer_inputs"] is not None:
        beside["layer_inputs"][own] = call["layer_inputs"]
    for threads in (1, 3):
        with ds.use_threads(threads):
            cache = copied(call)
            parts = np.split(np.arange(length), [1, 2, 9, 26, length - 3, length - 1])
            some = [forward(cache, part) for part in parts]
            np.testing.assert_array_equal(np.concatenate(some).view(np.uint32), whole)
            np.testing.assert_array_equal(ds.decoder_forward(**copied(beside))[own].view(np.uint32), whole)


@pytest.mark.parametrize(("window", "length"), [(1, 40), (5, 40), (16, 50), (17, 60), (250, 600)])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_lies_before_the_window_is_not_looked_at(window, length, bad, rng):
    """In one layer: in the next a token would see those that have seen the bad one."""
    w = made("biases", Format.F32, rng, layers=1)
    layers = tuple(replace(layer, mixer=replace(layer.mixer, window=window)) for layer in w.layers)
    values = w.embedding.dense(np.float32)
    values[:, 0] = bad
    w = replace(w, layers=layers, embedding=PackedWeight.from_array(values))
    call = build_call(w, [length], rng)
    call["token_ids"] = 1 + call["token_ids"] % (w.vocab_size - 1)
    good = ds.decoder_forward(**copied(call))
    places = np.arange(length)
    for at in (0, 3, length // 2, length // 2 + 1):
        tokens = call["token_ids"].copy()
        tokens[at] = 0
        logits = ds.decoder_forward(**copied(call, token_ids=tokens))
        sees = (places >= at) & (places < at + window)
        assert np.isnan(logits[sees]).all()
        np.testing.assert_array_equal(logits[~sees], good[~sees])


def test_a_window_that_nothing_is_beyond_changes_no_bit(rng):
    w = made("biases", Format.BF16, rng)
    layers = tuple(replace(layer, mixer=replace(layer.mixer, window=300)) for layer in w.layers)
    call = build_call(w, [300, 20], rng)
    wide = copied(call, weights=replace(w, layers=layers))
    np.testing.assert_array_equal(ds.decoder_forward(**wide), ds.decoder_forward(**copied(call)))


REFUSED = {
    "a bias of another length": ({"query_bias": np.zeros(3, np.float32)}, r"query_bias must be float32 of shape 128"),
    "one norm of two": ({"query_norm": np.ones(32, np.float32)}, "key_norm must be given where query_norm is"),
    "a norm of every head for rows": (
        {"query_norm": np.ones(32, np.float32), "key_norm": np.ones(32, np.float32), "norms_of_rows": True},
        "query_norm must be float32 of shape 128",
    ),
    "a flag that is none": ({"norms_of_rows": 1}, "norms_of_rows must be True or False; got 1"),
    "sinks of another number": ({"sinks": np.ones(3, np.float32)}, "sinks must be float32 of shape 4"),
    "a negative cap": ({"score_cap": -1.0}, "score_cap must be a finite number >= 0; got -1.0"),
    "a negative rope of queries": ({"query_rope": -1}, r"query_rope must be an integer in \[0, 2\^24\)"),
    "another flag that is none": ({"norms_after_rope": None}, "norms_after_rope must be True or False; got None"),
    "more key heads than the decoder": ({"kv_heads": 4}, "kv_heads, head_dim and head_values must be those of the decoder"),
    "wider heads than the decoder": ({"head_dim": 48}, "kv_heads, head_dim and head_values must be those of the decoder"),
    "keys of no earlier layer": ({"keys_of": 0, "values_keys": None}, "keys_of must be an earlier layer with keys of the same"),
    "norms of values alone": ({"value_norm": True}, "value_norm must be False, or True where queries have norms"),
    "a negative window": ({"window": -1}, r"window must be an integer in \[0, 2\^24\)"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses(changes, message, rng):
    w = weights(Sizes(layers=1), Format.F32, rng)
    layer = replace(w.layers[0], mixer=replace(w.layers[0].mixer, **changes))
    with pytest.raises(ValueError, match=message):
        replace(w, layers=(layer,))


def test_refuses_too_few_ropes(rng):
    w = made("window of 257, ropes", Format.F32, rng)
    call = step(w, [3], rng)
    with pytest.raises(ValueError, match=r"sin must be of shape \(2, P, 16\)"):
        ds.decoder_forward(**call)


def test_a_sink_alone_takes_its_part(rng):
    """By hand: one position, whose weight is 1 of 1 + e^(sink - score)."""
    w = made("sinks", Format.F32, rng, layers=1)
    call = build_call(w, [1], rng)
    plain = replace(w.layers[0], mixer=replace(w.layers[0].mixer, sinks=None))
    huge = replace(w.layers[0], mixer=replace(w.layers[0].mixer, sinks=np.full(6, 1e4, np.float32)))
    tiny = replace(w.layers[0], mixer=replace(w.layers[0].mixer, sinks=np.full(6, -1e4, np.float32)))
    without, dropped, kept = (
        ds.decoder_forward(**copied(call, weights=replace(w, layers=(layer,)))) for layer in (plain, huge, tiny)
    )
    np.testing.assert_array_equal(kept, without)
    silent = replace(plain, mixer=replace(plain.mixer, output=type(w.logits).pack(
        PackedWeight.from_array(np.zeros(plain.mixer.output.shape, np.float32)))))  # fmt: skip
    np.testing.assert_array_equal(dropped, ds.decoder_forward(**copied(call, weights=replace(w, layers=(silent,)))))


@pytest.mark.parametrize("after", ["attention_post_norm", "ffn_post_norm"])
def test_parallel_blocks_have_no_norms_after_them(after, rng):
    w = weights(Sizes(layers=1), Format.F32, rng)
    with pytest.raises(ValueError, match="parallel must be False with norms after blocks"):
        replace(w, layers=(replace(w.layers[0], parallel=True, **{after: norm(64, rng)}),))


def test_refuses_a_scale_that_nothing_precedes(rng):
    w = weights(Sizes(layers=1), Format.F32, rng)
    with pytest.raises(ValueError, match="scale must be 1 where no norm is after the layer; got 2.0"):
        replace(w, layers=(replace(w.layers[0], scale=2.0),))


@pytest.mark.parametrize("given", [None, (3, 2, 31), (2, 2, 32)], ids=str)
def test_refuses_inputs_of_another_shape(given, rng):
    call = build_call(made("inputs and scales of layers", Format.F32, rng), [3], rng)
    inputs = None if given is None else np.zeros(given, np.float32)
    with pytest.raises(ValueError, match="layer_inputs must be "):
        ds.decoder_forward(**copied(call, layer_inputs=inputs))
    plain = build_call(made("biases", Format.F32, rng), [3], rng)
    with pytest.raises(ValueError, match="layer_inputs must be given where layers have inputs, and only there"):
        ds.decoder_forward(**copied(plain, layer_inputs=call["layer_inputs"]))
