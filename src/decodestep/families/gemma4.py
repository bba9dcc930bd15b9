"""Gemma 4, text: heads of two sizes, layers that read the keys of earlier ones, norms of values, an input of every layer, or
experts beside the dense block.

Layers that see all positions have wider heads, perhaps fewer of keys, whose values may be the keys before their norm. The last
layers may read the keys and values of the last one before them of their kind. E2B and E4B give every layer an input made of the
token. Unlike Gemma 3's, norms multiply by their weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from decodestep.decoding.config import Config, Experts, GroupedConfig
from decodestep.families import gemma3, llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Activation, Architecture, Family, Fields, Layers, ModelType, Wrapper
from decodestep.families.common.experts import ExpertKeys, Gating, every_layer, file_experts
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.grouped import (
    ATTENTION_BIAS,
    CAPS,
    GroupedKeys,
    file_cap,
    folder_cap,
    layer_types,
    patterned_file_windows,
    sliding_rope,
    written_pattern,
)
from decodestep.families.common.limits import MAX_HEADS, MAX_LAYERS
from decodestep.families.common.names import GGUF as NAMES
from decodestep.files import metadata as md
from decodestep.ops.expert_router.arguments import RouterRule

_PERIOD = 6  # of which the last layer sees all positions
_LAYERS = Layers(query_key_norm="head", block_norms="both", activation="gelu_gated")
_ROPES: dict[str, Any] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}
_DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rope_parameters": _ROPES,
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 0,
}
# Besides the router and the experts themselves.
_FILE_EXPERTS = {
    "router_scale": "ffn_gate_inp.scale",
    "factors_of_experts": "ffn_down_exps.scale",
    "dense_post_norm": "post_ffw_norm_1.weight",
    "routed_norm": "pre_ffw_norm_2.weight",
    "routed_post_norm": "post_ffw_norm_2.weight",
}
_FOLDER_EXPERTS = {
    "router": "router.proj.weight",
    "router_scale": "router.scale",
    "factors_of_experts": "router.per_expert_scale",
    "experts_gate_up": "experts.gate_up_proj",
    "experts_down": "experts.down_proj",
    "dense_post_norm": "post_feedforward_layernorm_1.weight",
    "routed_norm": "pre_feedforward_layernorm_2.weight",
    "routed_post_norm": "post_feedforward_layernorm_2.weight",
}


def _keys_of(slides: tuple[bool, ...], shared: int) -> tuple[int, ...]:
    """For every layer, of which the last `shared` read another one's keys, that whose keys it reads."""
    first = len(slides) - shared
    own = tuple(range(first))
    return own + tuple(max(i for i in own if slides[i] == kind) for kind in slides[first:])


def _check_shared(slides: tuple[bool, ...], shared: int) -> str | None:
    first = len(slides) - shared
    lacking = first < 1 or set(slides[first:]) - set(slides[:first])
    return f"{shared} layers of {len(slides)} that share keys, without an earlier one of each kind" if lacking else None


def _grouped(
    slides: tuple[bool, ...], window: int, shared: int, dims: tuple[int, ...], kv_heads: tuple[int, ...], k_eq_v: bool
) -> GroupedConfig:
    keys_of = _keys_of(slides, shared)
    return GroupedConfig(
        scale=1.0,
        query_key_norm=_LAYERS.query_key_norm,
        windows=tuple(window if slide else 0 for slide in slides),
        ropes=tuple(map(int, slides)),
        head_dims=dims if min(dims) < max(dims) else (),
        kv_heads=kv_heads if min(kv_heads) < max(kv_heads) else (),
        keys_of=keys_of if shared else (),
        keys_as_values=tuple(k_eq_v and not slide for slide in slides) if k_eq_v and not all(slides) else (),
        value_norm=True,
    )


