"""register_gguf: transformers' models with a GGUF file's blocks, against the same file decoded by transformers."""

from __future__ import annotations

import copy
import pickle
import re
import runpy
import sys
import threading

import gguf
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType
from transformers import AutoModelForCausalLM, GgufConfig
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.quantizer_gguf import GgufHfQuantizer

from decodestep.errors import DecodestepError, MissingExtraError, ModelError
from decodestep.integrations.transformers import (
    LatentLayer,
    accelerate,
    block_weight,
    gguf_registration,
    register_gguf,
    sampling,
)
from decodestep.integrations.transformers.block_weight import BlockWeight
from decodestep.weights import LinearPanels
from support import tiny_gguf_files
from support import transformers_gguf_files as files
from support.project import ROOT

pytestmark = pytest.mark.usefixtures("one_torch_thread")

FLOATS = 1e-5  # of the largest logit: float32 sums in another order, through two to four layers
# What activations in int8 may change, root mean square, of what the blocks of the weights have changed.
INT8 = 0.25
IDS = torch.tensor([[3, 99, 17, 4, 61, 61, 8, 120, 0, 5, 42]])
# Matrices that are never in blocks: of widths that no block divides, and what is a vector in the file.
DENSE = re.compile(r"conv1d|conv\.conv|A_log|dt_proj|shared_expert_gate|relative_attention_bias")


@pytest.fixture
def registered():
    with register_gguf() as registration:
        yield registration


def load(folder, name="m.gguf", config=None, **options):
    auto = AutoModelForCausalLM if config is None else files.auto_class(config)
    return auto.from_pretrained(folder, gguf_file=name, **({} if config is None else {"config": config}), **options)


def logits(model, ids=IDS):
    inputs = {"decoder_input_ids": ids[:, :4]} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(input_ids=ids, **inputs).logits


def cache_of(model):
    return "cache_params" if model.config.model_type == "mamba" else "past_key_values"


def logits_in_steps(model, ids=IDS):
    """The same by a cache, of a prompt and of few tokens after it."""
    if model.config.is_encoder_decoder:
        return logits(model, ids)
    steps, cache = [], None
    with torch.no_grad():
        for part in ids.split([7, 1, 2, 1], 1):
            out = model(part, use_cache=True, **({} if cache is None else {cache_of(model): cache}))
            cache = out[cache_of(model)]
            steps.append(out.logits)
    return torch.cat(steps, 1)


def kept(model):
    return {name for name, weight in model.named_parameters() if isinstance(weight, BlockWeight)}


def assert_near(actual, expected, bound=FLOATS):
    assert (actual - expected).abs().max() <= bound * expected.abs().max()


def rms(x):
    return x.double().square().mean().sqrt()


def llama(folder, **options):
    """A file of Q4_K, of two layers with tied embeddings."""
    return tiny_gguf_files.write(folder / "m.gguf", **({"kind": "Q4_K", "hidden": 256, "head_dim": 64, "heads": 4} | options))


@pytest.mark.parametrize("architecture", files.MODELS)
def test_logits_of_every_architecture(architecture, tmp_path):
    if architecture not in gguf.MODEL_ARCH_NAMES.values():
        pytest.skip(f"transformers reads it with a later gguf than {gguf.__file__}")
    config = files.build_config(architecture)
    source = files.build_model(config)
    files.write(tmp_path / "m.gguf", architecture, source, "Q4_0")
    files.write(tmp_path / "exact.gguf", architecture, source, "F32")
    expected = load(tmp_path, config=config)
    with register_gguf(activations="float32"):
        model, found = load(tmp_path, config=config, output_loading_info=True)
    assert not found["missing_keys"] and not found["mismatched_keys"] and not found["unexpected_keys"]
    assert_near(logits(model), logits(expected))
    assert_near(logits_in_steps(model), logits_in_steps(expected))
    matrices = {name for name, weight in model.named_parameters() if weight.dim() > 1 and not DENSE.search(name)}
    assert kept(model) == matrices and len(matrices) > 5
    with register_gguf():
        quantised = load(tmp_path, config=config)
    exact = load(tmp_path, "exact.gguf", config=config)
    assert rms(logits(quantised) - logits(expected)) <= INT8 * rms(logits(expected) - logits(exact))


