"""accelerate: transformers' models with latent attention, accelerated against stock by their logits.

Equal tokens would prove little: an attention that leaves out its sinks moves the logits far and keeps greedy tokens.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
from pathlib import Path
from types import MethodType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AttentionInterface, DynamicCache, StaticCache
from transformers.cache_utils import DynamicLayer

import processes
from decodestep.integrations.transformers import (
    LatentLayer,
    accelerate,
    acceleration,
    attention,
    few_experts,
    few_rows,
    huge_pages,
    visible_keys,
)
from decodestep.integrations.transformers.absorbed import attend_absorbed as on_latents
from latent_models import FAMILIES, VOCABULARY, model_of

pytestmark = pytest.mark.usefixtures("one_torch_thread")

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}  # of the largest magnitude


@pytest.fixture
def absorbed(monkeypatch):
    """The numbers of queries of the calls that were served on the latents."""
    calls = []
    serve = attention.attend_absorbed
    monkeypatch.setattr(attention, "attend_absorbed", lambda *given: calls.append(given[1].shape[2]) or serve(*given))
    return calls


@pytest.fixture(scope="module")
def model():
    return model_of("deepseek_v3")


def prompt(batch=2, length=40, seed=0):
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def decode(model, ids, mask, steps, cache=None, sizes=(1, 2, 1)):
    """The outputs of a prompt and of steps of 1 and 2 tokens, whose ids do not depend on the model."""
    cache = DynamicCache(config=model.config) if cache is None else cache
    outputs = [model(ids, attention_mask=mask, past_key_values=cache)[0]]
    for step in range(steps):
        new = torch.full((len(ids), sizes[step % len(sizes)]), 3 + step % (VOCABULARY - 3))
        mask = torch.cat([mask, torch.ones_like(new)], 1)
        outputs.append(model(new, attention_mask=mask, past_key_values=cache)[0])
    return torch.cat(outputs, 1)


def assert_close(actual, expected):
    """Within the tolerance, also where nothing is seen; NaN nowhere."""
    assert actual.isfinite().all()
    error = (actual - expected).abs().max() / expected.abs().max()
    assert error <= TOLERANCE[actual.dtype], float(error)


def holes(ids, left=7):
    mask = torch.ones_like(ids)
    mask[1:, :left] = 0
    mask[-1, left + 4 : left + 6] = 0
    return mask


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_every_family(family, absorbed):
    model, ids = model_of(family), prompt()
    mask = holes(ids)
    expected = decode(model, ids, mask, 9)
    with accelerate(model):
        actual = decode(model, ids, mask, 9)
    assert len(absorbed) >= 9 and max(absorbed) == 2
    assert_close(actual, expected)
    assert torch.equal(decode(model, ids, mask, 9), expected)


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v32"])
def test_logits_of_every_family_in_bfloat16(family, absorbed):
    model, ids = model_of(family, dtype=torch.bfloat16, index_topk=64), prompt()
    expected = decode(model, ids, holes(ids), 5)
    with accelerate(model):
        actual = decode(model, ids, holes(ids), 5)
    assert absorbed
    assert_close(actual, expected)


def test_the_choice_of_a_sparse_attention_matters():
    """What its test above proves: without the indices the logits are others."""
    model, ids = model_of("deepseek_v32"), prompt()
    narrow = decode(model, ids, torch.ones_like(ids), 3)
    for module in model.modules():
        if hasattr(module, "index_topk"):
            module.index_topk = 1000
    wide = decode(model, ids, torch.ones_like(ids), 3)
    assert (narrow - wide).abs().max() > 0.01 * wide.abs().max()


@pytest.mark.parametrize("batch", [1, 3])
def test_static_cache(model, absorbed, batch):
    ids = prompt(batch)

    def caches():
        return StaticCache(config=model.config, max_cache_len=90)

    expected = decode(model, ids, holes(ids), 12, caches())
    with accelerate(model):
        assert_close(decode(model, ids, holes(ids), 12, caches()), expected)
    assert len(absorbed) == 24


def test_without_a_cache_and_with_a_cache_of_the_models_own(model):
    ids = prompt()
    with torch.no_grad():
        for options in ({"use_cache": False}, {"use_cache": True}):
            expected = model(ids, attention_mask=holes(ids), **options).logits
            with accelerate(model):
                assert_close(model(ids, attention_mask=holes(ids), **options).logits, expected)


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_prefill_by_chunks_sees_what_is_causal(model, absorbed, chunk):
    ids = prompt(3, 48)
    mask = holes(ids)

    def chunked():
        cache = DynamicCache(config=model.config)
        starts = range(0, ids.shape[1], chunk)
        parts = [model(ids[:, i : i + chunk], attention_mask=mask[:, : i + chunk], past_key_values=cache)[0] for i in starts]
        return torch.cat(parts, 1)

    with torch.no_grad():
        expected = chunked()
        with accelerate(model):
            assert_close(chunked(), expected)
    assert set(absorbed) == {chunk}


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3},
        {"num_beams": 3, "cache_implementation": "static", "disable_compile": True},
        {"prompt_lookup_num_tokens": 4},
        {"prefill_chunk_size": 8},
        {"use_cache": False},
        {"do_sample": True, "num_return_sequences": 3, "top_k": 5},
    ],
    ids=lambda options: "-".join(options),
)
def test_generate_gives_the_tokens_of_stock(model, options):
    batch = 1 if "prompt_lookup_num_tokens" in options else 2
    ids = prompt(batch, 24).repeat(1, 2)
    mask = torch.ones_like(ids)
    if batch > 1:
        mask[1, :5] = 0

    def run():
        torch.manual_seed(0)
        report = {"return_dict_in_generate": True, "output_logits": True}
        return model.generate(ids, attention_mask=mask, max_new_tokens=12, **options, **report)

    expected = run()
    with accelerate(model):
        actual = run()
    assert torch.equal(actual.sequences, expected.sequences)
    assert_close(torch.stack(actual.logits), torch.stack(expected.logits))


def test_a_cache_is_reordered_selected_repeated_and_cropped(model):
    ids = prompt(3)

    def run():
        cache = DynamicCache(config=model.config)
        outputs = [decode(model, ids, torch.ones_like(ids), 4, cache, sizes=(1,))]
        length = cache.get_seq_length()
        cache.reorder_cache(torch.tensor([2, 0, 0]))
        cache.crop(-3)
        twin = copy.deepcopy(cache)
        shallow = copy.copy(cache.layers[0])
        new = prompt(3, 2, seed=1)
        outputs.append(model(new, past_key_values=cache)[0])
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([1, 4]))
        outputs.append(model(prompt(2, 1, seed=2), past_key_values=cache)[0].sum(0, keepdim=True).repeat(3, 1, 1))
        outputs.append(model(prompt(3, 1, seed=3), past_key_values=twin)[0])
        shallow.update(*(torch.ones(3, 1, 1, t.shape[-1]) for t in (shallow.keys, shallow.values)))
        kept = cache.layers[0].keys[:, :, :length]
        cache.reset()
        outputs.append(model(ids, past_key_values=cache)[0])
        assert not (kept[:, :, -1] == 1).all()
        return torch.cat(outputs, 1)

    with torch.no_grad():
        expected = run()
        with accelerate(model):
            assert_close(run(), expected)


@settings(max_examples=40, deadline=None)
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


def test_offloaded_caches_keep_their_layers(model, monkeypatch):
    """A buffer that stays on the device would leave nothing to save."""
    cache = DynamicCache(config=model.config)
    cache.offloading = True  # which needs CUDA if the constructor is told to
    monkeypatch.setattr(cache, "update", lambda keys, values, layer, *_: cache.layers[layer].update(keys, values))
    with torch.no_grad(), accelerate(model):
        model(prompt(), past_key_values=cache)
    assert {type(layer) for layer in cache.layers} == {DynamicLayer}


@pytest.mark.parametrize("batches", [(1, 2), (2, 1)])
@pytest.mark.parametrize("cropped", [0, 3])
def test_a_cache_of_another_batch_is_refused_as_by_transformers(model, batches, cropped):
    """It was spread over the rows of the new batch, without an error."""
    held, new = (prompt(batch, 3) for batch in batches)

    def run():
        cache = DynamicCache(config=model.config)
        model(held, past_key_values=cache)
        cache.crop(-cropped)
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            model(new, past_key_values=cache)

    with torch.no_grad():
        run()
        with accelerate(model):
            run()


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_a_latent_layer_of_two_dtypes_keeps_the_wider(dtypes):
    layers = DynamicLayer(), LatentLayer()
    generator = torch.Generator().manual_seed(0)
    for dtype in (*dtypes, *dtypes):
        new = torch.randn(1, 1, 3, 4, generator=generator).to(dtype)
        (expected, _), (actual, _) = [layer.update(new, new) for layer in layers]
        assert actual.dtype == expected.dtype and torch.equal(actual, expected)


def test_a_latent_layer_with_gradients():
    new = torch.randn(1, 1, 3, 4, requires_grad=True)
    cache = DynamicCache()
    cache.layer_class_to_replicate = LatentLayer
    cache.update(new.detach(), new.detach(), 0)
    keys, values = cache.update(new, new, 0)
    (keys.sum() + values.square().sum()).backward()
    assert torch.allclose(new.grad, 1 + 2 * new.detach())


@settings(max_examples=200, deadline=None)
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
    assert visible_keys.of_mask(mask, 1).lengths.tolist() == [6]
    assert visible_keys.of_mask(mask, 2) is visible_keys.of_mask(mask, 3)
    mask[..., 0] = False
    assert visible_keys.of_mask(mask, 2).lengths.tolist() == [5]
    with torch.inference_mode():
        mask = torch.ones(1, 1, 1, 6, dtype=torch.bool)
        assert visible_keys.of_mask(mask, 1).lengths.tolist() == [6]
        mask[..., :2] = False
        assert visible_keys.of_mask(mask, 2).lengths.tolist() == [4]


@pytest.mark.parametrize(
    "write",
    [
        lambda mask, hidden: mask.numpy().put(hidden, False),
        lambda mask, hidden: mask.data.put_(hidden, torch.zeros(len(hidden), dtype=torch.bool)),
    ],
    ids=["numpy", "data"],
)
def test_a_mask_is_read_at_every_step(model, absorbed, write):
    """Writes through NumPy and through `data` do not change a tensor's version."""
    ids = prompt(1, 20)

    def run():
        mask, logits = torch.ones(1, 1, 1, 21, dtype=torch.bool), []
        for hidden in ([], [3, 4, 5]):
            cache = DynamicCache(config=model.config)
            model(ids, past_key_values=cache)
            write(mask, torch.tensor(hidden, dtype=torch.long))
            logits.append(model(prompt(1, 1), past_key_values=cache, attention_mask=mask).logits)
        return torch.cat(logits)

    with torch.no_grad():
        expected = run()
        with accelerate(model):
            assert_close(run(), expected)
    assert len(absorbed) == 4


