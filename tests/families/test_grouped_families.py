"""The families with grouped-query attention: the native step and GGUF files against transformers, and what is refused."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep import cli
from decodestep.families.common import gguf
from decodestep.files.gguf_file import GgufFile
from decodestep.models import ModelError
from support import family_models, family_sizes
from support.families import CASES
from support.grouped_gguf_files import write_gguf
from support.tolerances import LLAMA_CPP, LOGITS

pytestmark = pytest.mark.usefixtures("one_torch_thread")

NATIVE = [(family, size) for family, cases in CASES.items() for size in cases.native]
IN_GGUF = family_models.in_gguf("grouped")


@pytest.fixture(scope="module")
def model():
    return cache(family_models.build_model)


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(1).integers(0, 297, 120)


@pytest.mark.parametrize(("family", "size"), NATIVE)
def test_the_native_step_is_as_near_as_its_rounding(model, ids, tmp_path, family, size):
    theirs = model(family, size)
    mine = ds.load(family_models.save(theirs, tmp_path))
    assert mine.decoder.description == "one native call a step"
    expected = family_models.model_logits(theirs, ids)
    apart = np.abs(mine.logits(ids) - expected).max(axis=1) / np.abs(expected).max(axis=1)
    assert np.median(apart) < 0.02
    prompts = [ids[:20].tolist(), ids[:3].tolist()]
    params = ds.SamplingParams(max_new_tokens=3, seed=1, ignore_eos=True)
    together = ds.generate(mine, prompts, params)
    assert [one.token_ids for one in together] == [ds.generate(mine, [one], params)[0].token_ids for one in prompts]


@pytest.mark.parametrize(("family", "size"), IN_GGUF)
def test_a_gguf_file_of_the_same_weights_has_the_same_logits(model, ids, tmp_path, family, size):
    theirs = model(family, size)
    path = write_gguf(theirs, tmp_path / "model.gguf")
    assert family_models.relative(ds.load(path, dtype="float32").logits(ids), family_models.model_logits(theirs, ids)) < LOGITS


@pytest.mark.parametrize(
    ("family", "size"), [("seed_oss", 0), ("glm", 2), ("gemma4_text", 0), ("gemma4_text", 1), ("gemma4_text", 2)]
)
def test_queries_keys_and_values_of_a_file_may_be_one_tensor(model, ids, tmp_path, family, size):
    """Of layers whose heads have other widths too."""
    path = write_gguf(model(family, size), tmp_path / "model.gguf", fused=True)
    assert any("attn_qkv" in name for name in GgufFile(path).tensors)
    expected = family_models.model_logits(model(family, size), ids)
    assert family_models.relative(ds.load(path, dtype="float32").logits(ids), expected) < LOGITS


# Those that llama.cpp runs, and computes alike, by what the files here say. Of two it wants further keys; Mixtral's window it does
# not read.
IN_LLAMA_CPP = [
    (family, size)
    for family, size in IN_GGUF
    if CASES[family].read_alike
    and CASES[family].written == (size, {})
    and family not in ("ernie4_5_moe", "minimax_m2", "mixtral")
]


@pytest.mark.parametrize(("family", "size"), IN_LLAMA_CPP)
def test_llama_cpp_has_the_same_logits(model, ids, tmp_path, family, size):
    """It stores keys and values as float16 here."""
    pytest.importorskip("llama_cpp")
    path = write_gguf(model(family, size), tmp_path / "model.gguf")
    assert (
        family_models.relative(ds.load(path, dtype="float32").logits(ids), family_models.llama_cpp_logits(path, ids))
        < LLAMA_CPP
    )


STRETCHED = {
    "a factor without a type": {"rope.scaling.factor": 8.0},
    "the old name": {"rope.scale_linear": 8.0},
    "the old name and YaRN": {
        "rope.scaling.type": "yarn",
        "rope.scale_linear": 8.0,
        "rope.scaling.original_context_length": 64,
    },
    "attn_factor": {"rope.scaling.attn_factor": 1.25},
    "attn_factor and YaRN": {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0,
        "rope.scaling.original_context_length": 64,
        "rope.scaling.attn_factor": 1.25,
    },
    "a multiplier that only DeepSeek's files have": {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0,
        "rope.scaling.original_context_length": 64,
        "rope.scaling.yarn_log_multiplier": 0.1,
    },
}


@pytest.mark.parametrize("keys", STRETCHED.values(), ids=STRETCHED)
def test_rotations_of_gguf_files_are_those_of_llama_cpp(model, ids, tmp_path, keys):
    pytest.importorskip("llama_cpp")
    path = write_gguf(model("llama", 0), tmp_path / "model.gguf", **keys)
    assert family_models.relative(ds.load(path, dtype="float32").logits(ids), family_models.llama_cpp_logits(path, ids)) < 0.02


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_the_attention_factor_of_a_file_is_that_of_transformers(ids, tmp_path, factor):
    """Where llama.cpp's converter writes it; llama.cpp does not read it for these architectures."""
    theirs = family_models.build_model("llama", 0, rope_parameters=family_sizes.yarn(None, None, attention_factor=factor))
    scaling = {"type": "yarn", "factor": 8.0, "original_context_length": 64, "yarn_attn_factor": factor}
    path = write_gguf(theirs, tmp_path / "a.gguf", **{f"rope.scaling.{name}": value for name, value in scaling.items()})
    assert family_models.relative(ds.load(path, dtype="float32").logits(ids), family_models.model_logits(theirs, ids)) < LOGITS