@dataclass(frozen=True)
class _File:
    """Attention in a GGUF file."""

    parts = frozenset(("query", "key", "value"))

    def read(self, keys: GgufKeys, common: Fields, architecture: Architecture) -> Fields:
        layers, windows = common["layers"], patterned_file_windows(_PERIOD)(keys, common["layers"])
        slides = tuple(window > 0 for window in windows)
        full = keys.size("attention.key_length")
        sliding = keys.size("attention.key_length_swa", full)
        for key, width in {"attention.value_length": full, "attention.value_length_swa": sliding}.items():
            if keys.size(key, width) != width:
                raise keys.refusal(f"{key} other than that of keys is not supported")
        dims = tuple(sliding if slide else full for slide in slides)
        kv_heads = keys.sizes("attention.head_count_kv", common["heads"], most=MAX_HEADS)[:layers]
        if any(common["heads"] % count for count in kv_heads) or any(width % 2 for width in dims):
            raise keys.refusal(f"{common['heads']} query heads on {kv_heads} key heads of {dims} values: not supported")
        shared = keys.size("attention.shared_kv_layers", 0, least=0, most=MAX_LAYERS)
        if (wrong := _check_shared(slides, shared)) is not None:
            raise keys.refusal(f"{wrong}: not supported")
        own = [i for i in range(layers - shared) if not slides[i]]
        k_eq_v = bool(own) and not any(NAMES[part].format(i=own[0]) in keys.file.tensors for part in ("value", "qkv"))
        grouped = _grouped(slides, max(windows, default=0), shared, dims, kv_heads, k_eq_v)
        return {"kv_heads": max(kv_heads), "head_dim": max(dims), "grouped": grouped}

    def written(self, config: Config) -> Fields:
        options, layers = config.grouped, range(config.layers)
        full, sliding = (
            next((config.head_dim_of(i) for i in layers if (options.window(i) > 0) == slides), config.head_dim)
            for slides in (False, True)
        )
        made: Fields = {f"attention.{part}_length": full for part in ("key", "value")}
        made |= {f"attention.{part}_length_swa": sliding for part in ("key", "value")}
        made |= {"rope.dimension_count": full, "rope.dimension_count_swa": sliding}
        made |= {"attention.sliding_window": max(options.windows), "attention.head_count_kv": config.kv_heads}
        if options.kv_heads:
            made["attention.head_count_kv"] = list(options.kv_heads)
        made["attention.shared_kv_layers"] = sum(options.source(i) != i for i in layers)
        return made


class _Keys(GroupedKeys):
    """In config.json: by the keys of layers that see all positions, or by per_layer_config."""

    def read(self, keys: Keys, common: Fields, model_type: ModelType) -> Fields:
        layers, heads = common["layers"], common["heads"]
        kinds = layer_types(keys, layers, lambda i: (i + 1) % _PERIOD != 0)
        slides = tuple(kind == "sliding_attention" for kind in [*kinds[:-1], "full_attention"])  # the last as in transformers
        k_eq_v, shared = keys.flag("attention_k_eq_v"), keys.size("num_kv_shared_layers", least=0, most=MAX_LAYERS)
        few = keys.size_or_none("num_global_key_value_heads") if k_eq_v else None
        usual = {"head_dim": keys.size("head_dim"), "num_key_value_heads": keys.size("num_key_value_heads", most=MAX_HEADS)}
        wide = usual | {"head_dim": keys.size("global_head_dim")} | ({} if few is None else {"num_key_value_heads": few})
        sizes = self._own_sizes(keys, usual, layers) or [usual if slide else wide for slide in slides]
        dims, kv_heads = (tuple(size[key] for size in sizes) for key in ("head_dim", "num_key_value_heads"))
        if any(heads % count for count in kv_heads) or any(width % 2 for width in dims):
            raise keys.refusal(f"{heads} query heads on {kv_heads} key heads of {dims} values: not supported")
        if (wrong := _check_shared(slides, shared)) is not None:
            raise keys.refusal(f"{wrong}: not supported")
        grouped = _grouped(slides, keys.size("sliding_window"), shared, dims, kv_heads, k_eq_v)
        biases = tuple(part for part, key in ATTENTION_BIAS.items() if keys.flag(key))
        grouped = replace(grouped, biases=biases)
        return {"kv_heads": max(kv_heads), "head_dim": max(dims), "grouped": grouped, "rope_half_split": True}

    def _own_sizes(self, keys: Keys, usual: dict[str, int], layers: int) -> list[dict[str, int]]:
        """By per_layer_config, which has those of layers whose sizes are others; [] without."""
        found = keys.get("per_layer_config")
        if not found:
            return []
        sizes = [dict(usual) for _ in range(layers)]
        for number, own in found.items() if isinstance(found, dict) else ():
            if (
                not str(number).isdecimal()
                or int(number) >= layers
                or not isinstance(own, dict)
                or not own.keys() <= usual.keys()
            ):
                raise keys.refusal("per_layer_config with other than sizes of heads of layers is not supported")
            sizes[int(number)] |= {key: md.integer(own, key, most=MAX_HEADS) for key in own}
        return sizes