def test_masks_that_add_scores_go_the_stock_way(model, absorbed):
    """A 4-D mask of the user's own: one that only removes positions is served, one that biases is handed over."""
    ids = prompt(1, 24)
    smallest = torch.finfo(torch.float32).min
    hidden = torch.zeros(1, 1, 1, 25).index_fill(-1, torch.tensor([2, 9]), smallest)
    for mask in (hidden, torch.randn(1, 1, 1, 25)):

        def run(mask=mask):
            cache = DynamicCache(config=model.config)
            model(ids, past_key_values=cache)
            return model(prompt(1, 1), attention_mask=mask, past_key_values=cache).logits

        with torch.no_grad():
            expected = run()
            with accelerate(model):
                before = len(absorbed)
                assert_close(run(), expected)
        assert (len(absorbed) > before) == (mask is hidden)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_masks_of_a_dtype_that_sdpa_refuses_are_refused(model, dtype):
    """Also in a step on the latents, whose result would otherwise depend on the number of queries."""
    ids = prompt(1, 24)
    mask = torch.zeros(1, 1, 1, 25, dtype=dtype)
    with torch.no_grad(), accelerate(model):
        cache = DynamicCache(config=model.config)
        model(ids, past_key_values=cache)
        with pytest.raises(RuntimeError, match="attn_mask dtype"):
            model(prompt(1, 1), attention_mask=mask, past_key_values=cache)


