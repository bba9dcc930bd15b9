"""What is easily got wrong in families with grouped-query attention: lengths, pieces, what files and folders leave unsaid."""

from __future__ import annotations

import contextlib
import io
import json
from functools import cache

import numpy as np
import pytest
import safetensors.torch
import torch

import decodestep as ds
from decodestep import _native
from decodestep.families.common import gguf
from decodestep.families.common.registry import MODEL_TYPES
from decodestep.files.gguf_file import GgufFile
from decodestep.models import ModelError
from support import family_models, family_sizes
from support.core_builds import TIERS, printed_under
from support.families import CASES
from support.grouped_gguf_files import write_gguf
from support.tolerances import LOGITS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_torch_thread")]

FAMILIES = sorted({name for name, _ in family_models.in_gguf("grouped") if CASES[name].native})


@pytest.fixture(scope="module")
def model():
    return cache(family_models.build_model)


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(5).integers(0, 297, 300)


def changed(folder, **keys):
    """The folder with other values in config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_one_token_and_texts_beyond_every_window(model, ids, tmp_path, family):
    theirs, mine = model(family, 0), ds.load(family_models.save(model(family, 0), tmp_path), dtype="float32")
    for length in (1, 67, 300):
        mine.cache.clear()
        expected = family_models.model_logits(theirs, ids[:length])
        assert family_models.relative(mine.logits(ids[:length]), expected) < LOGITS


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_and_batches_change_no_bit(model, ids, tmp_path, family, dtype):
    mine = ds.load(family_models.save(model(family, CASES[family].native[0]), tmp_path), dtype=dtype)
    assert mine.decoder.description.startswith("one native call" if dtype == "auto" else "layer by layer")
    whole = mine.logits(ids[:150])
    mine.cache.clear()
    with mine.sequence() as sequence, mine.sequence() as other:
        for one in (sequence, other):
            one.expect(150)
        pieces = []
        for first, end in ((0, 1), (1, 40), (40, 67), (67, 150)):
            both = mine.forward([(other, ids[first + 9 : end + 9]), (sequence, ids[first:end])], every=True)
            pieces.append(both[end - first :])
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_long_rope_of_a_phi_goes_by_the_length_of_the_text(model, ids, tmp_path):
    """Its context before it was extended stands beside the rope, and a file does not name its kind of rope."""
    theirs = model("phi3", 0)
    for path in (family_models.save(theirs, tmp_path), write_gguf(theirs, tmp_path / "model.gguf")):
        mine = ds.load(path, dtype="float32")
        assert mine.decoder.long_after == 100
        for length in (100, 101):
            mine.cache.clear()
            expected = family_models.model_logits(theirs, ids[:length])
            assert family_models.relative(mine.logits(ids[:length]), expected) < LOGITS


@pytest.mark.parametrize("kind", ["su", "yarn"])
def test_older_names_of_long_rope(model, ids, tmp_path, kind):
    theirs = model("phi3", 0)
    folder = family_models.save(theirs, tmp_path)
    rope = json.loads((folder / "config.json").read_text())["rope_parameters"]
    changed(folder, rope_parameters=rope | {"rope_type": kind})
    expected = family_models.model_logits(theirs, ids[:60])
    assert family_models.relative(ds.load(folder, dtype="float32").logits(ids[:60]), expected) < LOGITS


def test_a_file_has_the_base_that_a_hunyuan_stretches(model, ids, tmp_path):
    theirs = model("hunyuan_v1_dense", 0)
    plain, alpha = 10000.0, {"rope.scaling.alpha": 1000.0}
    path = write_gguf(theirs, tmp_path / "model.gguf", **{"rope.freq_base": plain, **alpha})
    expected = family_models.model_logits(theirs, ids)
    assert family_models.relative(ds.load(path, dtype="float32").logits(ids), expected) < LOGITS


def test_a_minimax_whose_rope_is_said_by_its_width(model, ids, tmp_path):
    theirs = model("minimax_m2", 0)
    folder = family_models.save(theirs, tmp_path)
    changed(folder, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, rotary_dim=16)
    expected = family_models.model_logits(theirs, ids)
    assert family_models.relative(ds.load(folder, dtype="float32").logits(ids), expected) < LOGITS


def test_a_gemma_2_file_older_than_its_caps(model, tmp_path):
    keys = ("attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window")
    path = write_gguf(model("gemma2", 0), tmp_path / "model.gguf", **dict.fromkeys(keys))
    config = gguf.read_config(GgufFile(path))
    assert (config.grouped.score_cap, config.logits_cap, config.grouped.windows) == (50.0, 30.0, (4096, 0, 4096))


@pytest.mark.parametrize(("layers", "width"), [(45, 32), (46, 16)])
def test_a_gemma_2_of_46_layers_scales_its_scores_by_the_share_of_a_head(model, tmp_path, layers, width):
    path = write_gguf(model("gemma2", 0), tmp_path / "model.gguf", block_count=layers)
    assert gguf.read_config(GgufFile(path)).scale == width**-0.5


@pytest.mark.parametrize("keys", [{}, {"nextn_predict_layers": 1}], ids=["no key", "a key"])
def test_the_last_block_of_a_glm_may_be_for_prediction(model, ids, tmp_path, keys):
    """One published file has it and no key."""
    theirs = model("glm4_moe", 0)
    extra = {
        name.replace("layers.2.", "layers.3."): value for name, value in theirs.state_dict().items() if "layers.2." in name
    }
    extra |= {"nextn.eh_proj": torch.ones(64, 128), "nextn.enorm": torch.ones(64), "nextn.hnorm": torch.ones(64)}
    path = write_gguf(theirs, tmp_path / "model.gguf", more=extra, block_count=4, **keys)
    mine = ds.load(path, dtype="float32")
    assert (mine.config.layers, mine.config.next_token_layers) == (3, 1)
    assert family_models.relative(mine.logits(ids), family_models.model_logits(theirs, ids)) < LOGITS


def test_layers_for_prediction_of_a_folder_change_no_logits(model, ids, tmp_path):
    theirs = model("glm4_moe", 0)
    folder = family_models.save(theirs, tmp_path)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    last = {name.replace("layers.2.", "layers.3."): value.clone() for name, value in tensors.items() if "layers.2." in name}
    more = {f"model.layers.3.{part}.weight": torch.ones(64) for part in ("enorm", "hnorm", "shared_head.norm")}
    more["model.layers.3.eh_proj.weight"] = torch.ones(64, 128)
    safetensors.torch.save_file(tensors | last | more, folder / "model.safetensors")
    mine = ds.load(folder, dtype="float32")
    assert mine.config.next_token_layers == 1 and "1 layer for next-token prediction drafts" in mine.decoder.description
    assert family_models.relative(mine.logits(ids), family_models.model_logits(theirs, ids)) < LOGITS


_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@pytest.fixture
def in_blocks(ids, tmp_path):
    """A gpt-oss of transformers', and a folder of it whose experts are MXFP4, as published."""
    theirs = family_models.build_model("gpt_oss", 0, hidden_size=96, intermediate_size=64)
    folder = family_models.save(theirs, tmp_path / "in")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    rng, state = np.random.default_rng(3), theirs.state_dict()
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = rng.integers(0, 256, (experts, outputs, inputs // 32, 16), dtype=np.uint8)
        scales = rng.integers(122, 125, (experts, outputs, inputs // 32), dtype=np.uint8)
        tensors |= {f"{name}_blocks": torch.tensor(blocks), f"{name}_scales": torch.tensor(scales)}
        both = np.stack([_VALUES[blocks & 15], _VALUES[blocks >> 4]], axis=-1).reshape(*scales.shape, 32)
        values = both * np.exp2(scales.astype(np.float32) - 127)[..., None]
        state[name].copy_(torch.tensor(values.reshape(experts, outputs, inputs).swapaxes(1, 2).copy()))
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return theirs, changed(folder, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})


def test_experts_in_mxfp4_are_multiplied_in_their_own_bytes(in_blocks, ids, tmp_path):
    theirs, folder = in_blocks
    expected = family_models.model_logits(theirs, ids)
    assert family_models.relative(ds.load(folder, dtype="float32").logits(ids), expected) < LOGITS
    mine = ds.load(folder)
    assert mine.decoder.description == "one native call a step"
    routed = mine.decoder.native_weights.layers[0].feed_forward.routed
    assert {weight.format.name for weight in routed.weights} == {"MXFP4"}
    assert np.median(np.abs(mine.logits(ids) - expected).max(axis=1) / np.abs(expected).max(axis=1)) < 0.06


def test_a_file_keeps_the_bytes_of_mxfp4(in_blocks, tmp_path):
    from decodestep import cli

    _, folder = in_blocks
    target = tmp_path / "out.gguf"
    assert cli.main(["quantize", str(folder), str(target), "--type", "q8_0"]) == 0
    types = {name: tensor.type.name for name, tensor in GgufFile(target).tensors.items()}
    assert types["blk.1.ffn_gate_exps.weight"] == types["blk.1.ffn_down_exps.weight"] == "MXFP4"
    assert types["blk.1.attn_q.weight"] == "Q8_0" and types["blk.1.ffn_gate_exps.bias"] == "F32"
    written, read = (
        [block.weights for block in ds.load(path).decoder.native_weights.feed_forwards] for path in (target, folder)
    )
    for of_file, of_folder in zip(written, read, strict=True):
        for one, other in zip(of_file, of_folder, strict=True):
            np.testing.assert_array_equal(one.data, other.data)


def test_float8_with_one_scale_for_each_weight(ids, tmp_path):
    """As Ministral 3 is published, with the scales of activations, which nothing reads."""
    theirs = family_models.build_model("ministral3", 0)
    folder, state = family_models.save(theirs, tmp_path), theirs.state_dict()
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for number, name in enumerate([name for name in tensors if name.endswith("_proj.weight")]):
        scale = torch.tensor(0.001 * (number + 1))
        tensors[name] = (tensors[name] / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        state[name].copy_(tensors[name].float() * scale)
        tensors[f"{name}_scale_inv"] = scale if number % 2 else scale.reshape(1)
        tensors[f"{name.removesuffix('weight')}activation_scale"] = torch.tensor(1.0)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    changed(folder, quantization_config={"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"})
    expected = family_models.model_logits(theirs, ids)
    assert family_models.relative(ds.load(folder, dtype="float32").logits(ids), expected) < LOGITS


@pytest.mark.parametrize("prefix", ["language_model.", "model.language_model."])
@pytest.mark.parametrize(("wrapper", "text"), [("mistral3", "ministral3"), ("mistral3", "mistral"), ("gemma3", "gemma3_text")])
def test_a_text_model_beside_an_encoder_of_images(model, ids, tmp_path, wrapper, text, prefix):
    theirs = model(text, 0)
    folder = family_models.save(theirs, tmp_path)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    own = prefix.removeprefix("model.")
    renamed = {
        name if name.startswith("lm_head") and prefix.startswith("model.") else
        (own if prefix == own else "") + name if prefix == own else name.replace("model.", prefix, 1): value
        for name, value in tensors.items()
    }  # fmt: skip
    renamed |= {f"{'' if prefix == own else 'model.'}vision_tower.patch_conv.weight": torch.ones(2, 2)}
    safetensors.torch.save_file(renamed, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    tied = {"tie_word_embeddings": config["tie_word_embeddings"]}
    (folder / "config.json").write_text(json.dumps({"model_type": wrapper, "text_config": config, **tied}))
    mine = ds.load(folder, dtype="float32")
    assert mine.config.architecture == text
    assert family_models.relative(mine.logits(ids), family_models.model_logits(theirs, ids)) < LOGITS


def test_queries_alone_grow_and_by_their_own_position(ids, tmp_path):
    """Texts that share a beginning share its keys, whatever follows."""
    theirs = family_models.build_model("ministral3", 0)
    mine = ds.load(family_models.save(theirs, tmp_path), dtype="float32")
    for text in (ids[:80], np.concatenate([ids[:60], ids[100:250]])):
        assert family_models.relative(mine.logits(text), family_models.model_logits(theirs, text)) < LOGITS
    assert mine.cache.kept


REFUSED = {
    "another rope of a phi": ("phi3", {"rope_parameters": family_sizes.linear(2.0)}, "rope_type 'linear' is not supported for"),
    "an odd part of a head": (
        "phi3",
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.2}},
        "3 of 16 values with rope: not supported",
    ),
    "shared keys of a hunyuan": ("hunyuan_v1_dense", {"use_cla": True}, "use_cla, keys and values that layers share"),
    "a hunyuan that stretches by length": (
        "hunyuan_v1_dense",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        "alpha is missing",
    ),
    "biases of an ernie's mixture": ("ernie4_5_moe", {"use_bias": True}, "use_bias, with which the logits have a bias too"),
    "an olmo 3 with one rope": (
        "olmo3",
        {"rope_parameters": family_sizes.yarn(None, None)},
        "rope_parameters of no layers are not supported",
    ),
    "an olmo 3 with a base of no layers": (
        "olmo3",
        {"rope_parameters": None, "rope_theta": 10000.0},
        "rope_theta other than 500000, of which layers it is not said",
    ),
    "a cohere with norms of heads": ("cohere2", {"use_qk_norm": True}, "use_qk_norm True is not supported"),
    "a cohere one after the other": ("cohere2", {"use_parallel_block": False}, "use_parallel_block False is not supported"),
    "another limit of a gpt-oss": ("gpt_oss", {"swiglu_limit": 5.0}, "swiglu_limit 5.0 is not supported"),
    "other quantisation of a gpt-oss": (
        "gpt_oss",
        {"quantization_config": {"quant_method": "gptq"}},
        "quant_method 'gptq' is not supported",
    ),
    "MXFP4 of a llama": ("llama", {"quantization_config": {"quant_method": "mxfp4"}}, "quant_method 'mxfp4' is not supported"),
    "bidirectional gemma 2": ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
    "a ministral that does not grow": (
        "ministral3",
        {"rope_parameters": {"rope_type": "default"}},
        "llama_4_scaling_beta is missing",
    ),
}


@pytest.mark.parametrize(("family", "keys", "message"), REFUSED.values(), ids=REFUSED)
def test_a_config_that_is_not_supported_is_refused_by_name(model, tmp_path, family, keys, message):
    folder = changed(family_models.save(model(family, 0), tmp_path), **keys)
    with pytest.raises(ModelError, match=message):
        ds.load(folder)


@pytest.mark.parametrize("family", ["glm4", "glm4_moe"])
def test_files_with_rotations_of_images_are_refused(model, tmp_path, family):
    path = write_gguf(model(family, 0), tmp_path / "model.gguf", **{"rope.dimension_sections": [1, 2, 3]})
    with pytest.raises(ModelError, match="rope.dimension_sections, rotations of images, is not supported"):
        ds.load(path)


def test_form_mla_is_refused_for_what_it_does_not_have(model, tmp_path):
    for family in ("phi3", "gemma2", "gpt_oss", "cohere2"):
        folder = family_models.save(model(family, 0), tmp_path / family)
        with pytest.raises(ModelError, match="form 'mla' is not supported"):
            ds.load(folder, form="mla")


def test_a_text_config_that_is_none_is_refused(model, tmp_path):
    folder = family_models.save(model("ministral3", 0), tmp_path)
    changed(folder, model_type="mistral3", text_config=None)
    with pytest.raises(ModelError, match="text_config must be an object"):
        ds.load(folder)
    assert "mistral3" not in MODEL_TYPES


def test_a_gemma_4_by_the_keys_of_published_folders(model, ids, tmp_path):
    """transformers saves the sizes of single layers in place of them; published layers that share keys have their own, too."""
    theirs = model("gemma4_text", 0)
    folder = family_models.save(theirs, tmp_path)
    expected = family_models.model_logits(theirs, ids)
    config = json.loads((folder / "config.json").read_text())
    assert config.pop("per_layer_config")
    (folder / "config.json").write_text(json.dumps(config | {"global_head_dim": 32}))
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for part in ("k_proj", "v_proj", "k_norm"):
        tensors[f"model.layers.4.self_attn.{part}.weight"] = torch.full((3, 3), torch.nan)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    assert family_models.relative(ds.load(folder, dtype="float32").logits(ids), expected) < LOGITS


GEMMA4_REFUSED = {
    "tokens that see later ones": ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention of text"),
    "other sizes": ({"per_layer_config": {"1": {"intermediate_size": 8}}}, "per_layer_config with other than sizes of heads"),
    "a layer that there is not": ({"per_layer_config": {"6": {"head_dim": 8}}}, "per_layer_config with other than"),
    "keys of no layer": ({"num_kv_shared_layers": 5}, "5 layers of 6 that share keys, without an earlier one of each kind"),
    "another vocabulary": ({"vocab_size_per_layer_input": 5}, "vocab_size_per_layer_input other than vocab_size"),
    "key heads that do not divide": ({"num_key_value_heads": 3, "per_layer_config": None}, "4 query heads on "),
}


@pytest.mark.parametrize(("keys", "message"), GEMMA4_REFUSED.values(), ids=GEMMA4_REFUSED)
def test_a_gemma_4_that_is_not_supported_is_refused_by_name(model, tmp_path, keys, message):
    with pytest.raises(ModelError, match=message):
        ds.load(changed(family_models.save(model("gemma4_text", 0), tmp_path), **keys))


@pytest.mark.parametrize("cache_dtype", ["float16", "int8"])
def test_caches_of_layers_of_two_sizes(model, ids, tmp_path, cache_dtype):
    folder = family_models.save(model("gemma4_text", 1), tmp_path)
    mine, exact = ds.load(folder, cache_dtype=cache_dtype), family_models.model_logits(model("gemma4_text", 1), ids)
    apart = np.abs(mine.logits(ids) - exact).max(axis=1) / np.abs(exact).max(axis=1)
    assert np.median(apart) < (0.002 if cache_dtype == "float16" else 0.03)


HASHES = """
import hashlib, sys
import numpy as np
import decodestep as ds
ids = np.random.default_rng(1).integers(0, 297, 90)
for kind in ({}, {"cache_dtype": "float16"}, {"cache_dtype": "int8"}):
    for path in PATHS:
        print(hashlib.sha256(ds.load(path, **kind).logits(ids).tobytes()).hexdigest())
"""


@pytest.mark.tiers
def test_every_instruction_set_has_the_same_bits(model, tmp_path):
    """Of those with a fused multiply-add."""
    paths = [str(family_models.save(model(name, CASES[name].native[0]), tmp_path / name)) for name in FAMILIES]
    code, own = HASHES.replace("PATHS", repr(paths)), io.StringIO()
    with contextlib.redirect_stdout(own):
        exec(code, {})
    hashes = own.getvalue().strip()
    assert len(hashes.split()) == 3 * len(paths)
    for isa in TIERS:
        if isa not in ("baseline", _native.isa()):
            assert printed_under(isa, code) == hashes
