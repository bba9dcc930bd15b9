"""What the families of which small models are tested say of themselves: three sizes of each, and what can be done with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Cases:
    """A model_type.

    class_name, place: of transformers' class and its folder, if that has another name than the model_type.
    sizes: what is not as in `family_models.SMALL`. native: those that the native step takes. in_gguf: those that GGUF has keys
    for. aligned: of latent attention, what makes size 0 fill the native step's vectors. written: one that is written as a GGUF
    file, with changes. read_alike: whether llama.cpp computes the same from it. needed: what config.json has to say, because
    the values of transformers' class without it are not supported.

    Sliding windows are below and above the 16 positions of a page, and not all widths of heads are those of the native step.
    """

    class_name: str
    sizes: list[dict[str, Any]]
    place: str | None = None
    native: tuple[int, ...] = ()
    in_gguf: tuple[int, ...] = ()
    written: tuple[int, dict[str, Any]] = field(default_factory=lambda: (0, {}))
    read_alike: bool = True
    aligned: dict[str, Any] = field(default_factory=dict)
    needed: dict[str, Any] = field(default_factory=dict)


FOUR_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
WINDOWED = ["sliding_attention", "full_attention", "sliding_attention"]  # three layers
WIDE_LATENT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "q_lora_rank": 32,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}
EXPERTS = {"moe_intermediate_size": 24, "n_routed_experts": 7, "num_experts_per_tok": 3, "n_shared_experts": 1}
ONE_GROUP = {**EXPERTS, "n_group": 1, "topk_group": 1}
GROUPS = {**EXPERTS, "n_routed_experts": 12, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}


def yarn(mscale: float | None, all_dim: float | None, **more: Any) -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        **({} if mscale is None else {"mscale": mscale}),
        **({} if all_dim is None else {"mscale_all_dim": all_dim}),
        **more,
    }


def linear(factor: float, theta: float = 500.0) -> dict[str, Any]:
    return {"rope_type": "linear", "rope_theta": theta, "factor": factor}


def longrope(original: int, **more: Any) -> dict[str, Any]:
    return {**long_factors(4), "original_max_position_embeddings": original, **more}


def long_factors(pairs: int) -> dict[str, Any]:
    short, long = (np.linspace(1, top, pairs).tolist() for top in (1.3, 4.0))
    return {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": short, "long_factor": long}
