"""The decoder whose step is one native call, against a dense pass with the same roundings, and to the bit against itself."""

from __future__ import annotations

import numpy as np
import pytest

import decodestep as ds
from builds import printed_under
from decodestep import _native
from decodestep._base.arrays import BFLOAT16
from decodestep.models import ModelError
from decodestep.models.gguf_file import GgufFile
from decodestep.models.step import PANEL_FORMATS
from decodestep.ops.linear import Format, LinearPanels, PackedWeight, reference
from dense_decoder import dense_logits, values_of

NATIVE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0")


def product_as(dtype):
    """x times a tensor as the step makes it: the weight packed for `dtype`, x rounded to bytes where the panels want them."""

    def product(x, tensor):
        rows, kind = tensor.data.reshape(tensor.shape[0], -1), tensor.type.name
        native = kind in NATIVE
        if not native:
            rows, kind = values_of(tensor).astype(np.float32).view(np.uint8).reshape(tensor.shape[0], -1), "F32"
        weight = PackedWeight(rows, Format[kind], tensor.shape[1])
        return reference.linear(x, LinearPanels.pack(weight, PANEL_FORMATS[dtype] if native else Format.Q8_0))

    return product


def check(path, dtype, rows=3, tokens=20):
    """Most logits agree to float32's accuracy; where a rounding to bytes or bfloat16 fell to the other side, to theirs.

    One that falls so at a row's beginning shows in all of its tokens, so there are several rows.
    """
    model, apart, scale = ds.load(path, dtype=dtype), [], 0
    assert model.decoder.description == "one native call a step"
    for ids in np.random.default_rng(2).integers(0, 297, (rows, tokens)):
        logits = model.logits(ids)
        apart.append(np.abs(logits - dense_logits(GgufFile(path), ids, product=product_as(dtype), attention=BFLOAT16)))
        scale = max(scale, np.abs(logits).max())
    assert np.median(apart) < 1e-3 * scale and np.max(apart) < 0.03 * scale


@pytest.mark.parametrize("dtype", PANEL_FORMATS)
@pytest.mark.parametrize("kind", [*NATIVE, "Q5_1"])
def test_equals_a_dense_pass_with_its_roundings(tiny_file, kind, dtype):
    check(tiny_file(kind=kind, tied=kind != "F16"), dtype)


@pytest.mark.parametrize(
    ("heads", "groups", "head_dim", "hidden"), [(4, 4, 16, 64), (8, 1, 32, 96), (6, 3, 48, 32), (14, 1, 64, 32), (2, 1, 96, 64)]
)
def test_any_grouping(tiny_file, heads, groups, head_dim, hidden):
    check(tiny_file(heads=heads, groups=groups, head_dim=head_dim, hidden=hidden), "auto")


def test_long_sequences_pass_chunks(tiny_file):
    check(tiny_file(context=700), "auto", rows=1, tokens=600)


def run(model, ids, cuts, rows=1, row=0):
    """Every token's logits, the tokens handed over in parts."""
    cache = model.decoder.new_cache([len(ids)] * rows)
    parts = [part for part in np.split(np.arange(len(ids)), cuts) if len(part)]
    logits = [model.decoder.logits(ids[p], np.full(len(p), row), p, cache, np.arange(len(p))) for p in parts]
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


@pytest.mark.skipif(_native.isa() == "baseline", reason="rounds a product and its sum one after the other")
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("dtype", PANEL_FORMATS)
def test_every_build_with_fused_multiply_add_gives_the_same_bits(model_path, dtype, isa):
    """On the default model, where a bit that differs anywhere soon shows everywhere."""
    ids = [7 * i % 40000 for i in range(64)]
    code = f"import decodestep as ds; print(ds.load({str(model_path)!r}, dtype={dtype!r}).logits({ids})[::9].tobytes().hex())"
    here = ds.load(model_path, dtype=dtype).logits(ids)[::9]
    assert bytes.fromhex(printed_under(isa, code)) == here.tobytes()


def test_what_a_page_held_before_does_not_matter(tiny_file, rng):
    model = ds.load(tiny_file(kind="Q8_0"))
    ids = rng.integers(0, 297, 37)
    for length in (1, 2, 15, 16, 17, 36):
        cache = model.decoder.new_cache([len(ids)])
        for array in cache.arrays:
            array[:] = np.nan
        prompt = np.arange(length)
        first = model.decoder.logits(ids[:length], prompt * 0, prompt, cache, prompt)
        then = [model.decoder.logits(ids[[i]], np.array([0]), np.array([i]), cache, np.array([0])) for i in range(length, 37)]
        np.testing.assert_array_equal(np.concatenate([first, *then]), model.logits(ids))


def test_rows_of_a_batch_are_their_own(tiny_file, rng):
    model = ds.load(tiny_file(kind="Q4_1"))
    prompts = [rng.integers(0, 297, length) for length in (3, 30, 1, 17, 9, 5)]
    cache = model.decoder.new_cache([40] * len(prompts))
    sequence = np.repeat(np.arange(len(prompts)), [len(p) for p in prompts])
    positions = np.concatenate([np.arange(len(p)) for p in prompts])
    ends = np.cumsum([len(p) for p in prompts]) - 1
    together = model.decoder.logits(np.concatenate(prompts), sequence, positions, cache, ends)
    for row, prompt in enumerate(prompts):
        np.testing.assert_array_equal(together[row], model.logits(prompt)[-1])
    rows = np.array([4, 1, 0])
    more = model.decoder.logits(np.array([7, 8, 9]), rows, np.array([9, 30, 3]), cache, np.arange(3))
    for logits, row, token in zip(more, rows, (7, 8, 9), strict=True):
        np.testing.assert_array_equal(logits, model.logits(np.append(prompts[row], token))[-1])


def test_only_wanted_rows(tiny_file, rng):
    model = ds.load(tiny_file(kind="Q8_0"))
    ids = rng.integers(0, 297, 11)
    whole = model.logits(ids)
    for wanted in ([], [10], [0, 3], [9, 2, 2, 5, 7, 1]):
        cache = model.decoder.new_cache([11])
        some = model.decoder.logits(ids, np.zeros(11, int), np.arange(11), cache, np.array(wanted, int))
        np.testing.assert_array_equal(some, whole[wanted])


def test_a_model_that_the_step_does_not_serve_says_so(tiny_file):
    path = tiny_file(heads=6, groups=3, head_dim=6, hidden=32)
    ids = np.arange(9)
    model = ds.load(path)
    assert model.decoder.description == "layer by layer, float32 activations (head size 6 is no multiple of 16)"
    np.testing.assert_array_equal(model.logits(ids), ds.load(path, dtype="float32").logits(ids))
    with pytest.raises(ModelError, match="dtype 'int8' is not supported: head size 6 is no multiple of 16"):
        ds.load(path, dtype="int8")


def test_the_default_model_stays_near_float32(model, model_path):
    ids = model.tokenizer.encode("The three laws of thermodynamics say that energy is conserved in a closed system.")
    exact, ours = ds.load(model_path, dtype="float32").logits(ids), model.logits(ids)

    def log_softmax(x):
        return x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)

    p, q = log_softmax(exact.astype(np.float64)), log_softmax(ours.astype(np.float64))
    assert (np.exp(p) * (p - q)).sum(-1).mean() < 0.02