def test_gradients_dropout_autocast_and_attentions_go_the_stock_way(model, absorbed):
    ids = prompt(1, 1)

    def context():
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(prompt(1, 20), past_key_values=cache)
        return cache

    def gradient():
        model.zero_grad()
        model(ids, past_key_values=context()).logits.square().sum().backward()
        return model.model.layers[0].self_attn.kv_b_proj.weight.grad.clone()

    expected = gradient()
    with accelerate(model):
        assert torch.equal(gradient(), expected)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            model(ids, past_key_values=context())
        with torch.no_grad():
            model(ids, past_key_values=context(), output_attentions=True)
            handed = context()
            for layer in model.model.layers:
                layer.self_attn.attention_dropout = 0.5
            model.train()
            model(ids, past_key_values=handed)
            model.eval()
            for layer in model.model.layers:
                layer.self_attn.attention_dropout = 0.0
    assert not absorbed
    model.zero_grad()


def test_compiled_models_go_the_stock_way(absorbed):
    model, ids = model_of("deepseek_v2", num_hidden_layers=1), prompt()
    expected = decode(model, ids, torch.ones_like(ids), 1)
    with accelerate(model):
        cache = DynamicCache(config=model.config)
        compiled = torch.compile(model, backend="eager")
        compiled.config = model.config
        assert_close(decode(compiled, ids, torch.ones_like(ids), 1, cache), expected)
    assert not absorbed


