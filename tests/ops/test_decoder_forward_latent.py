"""decoder_forward with latent attention and mixtures of experts: against its reference, and to the bit against itself."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

import decodestep as ds
from decodestep import _native
from decodestep._base.arrays import BFLOAT16
from decodestep.ops.decoder_forward import LatentSizes, index_reference
from decodestep.ops.expert_router import RouterRule
from decodestep.weights import FeedForward, Format, PackedWeight
from support.core_builds import FUSED, printed_under
from support.decoder_forward_cases import copied, latent_weights, step

SIGMOID = RouterRule(3, "sigmoid", groups=2, kept_groups=1, group_score="top_two", normalise=True, scale=2.5)
CASES = {
    "plain": {},
    "compressed query, groups of experts": {"compressed": 96, "experts": 8, "rule": SIGMOID},
    "no shared block, one head": {"heads": 1, "shared": False, "rule": RouterRule(1)},
    "other widths": {"heads": 5, "sizes": LatentSizes(64, 32, 96, 64), "experts": 33},
    "no gates": {"gates": False},
    "biases": {"biases": True, "compressed": 64},
    "biases without gates": {"biases": True, "gates": False},
    "factors": {"embedding_scale": 3.0, "residual_scale": 0.25, "logits_scale": 0.1},
}


# So many heads that few scores are near ties. The second layer attends to what the first one selects, or selects itself.
SELECTED = LatentSizes(32, 16, 64, 32, selected=9, index_heads=17, index_width=48)
SELECTING = {
    "shared selection": {"sizes": SELECTED, "compressed": 64},
    "own selections": {"sizes": SELECTED, "compressed": 64, "indexers": (True, True), "heads": 20, "biases": True},
    "one position": {"sizes": replace(SELECTED, selected=1, index_width=16), "compressed": 32},
}


def in_float64(call):
    return ds.decoder_forward(**copied(call, sin=call["sin"].astype(np.float64), cos=call["cos"].astype(np.float64)))


def expanded_pass(call):
    """Logits of one prompt in float64: keys and values expanded for every head, each expert by itself, no cache."""
    w, sizes = call["weights"], call["weights"].latent
    count = len(call["token_ids"])
    turn = np.exp(1j * np.arctan2(call["sin"][:count], call["cos"][:count]).astype(np.float64))[:, None]
    factors = [getattr(w, f"{name}_scale") for name in ("embedding", "residual", "logits")]

    def norm(x, gamma, eps=w.norm_eps):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gamma

    def product(x, panels, bias=None):
        return x @ panels.rows().dense(np.float64) + (0 if bias is None else bias)

    def rope(x):
        z = (x[..., ::2] + 1j * x[..., 1::2]) * turn
        return np.stack([z.real, z.imag], -1).reshape(x.shape)

    def dense(h, block, number=0):
        both = ((block.gate, block.gate_bias), (block.up, block.up_bias))
        gate, up = (m and product(h, m, bias).reshape(block.count, -1)[number] for m, bias in both)
        inner = np.maximum(up, 0) ** 2 if gate is None else gate / (1 + np.exp(-gate)) * up
        return product(inner, block.down, block.down_bias).reshape(block.count, -1)[number]

    def mixture(h, m):
        logits = product(h, m.router)
        score = 1 / (1 + np.exp(-logits)) if m.rule.scores == "sigmoid" else np.exp(logits) / np.exp(logits).sum()
        choice = (score if m.bias is None else score + m.bias).reshape(m.rule.groups, -1)
        group = np.sort(choice)[:, -2:].sum(1) if m.rule.group_score == "top_two" else choice.max(1)
        choice[np.argsort(group)[: m.rule.groups - m.rule.kept_groups]] = -np.inf
        chosen = np.argsort(choice.reshape(-1))[-m.rule.used :]
        share = score[chosen] / (score[chosen].sum() if m.rule.normalise else 1) * m.rule.scale
        y = sum(s * dense(h, m.routed, e) for s, e in zip(share, chosen, strict=True))
        return y if m.shared is None else y + dense(h, m.shared)

    x = w.embedding.dense(np.float64).T[call["token_ids"]] * factors[0]
    for layer in w.layers:
        a, block = layer.mixer, layer.feed_forward
        h = norm(x, layer.attention_norm)
        q = h if a.query_down is None else norm(product(h, a.query_down, a.query_down_bias), a.query_norm, sizes.eps)
        q = product(q, a.query).reshape(count, w.heads, -1)
        latent, key = np.split(product(h, a.latent, a.latent_bias), [sizes.latent], axis=1)
        latent = norm(latent, a.latent_norm, sizes.eps)
        up = a.key_up.rows().dense(np.float64).reshape(sizes.nope, w.heads, sizes.latent)
        keys, values = np.einsum("sc,dnc->snd", latent, up), product(latent, a.value_up).reshape(count, w.heads, -1)
        keys = np.concatenate([keys, np.repeat(rope(key[:, None]), w.heads, axis=1)], axis=2)
        q = np.concatenate([q[..., : sizes.nope], rope(q[..., sizes.nope :])], axis=2)
        score = np.einsum("tnd,snd->nts", q, keys) * w.scale + np.triu(np.full((count, count), -np.inf), 1)
        share = np.exp(score - score.max(-1, keepdims=True))
        attended = np.einsum("nts,snd->tnd", share / share.sum(-1, keepdims=True), values)
        x = x + product(attended.reshape(count, -1), a.output, a.output_bias) * factors[1]
        through = dense if isinstance(block, FeedForward) else mixture
        x = x + np.array([through(row, block) for row in norm(x, layer.ffn_norm)]) * factors[1]
    return product(norm(x, w.norm), w.logits) * factors[2]


@pytest.mark.parametrize("case", CASES)
def test_the_reference_is_a_plain_pass_but_for_bfloat16(case, rng):
    call = step(latent_weights(Format.F32, rng, **CASES[case]), [20], rng)
    logits, expected = in_float64(call), expanded_pass(call)
    apart = np.abs(logits - expected) / np.abs(expected).max()
    assert np.median(apart) < 0.003 and apart.max() < 0.05


@pytest.mark.parametrize(
    ("slabs", "cache", "byte_latents"), [(1, BFLOAT16, False), (3, np.float16, False), (2, BFLOAT16, True)]
)
@pytest.mark.parametrize("case", CASES)
def test_against_the_reference_in_float64(case, slabs, cache, byte_latents, rng):
    """Float32 weights: what differs are sums, and few roundings of the cache to the other neighbour."""
    w = latent_weights(Format.F32, rng, **CASES[case])
    call = step(w, [20, 1, 5], rng, slabs=slabs, cache=cache, byte_latents=byte_latents)
    logits = ds.decoder_forward(**copied(call), backend="cpu")
    expected = in_float64(call)
    assert np.abs(logits - expected).max() < (1e-2 if byte_latents else 2e-3) * np.abs(expected).max()
    assert np.median(np.abs(logits - expected)) < 3e-5 * np.abs(expected).max()


INDEXED = {
    "bfloat16": {"cache": BFLOAT16},
    "float16": {"cache": np.float16, "slabs": 3},
    "byte latents": {"byte_latents": True, "slabs": 2},
    "byte index": {"byte_index": True, "slabs": 2},
    "bytes": {"byte_latents": True, "byte_index": True},
}
# What an index score may be off by, relative to the sum of its products' magnitudes: sums in float32; the rounding of the
# token's own key; that of queries beside bytes.
SUMMED, KEPT, IN_BYTES = 2e-6, 2.0**-8, 2.0**-7


def reads_of_the_last_token(call, layer):
    """The positions before its own to which the last token attends in a layer: NaN there reaches its logits."""
    values, read = call["values"], []
    for p in range(call["positions"][0]):
        slab, page = divmod(call["page_table"][0, p // 16], values.shape[-3])
        own = copied(call)
        row = (own["values"] if values.ndim == 5 else own["values"][None])[slab, layer, page, p % 16]
        row[:] = -1 if row.dtype == np.int8 else np.nan
        if np.isnan(ds.decoder_forward(**own, backend="cpu")).any():
            read.append(p)
    return read


@pytest.mark.parametrize("kept", INDEXED)
@pytest.mark.parametrize("case", SELECTING)
def test_selected_positions_are_those_of_the_largest_scores(case, kept, rng, monkeypatch):
    """None is below the last of the largest by more than its score is rounded, and each that is clearly above is selected."""
    w = latent_weights(Format.F32, rng, **SELECTING[case])
    call, found, real = step(w, [40], rng, **INDEXED[kept]), [], index_reference.scores

    def both(*given):
        """The scores, and the sums of their products' magnitudes."""
        made = real(*given)
        with monkeypatch.context() as patch:
            patch.setattr(
                index_reference, "_products", lambda query, keys, by_head: np.abs(by_head) @ (np.abs(query) @ np.abs(keys).T)
            )
            found.append((made[-1], real(*given)[-1]))
        return made

    parts = ({name: call[name][part] for name in ("token_ids", "sequence", "positions")} for part in np.s_[:39, 39:])
    before, last = (call | part | {"wanted": np.arange(len(part["token_ids"]))} for part in parts)
    ds.decoder_forward(**before, backend="cpu")
    monkeypatch.setattr(index_reference, "scores", both)
    in_float64(last)
    for layer, (score, magnitude) in enumerate(found):
        rounding = SUMMED + IN_BYTES * ("byte_index" in INDEXED[kept]) + KEPT * (np.arange(40) == 39) + KEPT * layer
        rounding = rounding * magnitude
        read = reads_of_the_last_token(last, layer)
        assert w.latent.selected - len(read) in (0, 1)
        selected = np.isin(np.arange(40), read)
        selected[39] = len(read) < w.latent.selected
        place = np.argsort(-score, kind="stable")[w.latent.selected - 1]
        near = rounding + rounding[place]
        assert (score[selected] >= score[place] - near[selected]).all()
        assert selected[score > score[place] + near].all()