def _file_more(keys: GgufKeys, common: Fields) -> Fields:
    widths = keys.sizes("feed_forward_length")[: common["layers"]]
    return {
        "embedding_scale": gemma3.embedding_scale(common),
        "logits_cap": file_cap("logits", 0.0)(keys),
        "feed_forward": max(widths),
        "feed_forwards": widths if min(widths) < max(widths) else (),
        "layer_inputs": keys.size("embedding_length_per_layer_input", 0, least=0),
        "layer_scales": NAMES["layer_scale"].format(i=0) in keys.file.tensors,
    }


def _folder_more(keys: Keys, common: Fields) -> Fields:
    layers, width = common["layers"], common["feed_forward"]
    shared = keys.size("num_kv_shared_layers", least=0, most=MAX_LAYERS) if keys.flag("use_double_wide_mlp") else 0
    inputs = 0 if keys.get("hidden_size_per_layer_input") is None else keys.size("hidden_size_per_layer_input", least=0)
    return {
        "embedding_scale": float(np.float32(common["hidden"] ** 0.5)),
        "logits_cap": folder_cap("logits")(keys),
        "feed_forward": width * (2 if shared else 1),
        "feed_forwards": (width,) * (layers - shared) + (2 * width,) * shared if shared else (),
        "layer_inputs": inputs,
        "layer_scales": True,
    }


def _rule(keys: Keys) -> RouterRule:
    return RouterRule(used=keys.size("top_k_experts"), normalise=True)


def _experts(keys: Keys, layers: int) -> Experts | None:
    own = ExpertKeys(every_layer, _rule, count="num_experts", shared=None, corrected=False, beside_dense=True)
    return own(keys, layers) if keys.flag("enable_moe_block") else None


def _written(config: Config) -> Fields:
    made = written_pattern(config) | {CAPS["logits"]: config.logits_cap}
    if config.feed_forwards:
        made["feed_forward_length"] = list(config.feed_forwards)
    return made | {"embedding_length_per_layer_input": config.layer_inputs}


def _check(keys: Keys, common: Fields) -> None:
    if keys.get("use_bidirectional_attention") not in (None, False, "vision"):
        raise keys.refusal("use_bidirectional_attention of text is not supported")
    if keys.size("vocab_size_per_layer_input", common["vocab_size"]) != common["vocab_size"]:
        raise keys.refusal("vocab_size_per_layer_input other than vocab_size is not supported")


def _other_keys(config: Config, vectors: object) -> str | None:
    """llama.cpp takes the keys of the last two layers with their own: of the one before the last for windows."""
    options, layers = config.grouped, range(config.layers)
    own = sum(options.source(i) == i for i in layers)
    if all(options.source(i) in (i, own - (2 if options.window(i) else 1)) for i in layers):
        return None
    return "layers that read other keys than those of the last two with their own"


_GGUF = Architecture(
    "gemma4",
    _File(),
    _LAYERS,
    rope_half_split=True,
    more=_file_more,
    second_rope=sliding_rope,
    tensors=_FILE_EXPERTS,
    experts=file_experts(lambda keys, common: Gating("softmax", True, 1.0), beside_dense=True),
    output_bias=False,
    rope_divisors=True,
    refused=_other_keys,
    written=_written,
)
FAMILY = Family(
    types=(
        ModelType(
            "gemma4_text",
            written_as=_GGUF,
            attention=_Keys(),
            defaults=_DEFAULTS,
            layers=_LAYERS,
            activation=Activation("hidden_activation", ("gelu_pytorch_tanh",)),
            more=_folder_more,
            check=_check,
            sizes_by_layer=True,
            ropes_by_layer_type=True,
            experts=_experts,
            tensors=gemma3.TENSORS | _FOLDER_EXPERTS,
            pre_tokenizer="gemma4",
        ),
    ),
    gguf=_GGUF,
    wrappers=(Wrapper("gemma4", unsaid="gemma4_text"),),
)