def test_many_queries_are_expanded(model, absorbed):
    ids = prompt(1, 120)
    with torch.no_grad(), accelerate(model, absorb_up_to=3):
        cache = DynamicCache(config=model.config)
        for size in (100, 4, 3, 1):
            model(ids[:, :size], past_key_values=cache)
    assert set(absorbed) == {3, 1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_rows_and_caches_of_any_strides(model, dtype):
    """Few rows multiply by kv_b_proj in our core, more in torch: the same sums. A cache's rows may lie apart."""
    module = copy.deepcopy(model.model.layers[0].self_attn).to(dtype)
    width, turned = module.kv_lora_rank, module.qk_rope_head_dim
    joint = torch.randn(3, 1, 20, width + turned).to(dtype)
    query = torch.randn(3, module.num_heads, 3, module.qk_head_dim).to(dtype)
    outputs = []
    for caches in (joint.split([width, turned], -1), [each.contiguous() for each in joint.split([width, turned], -1)]):
        for count in (3, 2):  # 9 rows, and 6
            keys = visible_keys.keys_without_mask(3, count, 20, False)
            keys.blind.resize(1)  # the first row sees nothing
            with torch.no_grad():
                out = on_latents(module, query[:, :, :count], *caches, keys, 0.1, "auto")
            assert out.dtype == dtype and not out[0, 0].any()
            outputs.append(out[:, :2])
    for out in outputs[1:]:
        assert_close(out, outputs[0])
    assert outputs[0].any()


def test_the_users_own_choice_of_attention_goes_on_working(model):
    ids = prompt()
    stock = {}
    for name in ("sdpa", "eager"):
        model.set_attn_implementation(name)
        stock[name] = decode(model, ids, holes(ids), 3)
    model.set_attn_implementation("sdpa")
    handle = accelerate(model)
    for name, expected in stock.items():
        model.set_attn_implementation(name)
        assert torch.equal(decode(model, ids, holes(ids), 3), expected)
        assert f'"{name}", selected since' in handle.report()
    handle.undo()
    assert model.config._attn_implementation == "eager"
    model.set_attn_implementation("sdpa")


def test_another_model_of_the_same_config_stays_right(model):
    twin = type(model)(model.config).eval()
    sparse = model_of("deepseek_v32")
    sparse_twin = type(sparse)(sparse.config).eval()
    ids = prompt()
    for one, other in ((model, twin), (sparse, sparse_twin)):
        expected = decode(other, ids, torch.ones_like(ids), 3)
        with accelerate(one):
            assert_close(decode(other, ids, torch.ones_like(ids), 3), expected)


def test_a_twin_with_a_mask_of_its_own_stays_right():
    """GLM-5-Next's attention makes a mask of scores for any name but sdpa, for modules without latents too."""
    model, ids = model_of("glm5_next"), prompt()
    twin = type(model)(model.config).eval()
    with torch.no_grad():
        expected = twin(ids, attention_mask=holes(ids))[0]
        with accelerate(model):
            assert_close(twin(ids, attention_mask=holes(ids))[0], expected)


def test_one_handle_and_nothing_left_behind(model, tmp_path):
    before = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    model.save_pretrained(tmp_path / "stock")
    config = model.config.to_json_string()
    with accelerate(model) as handle:
        assert accelerate(model) is handle
        assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == before
        model.save_pretrained(tmp_path)
        assert (tmp_path / "config.json").read_text() == (tmp_path / "stock" / "config.json").read_text()
        assert model.config.to_json_string() == config
    handle.undo()
    assert handle.report() == "undone"
    attentions = [module for module in model.modules() if hasattr(module, "expand_kv")]
    assert all(isinstance(module.expand_kv, MethodType) and "expand_kv" not in vars(module) for module in attentions)
    assert not model.model._forward_pre_hooks
    assert type(model).from_pretrained(tmp_path).config._attn_implementation == "sdpa"


def test_nested_blocks_end_with_the_outermost(absorbed):
    model, ids = model_of("deepseek_v3"), prompt()
    with accelerate(model) as handle:
        with accelerate(model) as inner:
            twin = copy.deepcopy(model)
        assert inner is handle
        decode(model, ids, holes(ids), 3)
        assert absorbed
    assert handle.report() == "undone"
    with accelerate(twin) as own:  # made within two blocks, of which it is in none
        pass
    assert own.report() == "undone"


def test_a_shallow_copy_has_no_handle(model):
    with accelerate(model):
        shallow = copy.copy(model)
        with pytest.raises(ValueError, match="in one handle"):
            accelerate(shallow)
    with accelerate(shallow) as handle:
        assert handle.model is shallow and "on the latents" in handle.report()


def test_copies_are_accelerated_and_have_handles_of_their_own(absorbed):
    model, ids = model_of("deepseek_v3"), prompt()
    with accelerate(model) as handle:
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(saved, weights_only=False)]
    expected = decode(model, ids, holes(ids), 3)
    for each in copies:
        absorbed.clear()
        cache = DynamicCache(config=each.config)
        assert_close(decode(each, ids, holes(ids), 3, cache), expected)
        assert len(absorbed) == 6 and type(cache.layers[0]) is LatentLayer
        own = accelerate(each)
        assert own is not handle and own.model is each
        own.undo()
        absorbed.clear()
        assert torch.equal(decode(each, ids, holes(ids), 3), expected)
        assert not absorbed
        assert not each.model._forward_pre_hooks


