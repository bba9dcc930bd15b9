"""The attention implementation "decodestep_grouped" for transformers: few queries of a CPU by `mla_attention`, else sdpa."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from decodestep.integrations.transformers import visible_keys
from decodestep.integrations.transformers.absorbed import as_pages, attend_pages
from decodestep.integrations.transformers.borrowed import borrow
from decodestep.integrations.transformers.few_rows import MOST_ROWS, is_watched
from decodestep.integrations.transformers.visible_keys import VisibleKeys

NAME = "decodestep_grouped"
_DTYPES = (torch.float32, torch.bfloat16)
_LEFT_TO_SDPA = ("position_bias", "cache", "softcap", "output_attentions")  # which serves or refuses them
# Models that do something else where their attention is named "sdpa".
_READ_THE_NAME = re.compile("gemma4|glm5_next")


def use_in(model: PreTrainedModel) -> None:
    """Switches a model from sdpa, if it has that."""
    other = _READ_THE_NAME.match(model.config.model_type)
    if model._supports_attention_backend and model.config._attn_implementation == "sdpa" and not other:
        model.set_attn_implementation(NAME)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The registered function: sdpa's sums in another order. torch would compute few queries on OpenMP's threads, which then
    spin on the cores that the products of the next weights need."""
    left = dropout or any(options.get(name) is not None and options[name] is not False for name in _LEFT_TO_SDPA)
    if not left and scaling is not None and _are_few(query, key, value):
        causal = options.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        keys = _visible(module, attention_mask, query, key, bool(causal))
        if keys is not None:
            return _attend(query, key, value, keys, scaling), None
    out: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
    )
    return out


def _are_few(query: Tensor, *others: Tensor) -> bool:
    """Whether these are few queries, keys and values in memory of the CPU, one head after the other, without gradients."""
    if is_watched() or query.shape[2] > MOST_ROWS or query.shape[3] % 2 or torch.is_autocast_enabled("cpu"):
        return False
    for tensor in (query, *others):
        if type(tensor) is not Tensor or not tensor.is_cpu or tensor.layout != torch.strided or tensor.is_neg():
            return False
        if tensor.dtype != query.dtype or tensor.dtype not in _DTYPES or not tensor.numel():
            return False
        if torch.is_grad_enabled() and tensor.requires_grad:
            return False
    return all(_follow(tensor) for tensor in others)


def _follow(cache: Tensor) -> bool:
    """Whether each head of a cache (B, G, T, width) is in C order, and heads follow at one distance: they are one axis."""
    in_order = cache.stride(3) == 1 and cache.stride(2) == cache.shape[3]
    return in_order and (cache.shape[0] == 1 or cache.stride(0) == cache.shape[1] * cache.stride(1))


def _visible(module: nn.Module, mask: Tensor | None, query: Tensor, key: Tensor, causal: bool) -> VisibleKeys | None:
    """The keys that each query of each group sees, in the order of (row, group, query); None if they differ between heads, or
    if the mask does more than hide keys."""
    batch, _, queries, _ = query.shape
    _, groups, keys, _ = key.shape
    if mask is None:
        return _without_mask(batch, groups, queries, keys, causal and queries > 1)
    if mask.dim() != 4 or mask.shape[0] not in (1, batch) or mask.shape[1] != 1 or mask.shape[2:] != (queries, keys):
        return None
    seen = visible_keys.as_bool(mask, query)
    if seen is None:
        return None
    seen = seen if seen.shape[0] == batch else seen.expand(batch, -1, -1, -1)
    return _of_groups(visible_keys.of_mask(seen, id(module), id(module.config)), batch, groups)


@lru_cache(maxsize=8)  # which every layer of a step asks for
def _without_mask(batch: int, groups: int, queries: int, keys: int, causal: bool) -> VisibleKeys:
    return _of_groups(visible_keys.keys_without_mask(batch, queries, keys, causal), batch, groups)


def _attend(query: Tensor, key: Tensor, value: Tensor, keys: VisibleKeys, scale: float) -> Tensor:
    """A group of heads and a row are a sequence for `mla_attention`: its latents are the values, which no query multiplies.
    keys: as of `_visible`.

    query (B, H, Q, width) -> (B, Q, H, width of the values)
    """
    batch, heads, queries, width = query.shape
    groups = key.shape[1]
    each = query.detach().float().reshape(batch, groups, heads // groups, queries, width).transpose(2, 3)
    rows = borrow(each.reshape(batch * groups * queries, heads // groups, width))
    out = attend_pages(None, rows, *as_pages(_in_one_axis(value), _in_one_axis(key), keys), keys, scale)
    by_head = torch.from_numpy(out).view(batch, groups, queries, heads // groups, -1).permute(0, 2, 1, 3, 4)
    return by_head.reshape(batch, queries, heads, -1).to(query.dtype)


def _in_one_axis(cache: Tensor) -> Tensor:
    batch, groups, length, width = cache.shape
    _, group, position, _ = cache.stride()
    return cache.detach().as_strided((batch * groups, 1, length, width), (group, group, position, 1))


def _of_groups(keys: VisibleKeys, batch: int, groups: int) -> VisibleKeys:
    """The same for the groups of each row, in the order of (row, group, query)."""

    def repeated(indexes: np.ndarray) -> np.ndarray:
        """Numbers of rows, or of sequences, as those of their groups."""
        return indexes[..., None] * groups + np.arange(groups)

    def by_query(of_queries: np.ndarray) -> np.ndarray:
        """(B * Q, ...) of the groups of queries as (B * G * Q)."""
        return of_queries.reshape(batch, -1, groups).transpose(0, 2, 1).reshape(-1)

    blind = np.zeros(keys.lengths.shape, bool)
    blind[keys.blind] = True
    positions = None if keys.positions is None else keys.positions.repeat(groups, axis=0)
    lengths, unseeing = (np.repeat(each[:, None], groups, 1) for each in (keys.lengths, blind))
    return VisibleKeys(
        positions,
        repeated(keys.rows).reshape(-1),
        by_query(repeated(keys.sequence)),
        by_query(lengths),
        np.flatnonzero(by_query(unseeing)),
    )


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
