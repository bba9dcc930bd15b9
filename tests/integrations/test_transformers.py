"""accelerate: transformers' models with latent attention, accelerated against stock by their logits.

Equal tokens would prove little: an attention that leaves out its sinks moves the logits far and keeps greedy tokens.
"""

from __future__ import annotations

import copy
import runpy
import sys

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, DynamicCache, Gemma4ForCausalLM, Gemma4TextConfig, StaticCache

from decodestep.integrations.transformers import (
    accelerate,
    visible_keys,
)
from decodestep.integrations.transformers.absorbed import attend_absorbed
from support import processes
from support.latent_models import FAMILIES, assert_close, build_model, decode, holes, prompt
from support.project import ROOT

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_every_family(family, absorbed):
    model, ids = build_model(family), prompt()
    mask = holes(ids)
    expected = decode(model, ids, mask, 9)
    with accelerate(model):
        actual = decode(model, ids, mask, 9)
    assert len(absorbed) >= 9 and max(absorbed) == 2
    assert_close(actual, expected)
    assert torch.equal(decode(model, ids, mask, 9), expected)


@pytest.mark.parametrize("sizes", [(1,), (3, 1)])
def test_logits_of_layers_of_different_sizes(absorbed, sizes):
    """Every published Dots3-Note has layers with a window, whose latents are wider than those of the others."""
    small = {"swa_kv_lora_rank": 40, "swa_qk_nope_head_dim": 20, "swa_v_head_dim": 12, "swa_q_lora_rank": 28}
    model, ids = build_model("dots3_note", num_hidden_layers=5, sliding_window_size=16, **small), prompt()
    assert {layer.self_attn.kv_lora_rank for layer in model.layers} == {24, 40}
    expected = decode(model, ids, holes(ids), 20, sizes=sizes)
    with accelerate(model):
        assert_close(decode(model, ids, holes(ids), 20, sizes=sizes), expected)
    assert len(absorbed) == 100


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v32"])
def test_logits_of_every_family_in_bfloat16(family, absorbed):
    model, ids = build_model(family, dtype=torch.bfloat16, index_topk=64), prompt()
    expected = decode(model, ids, holes(ids), 5)
    with accelerate(model):
        actual = decode(model, ids, holes(ids), 5)
    assert absorbed
    assert_close(actual, expected)


@pytest.mark.parametrize("selected", [8, 1000], ids=["some", "all"])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("deepseek_v32", {}),
        ("glm_moe_dsa", {}),
        ("glm_moe_dsa", {"num_hidden_layers": 4, "indexer_types": ["full", "shared", "shared", "full"]}),
    ],
    ids=["v32", "glm", "glm that shares"],
)
def test_sparse_attention_of_some_positions_and_of_all(family, changes, selected, absorbed):
    """Of texts that are longer and shorter than what is selected, also by layers for which another one selects."""
    model, ids = build_model(family, index_topk=selected, **changes), prompt()
    for mask in (torch.ones_like(ids), holes(ids)):
        expected = decode(model, ids, mask, 9)
        with accelerate(model):
            assert_close(decode(model, ids, mask, 9), expected)
    layers = model.config.num_hidden_layers
    assert len(absorbed) == 2 * 9 * layers and set(absorbed) == {1, 2}
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    text = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    with accelerate(model):
        assert torch.equal(model.generate(ids, attention_mask=torch.ones_like(ids), **options), text)


def test_the_choice_of_a_sparse_attention_matters():
    """What its test above proves: without the indices the logits are others."""
    model, ids = build_model("deepseek_v32"), prompt()
    narrow = decode(model, ids, torch.ones_like(ids), 3)
    for module in model.modules():
        if hasattr(module, "index_topk"):
            module.index_topk = 1000
    wide = decode(model, ids, torch.ones_like(ids), 3)
    assert (narrow - wide).abs().max() > 0.01 * wide.abs().max()


@pytest.mark.parametrize("batch", [1, 3])
def test_static_cache(deepseek, absorbed, batch):
    ids = prompt(batch)

    def caches():
        return StaticCache(config=deepseek.config, max_cache_len=90)

    expected = decode(deepseek, ids, holes(ids), 12, caches())
    with accelerate(deepseek):
        assert_close(decode(deepseek, ids, holes(ids), 12, caches()), expected)
    assert len(absorbed) == 24


