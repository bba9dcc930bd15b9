"""The operators and the types of their arguments; `decodestep.ops.linear` is the function.

An operator's package has its name too. What is in it is imported from it, as by `from decodestep.ops.linear import reference`;
`import decodestep.ops.linear as name` gives the function, which is what the name means here.

An operator's page, reference, kernels, tests and benchmark have the name of its folder here.
"""

from decodestep.ops.causal_conv1d import causal_conv1d
from decodestep.ops.decode_step import DecodeStep, TokenLogprobs, decode_step
from decodestep.ops.decoder_forward import (
    DecoderWeights,
    DeltaRule,
    GroupedAttention,
    Indexer,
    LatentAttention,
    LatentSizes,
    LayerWeights,
    Mamba,
    Mixture,
    ShortConvolution,
    decoder_forward,
)
from decodestep.ops.expert_router import RouterRule, Routes, expert_router
from decodestep.ops.gated_delta_rule import gated_delta_rule
from decodestep.ops.lightning_indexer import lightning_indexer
from decodestep.ops.linear import Format, LinearPanels, PackedWeight, linear
from decodestep.ops.mixture_of_experts import FeedForward, mixture_of_experts
from decodestep.ops.mla_attention import mla_attention
from decodestep.ops.mla_prolog import (
    MlaPrologPlan,
    MlaPrologTilingKey,
    PanelWeight,
    cache_from_nz,
    cache_to_nz,
    from_nz,
    gather_cache,
    mla_prolog,
    mla_prolog_plan,
    mla_prolog_v2,
    mla_prolog_v3,
    slots_from_block_table,
    to_nz,
)
from decodestep.ops.rms_norm import rms_norm
from decodestep.ops.selective_state_update import selective_state_update
from decodestep.ops.sparse_mla_attention import sparse_flash_attention, sparse_mla_attention
from decodestep.ops.swiglu import swiglu
from decodestep.ops.tensor_scatter import tensor_scatter
from decodestep.ops.top_k_top_p_sample import apply_top_k_top_p, top_k_top_p_sample, top_k_top_p_sample_v2

__all__ = [
    "DecodeStep",
    "DecoderWeights",
    "DeltaRule",
    "FeedForward",
    "Format",
    "GroupedAttention",
    "Indexer",
    "LatentAttention",
    "LatentSizes",
    "LayerWeights",
    "LinearPanels",
    "Mamba",
    "Mixture",
    "MlaPrologPlan",
    "MlaPrologTilingKey",
    "PackedWeight",
    "PanelWeight",
    "RouterRule",
    "Routes",
    "ShortConvolution",
    "TokenLogprobs",
    "apply_top_k_top_p",
    "cache_from_nz",
    "cache_to_nz",
    "causal_conv1d",
    "decode_step",
    "decoder_forward",
    "expert_router",
    "from_nz",
    "gated_delta_rule",
    "gather_cache",
    "lightning_indexer",
    "linear",
    "mixture_of_experts",
    "mla_attention",
    "mla_prolog",
    "mla_prolog_plan",
    "mla_prolog_v2",
    "mla_prolog_v3",
    "rms_norm",
    "selective_state_update",
    "slots_from_block_table",
    "sparse_flash_attention",
    "sparse_mla_attention",
    "swiglu",
    "tensor_scatter",
    "to_nz",
    "top_k_top_p_sample",
    "top_k_top_p_sample_v2",
]