@pytest.mark.parametrize("kept", INDEXED)
@pytest.mark.parametrize("case", SELECTING)
def test_selecting_steps_against_the_reference(case, kept, rng):
    """Tokens that attend to all positions beside others, of three sequences; NaN in the index cache reaches nothing."""
    call = step(latent_weights(Format.F32, rng, **SELECTING[case]), [40, 1, 12], rng, **INDEXED[kept])
    logits = ds.decoder_forward(**copied(call), backend="cpu")
    expected = in_float64(call)
    apart = np.abs(logits - expected).max(axis=1) / np.abs(expected).max()
    assert np.median(apart) < 1e-3  # a near-tie may fall the other way
    all_positions = replace(call["weights"], latent=replace(call["weights"].latent, selected=1000))
    dense = ds.decoder_forward(**copied(call, weights=all_positions), backend="cpu")
    own = call["positions"] < call["weights"].latent.selected
    np.testing.assert_array_equal(logits[own], dense[own])
    assert (logits[~own] != dense[~own]).any(axis=1).all()


@pytest.mark.parametrize("kept", INDEXED)
@pytest.mark.parametrize("case", SELECTING)
def test_a_cut_among_selected_positions_changes_no_bit(case, kept, rng):
    call = step(latent_weights(Format.Q8_0, rng, **SELECTING[case]), [70], rng, **INDEXED[kept])
    whole = ds.decoder_forward(**copied(call))
    for cuts in ([9], [8, 10], [1, 2, 16, 17, 64]):
        np.testing.assert_array_equal(parts(call, cuts), whole)
    for threads in (1, 2, 5):
        with ds.use_threads(threads):
            np.testing.assert_array_equal(ds.decoder_forward(**copied(call)), whole)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("index_keys must be given where layers select positions, and only there; got None", {"index_keys": None}),
        ("index_keys must be bfloat16 or int8; got float32 1x1x5x16x48", {"index_keys": np.zeros((1, 5, 16, 48), np.float32)}),
        (
            "index_keys must be of shape 1x1x5x16x48; got bfloat16 1x1x5x16x32",
            {"index_keys": np.zeros((1, 5, 16, 32), BFLOAT16)},
        ),
    ],
)
def test_refused_index_caches(message, changes, rng):
    call = step(latent_weights(Format.F32, rng, **SELECTING["shared selection"]), [70], rng)
    with pytest.raises(ValueError, match=f"^decoder_forward: {message}"):
        ds.decoder_forward(**call | changes)