def test_attention_and_cache_can_be_left_out(model, absorbed):
    ids = prompt()
    for options, kind in (({"attention": False}, "LatentLayer"), ({"cache": False}, "DynamicLayer")):
        expected = decode(model, ids, holes(ids), 3)
        absorbed.clear()
        cache = DynamicCache(config=model.config)
        with accelerate(model, **options) as handle:
            assert_close(decode(model, ids, holes(ids), 3, cache), expected)
            assert "=False" in handle.report()
        assert type(cache.layers[0]).__name__ == kind
        assert bool(absorbed) == ("cache" in options)


@pytest.fixture
def few_rows_calls(monkeypatch):
    """The shapes of what `FewRows` served, with weights of any size."""
    calls = []
    multiply = few_rows.linear_rows
    monkeypatch.setattr(few_rows, "LEAST_BYTES", 0)
    monkeypatch.setattr(few_rows, "linear_rows", lambda x, *w: calls.append(tuple(x.shape)) or multiply(x, *w))
    return calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_rows_of_plain_linears(few_rows_calls, dtype):
    model, ids = model_of("deepseek_v3").to(dtype), prompt()
    expected = decode(model, ids, holes(ids), 3)
    with accelerate(model, attention=False, cache=False) as handle:
        assert_close(decode(model, ids, holes(ids), 3), expected)
        assert few_rows_calls and max(rows for rows, _ in few_rows_calls) <= few_rows.MOST_ROWS
        assert "Linear layers: up to 8 rows" in handle.report()
    few_rows_calls.clear()
    assert torch.equal(decode(model, ids, holes(ids), 3), expected)
    with accelerate(model, linears=False) as handle:
        decode(model, ids, holes(ids), 3)
        assert "Linear layers: kept" in handle.report()
    assert not few_rows_calls and not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_linear_of_few_rows(few_rows_calls, dtype, bias):
    """Any shape of rows, strides of input and weight; what it does not serve goes to torch."""
    module = torch.nn.Linear(40, 24, bias=bias, dtype=dtype)
    module.weight.data = torch.randn(24, 64).to(dtype)[:, 8:48]
    served = few_rows.FewRows(module)
    with torch.no_grad():
        for x in (torch.randn(40), torch.randn(1, 1, 40), torch.randn(2, 4, 80)[..., ::2], torch.randn(40, 5).T):
            x = x.to(dtype)
            exact = torch.nn.functional.linear(x.double(), module.weight.double(), module.bias.double() if bias else None)
            y = served(x)
            assert y.dtype == dtype and y.shape == exact.shape
            assert_close(y, exact.to(dtype))
    assert len(few_rows_calls) == 4
    few_rows_calls.clear()
    row = torch.randn(1, 40, dtype=dtype)
    assert served(row).requires_grad
    with torch.no_grad():
        assert served(torch.randn(3, 3, 40, dtype=dtype)).shape == (3, 3, 24)
        assert served(torch.randn(0, 40, dtype=dtype)).shape == (0, 24)
        with torch.autocast("cpu", torch.bfloat16):
            assert served(row).dtype == torch.bfloat16
        module.requires_grad_(False)
        traced = torch.jit.trace(lambda x: served(x), row, check_trace=False)
        assert torch.equal(traced(2 * row), module(2 * row))
        for wrong in (torch.randn(1, 39, dtype=dtype), row.double()):
            with pytest.raises(RuntimeError):
                served(wrong)
        module.weight.data = torch.randn(40, 24, dtype=dtype).T
        assert_close(served(row), torch.nn.functional.linear(row, module.weight, module.bias))
    assert not few_rows_calls


def test_a_linear_of_few_rows_follows_its_weight(few_rows_calls):
    """Nothing is remembered of a weight: it may get other memory and another shape, and a copy has its own."""
    module, row = torch.nn.Linear(40, 24), torch.randn(1, 40)
    served = few_rows.FewRows(module)
    memory = torch.randn(24, 40)
    for weight in (memory, memory.clone(), memory[::2], memory[:20], memory):
        module.weight.data, module.bias.data = weight, torch.randn(len(weight))
        with torch.no_grad():
            for _ in range(2):
                assert_close(served(row), torch.nn.functional.linear(row, module.weight, module.bias))
            module.weight.mul_(2)
            assert_close(served(row), torch.nn.functional.linear(row, module.weight, module.bias))
    assert len(few_rows_calls) == 15
    assert len(pickle.dumps(served)) < len(pickle.dumps(module)) + 200
    twin = copy.deepcopy(served)
    twin.module.weight.data.zero_()
    with torch.no_grad():
        assert torch.equal(twin(row)[0], twin.module.bias) and not torch.equal(served(row)[0], module.bias)
    torch.nn.utils.parametrize.register_parametrization(module, "bias", torch.nn.Tanh())
    few_rows_calls.clear()
    with torch.no_grad():
        assert_close(served(row), torch.nn.functional.linear(row, module.weight, module.bias))
    assert not few_rows_calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2, 9])
