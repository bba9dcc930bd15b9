"""The attention implementation "decodestep" for transformers: absorbed for few queries, else sdpa on expanded keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from decodestep._base.checks import Phrase, refuse
from decodestep.integrations.transformers import visible_keys
from decodestep.integrations.transformers.absorbed import attend_absorbed
from decodestep.integrations.transformers.few_rows import is_plain_linear, is_plain_tensor, is_watched
from decodestep.integrations.transformers.switch import Replacement, Switch
from decodestep.integrations.transformers.visible_keys import VisibleKeys

NAME = "decodestep"
# Absorbing reads the latents once for each query; expanding multiplies each latent by kv_b_proj once for all queries.
_KEYS_A_QUERY = 4
DTYPES = (torch.float32, torch.bfloat16)

# Arguments that do not affect sdpa: their content is in the mask or is handled elsewhere in the model.
_WITHOUT_EFFECT = {
    "input_ids",
    "position_ids",
    "cache_position",
    "sliding_window",
    "use_cache",
    "logits_to_keep",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
    "num_items_in_batch",
    "shift_labels",
    "ignore_index",
    "seq_idx",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
    "token_type_ids",  # of a tokenizer, whose outputs are all passed to the model
    "special_tokens_mask",
}
# The method of GLM-5-Next's attention that makes a bool mask for the implementation "sdpa", and an additive one for others.
_MAKES_ITS_MASK = "build_attention_mask_from_topk"
# Arguments for which a call is passed to sdpa, which serves or refuses them: if set, and if given at all.
_LEFT_IF_SET, _LEFT_IF_GIVEN = {"output_attentions", "cache"}, {"position_bias", "softcap"}
_KNOWN = {"is_causal", "indices"} | _WITHOUT_EFFECT | _LEFT_IF_SET | _LEFT_IF_GIVEN
# Arguments of other models' attention that sdpa would ignore: sinks of GPT-OSS and Inkling, MiniMax-M3's selected blocks.
_CHANGE_THE_RESULT = {"s_aux", "sinks", "block_indices"}


class Latents(Replacement):
    """Replaces the method `expand_kv` of an accelerated module: passes the cached latents to `attention`, after the rope keys.

    module: the attention module. switch: that of the acceleration. absorb_up_to: the largest number of queries that `attention`
    absorbs. backend: that of `mla_attention`.
    With any other attention implementation, to which a user may switch at any time, keys and values are expanded as usual. The
    rope keys come first because they are narrower than a query: an implementation that is selected between the two calls fails.
    """

    method = "expand_kv"

    def __init__(self, module: torch.nn.Module, switch: Switch, absorb_up_to: int, backend: str = "auto") -> None:
        super().__init__(module, switch)
        self.absorb_up_to, self.backend = absorb_up_to, backend

    def __call__(self, kv_nope: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
        read = self.in_use and self.module.config._attn_implementation == NAME
        return (k_rot, kv_nope) if read else self.expand(kv_nope, k_rot)

    @property
    def in_use(self) -> bool:
        """Whether this is in force, and the module's `expand_kv` itself, not in a wrapper."""
        return self.in_force and latents_of(self.module) is self

    def expand(self, kv_nope: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values by the module's own class."""
        expanded: tuple[Tensor, Tensor] = type(self.module).expand_kv(self.module, kv_nope, k_rot)
        return expanded


def latents_of(module: nn.Module) -> Latents | None:
    """The `Latents` of an accelerated module."""
    found = module.__dict__.get("expand_kv")
    return found if isinstance(found, Latents) else None


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """The registered function. From an accelerated module, key and value are the cached rope keys (B, 1, T, qk_rope_head_dim)
    and latents (B, 1, T, kv_lora_rank); from any other module they are as for sdpa.

    Raises ValueError for an unknown argument that would change the result.
    """
    latents = latents_of(module)
    if attention_mask is not None and hasattr(module, _MAKES_ITS_MASK):
        attention_mask = attention_mask == 0  # otherwise a query that sees no key would get the mean of all values, not zero
    unknown = [name for name, given in options.items() if given is not None and not _is_known(name, latents)]
    if unknown:
        got = Phrase(f"{', '.join(sorted(unknown))} of {type(module).__name__}")
        refuse("decodestep attention", "arguments", "known ones", got)
    chosen = options.pop("indices", None)
    if latents is not None and key.shape[-1] < query.shape[-1]:  # else expanded, as in a pass during which this was switched on
        if not _is_left_to_sdpa(options) and _can_absorb(module, latents, query, value, key, dropout, scaling):
            keys = _visible(module, attention_mask, chosen, query, key, _is_causal(module, options))
            if keys is not None:
                return attend_absorbed(module, query, value, key, keys, float(scaling or 0.0), latents.backend), None
        key, value = latents.expand(value, key)
    if chosen is not None:
        attention_mask = _only(attention_mask, chosen, query, key)
    out: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
    )
    return out


def _is_known(name: str, latents: Latents | None) -> bool:
    # sdpa accepts any argument; those that it ignores must not be ones that change the result
    return name in _KNOWN if latents is not None else name not in _CHANGE_THE_RESULT


def _is_left_to_sdpa(options: dict[str, Any]) -> bool:
    is_set = any(options.get(name) for name in _LEFT_IF_SET)
    return is_set or any(options.get(name) is not None for name in _LEFT_IF_GIVEN)


