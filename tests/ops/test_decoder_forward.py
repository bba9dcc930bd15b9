"""decoder_forward and the decoder that calls it: against dense passes, against the reference, and to the bit against itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep import _native
from decodestep._base.arrays import BFLOAT16, like
from decodestep.decoding.decoder import TokenBatch
from decodestep.decoding.kv_cache import PAGE
from decodestep.decoding.step_decoder import PANEL_FORMATS
from decodestep.files.gguf_file import GgufFile
from decodestep.models import ModelError
from decodestep.models.checkpoint import Checkpoint
from decodestep.ops.decoder_forward import cpu
from decodestep.ops.decoder_forward.arguments import bind
from decodestep.ops.linear import Format, LinearPanels, PackedWeight, reference
from decodestep.weights import DeviceRows
from decodestep.weights.file_weight import FileWeight
from support import native_model_calls
from support.core_builds import FUSED, printed_under
from support.decoder_forward_cases import Sizes, copied, matrix, step, weights
from support.dense_decoder_oracle import dense_logits, dense_values
from support.native_call_arguments import Source, Vanishing
from support.tolerances import assert_close

NATIVE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q5_0")
OTHERS = ("Q5_1", "IQ4_NL", "MXFP4")
OF_256 = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "TQ2_0")  # inputs


def product_as(dtype):
    """x times a tensor as the step makes it: the weight packed for `dtype`, x rounded to bytes where the panels want them."""

    def product(x, tensor):
        rows, kind = tensor.read().reshape(tensor.shape[0], -1), tensor.type.name
        native = kind != "TQ2_0"
        if not native:
            rows, kind = dense_values(tensor).astype(np.float32).view(np.uint8).reshape(tensor.shape[0], -1), "F32"
        weight = PackedWeight(rows, Format[kind], tensor.shape[1])
        made = PANEL_FORMATS[dtype] if native or dtype != "auto" else Format.Q8_0
        return reference.linear(x, LinearPanels.pack(weight, made))

    return product


def check(path, dtype, rows=3, tokens=20):
    """Most logits agree to float32's accuracy; where a rounding to bytes or bfloat16 fell to the other side, to theirs.

    One that falls so at a row's beginning shows in all of its tokens, so there are several rows.
    """
    model, apart, scale = ds.load(path, dtype=dtype, cache_dtype="bfloat16"), [], 0
    assert model.decoder.description == "one native call a step"
    for ids in np.random.default_rng(2).integers(0, 297, (rows, tokens)):
        logits = model.logits(ids)
        apart.append(np.abs(logits - dense_logits(GgufFile(path), ids, product=product_as(dtype), attention=BFLOAT16)))
        scale = max(scale, np.abs(logits).max())
    assert np.median(apart) < 1e-3 * scale and np.max(apart) < 0.03 * scale


@pytest.mark.parametrize("dtype", PANEL_FORMATS)
@pytest.mark.parametrize("kind", NATIVE)
def test_equals_a_dense_pass_with_its_roundings(tiny_file, kind, dtype):
    check(tiny_file(kind=kind, tied=kind != "F16"), dtype)


@pytest.mark.parametrize("kind", [*OTHERS, *OF_256])
def test_every_type_equals_a_dense_pass_with_its_roundings(tiny_file, kind):
    """TQ2_0, which no kernel multiplies, as Q8_0."""
    check(tiny_file(kind=kind, heads=8, head_dim=32, hidden=256), "auto")


@pytest.mark.parametrize(
    ("heads", "groups", "head_dim", "hidden"), [(4, 4, 16, 64), (8, 1, 32, 96), (6, 3, 48, 32), (14, 1, 64, 32), (2, 1, 96, 64)]
)
def test_any_grouping_of_heads_is_right(tiny_file, heads, groups, head_dim, hidden):
    check(tiny_file(heads=heads, groups=groups, head_dim=head_dim, hidden=hidden), "auto")


def test_long_sequences_pass_chunks(tiny_file):
    check(tiny_file(context=700), "auto", rows=1, tokens=600)


def pages(decoder, rows, tokens):
    """Storage for this many tokens per row, and the page table of its rows."""
    table = np.arange(rows * -(-tokens // PAGE)).reshape(rows, -1)
    return decoder.new_pages(table.size), table


def run(model, ids, cuts, rows=1, row=0):
    """Every token's logits, the tokens handed over in parts."""
    cache, table = pages(model.decoder, rows, len(ids))
    parts = [part for part in np.split(np.arange(len(ids)), cuts) if len(part)]
    batches = [TokenBatch(ids[p], np.full(len(p), row), p, table, np.arange(len(p))) for p in parts]
    logits = [model.decoder.logits(batch, cache) for batch in batches]
    return np.concatenate(logits).view(np.uint32)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "BF16"])