@pytest.mark.parametrize(
    "kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]
)
def test_every_block_format(kind, tmp_path):
    llama(tmp_path, kind=kind)
    expected = logits(load(tmp_path))
    with register_gguf(activations="float32"):
        model = load(tmp_path)
    assert len(kept(model)) == 15 and {
        weight.blocks.format.name for weight in model.parameters() if isinstance(weight, BlockWeight)
    } == {kind}
    assert_near(logits(model), expected, 1e-4)  # weights of another size: the softmaxes are steep


def test_an_output_of_its_own(tmp_path):
    """GPT-2's loader enters it apart from all others."""
    config = files.build_config("gpt2", tie_word_embeddings=False)
    files.write(tmp_path / "m.gguf", "gpt2", files.build_model(config), "Q4_0", {"output.weight": "Q8_0"})
    expected = load(tmp_path, config=config)
    with register_gguf(activations="float32"):
        model = load(tmp_path, config=config)
    assert model.lm_head.weight.blocks.format.name == "Q8_0"
    assert_near(logits(model), logits(expected))


def test_a_tied_embedding_is_one_weight(registered, tmp_path):
    llama(tmp_path)
    model = load(tmp_path)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert isinstance(model.lm_head.weight.blocks.matrices[0], LinearPanels)
    assert sum(weight.nbytes for weight in model.parameters()) < 1.05 * (tmp_path / "m.gguf").stat().st_size


@pytest.mark.parametrize(("kinds", "name"), [({"ffn_gate_exps": "Q8_0"}, "ffn_gate_exps"), ({"ffn_down_exps": "TQ2_0"}, None)])
def test_what_blocks_cannot_follow_is_decoded(kinds, name, tmp_path, caplog):
    """Gate and up of different types are one parameter; TQ2_0 has no product."""
    config = files.build_config("qwen3moe", moe_intermediate_size=256)
    files.write(tmp_path / "m.gguf", "qwen3moe", files.build_model(config), "Q4_0", kinds)
    expected = load(tmp_path, config=config)
    with register_gguf(activations="float32"):
        model = load(tmp_path, config=config)
    assert_near(logits(model), logits(expected))
    decoded = "gate_up_proj" if name else "down_proj"
    assert {m[1] for m in (re.search(r"experts\.(\w+)$", n) for n in kept(model)) if m} == {"gate_up_proj", "down_proj"} - {
        decoded
    }
    listed = "blk.0.ffn_gate_exps.weight (Q8_0)" if name else "blk.0.ffn_down_exps.weight (TQ2_0)"
    assert "without products for its blocks, decoded to floats" in caplog.text and listed in caplog.text


def test_a_newer_architecture_decodes_what_has_no_product(tmp_path, caplog):
    config = files.build_config("lfm2", intermediate_size=256)
    files.write(tmp_path / "m.gguf", "lfm2", files.build_model(config), "Q4_0", {"ffn_down": "TQ2_0"})
    with register_gguf(activations="float32"):
        model = load(tmp_path, config=config)
    assert not any("w2" in name for name in kept(model)) and any("w1" in name for name in kept(model))
    assert "blk.0.ffn_down.weight (TQ2_0)" in caplog.text
    assert torch.isfinite(logits(model)).all()


def test_experts_are_multiplied_one_by_one(registered, tmp_path, monkeypatch):
    """Another implementation decodes all of them at each call."""
    decoded = []
    monkeypatch.setattr(block_weight, "_decoded", lambda value, of=block_weight._decoded: decoded.append(value) or of(value))
    config = files.build_config("qwen3moe")
    files.write(tmp_path / "m.gguf", "qwen3moe", files.build_model(config), "Q4_0")
    model = load(tmp_path, config=config)
    expected = logits(model)
    assert not any(isinstance(value, BlockWeight) for value in decoded)
    model.set_experts_implementation("batched_mm")
    assert rms(logits(model) - expected) <= 0.05 * rms(expected)
    assert any(isinstance(value, BlockWeight) for value in decoded)