def test_yarn_without_the_context_before_it_stretches_the_whole_context(model, ids, tmp_path):
    scaling = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0}
    said = scaling | {"rope.scaling.original_context_length": model("llama", 0).config.max_position_embeddings}
    one, other = (write_gguf(model("llama", 0), tmp_path / f"{len(keys)}.gguf", **keys) for keys in (scaling, said))
    np.testing.assert_array_equal(ds.load(one).logits(ids), ds.load(other).logits(ids))


@pytest.mark.parametrize("key", ["expert_weights_scale", "expert_gating_func", "expert_weights_norm"])
def test_the_router_of_qwen3moe_is_that_of_the_architecture(model, ids, tmp_path, key):
    """Neither transformers nor llama.cpp has another one, and llama.cpp does not read the keys."""
    values = {"expert_weights_scale": 2.0, "expert_gating_func": 2, "expert_weights_norm": False}
    path = write_gguf(model("qwen3_moe", 0), tmp_path / "model.gguf", **{key: values[key]})
    mine = ds.load(path, dtype="float32").logits(ids)
    assert family_models.relative(mine, family_models.model_logits(model("qwen3_moe", 0), ids)) < 1e-4
    pytest.importorskip("llama_cpp")
    assert family_models.relative(mine, family_models.llama_cpp_logits(path, ids)) < 0.01


def test_a_qwen3moe_of_experts_alone_needs_no_width_of_dense_blocks(model, ids, tmp_path):
    path = write_gguf(model("qwen3_moe", 0), tmp_path / "model.gguf", feed_forward_length=None)
    mine = ds.load(path, dtype="float32").logits(ids)
    assert family_models.relative(mine, family_models.model_logits(model("qwen3_moe", 0), ids)) < LOGITS


HEADS_BY_THE_HIDDEN_SIZE = [("llama", {}), ("qwen3", {}), ("qwen3_moe", {}), ("granite", {})]
HEADS_BY_THE_HIDDEN_SIZE += [("gemma3_text", {"query_pre_attn_scalar": 8})]


@pytest.mark.parametrize(("family", "changes"), HEADS_BY_THE_HIDDEN_SIZE)
def test_a_file_without_the_width_of_a_head(ids, tmp_path, family, changes):
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    theirs = family_models.build_model(family, 0, **sizes, **changes)
    keys = dict.fromkeys(["attention.key_length", "attention.value_length", "rope.dimension_count"])
    path = write_gguf(theirs, tmp_path / "model.gguf", **keys)
    mine = ds.load(path, dtype="float32").logits(ids)
    assert family_models.relative(mine, family_models.model_logits(theirs, ids)) < 1e-4
    pytest.importorskip("llama_cpp")
    assert family_models.relative(mine, family_models.llama_cpp_logits(path, ids)) < 0.01


