"""accelerate: masks as the keys that each query sees; those that are more than that go the stock way."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from decodestep.integrations.transformers import accelerate, visible_keys
from support.latent_models import assert_close, holes, model_of, prompt

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@settings(max_examples=200)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 7), st.integers(0, 2**32 - 1), st.sampled_from([0, 0.5, 1]))
def test_masks_become_sequences_and_lengths(batch, queries, keys, seed, density):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(batch, queries, keys, generator=generator) <= density
    if seed % 2:  # causal, after padding
        mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries) & mask[:, :1]
    found = visible_keys.keys_of_mask(mask)
    for query in range(batch * queries):
        sequence, length = found.sequence[query], found.lengths[query]
        seen = mask.reshape(-1, keys)[query].nonzero().flatten().tolist()
        assert found.rows[sequence] == query // queries
        positions = range(keys) if found.positions is None else found.positions[sequence]
        if query in found.blind:
            assert not seen and length == 1
        else:
            assert sorted(positions[:length]) == seen


def test_a_mask_that_is_written_to_is_read_again():
    mask = torch.ones(1, 1, 1, 6, dtype=torch.bool)
    assert visible_keys.of_mask(mask, 1, 0).lengths.tolist() == [6]
    assert visible_keys.of_mask(mask, 2, 0) is visible_keys.of_mask(mask, 3, 0)
    mask[..., 0] = False
    assert visible_keys.of_mask(mask, 2, 0).lengths.tolist() == [5]
    with torch.inference_mode():
        mask = torch.ones(1, 1, 1, 6, dtype=torch.bool)
        assert visible_keys.of_mask(mask, 1, 0).lengths.tolist() == [6]
        mask[..., :2] = False
        assert visible_keys.of_mask(mask, 2, 0).lengths.tolist() == [4]


@pytest.mark.parametrize(
    "write",
    [
        lambda mask, hidden: mask.numpy().put(hidden, False),
        lambda mask, hidden: mask.data.put_(hidden, torch.zeros(len(hidden), dtype=torch.bool)),
    ],
    ids=["numpy", "data"],
)
def test_a_mask_is_read_at_every_step(deepseek, absorbed, write):
    """Writes through NumPy and through `data` do not change a tensor's version."""
    ids = prompt(1, 20)

    def run():
        mask, logits = torch.ones(1, 1, 1, 21, dtype=torch.bool), []
        for hidden in ([], [3, 4, 5]):
            cache = DynamicCache(config=deepseek.config)
            deepseek(ids, past_key_values=cache)
            write(mask, torch.tensor(hidden, dtype=torch.long))
            logits.append(deepseek(prompt(1, 1), past_key_values=cache, attention_mask=mask).logits)
        return torch.cat(logits)

    with torch.no_grad():
        expected = run()
        with accelerate(deepseek):
            assert_close(run(), expected)
    assert len(absorbed) == 4


def test_a_mask_is_read_for_every_model(deepseek, absorbed):
    """As when a draft model and its target take turns with one mask, written to through `data`."""
    ids, new = prompt(1, 20), prompt(1, 1)

    def run():
        mask, logits = torch.ones(1, 1, 1, 21, dtype=torch.bool), []
        for model, hidden in ((deepseek, 3), (twin, 9), (deepseek, 11)):
            cache = DynamicCache(config=model.config)
            model(ids, past_key_values=cache)
            mask.data[..., hidden] = False
            logits.append(model(new, past_key_values=cache, attention_mask=mask).logits)
        return torch.cat(logits)

    twin = copy.deepcopy(deepseek)
    with torch.no_grad():
        expected = run()
        with accelerate(deepseek), accelerate(twin):
            assert_close(run(), expected)
    assert len(absorbed) == 6


def test_masks_that_add_scores_go_the_stock_way(deepseek, absorbed):
    """A 4-D mask of the user's own: one that only removes positions is served, one that biases is handed over."""
    ids = prompt(1, 24)
    smallest = torch.finfo(torch.float32).min
    hidden = torch.zeros(1, 1, 1, 25).index_fill(-1, torch.tensor([2, 9]), smallest)
    for mask in (hidden, torch.randn(1, 1, 1, 25)):

        def run(mask=mask):
            cache = DynamicCache(config=deepseek.config)
            deepseek(ids, past_key_values=cache)
            return deepseek(prompt(1, 1), attention_mask=mask, past_key_values=cache).logits

        with torch.no_grad():
            expected = run()
            with accelerate(deepseek):
                before = len(absorbed)
                assert_close(run(), expected)
        assert (len(absorbed) > before) == (mask is hidden)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_masks_of_a_dtype_that_sdpa_refuses_are_refused(deepseek, dtype):
    """Also in a step on the latents, whose result would otherwise depend on the number of queries."""
    ids = prompt(1, 24)
    mask = torch.zeros(1, 1, 1, 25, dtype=dtype)
    with torch.no_grad(), accelerate(deepseek):
        cache = DynamicCache(config=deepseek.config)
        deepseek(ids, past_key_values=cache)
        with pytest.raises(RuntimeError, match="attn_mask dtype"):
            deepseek(prompt(1, 1), attention_mask=mask, past_key_values=cache)


def test_a_twin_with_a_mask_of_its_own_stays_right():
    """GLM-5-Next's attention makes a mask of scores for any name but sdpa, for modules without latents too."""
    model, ids = model_of("glm5_next"), prompt()
    twin = type(model)(model.config).eval()
    with torch.no_grad():
        expected = twin(ids, attention_mask=holes(ids))[0]
        with accelerate(model):
            assert_close(twin(ids, attention_mask=holes(ids))[0], expected)
