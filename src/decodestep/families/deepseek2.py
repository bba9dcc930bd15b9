"""DeepSeek V2 and V3 and the models of their layers: latent attention, a mixture of experts with a shared one.

V2 selects experts by softmax, in groups or not; V3 by sigmoid and a bias. A file has the true widths of heads under names of
their own, and keys and values as one latent group; an older one has the plain names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from decodestep.decoding.config import Config
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, Fields, ModelType
from decodestep.families.common.experts import ExpertKeys, Gating, file_experts, stored_gating
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.latent import LatentFile, LatentKeys
from decodestep.families.common.limits import MAX_LAYERS
from decodestep.ops.expert_router.arguments import RouterRule

LATENT_DEFAULTS: dict[str, Any] = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rope_interleave": True,
}
_V2_DEFAULTS = LATENT_DEFAULTS | {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "moe_intermediate_size": 1407,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "n_shared_experts": 2,
    "n_routed_experts": 64,
    "routed_scaling_factor": 1.0,
    "topk_method": "greedy",
    "first_k_dense_replace": 0,
    "max_position_embeddings": 2048,
}
V3_DEFAULTS = LATENT_DEFAULTS | {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "routed_scaling_factor": 2.5,
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "max_position_embeddings": 4096,
}
_GLM_VOCABULARY, _GLM_LAYERS = 154880, (47, 48)  # of GLM-4.7-Flash


def _check_file(keys: GgufKeys, common: Fields) -> None:
    if keys.number("attention.temperature_scale", 0.0, least=-1e6, most=1e6):
        raise keys.refusal("attention.temperature_scale, by which scores grow with the position, is not supported")


def widths(keys: GgufKeys, common: Fields) -> tuple[int, int]:
    suffix = "" if "attention.key_length_mla" not in keys else "_mla"
    return keys.size(f"attention.key_length{suffix}"), keys.size(f"attention.value_length{suffix}")


def _gating(keys: GgufKeys, common: Fields) -> Gating:
    """Files older than the key are DeepSeek-V2's; those of GLM-4.7-Flash without it are recognised by their sizes."""
    is_glm = common["vocab_size"] == _GLM_VOCABULARY and common["layers"] in _GLM_LAYERS
    return stored_gating(keys, unsaid="sigmoid" if is_glm else "softmax")


def written(config: Config) -> Fields:
    """The plain lengths are those of the one latent group."""
    latent, experts = config.latent_attention, config.experts
    assert latent is not None
    return {
        "attention.head_count_kv": 1,
        "attention.key_length": latent.latent_dim + latent.rope_dim,
        "attention.value_length": latent.latent_dim,
        "attention.key_length_mla": latent.nope_dim + latent.rope_dim,
        "attention.value_length_mla": latent.value_dim,
        # llama.cpp takes a file without the key for one with a latent of queries, unless it has as many layers as V2-Lite.
        "attention.q_lora_rank": latent.query_rank or 0,
        "leading_dense_block_count": experts.layers.index(True) if experts else config.layers,
        # llama.cpp asks for these where all layers are dense too.
        "expert_feed_forward_length": config.feed_forward,
        "expert_shared_count": 0,
    }


def _scaled_scores(rope_fields: Fields) -> str | None:
    stretch = rope_fields.get("rope.scaling.factor", 1.0)
    if stretch == 1:
        return None
    if rope_fields["rope.scaling.type"] == "linear":
        return f"a linear factor of {stretch:g}"
    if "rope.scaling.yarn_log_multiplier" not in rope_fields:
        return "YaRN and no mscale_all_dim"
    return f"YaRN's factor {stretch:g} below 1" if stretch < 1 else None


def sparse(keys: Keys, layers: int) -> tuple[bool, ...]:
    dense = keys.size("first_k_dense_replace", least=0, most=MAX_LAYERS)
    return tuple(i >= dense for i in range(layers))


def _v2_rule(keys: Keys) -> RouterRule:
    """transformers reads neither norm_topk_prob nor, where the method is greedy, the groups."""
    method = keys.get("topk_method")
    if method not in ("greedy", "group_limited_greedy"):
        raise keys.refusal(f"topk_method {method!r} is not supported ('greedy' and 'group_limited_greedy' are)")
    groups, kept = (keys.size("n_group"), keys.size("topk_group")) if method == "group_limited_greedy" else (1, 1)
    return RouterRule(keys.size("num_experts_per_tok"), "softmax", groups, kept, "maximum", scale=routed_scale(keys))


def v3_rule(keys: Keys) -> RouterRule:
    groups, kept = keys.size("n_group"), keys.size("topk_group")
    group_score = "top_two" if groups > 1 else "maximum"
    used, normalise = keys.size("num_experts_per_tok"), keys.flag("norm_topk_prob")
    return RouterRule(used, "sigmoid", groups, kept, group_score, normalise, routed_scale(keys))


def routed_scale(keys: Keys) -> float:
    return keys.number("routed_scaling_factor", least=-1e6, most=1e6)


GGUF = Architecture(
    "deepseek2",
    LatentFile(widths),
    experts=file_experts(_gating),
    check=_check_file,
    yarn_multiplier=0.1,
    split_up_projections=True,
    written=written,
    refused=lambda config, vectors: "long-rope" if vectors else None,
    scaled_scores=_scaled_scores,
)
_V2 = ModelType(
    "deepseek_v2",
    written_as=GGUF,
    attention=LatentKeys(half_split=lambda keys: False),
    defaults=_V2_DEFAULTS,
    aliases={"num_experts": "n_routed_experts"},
    mlp_bias="mlp_bias",
    experts=ExpertKeys(sparse, _v2_rule, count="n_routed_experts", shared="n_shared_experts", corrected=False),
    next_token_layers=True,
)
_V3 = ModelType(
    "deepseek_v3",
    written_as=GGUF,
    attention=LatentKeys(),
    defaults=V3_DEFAULTS,
    aliases={"num_local_experts": "n_routed_experts"},
    experts=ExpertKeys(sparse, v3_rule, count="n_routed_experts", shared="n_shared_experts", corrected=True),
    next_token_layers=True,
    tiktoken="kimi-k2",  # Moonlight's
)
FAMILY = Family(types=(_V2, _V3, replace(_V3, name="kimi_k2")), gguf=GGUF)