def test_every_storage_can_still_be_resized(few_rows_calls, monkeypatch, dtype, size):
    """As by FSDP, which frees a weight between two calls: nothing that a call reads is shared with NumPy for good."""
    monkeypatch.setattr(few_experts, "LEAST_BYTES", 0)
    model, ids = model_of("deepseek_v3").to(dtype), prompt(1)
    mask, cache = torch.ones(1, 1, size, 40 + size).tril(40).bool(), DynamicCache(config=model.config)
    with torch.no_grad(), accelerate(model):
        model(ids, past_key_values=cache)
        expected = model(ids[:, :size], attention_mask=mask, past_key_values=cache).logits
        cache.crop(-size)
        assert few_rows_calls or size > few_rows.MOST_ROWS
        tensors = [*model.state_dict().values(), *(t for layer in cache.layers for t in (layer.keys, layer.values)), mask]
        assert all(tensor.untyped_storage().resizable() for tensor in tensors)
        for weight in model.parameters():
            kept, storage = weight.clone(), weight.untyped_storage()
            length = storage.nbytes()
            storage.resize_(0)
            storage.resize_(length)
            weight.copy_(kept)
        actual = model(ids[:, :size], attention_mask=mask, past_key_values=cache).logits
    assert torch.equal(actual, expected)


def test_a_weight_outside_its_storage_is_refused(few_rows_calls):
    """torch refuses such a tensor too; a kernel would read memory that is not the weight's."""
    flat = torch.randn(64 * 40)
    for weight in (flat.view(64, 40)[32:], flat.view(32, 80)[:, 40:]):
        module = torch.nn.Linear(40, 32, bias=False)
        module.weight.data = weight
        flat.untyped_storage().resize_(0)
        with torch.no_grad(), pytest.raises(ValueError, match="within their storage"):
            few_rows.FewRows(module)(torch.randn(1, 40))
        flat.untyped_storage().resize_(4 * 64 * 40)


def test_weights_move_into_huge_pages(monkeypatch):
    """Adjacent weights as one, whole pages of them alone, and what is in them stays; nothing on systems without such pages."""
    memory = torch.arange(3 << 20)
    parts = memory[:100], memory[200 : 2 << 20], memory[2 << 20 :], torch.empty(0), memory[::2]
    one, two = huge_pages._ranges(parts), huge_pages._ranges([memory[:100], memory[2000:]])
    assert one == [(memory.data_ptr(), memory.data_ptr() + memory.nbytes)] and len(two) == 2
    assert 0 <= huge_pages.collapse(parts) <= memory.nbytes
    huge_pages.ask(memory)
    assert torch.equal(memory, torch.arange(3 << 20))
    monkeypatch.setattr(huge_pages, "_SIZE", Path("/nowhere"))
    assert huge_pages.collapse(parts) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "glm4_moe_lite"])
def test_experts_of_few_rows(family, dtype, monkeypatch):
    """Logits beside stock with the same attention; then what goes the stock way."""
    calls, multiply = [], few_experts.linear_rows
    monkeypatch.setattr(few_experts, "LEAST_BYTES", 0)
    monkeypatch.setattr(few_experts, "linear_rows", lambda x, *w: calls.append(len(x)) or multiply(x, *w))
    model, ids = model_of(family).to(dtype), prompt()
    expected = decode(model, ids, holes(ids), 3)
    with accelerate(model, attention=False, cache=False) as handle:
        assert_close(decode(model, ids, holes(ids), 3), expected)
        assert calls and "Experts): up to 8 rows in one pass over the weights, else" in handle.report()
        before = model.get_experts_implementation()
        model.set_experts_implementation("eager")
        calls.clear()
        decode(model, ids, holes(ids), 3)
        assert not calls and "Experts): kept, eager" in handle.report()
        model.set_experts_implementation(before)
    assert torch.equal(decode(model, ids, holes(ids), 3), expected)
    assert not calls and not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_against_float64(dtype, monkeypatch):
    """Rows that share experts, an expert twice in a row, more rows than are served, gradients."""
    monkeypatch.setattr(few_experts, "LEAST_BYTES", 0)
    model = model_of("deepseek_v2").to(dtype)
    module = next(m for m in model.modules() if type(m).__name__.endswith("Experts"))
    up, down = module.gate_up_proj.double(), module.down_proj.double()
    with accelerate(model):
        for rows in (1, 3, 8, 9):
            x = torch.randn(rows, up.shape[2]).to(dtype)
            index, weights = torch.randint(0, len(up), (rows, 2)), torch.rand(rows, 2)
            exact = torch.zeros(rows, down.shape[1], dtype=torch.float64)
            for t in range(rows):
                for e, weight in zip(index[t], weights[t].to(dtype), strict=True):
                    gate, value = (up[e] @ x[t].double()).chunk(2)
                    exact[t] += weight.double() * (down[e] @ (module.act_fn(gate) * value))
            with torch.no_grad():
                y = module(x, index, weights.to(dtype))
            assert y.dtype == dtype
            assert_close(y, exact.detach().to(dtype))
        row = torch.randn(1, up.shape[2], dtype=dtype)
        assert module(row, index[:1], weights[:1].to(dtype)).requires_grad