def test_without_a_cache_and_with_a_cache_of_the_models_own(deepseek):
    ids = prompt()
    with torch.no_grad():
        for options in ({"use_cache": False}, {"use_cache": True}):
            expected = deepseek(ids, attention_mask=holes(ids), **options).logits
            with accelerate(deepseek):
                assert_close(deepseek(ids, attention_mask=holes(ids), **options).logits, expected)


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_prefill_by_chunks_sees_what_is_causal(deepseek, absorbed, chunk):
    ids = prompt(3, 48)
    mask = holes(ids)

    def chunked():
        cache = DynamicCache(config=deepseek.config)
        starts = range(0, ids.shape[1], chunk)
        parts = [deepseek(ids[:, i : i + chunk], attention_mask=mask[:, : i + chunk], past_key_values=cache)[0] for i in starts]
        return torch.cat(parts, 1)

    with torch.no_grad():
        expected = chunked()
        with accelerate(deepseek):
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
def test_generate_gives_the_tokens_of_stock(deepseek, options):
    batch = 1 if "prompt_lookup_num_tokens" in options else 2
    ids = prompt(batch, 24).repeat(1, 2)
    mask = torch.ones_like(ids)
    if batch > 1:
        mask[1, :5] = 0

    def run():
        torch.manual_seed(0)
        report = {"return_dict_in_generate": True, "output_logits": True}
        return deepseek.generate(ids, attention_mask=mask, max_new_tokens=12, **options, **report)

    expected = run()
    with accelerate(deepseek):
        actual = run()
    assert torch.equal(actual.sequences, expected.sequences)
    assert_close(torch.stack(actual.logits), torch.stack(expected.logits))


def test_gradients_dropout_autocast_and_attentions_go_the_stock_way(deepseek, absorbed):
    ids = prompt(1, 1)

    def context():
        cache = DynamicCache(config=deepseek.config)
        with torch.no_grad():
            deepseek(prompt(1, 20), past_key_values=cache)
        return cache

    def gradient():
        deepseek.zero_grad()
        deepseek(ids, past_key_values=context()).logits.square().sum().backward()
        return deepseek.model.layers[0].self_attn.kv_b_proj.weight.grad.clone()

    expected = gradient()
    with accelerate(deepseek):
        assert torch.equal(gradient(), expected)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            deepseek(ids, past_key_values=context())
        with torch.no_grad():
            deepseek(ids, past_key_values=context(), output_attentions=True)
            handed = context()
            for layer in deepseek.model.layers:
                layer.self_attn.attention_dropout = 0.5
            deepseek.train()
            deepseek(ids, past_key_values=handed)
            deepseek.eval()
            for layer in deepseek.model.layers:
                layer.self_attn.attention_dropout = 0.0
    assert not absorbed
    deepseek.zero_grad()


def test_compiled_models_go_the_stock_way(absorbed):
    model, ids = build_model("deepseek_v2", num_hidden_layers=1), prompt()
    expected = decode(model, ids, torch.ones_like(ids), 1)
    with accelerate(model):
        cache = DynamicCache(config=model.config)
        compiled = torch.compile(model, backend="eager")
        compiled.config = model.config
        assert_close(decode(compiled, ids, torch.ones_like(ids), 1, cache), expected)
    assert not absorbed


