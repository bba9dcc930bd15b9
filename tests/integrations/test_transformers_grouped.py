"""The attention of models with GGUF blocks, against transformers' sdpa."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from decodestep.integrations.transformers import LatentLayer, grouped_attention
from decodestep.integrations.transformers.latent_layer import grow_in_place
from support.latent_models import assert_close

pytestmark = pytest.mark.usefixtures("one_torch_thread")

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 0.02}  # of bfloat16, sdpa rounds the weights too


def module(groups=1, **fields):
    return SimpleNamespace(**({"num_key_value_groups": groups, "is_causal": True, "config": SimpleNamespace()} | fields))


def tensors(generator, batch, heads, groups, queries, keys, width, values, dtype=torch.float32, room=0):
    """A query, and keys and values that are the first positions of longer buffers."""
    shapes = (batch, heads, queries, width), (batch, groups, keys + room, width), (batch, groups, keys + room, values)
    query, key, value = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return query, key[:, :, :keys], value[:, :, :keys]


def both(monkeypatch, of, *arguments, **options):
    """The results of both, and whether sdpa was left aside."""
    served = []
    monkeypatch.setattr(grouped_attention, "sdpa_attention_forward", lambda *a, **k: served.append(1) or (a[1] * 0, None))
    ours, _ = grouped_attention.attention(of, *arguments, **options)
    theirs, _ = sdpa_attention_forward(of, *arguments, **options)
    return ours, theirs, not served


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 8), st.integers(0, 40)),
    st.sampled_from([(4, 4), (16, 16), (64, 64), (6, 10)]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from(["none", "causal", "left padding", "window", "additive", "any"]),
    st.integers(0, 9),
)
def test_few_queries_as_sdpa(sizes, widths, dtype, mask, seed):
    generator = torch.Generator().manual_seed(seed)
    batch, groups, each, queries, more = sizes
    keys = queries + more
    arguments = tensors(generator, batch, groups * each, groups, queries, keys, *widths, dtype, room=seed % 3)
    causal = torch.arange(keys) <= torch.arange(queries)[:, None] + more
    seen = causal.expand(batch, 1, -1, -1).clone()
    if mask == "left padding":
        seen[-1, :, :, : more // 2] = False
    elif mask == "window":
        seen &= torch.arange(keys) > torch.arange(queries)[:, None] + more - 4
    elif mask == "any":
        seen &= torch.rand(batch, 1, queries, keys, generator=generator) < 0.5
        seen[..., 0] = True
    given_mask = (
        None if mask == "none" else torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype) if mask == "additive" else seen
    )
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        ours, theirs, alone = both(patch, module(each), *arguments, given_mask, scaling=0.3)
    assert alone and ours.dtype == dtype
    assert (ours.float() - theirs.float()).abs().max() <= BOUNDS[dtype] * max(1, float(theirs.abs().max()))


def test_a_query_that_sees_nothing_has_zeros(monkeypatch):
    arguments = tensors(torch.Generator().manual_seed(0), 2, 4, 2, 1, 5, 8, 8)
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    mask[1] = False
    ours, _, alone = both(monkeypatch, module(2), *arguments, mask, scaling=1.0)
    assert alone and (ours[1] == 0).all() and (ours[0] != 0).all()


@pytest.mark.parametrize(
    "change",
    [
        {"dropout": 0.5},
        {"scaling": None},
        {"position_bias": torch.zeros(1, 4, 1, 5)},
        {"softcap": 30.0},
        {"output_attentions": True},
        "many queries",
        "gradients",
        "autocast",
        "a mask of heads",
        "scores in a mask",
        "keys in another order",
        "another dtype",
        "an odd width",
    ],
    ids=str,
)
def test_what_is_left_to_sdpa(monkeypatch, change):
    queries = 9 if change == "many queries" else 1
    width = 7 if change == "an odd width" else 8
    query, key, value = tensors(torch.Generator().manual_seed(0), 1, 4, 2, queries, 5 + queries, width, 8)
    mask = None
    if change == "gradients":
        query.requires_grad_(True)
    elif change == "a mask of heads":
        mask = torch.ones(1, 4, 1, key.shape[2], dtype=torch.bool)
    elif change == "scores in a mask":
        mask = torch.full((1, 1, 1, key.shape[2]), -1.5)
    elif change == "keys in another order":
        key = key.transpose(1, 2).contiguous().transpose(1, 2)
    elif change == "another dtype":
        query, key, value = query.half(), key.half(), value.half()
    left = []
    monkeypatch.setattr(grouped_attention, "sdpa_attention_forward", lambda *a, **k: left.append(k) or (None, None))
    options = {"dropout": 0.0, "scaling": 1.0, "sliding_window": 4} | (change if isinstance(change, dict) else {})
    with torch.autocast("cpu", enabled=change == "autocast"):
        grouped_attention.attention(module(2), query, key, value, mask, **options)
    assert left == [options]


@torch.no_grad()
def test_filled_layers_of_a_cache_grow_in_place():
    generator = torch.Generator().manual_seed(0)
    caches = [DynamicCache(), DynamicCache()]
    parts = [[torch.randn(2, 3, n, 4, generator=generator) for _ in range(2)] for n in (5, 1, 70)]
    for i, part in enumerate(parts):
        for cache in caches:
            cache.update(*part, 0)
        if i == 0:
            grow_in_place(torch.nn.Identity(), (), {"past_key_values": caches[1]})
    assert type(caches[1].layers[0]) is LatentLayer
    assert_close(caches[1].layers[0].keys, caches[0].layers[0].keys)
    assert torch.equal(caches[1].layers[0].values, caches[0].layers[0].values)