def test_experts_of_another_dtype_later_go_the_stock_way(monkeypatch):
    monkeypatch.setattr(few_experts, "LEAST_BYTES", 0)
    model, ids = model_of("deepseek_v3"), prompt(1, 4)
    with torch.no_grad():
        expected = copy.deepcopy(model).half()(ids).logits
        with accelerate(model):
            assert torch.equal(model.half()(ids).logits, expected)


def test_what_others_have_wrapped_since_is_undone(few_rows_calls, monkeypatch):
    """A wrapper of `forward`, such as the hooks of the library accelerate, keeps ours inside when the acceleration ends."""
    monkeypatch.setattr(few_experts, "LEAST_BYTES", 0)
    model, ids = model_of("deepseek_v3"), prompt(1, 1)
    wrapped = [model.lm_head, next(m for m in model.modules() if type(m).__name__.endswith("Experts"))]
    with torch.no_grad():
        expected = model(ids).logits
        with accelerate(model) as handle:
            report = handle.report()
            for module in wrapped:
                module.forward = lambda *given, forward=module.forward: forward(*given)
            assert handle.report() == report
            assert not torch.equal(model(ids).logits, expected) and few_rows_calls
        assert torch.equal(model(ids).logits, expected)
    assert [module for module in model.modules() if "forward" in vars(module)] == wrapped[::-1]


def test_experts_by_name(model):
    before = model.get_experts_implementation()
    with accelerate(model, experts="eager") as handle:
        assert "Experts): kept, eager" in handle.report()
    assert model.get_experts_implementation() == before


def test_the_report_names_every_attention():
    with accelerate(model_of("kimi_linear")) as handle:
        lines = handle.report().splitlines()
    assert any("layers.0" in line and "kept, it caches no latents" in line for line in lines)
    assert any("layers.1.self_attn (KimiLinear" in line and "on the latents" in line for line in lines)
    assert lines[-1].startswith("cache: new dynamic caches grow in place")


def test_the_report_counts_the_linears_that_are_served(model):
    linears = [module for module in model.modules() if type(module) is torch.nn.Linear]
    with accelerate(model) as handle:
        assert "Linear layers: kept" in handle.report().splitlines()
        assert not any("forward" in vars(linear) for linear in linears)
    large = model_of("deepseek_v2", hidden_size=512, intermediate_size=512)  # three matrices of one megabyte, in one layer
    with accelerate(large) as handle:
        assert "3 Linear layers: up to 8 rows" in handle.report()


class Lora(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


def with_lora(model):
    old = model.model.layers[1].self_attn.kv_b_proj
    model.model.layers[1].self_attn.kv_b_proj = Lora(old.in_features, old.out_features, bias=False)


def with_bias(model):
    projection = model.model.layers[0].self_attn.kv_b_proj
    projection.bias = torch.nn.Parameter(torch.zeros(projection.out_features))


def with_a_hook(model):
    model.model.layers[0].self_attn.kv_b_proj.register_forward_hook(lambda *_: None)


def with_a_forward_of_its_own(model):
    projection = model.model.layers[0].self_attn.kv_b_proj
    projection.forward = lambda x, forward=projection.forward: 2 * forward(x)


def with_another_expansion(model):
    attention = model.model.layers[1].self_attn
    attention.expand_kv = lambda *given: type(attention).expand_kv(attention, *given)


def with_another_map(model):
    kind = type(model.model.layers[0].self_attn)
    scaled = type("Scaled", (kind,), {"expand_kv": lambda self, kv, kr: kind.expand_kv(self, 2 * kv, kr)})
    model.model.layers[0].self_attn.__class__ = scaled


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_lora, r"layers.1.self_attn.kv_b_proj must be a Linear without bias and hooks; got Lora"),
        (with_bias, r"layers.0.self_attn.kv_b_proj must be a Linear without bias and hooks; got a Linear with a bias"),
        (with_a_hook, r"kv_b_proj must be a Linear without bias and hooks; got a Linear with hooks"),
        (with_a_forward_of_its_own, r"must be a Linear without bias and hooks; got a Linear with an overridden forward"),
        (with_another_expansion, r"layers.1.self_attn.expand_kv must be that of its class, in one handle; got another one"),
        (with_another_map, r"layers.0.self_attn.expand_kv must be the map of kv_b_proj's weight; got another one, of Scaled"),
        (lambda model: model.double(), r"kv_b_proj must be float32 or bfloat16; got torch.float64"),
        (lambda model: model.to("meta"), r"kv_b_proj must be on the CPU or a CUDA device; got a weight on meta"),
    ],
)
def test_what_is_refused_when_it_is_switched_on(change, message):
    model = model_of("deepseek_v3")
    change(model)
    with pytest.raises(ValueError, match=message):
        accelerate(model)
    assert model.config._attn_implementation == "sdpa"
    assert not any(isinstance(vars(module).get("expand_kv"), attention.Latents) for module in model.modules())