def test_blocks_batches_and_threads_change_no_bit(tiny_file, kind, rng):
    model = ds.load(tiny_file(kind=kind, context=400))
    ids = rng.integers(0, 297, 300)
    with ds.use_threads(1):
        whole = run(model, ids, [])
    for threads in (1, 2, 3):
        with ds.use_threads(threads):
            np.testing.assert_array_equal(run(model, ids, [7, 8, 20, 23, 257]), whole)
            np.testing.assert_array_equal(run(model, ids, [250, *range(253, 300)], rows=3, row=2), whole)


@pytest.mark.tiers
@pytest.mark.skipif(_native.isa() == "baseline", reason="rounds a product and its sum one after the other")
@pytest.mark.parametrize("isa", FUSED)
def test_every_build_with_fused_multiply_add_gives_the_same_bits(model_path, isa):
    """On the default model, where a bit that differs anywhere soon shows everywhere."""
    ids = [7 * i % 40000 for i in range(64)]
    code = f"""import decodestep as ds
for dtype in {list(PANEL_FORMATS)}:
    print(ds.load({str(model_path)!r}, dtype=dtype).logits({ids})[::9].tobytes().hex())"""
    there = printed_under(isa, code).splitlines()
    for dtype, logits in zip(PANEL_FORMATS, there, strict=True):
        assert bytes.fromhex(logits) == ds.load(model_path, dtype=dtype).logits(ids)[::9].tobytes(), dtype


def test_what_a_page_held_before_does_not_matter(tiny_file, rng):
    model = ds.load(tiny_file(kind="Q8_0"))
    ids = rng.integers(0, 297, 37)
    for length in (1, 2, 15, 16, 17, 36):
        cache, table = pages(model.decoder, 1, len(ids))
        cache.keys[:] = cache.values[:] = np.nan
        prompt = np.arange(length)
        first = model.decoder.logits(TokenBatch(ids[:length], prompt * 0, prompt, table, prompt), cache)
        zero = np.array([0])
        singles = [TokenBatch(ids[[i]], zero, np.array([i]), table, zero) for i in range(length, 37)]
        then = [model.decoder.logits(single, cache) for single in singles]
        np.testing.assert_array_equal(np.concatenate([first, *then]), model.logits(ids))


def test_rows_of_a_batch_are_their_own(tiny_file, rng):
    model = ds.load(tiny_file(kind="Q4_1"))
    prompts = [rng.integers(0, 297, length) for length in (3, 30, 1, 17, 9, 5)]
    sequences = [model.sequence() for _ in prompts]
    together = model.forward(list(zip(sequences, prompts, strict=True)))
    for row, prompt in enumerate(prompts):
        np.testing.assert_array_equal(together[row], model.logits(prompt)[-1])
    more = model.forward([(sequences[row], [token]) for row, token in ((4, 7), (1, 8), (0, 9))])
    for logits, row, token in zip(more, (4, 1, 0), (7, 8, 9), strict=True):
        np.testing.assert_array_equal(logits, model.logits(np.append(prompts[row], token))[-1])


def test_only_wanted_rows(tiny_file, rng):
    model = ds.load(tiny_file(kind="Q8_0"))
    ids = rng.integers(0, 297, 11)
    whole = model.logits(ids)
    for wanted in ([], [10], [0, 3], [9, 2, 2, 5, 7, 1]):
        cache, table = pages(model.decoder, 1, 11)
        some = model.decoder.logits(TokenBatch(ids, np.zeros(11, int), np.arange(11), table, np.array(wanted, int)), cache)
        np.testing.assert_array_equal(some, whole[wanted])


def test_a_model_that_the_step_does_not_serve_says_so(tiny_file):
    path = tiny_file(heads=6, groups=3, head_dim=6, hidden=48)
    ids = np.arange(9)
    model = ds.load(path)
    assert model.decoder.description == "layer by layer, float32 activations (hidden size 48 is not a multiple of 32)"
    np.testing.assert_array_equal(model.logits(ids), ds.load(path, dtype="float32").logits(ids))
    with pytest.raises(ModelError, match="dtype 'int8' is not supported: hidden size 48 is not a multiple of 32"):
        ds.load(path, dtype="int8")