def test_refused_indexers(rng):
    w = latent_weights(Format.F32, rng, **SELECTING["shared selection"])
    first, second = w.layers
    with pytest.raises(ValueError, match=r"mixer.indexer must be given in the first layer; got None"):
        replace(w, layers=(second, first))
    with pytest.raises(
        ValueError, match=r"latent.selected, index_heads and index_width must be 0 without an indexer; with one"
    ):
        replace(w, latent=replace(w.latent, index_width=8))
    with pytest.raises(ValueError, match=r"layers\[0\].mixer.indexer.query must be"):
        replace(w, latent=replace(w.latent, index_width=32))


def test_latents_in_float16_are_nearer_than_in_bfloat16(rng):
    call = step(latent_weights(Format.F32, rng), [150], rng)
    exact = expanded_pass(call)
    caches = ({name: call[name].astype(dtype) for name in ("keys", "values")} for dtype in (BFLOAT16, np.float16))
    coarse, fine = (np.median(np.abs(ds.decoder_forward(**call | cache) - exact)) for cache in caches)
    assert fine < coarse / 4  # three bits more
    for keys, values in ((BFLOAT16, np.float16), (np.float16, BFLOAT16), (np.float16, np.int8)):
        with pytest.raises(ValueError, match="^decoder_forward: (keys|values) must be"):
            ds.decoder_forward(**call | {"keys": call["keys"].astype(keys), "values": np.zeros_like(call["values"], values)})