def test_what_has_no_latent_attention_or_has_sinks_is_refused(model):
    with pytest.raises(ValueError, match=r"accelerate: model must be a PreTrainedModel of transformers; got Linear"):
        accelerate(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"an attention without sinks; got HYV4Attention"):
        accelerate(model_of("hy_v4"))
    with pytest.raises(ValueError, match=r"absorb_up_to must be an integer >= 0; got True"):
        accelerate(model, absorb_up_to=True)
    with pytest.raises(ValueError, match=r"linears must be a bool; got 'no'"):
        accelerate(model, linears="no")
    assert acceleration._HANDLE not in vars(model)


def test_a_part_of_a_model_is_accelerated_once(model):
    ids = prompt()
    expected = decode(model, ids, holes(ids), 2)
    with accelerate(model.model):
        assert_close(decode(model, ids, holes(ids), 2), expected)
        with pytest.raises(ValueError, match="expand_kv must be that of its class, in one handle"):
            accelerate(model)
    assert torch.equal(decode(model, ids, holes(ids), 2), expected)


def test_a_switch_that_fails_half_way_leaves_nothing(model, monkeypatch):
    ids = prompt()
    expected = decode(model, ids, holes(ids), 2)
    with pytest.raises(ValueError, match="no such"):
        accelerate(model, experts="no such")
    monkeypatch.setattr(type(model.model), "_can_set_attn_implementation", classmethod(lambda cls: False))
    with pytest.raises(ValueError, match="model must be one whose attention can be chosen; got DeepseekV3Model"):
        accelerate(model)
    assert acceleration._HANDLE not in vars(model)
    assert not any(isinstance(vars(module).get("expand_kv"), attention.Latents) for module in model.modules())
    assert torch.equal(decode(model, ids, holes(ids), 2), expected)


def test_a_projection_that_changes_later_is_expanded(absorbed):
    model, ids = model_of("deepseek_v3"), prompt()
    with accelerate(model):
        with_lora(model)
        actual = decode(model, ids, holes(ids), 3)
    assert len(absorbed) == 3
    assert_close(actual, decode(model, ids, holes(ids), 3))


def test_weights_that_change_are_seen(model):
    model, ids = copy.deepcopy(model), prompt()
    with accelerate(model):
        with torch.no_grad():
            model.model.layers[0].self_attn.kv_b_proj.weight.mul_(1.5)
        actual = decode(model, ids, holes(ids), 3)
    assert_close(actual, decode(model, ids, holes(ids), 3))


def test_an_argument_that_is_not_known_is_refused(model):
    serve = AttentionInterface()["decodestep"]
    query = torch.zeros(1, 4, 1, 20)
    latents, rope = torch.zeros(1, 1, 8, 24), torch.zeros(1, 1, 8, 8)
    module = model.model.layers[0].self_attn
    with accelerate(model):
        assert serve(module, query, latents, rope, None, scaling=1.0, s_aux=None, position_ids=torch.zeros(1, 1))[0].shape
        with pytest.raises(ValueError, match=r"known ones; got new_thing, s_aux of DeepseekV3Attention"):
            serve(module, query, latents, rope, None, scaling=1.0, s_aux=torch.zeros(4), new_thing=1)
    with pytest.raises(ValueError, match=r"got s_aux of DeepseekV3Attention"):
        serve(module, query, query, query, None, scaling=1.0, s_aux=torch.zeros(4))


def test_the_arguments_of_a_loss_are_not_those_of_an_attention(model):
    ids = prompt()
    given = {"labels": ids, "shift_labels": ids.roll(-2, 1), "ignore_index": int(ids[0, 0])}
    with torch.no_grad():
        expected = model(ids, **given).loss
        with accelerate(model):
            assert torch.equal(model(ids, **given).loss, expected)


def test_the_example_runs():
    script = Path(__file__).parent.parent / "examples" / "transformers_mla.py"
    ran = processes.run([sys.executable, str(script), "--hidden", "64", "--contexts", "30"], timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert "context     30" in ran.stdout and "with our sampling: [5, 6, 7, " in ran.stdout
