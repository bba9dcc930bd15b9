"""The small models as llama.cpp's converter takes them, and where its files or llama.cpp are known to compute something else.

The converter reads keys of published config.json files that transformers' classes neither read nor write, and both it and
llama.cpp take for granted what all published models of a family have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.families.deepseek_v32 import READ_INDEX
from support.family_sizes import long_factors, yarn

Keys = dict[str, Any]

# llama.cpp knows files without a latent of queries by their layers, as V2-Lite's. In so many, rounding would choose an expert.
_NO_QUERY_LATENT: Keys = {"num_hidden_layers": 27, "num_experts_per_tok": 7}
_EPS: Keys = {"rms_norm_eps": 1e-6}  # of the latents' norms too, which transformers does not read for these
_GEMMA3: Keys = {"num_hidden_layers": 6, "layer_types": None}  # of which the last layer alone sees all positions
# What is not as in the sizes of tests/support/families, in place of the changes that our own files need.
CHANGES: dict[tuple[str, int], Keys] = {
    ("deepseek_v2", 0): _NO_QUERY_LATENT,
    ("deepseek_v2", 1): {"rope_parameters": yarn(1.0, 1.0)},  # llama.cpp reads no betas of this architecture
    ("deepseek_v3", 1): _NO_QUERY_LATENT | _EPS,
    ("deepseek_v32", 1): READ_INDEX | _EPS,
    ("dots1", 2): {"num_key_value_heads": 4},
    ("ernie4_5_moe", 0): {"intermediate_size": 128},  # divided by the key heads it is the width of the shared experts
    ("exaone4", 0): {
        "head_dim": 16,
        "num_hidden_layers": 64,
        "layer_types": None,
    },  # fewer have no windows
    ("exaone4", 2): {"num_hidden_layers": 64, "sliding_window_pattern": 4},
    ("gemma2", 2): {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},  # which the converter asks for
    ("gemma3_text", 0): _GEMMA3,
    ("gemma3_text", 2): _GEMMA3,
    ("gemma4_text", 1): {"final_logit_softcapping": 30.0},  # which llama.cpp takes where a file has none
    ("glm", 0): {"head_dim": 16},
    ("glm_moe_dsa", 1): READ_INDEX,
    # A file of a hybrid model says that it has no rope, and of the two widths that of experts.
    ("granitemoehybrid", 2): {"position_embedding_type": None, "intermediate_size": 72, "num_experts_per_tok": 0},
    ("gpt_oss", 2): {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},  # without YaRN llama.cpp agrees
    ("lfm2_moe", 2): {"tie_word_embeddings": True},  # the converter has no name for lm_head
    ("minicpm3", 0): {  # llama.cpp has dim_model_base, and the context of the long factors is that of the model
        "dim_model_base": 256,
        "v_head_dim": 16,
        "rope_parameters": {**long_factors(4), "original_max_position_embeddings": 512},
    },
    ("minimax_m2", 2): {"tie_word_embeddings": False},
    ("olmoe", 0): {"num_key_value_heads": 4},
    ("youtu", 0): {},
    ("youtu", 1): {"num_hidden_layers": 27},
}


# What is converted with a layer for next-token prediction. The converter leaves those of DeepSeek V3 out.
PREDICTING = ("deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")


def _sigmoid(config: Keys) -> Keys:
    return config | {"scoring_func": "sigmoid"}


def _predicting(config: Keys) -> Keys:
    return _sigmoid(config) | {"num_nextn_predict_layers": 1}


def _qwen(config: Keys) -> Keys:
    return config | {"mtp_num_hidden_layers": 1}


def _granite_hybrid(config: Keys) -> Keys:
    """With the kinds of layers as published: transformers writes newer names, which the converter takes for Mamba's."""
    names = {"full_attention": "attention", "linear_attention": "mamba"}
    return config | {"layer_types": [names.get(kind, kind) for kind in config["layer_types"]]}


def _nemotron(config: Keys) -> Keys:
    """Of a model without experts: the pattern of its layers, and no keys of experts, by which the converter tells it apart."""
    kinds = config["layers_block_type"]
    if "moe" in kinds:
        return config
    letters = {"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-"}
    of_experts = {"num_experts_per_tok", "n_routed_experts", "num_local_experts", "n_group", "topk_group"}
    kept = {key: value for key, value in config.items() if key not in of_experts}
    return kept | {"hybrid_override_pattern": "".join(letters[kind] for kind in kinds)}


# What a published config.json says otherwise than that which transformers writes, by model_type.
PUBLISHED: dict[str, Callable[[Keys], Keys]] = {
    "cohere2": lambda config: config | {"rotary_pct": 1.0},
    "deepseek_v3": _sigmoid,
    "deepseek_v32": _predicting,
    "dots1": _sigmoid,
    "glm": lambda config: (
        config | {"seq_length": config["max_position_embeddings"], "layernorm_epsilon": config["rms_norm_eps"]}
    ),
    "glm4_moe": _predicting,
    "glm4_moe_lite": lambda config: _predicting(config) | {"first_k_dense_replace": config["mlp_layer_types"].count("dense")},
    "glm_moe_dsa": _predicting,
    "granitemoehybrid": _granite_hybrid,
    "hunyuan_v1_dense": lambda config: config | {"max_position_embeddings": 1 << 15},
    "minimax_m2": lambda config: _sigmoid(config) | {"rotary_dim": config["head_dim"] // 2},
    "nemotron_h": _nemotron,
    "qwen3_5_text": _qwen,
    "qwen3_5_moe_text": _qwen,
    "qwen3_next": _qwen,
}

# The largest difference that is none: of float32 alone; and of llama.cpp where it looks GELU up in a table of float16.
SAME = 1e-4
SAME_BY_LLAMA_CPP: dict[str, float] = dict.fromkeys(("gemma2", "gemma3_text", "gemma4_text"), 1e-3)

# By model and what is compared, or done: why it comes out otherwise.
EXPECTED: dict[tuple[str, int], dict[str, str]] = {
    ("deepseek_v2", 1): {"llama.cpp": "it takes the sum of the two largest as the score of a group, for V2 too"},
    ("gpt_oss", 0): {"llama.cpp": "it rounds the ends of YaRN's ramp, which truncate false forbids"},
    ("ministral", 1): {"converter": "it has no MinistralForCausalLM: published models are said to be MistralForCausalLM"},
    ("mistral", 1): dict.fromkeys(("folder", "transformers"), "the converter writes no key for the window"),
}
