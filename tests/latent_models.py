"""Small random models of transformers' families with latent attention."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import torch

VOCABULARY = 96
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SPARSE = {"index_topk": 8, "index_n_heads": 2, "index_head_dim": 16}
HYBRID = {"layer_types": ["linear_attention", "full_attention"], "num_local_experts": 4}


class Family(NamedTuple):
    """The class of a model, that of its config, and the changes to `COMMON`."""

    model: str
    config: str
    changes: dict[str, Any]

    @property
    def causal(self) -> bool:
        return self.model.endswith("ForCausalLM")


FAMILIES = {
    "deepseek_v2": Family("DeepseekV2ForCausalLM", "DeepseekV2Config", {}),
    "deepseek_v3": Family("DeepseekV3ForCausalLM", "DeepseekV3Config", {}),
    "glm4_moe_lite": Family("Glm4MoeLiteForCausalLM", "Glm4MoeLiteConfig", {}),
    "youtu": Family("YoutuForCausalLM", "YoutuConfig", {}),
    "minicpm3": Family("MiniCPM3ForCausalLM", "MiniCPM3Config", {}),
    "mistral4": Family("Mistral4ForCausalLM", "Mistral4Config", {"num_local_experts": 4}),
    "axk1": Family("AXK1ForCausalLM", "AXK1Config", {}),
    "longcat_flash": Family(
        "LongcatFlashForCausalLM",
        "LongcatFlashConfig",
        {
            "num_layers": 1,
            "num_hidden_layers": 2,
            "head_dim": 8,
            "ffn_hidden_size": 40,
            "expert_ffn_hidden_size": 24,
            "moe_topk": 2,
            "zero_expert_num": 1,
        },
    ),
    "kimi_linear": Family(
        "KimiLinearForCausalLM",
        "KimiLinearConfig",
        {**HYBRID, "q_lora_rank": None, "linear_head_dim": 8, "linear_num_heads": 4},
    ),
    "bailing_hybrid": Family("BailingHybridForCausalLM", "BailingHybridConfig", {**HYBRID, "head_dim": 8}),
    "deepseek_v32": Family("DeepseekV32ForCausalLM", "DeepseekV32Config", SPARSE),
    "glm_moe_dsa": Family("GlmMoeDsaForCausalLM", "GlmMoeDsaConfig", SPARSE),
    "axk2": Family("AXK2ForCausalLM", "AXK2Config", SPARSE),
    "dots3_note": Family("Dots3NoteTextModel", "Dots3NoteTextConfig", SPARSE),
    "glm5_next": Family(
        "Glm5NextTextModel",
        "Glm5NextTextConfig",
        {
            **SPARSE,
            "index_kpool": 2,
            "qk_rope_head_dim": 0,
            "layer_types": ["linear_attention", "indexed_attention"],
            "linear_head_dim": 8,
            "linear_num_heads": 4,
        },
    ),
    "mistral_large4": Family("MistralLarge4TextModel", "MistralLarge4TextConfig", SPARSE),
}
UNSERVED = {"hy_v4": Family("HYV4ForCausalLM", "HYV4Config", SPARSE)}


def model_of(family: str, *, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> Any:
    """A model in evaluation mode whose weights are large enough for every part to matter."""
    kind = {**FAMILIES, **UNSERVED}[family]
    modelling = import_module(f"transformers.models.{family}.modeling_{family}")
    settings = import_module(f"transformers.models.{family}.configuration_{family}")
    config = getattr(settings, kind.config)(**{**COMMON, **kind.changes, **changes})
    config._attn_implementation = "eager" if family in UNSERVED else "sdpa"
    torch.manual_seed(seed)
    model = getattr(modelling, kind.model)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    return model.to(dtype)