def test_latents_in_bytes_are_near(rng):
    """And no bits of NaN in unwritten rows reach anything; a position that is written again is read again."""
    w = latent_weights(Format.F32, rng, sizes=LatentSizes(32, 16, 512, 32))
    wide = step(w, [300, 7], rng)
    narrow = {**wide, "values": step(w, [300, 7], rng, byte_latents=True)["values"]}
    exact, expected, rounded = in_float64(wide), in_float64(narrow), ds.decoder_forward(**narrow)
    apart = np.abs(rounded - exact) / np.abs(exact).max()
    assert np.median(apart) < 0.01 and apart.max() < 0.1
    # Of several blocks of keys; what differs are few roundings to the other neighbour.
    assert np.median(np.abs(rounded - expected)) < 3e-5 * np.abs(expected).max()
    np.testing.assert_array_equal(ds.decoder_forward(**narrow), rounded)
    with pytest.raises(ValueError, match="values must be of shape 1x2x38x16x516; got int8 1x2x38x16x512"):
        ds.decoder_forward(**{**narrow, "values": np.zeros((2, 38, 16, 512), np.int8)})


@pytest.mark.parametrize("format_", ["BF16", "Q8_0"])
def test_every_format_is_near_the_reference(format_, rng):
    call = step(latent_weights(Format[format_], rng, compressed=64), [24], rng)
    logits, expected = (ds.decoder_forward(**copied(call), backend=backend) for backend in ("cpu", "reference"))
    assert np.median(np.abs(logits - expected)) < 1e-3 * np.abs(expected).max()


def parts(call, cuts):
    """The logits of the same tokens, handed over in several calls."""
    cache, logits = copied(call), []
    for part in np.split(np.arange(len(call["token_ids"])), cuts):
        names = ("token_ids", "sequence", "positions")
        logits.append(ds.decoder_forward(**{**cache, **{n: call[n][part] for n in names}, "wanted": np.arange(len(part))}))
    return np.concatenate(logits)