def test_many_queries_are_expanded(deepseek, absorbed):
    ids = prompt(1, 120)
    with torch.no_grad(), accelerate(deepseek, absorb_up_to=3):
        cache = DynamicCache(config=deepseek.config)
        for size in (100, 4, 3, 1):
            deepseek(ids[:, :size], past_key_values=cache)
    assert set(absorbed) == {3, 1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_rows_and_caches_of_any_strides(deepseek, dtype):
    """Few rows multiply by kv_b_proj in our core, more in torch: the same sums. A cache's rows may lie apart."""
    module = copy.deepcopy(deepseek.model.layers[0].self_attn).to(dtype)
    width, turned = module.kv_lora_rank, module.qk_rope_head_dim
    joint = torch.randn(3, 1, 20, width + turned).to(dtype)
    query = torch.randn(3, module.num_heads, 3, module.qk_head_dim).to(dtype)
    outputs = []
    for caches in (joint.split([width, turned], -1), [each.contiguous() for each in joint.split([width, turned], -1)]):
        for count in (3, 2):  # 9 rows, and 6
            keys = visible_keys.keys_without_mask(3, count, 20, False)
            keys = keys._replace(blind=np.zeros(1, int))  # the first row sees nothing
            with torch.no_grad():
                out = attend_absorbed(module, query[:, :, :count], *caches, keys, 0.1, "auto")
            assert out.dtype == dtype and not out[0, 0].any()
            outputs.append(out[:, :2])
    for out in outputs[1:]:
        assert_close(out, outputs[0])
    assert outputs[0].any()


def test_an_argument_that_is_not_known_is_refused(deepseek):
    serve = AttentionInterface()["decodestep"]
    query = torch.zeros(1, 4, 1, 20)
    latents, rope = torch.zeros(1, 1, 8, 24), torch.zeros(1, 1, 8, 8)
    module = deepseek.model.layers[0].self_attn
    with accelerate(deepseek):
        assert serve(module, query, rope, latents, None, scaling=1.0, s_aux=None, position_ids=torch.zeros(1, 1))[0].shape
        with pytest.raises(ValueError, match=r"known ones; got new_thing, s_aux of DeepseekV3Attention"):
            serve(module, query, rope, latents, None, scaling=1.0, s_aux=torch.zeros(4), new_thing=1)
    with pytest.raises(ValueError, match=r"got s_aux of DeepseekV3Attention"):
        serve(module, query, query, query, None, scaling=1.0, s_aux=torch.zeros(4))


@pytest.mark.parametrize("name", ["s_aux", "sinks", "block_indices"])
def test_arguments_of_other_models_that_sdpa_would_ignore_are_refused(name):
    query = torch.zeros(1, 4, 1, 20)
    with pytest.raises(ValueError, match=f"decodestep attention: arguments must be known ones; got {name} of Linear"):
        AttentionInterface()["decodestep"](torch.nn.Linear(1, 1), query, query, query, None, **{name: torch.zeros(4)})


@pytest.mark.parametrize("kept", [1, 3])
@pytest.mark.parametrize("static", [False, True])
def test_a_model_that_drops_queries_unless_it_runs_sdpa(kept, static):
    """Gemma 4, in its layers that share keys: its mask must not be left to the order of the queries."""
    layers = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = Gemma4TextConfig(vocab_size=96, vocab_size_per_layer_input=96, **sizes, **layers)
    torch.manual_seed(0)
    model, ids = Gemma4ForCausalLM(config).eval(), prompt(1, 9)

    @torch.no_grad()
    def logits(name):
        model.set_attn_implementation(name)
        cache = StaticCache(config=config, max_cache_len=20) if static else DynamicCache(config=config)
        return torch.cat([model(part, past_key_values=cache, logits_to_keep=kept).logits for part in (ids, ids[:, :1])], 1)

    assert_close(logits("decodestep"), logits("sdpa"))


def test_the_arguments_of_a_loss_are_not_those_of_an_attention(deepseek):
    ids = prompt()
    given = {"labels": ids, "shift_labels": ids.roll(-2, 1), "ignore_index": int(ids[0, 0])}
    with torch.no_grad():
        expected = deepseek(ids, **given).loss
        with accelerate(deepseek):
            assert torch.equal(deepseek(ids, **given).loss, expected)


def test_a_tokenizers_other_outputs_are_ignored_as_by_sdpa(deepseek):
    ids = prompt()
    given = {"token_type_ids": torch.zeros_like(ids), "special_tokens_mask": torch.zeros_like(ids)}
    with torch.no_grad():
        expected = deepseek(ids, **given).logits
        with accelerate(deepseek):
            assert torch.equal(deepseek(ids, **given).logits, expected)


def test_the_example_runs(monkeypatch, capsys):
    script = ROOT / "examples" / "transformers_mla.py"
    ran = processes.run([sys.executable, str(script), "--hidden", "64", "--contexts", "30", "2"], timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert "context     30" in ran.stdout and "context      2" in ran.stdout and "with our sampling: [5, 6, 7, " in ran.stdout
    monkeypatch.setattr(sys, "argv", [str(script), "--contexts", "0"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().err.endswith("error: --contexts and --hidden must be at least 1\n")