def test_generate_and_sampling(registered, tmp_path):
    llama(tmp_path)
    model = load(tmp_path)
    greedy = model.generate(IDS, max_new_tokens=6, do_sample=False)
    assert torch.equal(model.generate(IDS, max_new_tokens=6, do_sample=False, custom_generate=sampling()), greedy)
    with torch.inference_mode():
        assert_near(model(IDS).logits, logits(model))
    both = model.generate(IDS.repeat(2, 1), max_new_tokens=6, do_sample=True, custom_generate=sampling(seed=[3, 4]))
    one = model.generate(IDS, max_new_tokens=6, do_sample=True, custom_generate=sampling(seed=[4]))
    assert torch.equal(both[1:], one)
    with pytest.raises(ValueError, match="latent attention"):
        accelerate(model)


def test_calls_from_several_threads(registered, tmp_path):
    llama(tmp_path)
    model = load(tmp_path)
    expected = [logits(model, IDS[:, :n]) for n in (3, 5, 7, 9)]
    found = [None] * 4

    def call(i):
        for _ in range(5):
            found[i] = logits(model, IDS[:, : 3 + 2 * i])

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_attention_and_cache(registered, tmp_path):
    """Of models that sdpa serves; an implementation that is asked for stays."""
    llama(tmp_path)
    model = load(tmp_path)
    assert model.config._attn_implementation == "decodestep_grouped"
    assert load(tmp_path, attn_implementation="eager").config._attn_implementation == "eager"
    expected = logits(model)
    model.set_attn_implementation("sdpa")
    assert_near(logits(model), expected)
    model.set_attn_implementation("decodestep_grouped")
    cache = transformers.DynamicCache(config=model.config)
    padded = torch.cat([torch.zeros_like(IDS[:, :3]), IDS], 1)
    mask = torch.ones_like(padded)
    mask[:, :3] = 0
    with torch.no_grad():
        model(padded[:, :-1], attention_mask=mask[:, :-1], past_key_values=cache)
        last = model(padded[:, -1:], attention_mask=mask, past_key_values=cache).logits
    assert {type(layer) for layer in cache.layers} == {LatentLayer}
    assert_near(last, expected[:, -1:])


def test_copies_and_pickles(registered, tmp_path):
    llama(tmp_path)
    model = load(tmp_path)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert kept(other) == kept(model) and torch.equal(logits(other), logits(model))


def test_another_dtype(registered, tmp_path):
    llama(tmp_path)
    model = load(tmp_path)
    expected = logits(model)
    loaded = load(tmp_path, dtype=torch.bfloat16)
    model.to(torch.bfloat16)
    for other in (model, loaded):
        assert len(kept(other)) == 15 and other.lm_head.weight.dtype == torch.bfloat16
        assert rms(logits(other).float() - expected) <= 0.1 * rms(expected)
    with pytest.raises(ValueError, match="not supported for quantized"):
        model.half()


def test_what_is_refused(registered, tmp_path):
    llama(tmp_path)
    model = load(tmp_path)
    assert not model.hf_quantizer.is_trainable
    with pytest.raises(ValueError, match="quantized with gguf and is not serializable"):
        model.save_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match="device must be the CPU"):
        model.to("meta")
    for device_map in ({"": "meta"}, {"model": "cpu", "lm_head": "disk"}, "cuda", 0):
        with pytest.raises(ValueError, match="device_map must be of the CPU"):
            load(tmp_path, device_map=device_map)
    assert len(kept(load(tmp_path, device_map="auto"))) == 15
    with pytest.raises(ValueError, match="weights in GGUF blocks are not trained"):
        model.lm_head.weight.mul_(2)
    with pytest.raises(ValueError, match="activations must be one of 'int8', 'float32'"):
        register_gguf(activations="int4")


