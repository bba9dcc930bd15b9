"""Small random models of transformers' families with latent attention; their prompts, their logits, and how those compare."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache

VOCABULARY = 96
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}  # of the largest magnitude
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


def prompt(batch=2, length=40, seed=0):
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def holes(ids, left=7):
    """A mask without the first positions of all rows but the first, and without two in the middle of the last."""
    mask = torch.ones_like(ids)
    mask[1:, :left] = 0
    mask[-1, left + 4 : left + 6] = 0
    return mask


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
