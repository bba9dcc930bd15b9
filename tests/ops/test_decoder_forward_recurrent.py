"""decoder_forward on layers with states: against the reference, and the same bits for every cut, batch and thread count."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

import decodestep as ds
from decodestep import _native
from decodestep.ops.decoder_forward import cpu
from decodestep.ops.decoder_forward.arguments import bind
from decodestep.ops.decoder_forward.recurrent_layers import Recurrence
from decodestep.weights import Format
from support.core_builds import FUSED, printed_under
from support.decoder_forward_cases import copied
from support.recurrent_decoders import (
    beside_experts,
    convolution,
    delta,
    hybrid,
    mamba,
    step_with_states,
    with_experts,
    without_feed_forward,
)

TOKENS = ("token_ids", "sequence", "positions")
HIDDEN = 64


def hybrid_of(name, format_, rng):
    """Decoders as the families have them, and what they do not combine."""

    def of(make, **options):
        return make(HIDDEN, format_, rng, **options)

    if name == "delta":
        return hybrid([of(delta), of(delta, heads=2, rows=32, columns=64)], format_, rng)
    if name == "delta, tiled":
        return hybrid([of(delta, heads=8, columns=36, tiled=True, output_bias=True)], format_, rng)
    if name == "mamba":
        return hybrid([of(mamba), of(mamba, heads=3, groups=1, width=32, rows=128, with_bias=False)], format_, rng)
    if name == "odd widths":
        odd = (
            delta(HIDDEN, Format.F32, rng, heads=6, rows=5, columns=37),
            mamba(HIDDEN, Format.F32, rng, heads=5, groups=1, width=21),
        )
        return hybrid([*odd], format_, rng)
    if name == "convolutions":
        return hybrid([of(convolution), "attention", of(convolution, biases=True, count=6)], format_, rng)
    if name == "delta and gated attention":
        return hybrid([of(delta), of(delta), of(delta), "gated attention"], format_, rng)
    if name == "mamba and attention":
        return hybrid([of(mamba), "attention", of(mamba)], format_, rng, heads=6, kv_heads=1)
    if name == "one block a layer":
        w = hybrid([of(mamba), None, "attention alone", of(mamba), None], format_, rng)
        return without_feed_forward(w, 0, 3)
    if name == "delta and experts":
        return with_experts(hybrid([of(delta), "gated attention"], format_, rng), format_, rng)
    if name == "dense blocks beside experts":
        w = beside_experts(hybrid([of(delta), "attention", None], format_, rng), format_, rng)
        last = replace(w.layers[-1], ffn_post_norm=w.norm, scale=0.8)
        return replace(w, layers=(*w.layers[:-1], last), residual_scale=0.7)
    if name == "mamba and experts of a latent":
        w = hybrid([of(mamba), of(mamba)], format_, rng)
        parts = with_experts(w, format_, rng, latent=32, gated=False), with_experts(w, format_, rng, latent=96, shared=False)
        return replace(w, layers=tuple(part.layers[i] for i, part in enumerate(parts)))
    if name == "norms after blocks":
        w = hybrid([of(delta), of(convolution), "attention"], format_, rng)
        after = {"attention_post_norm": w.norm, "ffn_post_norm": w.norm}
        return replace(w, layers=tuple(replace(layer, **after) for layer in w.layers), residual_scale=0.7)
    assert name == "parallel blocks, one tap"
    w = hybrid([of(mamba, count=1), "gated attention", of(convolution, count=1)], format_, rng)
    return replace(w, layers=tuple(replace(layer, parallel=True, ffn_norm=layer.attention_norm) for layer in w.layers))


CASES = [
    "delta",
    "delta, tiled",
    "mamba",
    "odd widths",
    "convolutions",
    "delta and gated attention",
    "mamba and attention",
    "one block a layer",
    "delta and experts",
    "dense blocks beside experts",
    "mamba and experts of a latent",
    "norms after blocks",
    "parallel blocks, one tap",
]


def part_of(call, which, **changes):
    """The call for some of its tokens, all of them wanted."""
    return {**call, **{name: call[name][which] for name in TOKENS}, "wanted": np.arange(len(which)), **changes}


def exact(call):
    """The reference in float64."""
    return copied(call, **{name: call[name].astype(np.float64) for name in ("sin", "cos")})


def cuts_of(length):
    """Ends of the calls that a prompt is run in."""
    ones = list(range(1, length))
    return [[], ones, [1], [length - 1], [length // 2], [3, 4, 9], [2, 2 + length // 3, length - 2]]


@pytest.mark.parametrize("format_", [Format.F32, Format.BF16, Format.Q8_0], ids=lambda f: f.name)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(name, format_, rng):
    w = hybrid_of(name, format_, rng)
    call = step_with_states(w, [19, 1, 6], rng)
    logits, other = ds.decoder_forward(**(ours := copied(call))), exact(call)
    expected = ds.decoder_forward(**other, backend="reference")
    size = np.abs(expected).max()
    bound = {Format.F32: 2e-2, Format.BF16: 2e-2, Format.Q8_0: 6e-2}[format_]  # keys are bfloat16, activations of Q8_0 bytes
    assert np.abs(logits - expected).max() < bound * size
    own, kept = (c["states"][call["slots"]] for c in (ours, other))
    if format_ == Format.F32 and w.cache_depth == 0:  # nothing is rounded
        assert np.abs(logits - expected).max() < 5e-5 * size
        assert np.abs(own - kept).max() < 5e-5 * np.abs(kept).max()
    others = np.setdiff1d(np.arange(len(call["states"])), call["slots"])
    assert np.isnan(ours["states"][others]).all() and np.isfinite(own).all()


@pytest.mark.parametrize("format_", [Format.F32, Format.Q4_0], ids=lambda f: f.name)
@pytest.mark.parametrize("name", CASES)
def test_bits_are_the_same_for_every_cut_and_thread_count(name, format_, rng):
    w, length = hybrid_of(name, format_, rng), 23
    call = step_with_states(w, [length], rng)
    whole = copied(call)
    with ds.use_threads(1):
        expected = ds.decoder_forward(**whole)
    assert np.isfinite(expected).all()
    for threads in (1, 2, 3):
        for cuts in cuts_of(length):
            parts = copied(call)
            with ds.use_threads(threads):
                rows = [ds.decoder_forward(**part_of(parts, which)) for which in np.split(np.arange(length), cuts)]
            assert np.array_equal(np.concatenate(rows), expected)
            assert np.array_equal(parts["states"], whole["states"], equal_nan=True)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", CASES)
def test_bits_are_the_same_in_every_batch(name, batch, rng):
    """A prompt and two more tokens of each; the last one's prompt comes beside the others' first tokens."""
    w, lengths = hybrid_of(name, Format.Q8_0, rng), [17, 3, 40, 1, 9][:batch]
    call = step_with_states(w, [length + 2 for length in lengths], rng)
    of_sequences = [np.flatnonzero(call["sequence"] == i) for i in range(batch)]
    pieces = [np.split(own, [length, length + 1]) for own, length in zip(of_sequences, lengths, strict=True)]
    calls = [[(i, pieces[i][n]) for i in range(batch - 1)] for n in range(3)] + [[]]
    for n in range(3):
        calls[n + 1].append((batch - 1, pieces[-1][n]))
    alone = copied(call)
    with ds.use_threads(1):
        expected = [ds.decoder_forward(**part_of(alone, own)) for own in of_sequences]
    for threads in (1, 2, 3):
        beside, results = copied(call), [[] for _ in lengths]
        for chosen in filter(None, calls):
            with ds.use_threads(threads):
                rows = ds.decoder_forward(**part_of(beside, np.concatenate([which for _, which in chosen])))
            ends = np.cumsum([len(which) for _, which in chosen])
            for (i, _), own in zip(chosen, np.split(rows, ends[:-1]), strict=True):
                results[i].append(own)
        for own, of_sequence in zip(results, expected, strict=True):
            assert np.array_equal(np.concatenate(own), of_sequence)
        assert np.array_equal(beside["states"], alone["states"], equal_nan=True)


@pytest.mark.parametrize("format_", [Format.F32, Format.Q4_0], ids=lambda f: f.name)
@pytest.mark.parametrize("name", CASES)
def test_a_replay_leaves_the_bits_of_a_step(name, format_, rng):
    """Of any number of the tokens of a step, in place or in another row, on any number of threads."""
    w, lengths = hybrid_of(name, format_, rng), [5, 2, 40, 1]
    call = step_with_states(w, lengths, rng)
    own = [np.flatnonzero(call["sequence"] == i) for i in range(len(lengths))]
    keeps = [0, 2, 3]
    rows = np.full(sum(lengths), -1)
    rows[np.concatenate([own[i][::-1] for i in keeps])] = np.arange(46)[::-1]  # any order
    size = sum(
        mixer.convolution.shape[1] + (2 if mixer.kind == "delta" else 1 if mixer.kind == "mamba" else 0) * mixer.sizes().heads
        for layer in w.layers
        if isinstance(mixer := layer.mixer, Recurrence)
    )
    begun, slots = call["states"], call["slots"]
    twice = np.concatenate([begun, np.full_like(begun, np.nan)])
    kept = np.full((46, size), np.nan, np.float32)
    step = bind(**copied(call, states=twice), into=slots + len(begun))._replace(kept=kept, kept_rows=rows)
    with ds.use_threads(2):
        assert np.array_equal(cpu.forward(step), ds.decoder_forward(**copied(call)))
    assert not np.isnan(kept).any()
    has_states = ~np.isnan(step.states[step.into[0]])  # what lies between them is not written
    for count, threads, moved in ((1, 1, False), (2, 2, True), (3, 3, False), (5, 7, True), (0, 2, True)):
        alone, states = copied(call), twice.copy()
        which = np.concatenate([own[i][:count] for i in keeps])
        if count:
            ds.decoder_forward(**part_of(alone, which))
        into = slots[keeps] + moved * len(begun)
        with ds.use_threads(threads):
            cpu.replay_states(w, [kept[rows[own[i][:count]]] for i in keeps], states, slots[keeps], into)
        assert np.array_equal(states[into][:, has_states], alone["states"][slots[keeps]][:, has_states])
        assert not moved or np.array_equal(states[: len(begun)], begun, equal_nan=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"kept": np.zeros((5, 7), np.float32)},
        {"kept": None},
        {"kept_rows": np.arange(4)},
        {"kept_rows": np.array([0, 1, 2, 2, -1])},
        {"kept_rows": np.array([0, 1, 2, 3, 5])},
        {"kept_rows": np.array([0, 1, 2, 3, -2])},
    ],
)
def test_the_core_refuses_rows_of_inputs_that_are_not_there(changes, rng):
    w = hybrid_of("delta", Format.F32, rng)
    step = bind(**step_with_states(w, [3, 2], rng))
    width = sum(layer.mixer.convolution.shape[1] + 2 * layer.mixer.sizes().heads for layer in w.layers)
    right = step._replace(kept=np.zeros((5, width), np.float32), kept_rows=np.array([4, 1, -1, 0, 2]))
    cpu.forward(right)
    with pytest.raises(ValueError, match="kept"):
        cpu.forward(right._replace(**changes))


def bits_of_steps() -> str:
    """Of logits and states."""
    rng, digest = np.random.default_rng(3), {}
    for name in CASES:
        for format_ in (Format.F32, Format.BF16, Format.Q8_0):
            w = hybrid_of(name, format_, rng)
            call = step_with_states(w, [33, 2], rng)
            logits = ds.decoder_forward(**call)
            digest[name, format_.name] = sha256(logits.tobytes() + call["states"][call["slots"]].tobytes()).hexdigest()[:8]
    return str(digest)


@pytest.mark.tiers
@pytest.mark.skipif(_native.isa() == "baseline", reason="rounds a product and its sum one after the other")
@pytest.mark.parametrize("isa", FUSED)
def test_every_build_with_fused_multiply_add_gives_the_same_bits(isa):
    assert printed_under(isa, "import test_decoder_forward_recurrent as t; print(t.bits_of_steps())") == bits_of_steps()


def test_a_long_prompt_beside_short_ones(rng, monkeypatch):
    monkeypatch.setattr("decodestep._base.threads.thread_limit", lambda: 64)  # whatever the CPUs
    w = hybrid_of("delta and gated attention", Format.Q8_0, rng)
    call = step_with_states(w, [600, 5, 1, 1], rng)
    with ds.use_threads(1):
        expected = ds.decoder_forward(**copied(call))
    for threads in (2, 7, 40):
        with ds.use_threads(threads):
            assert np.array_equal(ds.decoder_forward(**copied(call)), expected)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", CASES)
def test_a_state_is_left_in_another_row(name, backend, rng):
    """Two sequences begin with one state, which stays as it is."""
    w = hybrid_of(name, Format.F32, rng)
    call = step_with_states(w, [5, 5], rng)
    call["token_ids"][5:8] = call["token_ids"][:3]
    call["states"] = np.full((7, w.state_size), np.nan, np.float32)
    call["states"][[4, 6]] = 0
    call = copied(call, slots=[4, 6])
    if backend == "reference":  # in float64: the order of NumPy's sums follows the shapes
        call = exact(call)
    expected = ds.decoder_forward(**(whole := copied(call)), backend=backend)
    ds.decoder_forward(**part_of(call, np.arange(3)), into=[2, 0], backend=backend)
    first, second = call["page_table"][:, 0]
    for name in ("keys", "values"):
        call[name][:, :, second] = call[name][:, :, first]
    begun, later = call["states"].copy(), np.array([3, 4, 8, 9])
    rows = ds.decoder_forward(**part_of(call, later, slots=[2, 2]), into=[1, 5], backend=backend)
    has_states = ~np.isnan(begun[2])  # what lies between them is not written
    for ours, theirs in (
        (rows, expected[later]),
        (call["states"][[1, 5]][:, has_states], whole["states"][[4, 6]][:, has_states]),
    ):
        apart = np.abs(ours - theirs).max()
        assert apart == 0 if backend == "cpu" else apart < 1e-3 * np.abs(theirs).max()
    assert np.array_equal(call["states"][[2, 4, 6]], begun[[2, 4, 6]], equal_nan=True)
    assert (begun[[4, 6]] == 0).all()


def test_nan_stays_in_its_sequence(rng):
    w = hybrid_of("delta and gated attention", Format.F32, rng)
    call = step_with_states(w, [9, 9], rng)
    expected = ds.decoder_forward(**copied(call))
    call["states"][call["slots"][0]] = np.nan
    rows = ds.decoder_forward(**copied(call))
    assert np.isnan(rows[:9]).all() and np.array_equal(rows[9:], expected[9:])


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("states must be given where layers have states, and only there; got None", {"states": None}),
        ("slots must be given where layers have states, and only there; got None", {"slots": None}),
        (r"states must be of shape \(S, \d+\); got float32 5x7", {"states": np.zeros((5, 7), np.float32)}),
        ("states must be float32; got float64", {"states": np.zeros((5, 7))}),
        ("slots must be of shape 2; got int64 1", {"slots": [1]}),
        (r"slots must be in \[0, 5\); got 1 to 5", {"slots": [1, 5]}),
        (r"into must be states of their own, that no other sequence of the call reads; got \[1, 1\] read, \[1, 1\] written",
         {"slots": [1, 1]}),
        ("into must be states of their own, that no other", {"slots": [1, 1], "into": [1, 2]}),
        ("into must be states of their own, that no other", {"slots": [1, 2], "into": [3, 3]}),
        ("into must be states of their own, that no other", {"slots": [1, 2], "into": [2, 1]}),
        (r"into must be in \[0, 5\); got -1 to 2", {"into": [-1, 2]}),
        ("into must be of shape 2; got int64 3", {"into": [1, 2, 3]}),
        ("positions must be those of a sequence side by side and one after another", {"positions": [0, 2, 1, 0, 1]}),
        ("positions must be those of a sequence side by side and one after another",
         {"sequence": [0, 1, 0, 1, 0], "positions": [0, 0, 1, 1, 2]}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_refusals(message, changes, backend, rng):
    call = step_with_states(hybrid_of("delta", Format.F32, rng), [3, 2], rng)
    states = call["states"].copy()
    with pytest.raises(ValueError, match=f"^decoder_forward: {message}"):
        ds.decoder_forward(**{**call, **changes}, backend=backend)
    assert np.array_equal(call["states"], states, equal_nan=True)


def test_states_where_no_layer_has_one_are_refused(rng):
    call = step_with_states(hybrid(["attention"], Format.F32, rng), [3], rng)
    with pytest.raises(ValueError, match="^decoder_forward: states must be given where layers have states, and only there"):
        ds.decoder_forward(**call, states=np.zeros((1, 16), np.float32), slots=[0])


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (r"layers\[0\].mixer.key_heads must be an integer > 0; got 0", {"key_heads": 0}),
        (r"layers\[0\].mixer must be of products, taps, heads and norm that fit together; got", {"key_heads": 3}),
        (r"layers\[0\].mixer.tiled must be True or False; got 1", {"tiled": 1}),
        (r"layers\[0\].mixer.decay must be float32 of shape", {"decay": np.zeros((2, 2), np.float32)}),
        (r"layers\[0\].mixer.step_bias must be float32 of shape 4; got float32 3", {"step_bias": np.zeros(3, np.float32)}),
        (r"layers\[0\].mixer.convolution must be float32 of shape \(K, C\) with K >= 1; got float64 4x236",
         {"convolution": np.zeros((4, 236))}),
        (r"layers\[0\].mixer must be of products, taps", {"convolution": np.zeros((4, 235), np.float32)}),
        (r"layers\[0\].mixer.output_bias must be float32 of shape 64", {"output_bias": np.zeros(3, np.float32)}),
    ],
)  # fmt: skip
def test_refused_weights(message, changes, rng):
    w = hybrid_of("delta", Format.F32, rng)
    layer = replace(w.layers[0], mixer=replace(w.layers[0].mixer, **changes))
    with pytest.raises(ValueError, match=f"^DecoderWeights: {message}"):
        replace(w, layers=(layer, *w.layers[1:]))


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("attention_norm must be None without a mixer", {"mixer": None}),
        ("feed_forward must be given where a layer has no mixer, or norms of it; got None", {"feed_forward": None}),
        ("feed_forward must be given where", {"mixer": None, "attention_norm": None, "feed_forward": None, "ffn_norm": None}),
        ("parallel must be False without two blocks", {"feed_forward": None, "ffn_norm": None, "parallel": True}),
    ],
)
def test_refused_layers(message, changes, rng):
    w = hybrid_of("delta", Format.F32, rng)
    with pytest.raises(ValueError, match=rf"^DecoderWeights: layers\[0\].{message}"):
        replace(w, layers=(replace(w.layers[0], **changes), *w.layers[1:]))


@pytest.mark.parametrize(
    ("message", "of_layer", "of_both", "of_experts"),
    [
        ("parallel must be False with blocks side by side", {"parallel": True}, {}, {}),
        ("feed_forward.router_norm must be float32 of shape 64", {}, {"router_norm": np.ones(5, np.float32)}, {}),
        ("feed_forward.dense must be a FeedForward; got NoneType", {}, {"dense": None}, {}),
        ("feed_forward.experts must be a Mixture; got NoneType", {}, {"experts": None}, {}),
        ("feed_forward.experts.shared must be None beside a dense block; got FeedForward", {}, {}, ("shared",)),
        ("feed_forward.experts.latent_down must be None beside a", {}, {}, ("routed", "latent_down", "latent_up")),
        ("feed_forward.experts.factors must be float32 of shape 5", {}, {}, {"factors": np.ones(4, np.float32)}),
    ],
)
def test_refused_blocks_side_by_side(message, of_layer, of_both, of_experts, rng):
    w = hybrid_of("dense blocks beside experts", Format.F32, rng)
    if isinstance(of_experts, tuple):  # parts of another mixture
        plain = hybrid_of("delta", Format.F32, rng)
        other = with_experts(plain, Format.F32, rng, latent=0 if "shared" in of_experts else 32).layers[0].feed_forward
        of_experts = {name: getattr(other, name) for name in of_experts}
    layer = w.layers[0]
    experts = replace(layer.feed_forward.experts, **of_experts)
    both = replace(layer.feed_forward, **{"experts": experts} | of_both)
    with pytest.raises(ValueError, match=rf"^DecoderWeights: layers\[0\].{message}"):
        replace(w, layers=(replace(layer, feed_forward=both, **of_layer), *w.layers[1:]))