CUT = [("F32", "plain"), ("BF16", "no shared block, one head"), ("Q8_0", "compressed query, groups of experts")]
CUT += [("Q8_0", "no gates"), ("F32", "in bytes"), ("F32", "in float16")]


@pytest.mark.parametrize(("format_", "case"), CUT)
def test_blocks_batches_and_threads_change_no_bit(format_, case, rng):
    w = latent_weights(Format[format_], rng, **CASES.get(case, {}))
    cache = np.float16 if case == "in float16" else BFLOAT16
    call = step(w, [300, 40], rng, cache=cache, byte_latents=case == "in bytes")
    with ds.use_threads(1):
        whole = ds.decoder_forward(**copied(call))
    for threads, cuts in ((2, []), (3, [1, 5, 270, 271, 300, 303, 330])):
        with ds.use_threads(threads):
            np.testing.assert_array_equal(parts(call, cuts), whole)
    # Steps of the two sequences together, in an order of their own.
    cache = copied(call)
    first = np.r_[np.arange(290), np.arange(300, 330)]
    names = ("token_ids", "sequence", "positions")
    ds.decoder_forward(**{**cache, **{n: call[n][first] for n in names}, "wanted": []})
    for i in range(10):
        both = np.array([330 + i, 290 + i])
        logits = ds.decoder_forward(**{**cache, **{n: call[n][both] for n in names}, "wanted": [1, 0]})
        np.testing.assert_array_equal(logits, whole[both[::-1]])


def bits_of_steps() -> str:
    """Of every case and kind of format, and of steps that select: logits of a prompt of two splits of keys, of two together,
    and of a step after."""
    rng, digest = np.random.default_rng(3), {}
    for case in CASES:
        for format_ in (Format.F32, Format.BF16, Format.Q8_0):
            cache = np.float16 if format_ == Format.Q8_0 else BFLOAT16
            w = latent_weights(format_, rng, **CASES[case])
            call = step(w, [270, 40], rng, cache=cache, byte_latents=format_ == Format.BF16)
            digest[case, format_.name] = sha256(parts(call, [200, 309]).tobytes()).hexdigest()[:8]
    for case in SELECTING:
        for kept, caches in INDEXED.items():
            call = step(latent_weights(Format.Q8_0, rng, **SELECTING[case]), [270, 40], rng, **caches)
            digest[case, kept] = sha256(parts(call, [200, 309]).tobytes()).hexdigest()[:8]
    return str(digest)


@pytest.mark.tiers
@pytest.mark.skipif(_native.isa() == "baseline", reason="rounds a product and its sum one after the other")
@pytest.mark.parametrize("isa", FUSED)
def test_every_build_with_fused_multiply_add_gives_the_same_bits(isa):
    assert printed_under(isa, "import test_decoder_forward_latent as t; print(t.bits_of_steps())") == bits_of_steps()


def test_a_token_sees_its_past_alone(rng):
    """NaN in the cache beyond a token's position, in other pages, and of a later token, does not reach it."""
    w = latent_weights(Format.Q8_0, rng)
    call = step(w, [30, 3], rng)
    whole = ds.decoder_forward(**copied(call))
    assert np.isfinite(whole).all()
    call["token_ids"][17] += 1 - 2 * (call["token_ids"][17] == w.vocab_size - 1)
    changed = ds.decoder_forward(**copied(call))
    same = np.r_[np.arange(17), np.arange(30, 33)]
    np.testing.assert_array_equal(changed[same], whole[same])
    assert (changed[17:30] != whole[17:30]).any(axis=1).all()