def test_dequantize(tmp_path):
    llama(tmp_path)
    expected = logits(load(tmp_path))
    with register_gguf():
        model = load(tmp_path).dequantize()
        assert not kept(load(tmp_path, quantization_config=GgufConfig(dequantize=True)))
    assert not kept(model) and model.lm_head.weight is model.model.embed_tokens.weight
    assert_near(logits(model), expected)
    model.save_pretrained(tmp_path / "saved")
    assert_near(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "saved")), expected)


def test_registrations(tmp_path):
    assert AUTO_QUANTIZER_MAPPING["gguf"] is GgufHfQuantizer
    reader = transformers.integrations.gguf.read_gguf_metadata
    llama(tmp_path)
    first = register_gguf(activations="float32")
    with register_gguf() as second:
        first.undo()
        assert AUTO_QUANTIZER_MAPPING["gguf"] is second
        model = load(tmp_path)
    assert AUTO_QUANTIZER_MAPPING["gguf"] is GgufHfQuantizer
    assert transformers.integrations.gguf.read_gguf_metadata is reader
    assert not kept(load(tmp_path)) and len(kept(model)) == 15
    assert torch.isfinite(logits(model)).all()


@pytest.mark.parametrize("name", ["accelerate", "gguf"])
def test_missing_packages(name, monkeypatch):
    monkeypatch.setattr(gguf_registration, "find_spec", lambda package: None if package == name else package)
    with pytest.raises(MissingExtraError, match=rf"{name} is not installed: pip install 'decodestep\[transformers-gguf\]'"):
        register_gguf()


def test_files_that_are_cut_or_not_finite(registered, tmp_path):
    path = llama(tmp_path)
    whole = path.read_bytes()
    config = transformers.AutoConfig.from_pretrained(tmp_path, gguf_file="m.gguf")
    for size in (0, 3, 10, 30, 200, 1000, 4000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        for given in ({}, {"config": config}):  # without, transformers reads the header before there is a quantiser
            with pytest.raises(ModelError, match=rf"^{re.escape(str(path))}.*(truncated|not a GGUF file|empty)"):
                AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", **given)
    damaged = bytearray(whole)
    name = b"output_norm.weight"
    at = whole.index(name) + len(name) + 12  # after the number of axes and the one axis
    damaged[at : at + 4] = int(GGMLQuantizationType.I32).to_bytes(4, "little")
    path.write_bytes(damaged)
    with pytest.raises(DecodestepError, match="output_norm.weight is of I32, which cannot be decoded"):
        load(tmp_path, config=config)
    damaged = bytearray(whole)
    damaged[-142:-140] = b"\x00\x7c"  # the minimum's scale of the last block
    path.write_bytes(damaged)
    with pytest.raises(DecodestepError, match="must have finite scales"):
        load(tmp_path)


def test_the_example_compares_both(tmp_path, monkeypatch, capsys):
    path = llama(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["transformers_gguf.py", str(path), "--alone", "--prompt", "9", "--tokens", "2", "--rounds", "1"]
    )
    runpy.run_path(str(ROOT / "examples" / "transformers_gguf.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert len(re.findall(r"^loaded in [\d.]+ s, -?\d+ MiB more memory; the file has 0 MiB$", printed, re.M)) == 2
    for name in ("blocks", "alone"):
        assert re.search(rf"^{name}: \d+ ms for 9 tokens of a prompt, [\d.]+ ms for each further one$", printed, re.M)
    assert re.search(r"^logits: [\d.]+% apart, root mean square; \d+% of the positions", printed, re.M)


def test_a_class_without_generation(registered, tmp_path):
    llama(tmp_path)
    model = transformers.AutoModel.from_pretrained(tmp_path, gguf_file="m.gguf")
    assert len(kept(model)) == 15
    with torch.no_grad():
        assert torch.isfinite(model(IDS).last_hidden_state).all()