def test_a_file_without_the_number_of_key_heads_has_one_for_each_query_head(ids, tmp_path):
    theirs = family_models.build_model("llama", 0, num_key_value_heads=4)
    path = write_gguf(theirs, tmp_path / "model.gguf", **{"attention.head_count_kv": None})
    assert family_models.relative(ds.load(path, dtype="float32").logits(ids), family_models.model_logits(theirs, ids)) < LOGITS


@pytest.mark.parametrize("biased", "qkvo")
def test_a_file_with_one_bias_of_attention(ids, tmp_path, biased):
    theirs = family_models.build_model("llama", 0, attention_bias=True)
    for layer in theirs.model.layers:
        for part in set("qkvo") - {biased}:
            getattr(layer.self_attn, f"{part}_proj").bias = None
    path = write_gguf(theirs, tmp_path / "model.gguf")
    assert family_models.relative(ds.load(path, dtype="float32").logits(ids), family_models.model_logits(theirs, ids)) < LOGITS


def test_a_size_may_be_an_array_of_those_of_all_layers(model, ids, tmp_path):
    """Files of Granite 4 have one of key heads."""
    path = write_gguf(model("granite", 2), tmp_path / "model.gguf", **{"attention.head_count_kv": [2, 2, 2]})
    mine = ds.load(path, dtype="float32").logits(ids)
    assert family_models.relative(mine, family_models.model_logits(model("granite", 2), ids)) < LOGITS


@pytest.mark.parametrize(
    ("sizes", "wrong"),
    [
        ([2, 1, 2], "1 to 2, sizes of single layers, is not supported"),
        ([2, 2], "must be an array of 3 integers"),
        ([0, 0, 0], "must be an integer in"),
    ],
)
def test_an_array_has_one_size_for_each_layer_and_all_are_equal(model, tmp_path, sizes, wrong):
    path = write_gguf(model("granite", 2), tmp_path / "model.gguf", **{"attention.head_count_kv": sizes})
    with pytest.raises(ModelError, match=f"granite.attention.head_count_kv {wrong}"):
        ds.load(path)


@pytest.mark.parametrize("key", ["attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"])
def test_layers_with_windows_have_heads_of_the_same_width(model, ids, tmp_path, key):
    whole = model("gemma3_text", 0)
    path = write_gguf(whole, tmp_path / "model.gguf", **{key: whole.config.head_dim})
    assert family_models.relative(ds.load(path, dtype="float32").logits(ids), family_models.model_logits(whole, ids)) < 1e-4
    with pytest.raises(ModelError, match=f"{key}, another width of the heads of layers with windows, is not supported"):
        ds.load(write_gguf(whole, tmp_path / "other.gguf", **{key: 8}))


@pytest.mark.parametrize("rotates", [False, True])
def test_a_granite_whose_file_says_that_positions_are_not_rotated(model, ids, tmp_path, rotates):
    pytest.importorskip("llama_cpp")
    path = write_gguf(model("granite", 2), tmp_path / "model.gguf", **{"rope.scaling.finetuned": rotates})
    assert (
        family_models.relative(ds.load(path, dtype="float32").logits(ids), family_models.llama_cpp_logits(path, ids))
        < LLAMA_CPP
    )


@pytest.mark.parametrize("value", [0.0, None])
def test_factors_of_a_granite_that_are_zero_or_missing_are_the_usual_ones(ids, tmp_path, value):
    """As in llama.cpp."""
    theirs = family_models.build_model("granite", 2, attention_multiplier=24**-0.5)
    path = write_gguf(
        theirs, tmp_path / "model.gguf", **dict.fromkeys(("attention.scale", "embedding_scale", "residual_scale"), value)
    )
    mine = ds.load(path, dtype="float32").logits(ids)
    assert family_models.relative(mine, family_models.model_logits(theirs, ids)) < LOGITS
    pytest.importorskip("llama_cpp")
    assert family_models.relative(mine, family_models.llama_cpp_logits(path, ids)) < LLAMA_CPP