def test_the_default_model_stays_near_float32(model, model_path):
    ids = model.tokenizer.encode("The three laws of thermodynamics say that energy is conserved in a closed system.")
    exact, ours = ds.load(model_path, dtype="float32").logits(ids), model.logits(ids)

    def log_softmax(x):
        return x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)

    p, q = log_softmax(exact.astype(np.float64)), log_softmax(ours.astype(np.float64))
    assert (np.exp(p) * (p - q)).sum(-1).mean() < 0.02


# The operator itself, against its reference and against a plain float64 pass.


def dense_pass(call, row):
    """Logits of one prompt in float64, without a cache, an engine or a shared line of code with the reference."""
    w, mine = call["weights"], call["sequence"] == row
    ids, count = call["token_ids"][mine], int(mine.sum())
    angle = np.arctan2(call["sin"][:count], call["cos"][:count]).astype(np.float64)
    turn = np.exp(1j * angle)[:, None]

    def norm(x, gamma):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + w.norm_eps) * gamma

    def product(x, panels):
        return x @ panels.rows().dense(np.float64)

    def rope(x):
        z = (x[..., ::2] + 1j * x[..., 1::2]) * turn
        return np.stack([z.real, z.imag], -1).reshape(x.shape)

    x = w.embedding.dense(np.float64).T[ids]
    hidden_later = np.triu(np.full((count, count), -np.inf), 1)
    for layer in w.layers:
        h = norm(x, layer.attention_norm)
        attention, block = layer.mixer, layer.feed_forward
        q = rope(product(h, attention.query).reshape(count, w.heads, -1))
        v, k = np.moveaxis(product(h, attention.values_keys).reshape(count, 2, w.kv_heads, -1), 1, 0)
        k, v = (np.repeat(a, w.heads // w.kv_heads, 1) for a in (rope(k), v))
        score = np.einsum("tnd,snd->nts", q, k) * w.scale + hidden_later
        share = np.exp(score - score.max(-1, keepdims=True))
        attended = np.einsum("nts,snd->tnd", share / share.sum(-1, keepdims=True), v)
        x = x + product(attended.reshape(count, -1), attention.output)
        h = norm(x, layer.ffn_norm)
        gate = product(h, block.gate)
        x = x + product(gate / (1 + np.exp(-gate)) * product(h, block.up), block.down)
    return product(norm(x, w.norm), w.logits)


def near(logits, expected, *, median, most):
    apart = np.abs(logits - expected)
    scale = np.abs(expected).max()
    assert np.median(apart) < median * scale and apart.max() < most * scale


@pytest.mark.parametrize("sizes", [Sizes(), Sizes(heads=6, kv_heads=1, head_dim=16, hidden=96), Sizes(heads=3, kv_heads=3)])
def test_the_reference_in_float64_is_a_plain_pass_but_for_bfloat16(sizes, rng):
    call = step(weights(sizes, Format.F32, rng), [20, 3, 33], rng, np.float64)
    logits = ds.decoder_forward(**call)
    assert logits.dtype == np.float64
    for row in range(3):
        near(logits[call["sequence"] == row], dense_pass(call, row), median=0.01, most=0.05)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("format_", [Format.F32, Format.BF16, Format.Q8_0], ids=lambda f: f.name)
def test_an_embedding_in_panels_changes_no_bit(format_, backend, rng):
    w = replace(weights(Sizes(), format_, rng), embedding_scale=1.5)
    call = step(replace(w, embedding=w.logits), [40, 1, 17], rng)
    other = copied(call) | {"weights": replace(w, embedding=w.logits.rows())}
    call["token_ids"][:2] = other["token_ids"][:2] = 49, 0
    logits = ds.decoder_forward(**call, backend=backend)
    assert np.array_equal(logits, ds.decoder_forward(**other, backend=backend)) and not np.isnan(logits).any()
    if backend == "cpu":
        with pytest.raises(ValueError, match="a token id is out of range"):  # the core's own bound, of outputs without padding
            cpu.forward(bind(**call)._replace(token_ids=np.array([50] * 58)))


def test_an_embedding_is_rows_or_panels(rng):
    w = weights(Sizes(), Format.F32, rng)
    for wrong in (None, w.norm, DeviceRows(torch.zeros(50, 64))):
        with pytest.raises(ValueError, match="^DecoderWeights: embedding must be a PackedWeight or a LinearPanels; got"):
            replace(w, embedding=wrong)
    with pytest.raises(ValueError, match="^DecoderWeights: logits must be of shape 64x49; got 64x50"):
        replace(w, embedding=matrix(64, 49, Format.Q8_0, rng))


def in_file(path):
    """The rows of a file's embedding."""
    checkpoint = Checkpoint(GgufFile(path))
    checkpoint.check()
    return checkpoint.weight("embedding").weight.whole()


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4"])
def test_an_embedding_that_is_the_logits_weight_is_held_once(tiny_file, kind, monkeypatch, rng):
    path = tiny_file(kind=kind, heads=8, head_dim=32, hidden=256)
    rows, ids = in_file(path), rng.integers(0, 300, 30)
    with monkeypatch.context() as forbidden:  # nothing is read whole before it is packed
        forbidden.delattr(FileWeight, "whole")
        model = ds.load(path)
    held = model.decoder.native_weights
    assert held.embedding is held.logits
    logits = model.logits(ids)
    model.decoder.native_weights = replace(held, embedding=rows)
    assert np.array_equal(model.logits(ids).view(np.uint32), logits.view(np.uint32))


@pytest.mark.parametrize(
    ("kind", "dtype", "made"),
    [("F32", "bfloat16", "BF16"), ("F16", "int8", "Q8_0"), ("BF16", "q4_0", "Q4_0")],
)
def test_an_embedding_with_other_values_than_the_logits_weight_stays_in_rows(tiny_file, kind, dtype, made):
    path = tiny_file(kind=kind)
    held = ds.load(path, dtype=dtype).decoder.native_weights
    assert held.logits.format == Format[made] and isinstance(held.embedding, PackedWeight)
    assert held.embedding.format == Format[kind] and np.array_equal(held.embedding.rows, in_file(path).rows)


def test_an_embedding_apart_from_the_logits_weight_stays_in_rows(tiny_file):
    path = tiny_file(kind="Q8_0", tied=False)
    held = ds.load(path).decoder.native_weights
    assert np.array_equal(held.embedding.rows, in_file(path).rows) and held.logits.format == Format.Q8_0


@pytest.mark.parametrize("format_", [Format.F32, Format.BF16, Format.Q8_0], ids=lambda f: f.name)
@pytest.mark.parametrize("lengths", [[1], [2, 2], [40, 1, 17], [300]], ids=str)
@pytest.mark.parametrize("slabs", [1, 2, 3])
def test_equals_the_reference(lengths, format_, slabs, rng):
    call = step(weights(Sizes(), format_, rng), lengths, rng, slabs=slabs)
    other = copied(call)
    logits, expected = ds.decoder_forward(**call), ds.decoder_forward(**other, backend="reference")
    assert logits.dtype == expected.dtype == np.float32
    near(logits, expected, median=1e-3, most=0.06)
    for name in ("keys", "values"):  # also which places have been written
        ours, theirs = (c[name].astype(np.float32) for c in (call, other))
        assert np.array_equal(np.isnan(ours), np.isnan(theirs))
        assert np.nanmax(np.abs(ours - theirs)) < 0.1 and np.nanmean(np.abs(ours - theirs)) < 2e-3


def test_slabs_change_no_bit(rng):
    call = step(weights(Sizes(), Format.Q8_0, rng), [300, 40], rng)
    pages = call["keys"].shape[2]
    cut = copied(call)
    for name in ("keys", "values"):  # page p is page p % 2 of slab p // 2
        layers, groups, _, *rest = call[name].shape
        slabs = call[name].reshape(layers, groups, pages // 2, 2, *rest)
        cut[name] = np.ascontiguousarray(np.moveaxis(slabs, 2, 0))
    assert np.array_equal(ds.decoder_forward(**cut), ds.decoder_forward(**call))
    for name in ("keys", "values"):
        joined = np.moveaxis(cut[name], 0, 2).reshape(call[name].shape)
        assert np.array_equal(joined.view(np.uint16), call[name].view(np.uint16))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_prompt_in_parts_is_the_prompt(backend, rng):
    whole = step(weights(Sizes(), Format.F32, rng), [21], rng)
    if backend == "reference":  # in float64: the order of NumPy's sums follows the shapes
        whole |= {name: whole[name].astype(np.float64) for name in ("sin", "cos")}
    parts = copied(whole)
    expected = ds.decoder_forward(**whole, backend=backend)
    for first, last in ((0, 7), (7, 8), (8, 21)):
        some = {name: whole[name][first:last] for name in ("token_ids", "sequence", "positions")}
        logits = ds.decoder_forward(**{**parts, **some, "wanted": [last - first - 1]}, backend=backend)
        if backend == "cpu":
            assert np.array_equal(logits[0], expected[last - 1])
        else:
            assert_close(logits[0], expected[last - 1])


@pytest.mark.parametrize("lengths", [[1], [2, 2], [40, 1, 17]], ids=str)
@pytest.mark.parametrize("wanted", [None, []])
def test_hidden_states_are_what_the_logits_weight_reads(lengths, wanted, rng):
    call = step(weights(Sizes(), Format.F32, rng), lengths, rng)
    call |= {} if wanted is None else {"wanted": wanted}
    hidden = np.full((sum(lengths), call["weights"].hidden), np.nan, np.float32)
    others = [copied(call) for _ in range(2)]
    logits, expected = ds.decoder_forward(**call, hidden=hidden), np.empty_like(hidden)
    assert np.array_equal(logits, ds.decoder_forward(**others[0]))
    assert np.array_equal(call["keys"].view(np.uint16), others[0]["keys"].view(np.uint16))
    w = call["weights"]
    assert np.array_equal(logits, ds.linear(hidden[call["wanted"]], w.logits) * np.float32(w.logits_scale))
    ds.decoder_forward(**others[1], hidden=expected, backend="reference")
    near(hidden, expected, median=1e-3, most=0.06)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_no_logits_wanted(backend, rng):
    call = step(weights(Sizes(), Format.Q8_0, rng), [3], rng)
    logits = ds.decoder_forward(**{**call, "wanted": []}, backend=backend)
    assert logits.shape == (0, 50) and not np.isnan(call["keys"].astype(np.float32)).all()


def test_torch_caches_are_written_in_place(rng):
    call = step(weights(Sizes(), Format.Q8_0, rng), [5], rng)
    other = copied(call)
    for name in ("keys", "values"):
        other[name] = torch.from_numpy(other[name].view(np.int16)).view(torch.bfloat16)
    logits = ds.decoder_forward(**other)
    assert isinstance(logits, torch.Tensor)
    assert np.array_equal(logits.numpy(), ds.decoder_forward(**call))
    assert np.array_equal(other["keys"].view(torch.int16).numpy(), call["keys"].view(np.int16))


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("weights must be a DecoderWeights; got None", {"weights": None}),
        (r"token_ids must be in \[0, 50\); got 0 to 50", {"token_ids": [0, 50, 1]}),
        (r"token_ids must be in \[0, 50\); got -1 to 3", {"token_ids": [-1, 3, 1]}),
        ("token_ids must be integers of rank 1; got float64 3", {"token_ids": [0.5, 1, 2]}),
        ("sequence must be of shape 3; got int64 2", {"sequence": [0, 0]}),
        (r"sequence must be in \[0, 1\); got 0 to 1", {"sequence": [0, 1, 0]}),
        (r"positions must be in \[0, 3\); got 1 to 3", {"positions": [1, 2, 3]}),
        ("positions must be different for the tokens of a sequence; got 1 twice for sequence 0", {"positions": [1, 0, 1]}),
        ("page_table must be such that every token has a place of its own; got page 0 for position 0 of sequence 0 and "
         "position 0 of sequence 1", {"sequence": [0, 1, 0], "positions": [0, 0, 1], "page_table": [[0], [0]]}),
        (r"wanted must be in \[0, 3\); got 3 to 3", {"wanted": [3]}),
        (r"page_table must be in \[0, 1\) where it is read; got int64 1x1", {"page_table": [[1]]}),
        (r"sin must be float32 or float64; got int64 3x16", {"sin": np.zeros((3, 16), int)}),
        (r"sin must be of shape \(P, 16\); got float32 3x8", {"sin": np.zeros((3, 8), np.float32)}),
        ("cos must be float32; got float64 3x16", {"cos": np.zeros((3, 16))}),
        ("keys must be bfloat16 or float16 or int8; got float32 1x2", {"keys": np.zeros((2, 2, 1, 16, 16, 2), np.float32)}),
        ("values must be of shape 1x2x2x1x8x32x2; got bfloat16 1", {"values": np.zeros((2, 2, 2, 8, 32, 2), BFLOAT16)}),
        ("values must be writeable and contiguous", {"values": np.zeros((2, 2, 2, 8, 32, 2), BFLOAT16)[:, :, ::2]}),
        ("hidden must be float32; got float64 3x64", {"hidden": np.zeros((3, 64))}),
        ("hidden must be of shape 3x64; got float32 2x64", {"hidden": np.zeros((2, 64), np.float32)}),
        ("hidden must be writeable and contiguous", {"hidden": np.zeros((64, 3), np.float32).T}),
        ("backend must be able to serve the call; got 'cpu', which has no float64",
         {"sin": np.zeros((3, 16)), "cos": np.zeros((3, 16)), "backend": "cpu"}),
    ],
)  # fmt: skip
def test_refusals(message, changes, rng):
    call = step(weights(Sizes(), Format.F32, rng), [3], rng)
    with pytest.raises(ValueError, match=f"^decoder_forward: {message}"):
        ds.decoder_forward(**{**call, **changes})
    assert np.isnan(call["keys"]).all() and np.isnan(call["values"]).all()


@pytest.mark.parametrize("as_torch", [False, True])
def test_keys_and_values_have_memory_of_their_own(as_torch, rng):
    call = step(weights(Sizes(), Format.F32, rng), [3], rng)
    keys = call["keys"]
    shared = {"keys": keys, "values": keys.reshape(call["values"].shape)}
    given = {name: like(torch.empty(0), array) for name, array in shared.items()} if as_torch else shared
    with pytest.raises(ValueError, match="^decoder_forward: keys must be apart from values in memory; got "):
        ds.decoder_forward(**{**call, **given})
    assert np.isnan(keys).all()


def test_sizes_that_the_kernel_lacks_take_the_reference(rng):
    call = step(weights(Sizes(head_dim=8), Format.F32, rng), [4], rng)
    assert np.isfinite(ds.decoder_forward(**copied(call))).all()
    with pytest.raises(ValueError, match="got 'cpu', which cannot: head size 8 is not a multiple of 16"):
        ds.decoder_forward(**call, backend="cpu")


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("layers must be one or more; got none", {"layers": ()}),
        ("layers must be a sequence of LayerWeights; got None", {"layers": None}),
        (r"layers must be a sequence of LayerWeights; got \[None\]", {"layers": [None]}),
        ("heads must be a multiple of kv_heads 3; got 4", {"kv_heads": 3}),
        ("heads, kv_heads and head_dim must be integers > 0", {"heads": 0}),
        ("scale must be a finite number; got nan", {"scale": float("nan")}),
        ("norm_eps must be a finite number >= 0; got -1.0", {"norm_eps": -1.0}),
        ("norm must be float32 of shape 64; got float64 64", {"norm": np.ones(64)}),
        (r"layers\[0\].mixer.query must be of shape 64x64; got 64x128", {"head_dim": 16}),
    ],
)
def test_refused_weights(message, changes, rng):
    with pytest.raises(ValueError, match=f"^DecoderWeights: {message}"):
        replace(weights(Sizes(), Format.F32, rng), **changes)


def test_a_rope_table_that_is_too_short_grows(tiny_file, rng):
    """Two threads that lengthen the table may leave the shorter one in the decoder."""
    model = ds.load(tiny_file(context=2000))
    ids = rng.integers(0, 297, 1100)
    whole = model.logits(ids)
    model.decoder._ropes = [tuple(table[:8] for table in rope) for rope in model.decoder._ropes]
    np.testing.assert_array_equal(model.logits(ids), whole)


def test_layers_that_vanish_while_they_are_read():
    decoders = (native_model_calls.decoder(Source(seed)) for seed in range(99))
    made = next(m for m in decoders if len(m["layers"]) == 2 and m["layers"][0]["attention_norm"] is not None)
    layers = made["layers"]
    first = layers[0]
    first["attention_norm"] = Vanishing(first["attention_norm"], layers)
    _native.Decoder(**made)
    assert not layers