def test_nan_in_latents_as_bytes_stays_in_its_sequence_and_future(rng):
    w = latent_weights(Format.F32, rng)
    call = step(w, [80, 70], rng, byte_latents=True)
    whole = ds.decoder_forward(**copied(call))
    embedding = w.embedding.dense(np.float32)
    embedding[:, call["token_ids"][75]] = np.nan
    seen = np.flatnonzero(call["token_ids"] == call["token_ids"][75])
    logits = ds.decoder_forward(**copied(call, weights=replace(w, embedding=PackedWeight.from_array(embedding))))
    spoilt = np.zeros(150, bool)
    for token in seen:
        spoilt[token : 80 if token < 80 else 150] = True
    assert np.isnan(logits[spoilt]).all() and spoilt.sum() < 150
    np.testing.assert_array_equal(logits[~spoilt], whole[~spoilt])


def test_writes_at_its_tokens_alone(rng):
    call = step(latent_weights(Format.F32, rng), [21], rng)
    cache = copied(call)
    ds.decoder_forward(**{**cache, **{n: call[n][:19] for n in ("token_ids", "sequence", "positions")}, "wanted": []})
    before = copied(cache)
    ds.decoder_forward(**{**cache, **{n: call[n][19:20] for n in ("token_ids", "sequence", "positions")}, "wanted": []})
    for name in ("keys", "values"):
        changed = (cache[name].view(np.uint16) != before[name].view(np.uint16)).any(axis=3)
        assert np.argwhere(changed).tolist() == [[layer, call["page_table"][0, 1], 3] for layer in (0, 1)]


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (r"layers\[0\].mixer must be a GroupedAttention; got LatentAttention", {"latent": None}),
        ("kv_heads must be 1 with latent attention; got 3", {"kv_heads": 3}),
        ("head_dim must be 32 \\+ 16, as in `latent`; got 64", {"head_dim": 64}),
        ("latent must be of widths > 0, the rope's even; got", {"latent": LatentSizes(32, 15, 64, 32)}),
        (r"layers\[0\].mixer.latent must be of shape 64x112; got 64x80", {"latent": LatentSizes(32, 16, 96, 32)}),
        ("residual_scale must be a finite number; got inf", {"residual_scale": np.inf}),
    ],
)
def test_refused_weights(message, changes, rng):
    with pytest.raises(ValueError, match=f"^DecoderWeights: {message}"):
        replace(latent_weights(Format.F32, rng), **changes)


def test_refused_mixtures_and_caches(rng):
    w = latent_weights(Format.F32, rng)
    dense, mixed = w.layers
    for message, change in (
        (r"feed_forward.router must be of shape 64x7; got 64x96", {"router": dense.feed_forward.gate}),
        (r"feed_forward.rule: used must be an integer in \[1, 7\]", {"rule": RouterRule(8)}),
        (r"feed_forward.bias must be float32 of shape 7; got float32 3", {"bias": np.ones(3, np.float32)}),
        (r"feed_forward.shared must be one block; got 7", {"shared": mixed.feed_forward.routed}),
    ):
        with pytest.raises(ValueError, match=rf"^DecoderWeights: layers\[1\].{message}"):
            replace(w, layers=(dense, replace(mixed, feed_forward=replace(mixed.feed_forward, **change))))
    attention = replace(dense.mixer, query_norm=np.ones(64, np.float32))
    with pytest.raises(ValueError, match=r"layers\[0\].mixer.query_norm must be None without query_down; got float32 64"):
        replace(w, layers=(replace(dense, mixer=attention), mixed))
    call = step(w, [3], rng)
    with pytest.raises(ValueError, match="keys must be of shape 1x2x1x16x16; got bfloat16 1x2x1x16x64"):
        ds.decoder_forward(**{**call, "keys": call["values"]})
    odd = latent_weights(Format.F32, rng, sizes=LatentSizes(24, 16, 64, 32))
    call = step(odd, [3], rng)
    assert np.isfinite(ds.decoder_forward(**copied(call))).all()
    with pytest.raises(ValueError, match="got 'cpu', which cannot: size without rope 24 is not a multiple of 32"):
        ds.decoder_forward(**call, backend="cpu")