def test_blocks_of_a_file_are_multiplied_as_they_are(model, ids, tmp_path):
    path = write_gguf(model("gemma3_text", 0), tmp_path / "model.gguf", kind="Q8_0")
    mine, exact = ds.load(path), ds.load(path, dtype="float32").logits(ids)
    assert mine.decoder.description == "one native call a step"
    assert np.median(np.abs(mine.logits(ids) - exact).max(axis=1) / np.abs(exact).max(axis=1)) < 0.02


@pytest.mark.parametrize(("heads", "head_dim"), [(2, 40), (4, 20), (8, 72), (4, 100)])
def test_heads_of_any_even_size_run_natively(ids, tmp_path, heads, head_dim):
    theirs = family_models.build_model(
        "llama", 0, hidden_size=64, intermediate_size=96, num_attention_heads=heads, num_key_value_heads=1, head_dim=head_dim
    )
    mine = ds.load(family_models.save(theirs, tmp_path))
    assert mine.decoder.description == "one native call a step"
    expected = family_models.model_logits(theirs, ids)
    assert np.median(np.abs(mine.logits(ids) - expected).max(axis=1) / np.abs(expected).max(axis=1)) < 0.02


def test_env_counts_padded_heads(tmp_path, capsys):
    theirs = family_models.build_model("llama", 0, hidden_size=64, intermediate_size=96, head_dim=20)
    path = family_models.save(theirs, tmp_path)
    assert cli.main(["env", "--model", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["cache_bytes"] == ds.load(path).cache.page_bytes // 16


REFUSED = {
    "softcapped logits": ("gemma3_text", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is not supported"),
    "softcapped scores": ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is not supported"),
    "tokens that see later ones": (
        "gemma3_text",
        {"use_bidirectional_attention": True},
        "use_bidirectional_attention is not supported",
    ),
    "key heads that do not divide": ("qwen3", {"num_key_value_heads": 3}, "4 query heads on 3 key heads"),
    "heads of an odd width": ("qwen3", {"head_dim": 15}, "key heads of 15 values"),
    "heads of no width": (
        "qwen3",
        {"head_dim": None, "num_attention_heads": 64, "num_key_value_heads": 64},
        "key heads of 0 values",
    ),
    "dense layers that are no list": ("qwen3_moe", {"mlp_only_layers": 1}, "mlp_only_layers must be a list"),
    "long-rope of layers with windows": (
        "gemma3_text",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default"},
                "sliding_attention": family_sizes.longrope(64, short_factor=[1.0] * 16, long_factor=[2.0] * 16),
            }
        },
        "rope_type 'longrope' of sliding_attention is not supported",
    ),
    "another activation": ("gemma3_text", {"hidden_activation": "silu"}, "hidden_activation 'silu' is not supported"),
    "layers of another number": ("ministral", {"layer_types": ["full_attention"]}, "layer_types must have"),
    "layers of lists": ("ministral", {"layer_types": [["full_attention"]] * 3}, "layer_types must have"),
    "rotations that are lists": ("smollm3", {"no_rope_layers": [[1]] * 5}, "no_rope_layers must have"),
    "rotations of another number": ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers must have"),
    "Mamba layers alone": ("granitemoehybrid", {"layer_types": ["mamba"] * 3}, "a model without attention"),
    "Mamba layers by their older key": ("granitemoehybrid", {"layers_block_type": ["mamba"] * 3}, "a model without attention"),
    "layers of the default, Mamba": ("granitemoehybrid", {"layer_types": None}, "a model without attention"),
    "layers of another kind": ("granitemoehybrid", {"layer_types": ["conv"] * 3}, "layer_types with 'conv' is not supported"),
    "steps that are clamped": (
        "granitemoehybrid",
        {"time_step_limit": [0.0, 0.1]},
        "time_step_limit .0.0, 0.1. is not supported",
    ),
    "biases of Mamba's products": ("granitemoehybrid", {"mamba_proj_bias": True}, "mamba_proj_bias is not supported"),
    "a gate with biases": ("qwen3_5_text", {"attention_bias": True}, "attention_bias is not supported"),
    "value heads that do not divide": ("qwen3_5_text", {"linear_num_value_heads": 5}, "5 value heads on 2 key heads"),
    "an unknown letter": ("nemotron_h", {"layers_block_type": None, "hybrid_override_pattern": "M*X"}, "must be made of M, "),
    "convolutions alone": ("lfm2", {"layer_types": ["conv"] * 3}, "a model without attention"),
    "a Granite 4 of other layers": ("granitemoehybrid", {"layer_types": ["attention"]}, "layer_types must have one for each"),
    "a window of none": ("mistral", {"sliding_window": 0}, "sliding_window must be an integer in"),
}


@pytest.mark.parametrize(("family", "changes", "message"), REFUSED.values(), ids=REFUSED)
def test_a_config_that_is_not_supported_is_refused_by_name(model, tmp_path, family, changes, message):
    path = family_models.save(model(family, 0), tmp_path)
    (path / "config.json").write_text(json.dumps(json.loads((path / "config.json").read_text()) | changes))
    with pytest.raises(ModelError, match=message):
        ds.load(path)


@pytest.mark.parametrize("pattern", [[1, 0], [1.0, 0.0, 1.0], ["a", "", "a"]], ids=str)
def test_layers_with_windows_that_are_no_list_of_flags_are_refused(model, tmp_path, pattern):
    path = write_gguf(model("gemma3_text", 0), tmp_path / "model.gguf", **{"attention.sliding_window_pattern": pattern})
    with pytest.raises(ModelError, match="attention.sliding_window_pattern must be"):
        ds.load(path)


GGUF_REFUSED = {
    "softcapped logits": ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is not supported"),
    "softcapped scores": ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is not supported"),
    "values of another width": ({"attention.value_length": 16}, "key heads of 32 values, 16 of them read, 32 with rope"),
    "a rope of a part": ({"rope.dimension_count": 16}, "key heads of 32 values, 32 of them read, 16 with rope"),
    "key heads that do not divide": ({"attention.head_count_kv": 3}, "4 query heads on 3 key heads"),
    "heads of an odd width": (
        dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), 31),
        "key heads of 31 values, 31 of them read, 31 with rope",
    ),
    "long-rope without factors": ({"rope.scaling.type": "longrope"}, "rope scaling 'longrope' is not supported"),
}


