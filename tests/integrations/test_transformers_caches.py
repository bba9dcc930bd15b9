"""accelerate: caches of latents hold what transformers' own hold, whatever is done to them."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from decodestep.integrations.transformers import LatentLayer, accelerate
from support.latent_models import assert_close, decode, prompt

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_a_cache_is_reordered_selected_repeated_and_cropped(deepseek):
    ids = prompt(3)

    def run():
        cache = DynamicCache(config=deepseek.config)
        outputs = [decode(deepseek, ids, torch.ones_like(ids), 4, cache, sizes=(1,))]
        length = cache.get_seq_length()
        cache.reorder_cache(torch.tensor([2, 0, 0]))
        cache.crop(-3)
        twin = copy.deepcopy(cache)
        shallow = copy.copy(cache.layers[0])
        new = prompt(3, 2, seed=1)
        outputs.append(deepseek(new, past_key_values=cache)[0])
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([1, 4]))
        outputs.append(deepseek(prompt(2, 1, seed=2), past_key_values=cache)[0].sum(0, keepdim=True).repeat(3, 1, 1))
        outputs.append(deepseek(prompt(3, 1, seed=3), past_key_values=twin)[0])
        shallow.update(*(torch.ones(3, 1, 1, t.shape[-1]) for t in (shallow.keys, shallow.values)))
        kept = cache.layers[0].keys[:, :, :length]
        cache.reset()
        outputs.append(deepseek(ids, past_key_values=cache)[0])
        assert not (kept[:, :, -1] == 1).all()
        return torch.cat(outputs, 1)

    with torch.no_grad():
        expected = run()
        with accelerate(deepseek):
            assert_close(run(), expected)


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(["grow", "crop", "reorder", "keep", "copy", "reset", "inference", "gradients"]), max_size=12),
    st.integers(0, 99),
)
@torch.no_grad()
def test_a_latent_layer_holds_what_a_dynamic_layer_holds(actions, seed):
    generator = torch.Generator().manual_seed(seed)
    caches = [DynamicCache(), DynamicCache()]
    caches[1].layer_class_to_replicate = LatentLayer
    held, kept = [], []
    for action in ["grow", *actions, "grow"]:
        length = caches[0].get_seq_length()
        new = torch.randn(2, 1, int(torch.randint(1, 70, (), generator=generator)), 5, generator=generator)
        for cache in caches:
            if action == "grow" or not length:
                cache.update(new, new[..., : seed % 4], 0)
            elif action == "inference":
                with torch.inference_mode():
                    cache.update(new.clone(), new[..., : seed % 4].clone(), 0)
            elif action == "gradients":
                with torch.enable_grad():
                    kept += [(each, each.clone(), each._version) for each in cache.update(new, new[..., : seed % 4], 0)]
            elif action == "crop":
                cache.crop(-min(length - 1, new.shape[2]))
            elif action == "reorder":
                cache.reorder_cache(torch.tensor([1, 1]))
            elif action == "reset":
                cache.reset()
            elif action == "keep":
                held.append((copy.copy(cache.layers[0]), cache.layers[0].keys.clone()))
                held[-1][0].update(new, new[..., : seed % 4])
            else:
                cache.layers[0] = copy.deepcopy(cache.layers[0])
        layers = [cache.layers[0] for cache in caches]
        if layers[0].is_initialized:
            assert type(layers[1]) is LatentLayer
            assert torch.equal(layers[0].keys, layers[1].keys)
            assert torch.equal(layers[0].values, layers[1].values)
            assert layers[1]._room or action not in ("grow", "inference", "gradients")
        assert all(torch.equal(one, as_it_was) and one._version == version for one, as_it_was, version in kept)


def test_offloaded_caches_keep_their_layers(deepseek, monkeypatch):
    """A buffer that stays on the device would leave nothing to save."""
    cache = DynamicCache(config=deepseek.config)
    cache.offloading = True  # which needs CUDA if the constructor is told to
    monkeypatch.setattr(cache, "update", lambda keys, values, layer, **_: cache.layers[layer].update(keys, values))
    with torch.no_grad(), accelerate(deepseek):
        deepseek(prompt(), past_key_values=cache)
    assert {type(layer) for layer in cache.layers} == {DynamicLayer}


@pytest.mark.parametrize("batches", [(1, 2), (2, 1)])
@pytest.mark.parametrize("cropped", [0, 3])
def test_a_cache_of_another_batch_is_refused_as_by_transformers(deepseek, batches, cropped):
    """It was spread over the rows of the new batch, without an error."""
    held, new = (prompt(batch, 3) for batch in batches)

    def run():
        cache = DynamicCache(config=deepseek.config)
        deepseek(held, past_key_values=cache)
        cache.crop(-cropped)
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            deepseek(new, past_key_values=cache)

    with torch.no_grad():
        run()
        with accelerate(deepseek):
            run()


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_a_latent_layer_of_two_dtypes_keeps_the_wider(dtypes):
    layers = DynamicLayer(), LatentLayer()
    generator = torch.Generator().manual_seed(0)
    for dtype in (*dtypes, *dtypes):
        new = torch.randn(1, 1, 3, 4, generator=generator).to(dtype)
        (expected, _), (actual, _) = [layer.update(new, new) for layer in layers]
        assert actual.dtype == expected.dtype and torch.equal(actual, expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))], ids=["copy", "pickle"])
def test_a_copied_layer_holds_only_its_positions(copied):
    """The rest of its buffers is memory of whatever was there before, which has no place in a file."""
    layer, new = LatentLayer(), torch.randn(2, 1, 3, 4)
    layer.update(new, new)
    twin = copied(layer)
    for held in (twin.keys, twin.values):
        assert torch.equal(held, new) and held.untyped_storage().nbytes() == new.nbytes
    assert torch.equal(twin.update(new + 1, new)[0], torch.cat([new, new + 1], 2))
    assert torch.equal(layer.keys, new)


def test_a_latent_layer_with_gradients():
    new = torch.randn(1, 1, 3, 4, requires_grad=True)
    cache = DynamicCache()
    cache.layer_class_to_replicate = LatentLayer
    cache.update(new.detach(), new.detach(), 0)
    keys, values = cache.update(new, new, 0)
    (keys.sum() + values.square().sum()).backward()
    assert torch.allclose(new.grad, 1 + 2 * new.detach())