def _is_causal(module: nn.Module, options: dict[str, Any]) -> bool:
    given = options.get("is_causal")
    return bool(getattr(module, "is_causal", True) if given is None else given)


def _can_absorb(
    module: torch.nn.Module,
    latents: Latents,
    query: Tensor,
    kv_nope: Tensor,
    k_rot: Tensor,
    dropout: float,
    scaling: float | None,
) -> bool:
    """Whether a call can be served on the latents: few queries, plain tensors, plain weights, and no gradients."""
    queries, keys = query.shape[2], k_rot.shape[2]
    if queries > latents.absorb_up_to or keys < _KEYS_A_QUERY * queries or dropout or scaling is None:
        return False
    # `is_watched` before the tensors' checks, because torch.compile cannot trace `is_neg`.
    if _has_any_global_hook() or is_watched() or why_expanded(module) or torch.is_autocast_enabled(query.device.type):
        return False
    weight = module.kv_b_proj.weight
    fits = weight.shape[0] == query.shape[1] * (module.qk_nope_head_dim + module.v_head_dim)
    return fits and _are_plain(query, kv_nope, k_rot, weight)


def _are_plain(query: Tensor, *others: Tensor) -> bool:
    """Whether these are plain tensors without gradients, all of one dtype, on the CPU or on one GPU."""
    tensors = (query, *others)
    if type(query) is not Tensor or not (query.is_cpu or query.is_cuda):
        return False
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    alike = all(t.device == query.device and t.layout == torch.strided and t.dtype == query.dtype for t in tensors)
    return alike and not any(t.is_neg() for t in tensors)


def why_expanded(module: torch.nn.Module) -> str | None:
    """What keeps every call of an accelerated module from being served on the latents, which can change at any time."""
    if more := more_than_weight(module.kv_b_proj):
        return f"kv_b_proj is {more}"
    weight = module.kv_b_proj.weight
    if not is_plain_tensor(weight) or weight.dtype not in DTYPES:
        return f"kv_b_proj's weight is a {type(weight).__name__} of {weight.dtype}"
    return None


def more_than_weight(projection: torch.nn.Module) -> str | None:
    """What a module is besides its weight; None for a torch Linear without bias, hooks or an overridden `forward`."""
    kind = type(projection)
    if kind is not nn.Linear:
        return f"{kind.__module__}.{kind.__name__}"  # PEFT and torch have other classes of the name Linear
    if projection.bias is not None:
        return "a Linear with a bias"
    if not is_plain_linear(projection):
        return "a Linear with an overridden forward"
    hooks = projection._forward_hooks, projection._forward_pre_hooks, projection._backward_hooks, projection._backward_pre_hooks
    return "a Linear with hooks" if any(hooks) else None


def _visible(
    module: nn.Module, mask: Tensor | None, chosen: Tensor | None, query: Tensor, key: Tensor, causal: bool
) -> VisibleKeys | None:
    """The keys that each query sees; None if they differ between heads, or if the mask does more than hide keys."""
    batch, _, queries, _ = query.shape
    keys = key.shape[2]
    if mask is None and chosen is None:
        return visible_keys.keys_without_mask(batch, queries, keys, causal and queries > 1)
    if mask is not None and (mask.dim() != 4 or mask.shape[1] != 1 or mask.shape[2:] != (queries, keys)):
        return None
    if chosen is not None:
        mask = _only(mask, chosen, query, key)
    seen = None if mask is None else visible_keys.as_bool(mask, query)
    if seen is None or seen.shape[0] not in (1, batch):
        return None
    seen = seen if seen.shape[0] == batch else seen.expand(batch, -1, -1, -1)
    return visible_keys.of_mask(seen, id(module), id(module.config))


def _only(mask: Tensor | None, chosen: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The mask restricted to the keys that a sparse attention's indexer has chosen, as transformers' models do for sdpa.

    chosen: (B, Q, k), positions.
    """
    batch, _, queries, _ = query.shape
    keys = key.shape[2]
    selected = chosen.new_zeros((batch, queries, keys), dtype=torch.bool).scatter(-1, chosen.long(), True).unsqueeze(1)
    if mask is None:
        return selected & torch.ones(queries, keys, dtype=torch.bool, device=key.device).tril(keys - queries)
    return mask & selected if mask.dtype == torch.bool else mask.masked_fill(~selected, torch.finfo(query.dtype).min)


def make_mask(
    batch_size: int,
    q_length: int,
    *sizes: object,
    allow_is_causal_skip: bool = True,
    config: PretrainedConfig | None = None,
    **options: object,
) -> Tensor | None:
    """The registered mask: sdpa's, which is None where torch's causal attention implies it.

    Several queries of a model without latent attention always get a mask: unless the implementation is named "sdpa", Gemma 4
    later drops the queries whose logits are not kept, and the others would be taken for the first ones.
    """
    # Of its class: a config whose layers have different sizes raises when one of these is read.
    skip = allow_is_causal_skip and (q_length == 1 or hasattr(type(config), "kv_lora_rank"))
    mask: Tensor | None = sdpa_mask(batch_size, q_length, *sizes, allow_is_causal_skip=skip, config=config, **options)
    return mask


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, make_mask)