@pytest.mark.parametrize(("keys", "message"), GGUF_REFUSED.values(), ids=GGUF_REFUSED)
def test_a_gguf_file_that_is_not_supported_is_refused_by_name(model, tmp_path, keys, message):
    path = write_gguf(model("gemma3_text", 0), tmp_path / "model.gguf", **keys)
    with pytest.raises(ModelError, match=message):
        ds.load(path)


@pytest.mark.parametrize(("layers", "width"), [(61, 32), (62, 16)])
def test_a_gemma_of_62_layers_scales_its_scores_by_the_share_of_a_head(model, tmp_path, layers, width):
    """Gemma 3 27B, whose query_pre_attn_scalar no key of a file has: 168 of heads of 128."""
    path = write_gguf(model("gemma3_text", 0), tmp_path / "model.gguf", block_count=layers)
    assert gguf.read_config(GgufFile(path)).scale == width**-0.5


def test_norms_of_heads_are_not_taken_for_norms_of_rows(tmp_path):
    theirs = family_models.build_model("olmo2", 2)
    theirs.model.layers[1].self_attn.q_norm.weight = torch.nn.Parameter(torch.ones(24))
    with pytest.raises(ModelError, match=r"blk.1.attn_q_norm.weight has shape \(24,\), not \(96,\)"):
        ds.load(write_gguf(theirs, tmp_path / "model.gguf"))


@pytest.mark.parametrize("family", ["qwen3", "olmo2"])
def test_form_mla_is_refused_for_norms_of_queries(model, tmp_path, family):
    folder = family_models.save(model(family, 2), tmp_path)
    with pytest.raises(ModelError, match="form 'mla' is not supported"):
        ds.load(folder, form="mla")
