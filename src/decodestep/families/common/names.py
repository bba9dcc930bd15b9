"""Tables from a checkpoint's tensor names to the parts of a layer, and the shapes that a model's sizes give them.

A table maps a part to a name, in which {i} is the number of a layer and {e} that of an expert. Shapes are NumPy's: (outputs,
inputs).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from decodestep.decoding.config import Config, Experts, LatentConfig
from decodestep.families.common.mixer_shapes import Shape, convolution_shapes, delta_shapes, indexer_shapes, mamba_shapes

FEED_FORWARD = ("gate", "up", "down")
_NORMS, _POST_NORMS = ("attention_norm", "ffn_norm"), ("attention_post_norm", "ffn_post_norm")
_GGUF_LAYER = {
    "attention_norm": "attn_norm.weight",
    "query": "attn_q.weight",
    "key": "attn_k.weight",
    "value": "attn_v.weight",
    "qkv": "attn_qkv.weight",
    "sinks": "attn_sinks.weight",
    "query_down": "attn_q_a.weight",
    "query_norm": "attn_q_a_norm.weight",
    "query_up": "attn_q_b.weight",
    "latent_rope": "attn_kv_a_mqa.weight",
    "latent_norm": "attn_kv_a_norm.weight",
    "keys_values_up": "attn_kv_b.weight",
    "keys_up": "attn_k_b.weight",
    "values_up": "attn_v_b.weight",
    "index_query": "indexer.attn_q_b.weight",
    "index_key": "indexer.attn_k.weight",
    "index_norm": "indexer.k_norm.weight",
    "index_norm_bias": "indexer.k_norm.bias",
    "index_by_head": "indexer.proj.weight",
    "attention_output": "attn_output.weight",
    **{f"{part}_bias": f"attn_{name}.bias" for part, name in (("query", "q"), ("key", "k"), ("value", "v"))},
    "qkv_bias": "attn_qkv.bias",
    "attention_output_bias": "attn_output.bias",
    "queries_norm": "attn_q_norm.weight",
    "keys_norm": "attn_k_norm.weight",
    "attention_post_norm": "post_attention_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "ffn_post_norm": "post_ffw_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    **{f"{part}_bias": f"ffn_{part}.bias" for part in FEED_FORWARD},
    "router": "ffn_gate_inp.weight",
    "router_bias": "ffn_gate_inp.bias",
    "correction": "exp_probs_b.bias",
    "experts_gate": "ffn_gate_exps.weight",
    "experts_up": "ffn_up_exps.weight",
    "experts_gate_up": "ffn_gate_up_exps.weight",
    "experts_down": "ffn_down_exps.weight",
    **{f"experts_{part}_bias": f"ffn_{part}_exps.bias" for part in FEED_FORWARD},
    "shared_gate": "ffn_gate_shexp.weight",
    "shared_up": "ffn_up_shexp.weight",
    "shared_down": "ffn_down_shexp.weight",
    "shared_factor": "ffn_gate_inp_shexp.weight",
    "latent_down": "ffn_latent_down.weight",
    "latent_up": "ffn_latent_up.weight",
    "delta_qkv": "attn_qkv.weight",
    "delta_gate": "attn_gate.weight",
    "delta_beta": "ssm_beta.weight",
    "delta_alpha": "ssm_alpha.weight",
    "mixer_input": "ssm_in.weight",
    "convolution": "ssm_conv1d.weight",
    "convolution_bias": "ssm_conv1d.bias",
    "decay": "ssm_a",
    "step_bias": "ssm_dt.bias",
    "skip": "ssm_d",
    "gated_norm": "ssm_norm.weight",
    "mixer_output": "ssm_out.weight",
    "input_gate": "inp_gate.weight",
    "input_output": "proj.weight",
    "input_norm": "post_norm.weight",
    "layer_scale": "layer_output_scale.weight",
    "next_embedding_norm": "nextn.enorm.weight",
    "next_hidden_norm": "nextn.hnorm.weight",
    "next_join": "nextn.eh_proj.weight",
    "next_norm": "nextn.shared_head_norm.weight",
    "next_embedding": "nextn.embed_tokens.weight",
    "next_output": "nextn.shared_head_head.weight",
}
GGUF = {
    "embedding": "token_embd.weight",
    "norm": "output_norm.weight",
    "output": "output.weight",
    "inputs_embedding": "per_layer_token_embd.weight",
    "inputs_projection": "per_layer_model_proj.weight",
    "inputs_norm": "per_layer_proj_norm.weight",
    **{part: f"blk.{{i}}.{name}" for part, name in _GGUF_LAYER.items()},
}  # of most architectures


def has_bias(tensors: Container[str], part: str, i: int = 0) -> bool:
    """Whether a GGUF file has a bias of the part, in layer i: its own, or one for all of queries, keys and values."""
    of_all = part in ("query", "key", "value") and GGUF["qkv_bias"].format(i=i) in tensors
    return of_all or GGUF[f"{part}_bias"].format(i=i) in tensors


def changed(table: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """A table with other names of some parts; a name that then stands for another part is no longer that of the usual one."""
    return {part: name for part, name in table.items() if name not in own.values()} | dict(own)


def of_gguf_layers(names: Mapping[str, str]) -> dict[str, str]:
    """The names of a GGUF file's tensors, by part, of the names within a layer."""
    return {part: f"blk.{{i}}.{name}" for part, name in names.items()}


# GGUF's tensors that divide the frequencies of the rope: of all texts; of those up to the original context and longer ones.
ROPE_DIVISORS = "rope_freqs.weight"
ROPE_FACTORS = {"short": "rope_factors_short.weight", "long": "rope_factors_long.weight"}
_FOLDER_LAYER = {
    "attention_norm": "input_layernorm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "sinks": "self_attn.sinks",
    "query_down": "self_attn.q_a_proj.weight",
    "query_down_bias": "self_attn.q_a_proj.bias",
    "query_norm": "self_attn.q_a_layernorm.weight",
    "query_up": "self_attn.q_b_proj.weight",
    "latent_rope": "self_attn.kv_a_proj_with_mqa.weight",
    "latent_rope_bias": "self_attn.kv_a_proj_with_mqa.bias",
    "latent_norm": "self_attn.kv_a_layernorm.weight",
    "keys_values_up": "self_attn.kv_b_proj.weight",
    "index_query": "self_attn.indexer.wq_b.weight",
    "index_key": "self_attn.indexer.wk.weight",
    "index_norm": "self_attn.indexer.k_norm.weight",
    "index_norm_bias": "self_attn.indexer.k_norm.bias",
    "index_by_head": "self_attn.indexer.weights_proj.weight",
    "attention_output": "self_attn.o_proj.weight",
    "attention_output_bias": "self_attn.o_proj.bias",
    **{f"{part}_bias": f"self_attn.{name}_proj.bias" for part, name in (("query", "q"), ("key", "k"), ("value", "v"))},
    "queries_norm": "self_attn.q_norm.weight",
    "keys_norm": "self_attn.k_norm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "router": "mlp.gate.weight",
    "correction": "mlp.gate.e_score_correction_bias",
    **{part: f"mlp.{part}_proj.weight" for part in FEED_FORWARD},
    **{f"{part}_bias": f"mlp.{part}_proj.bias" for part in FEED_FORWARD},
    **{f"experts_{part}": f"mlp.experts.{{e}}.{part}_proj.weight" for part in FEED_FORWARD},
    **{f"shared_{part}": f"mlp.shared_experts.{part}_proj.weight" for part in FEED_FORWARD},
    **{f"shared_{part}_bias": f"mlp.shared_experts.{part}_proj.bias" for part in FEED_FORWARD},
    "convolution": "linear_attn.conv1d.weight",
    "decay_logarithm": "linear_attn.A_log",
    "step_bias": "linear_attn.dt_bias",
    "gated_norm": "linear_attn.norm.weight",
    "mixer_output": "linear_attn.out_proj.weight",
    "input_gate": "per_layer_input_gate.weight",
    "input_output": "per_layer_projection.weight",
    "input_norm": "post_per_layer_input_norm.weight",
    "layer_scale": "layer_scalar",
    "next_embedding_norm": "enorm.weight",
    "next_hidden_norm": "hnorm.weight",
    "next_join": "eh_proj.weight",
    "next_norm": "shared_head.norm.weight",
    "next_embedding": "embed_tokens.weight",
    "next_output": "shared_head.head.weight",
}


LAYER = "model.layers.{i}."  # what the names of a layer's tensors begin with in a folder


def layer_names(names: Mapping[str, str]) -> dict[str, str]:
    """The names of a folder's tensors, by part, of the names within a layer."""
    return {part: LAYER + name for part, name in names.items()}


FOLDER = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "output": "lm_head.weight",
    "inputs_embedding": "model.embed_tokens_per_layer.weight",
    "inputs_projection": "model.per_layer_model_projection.weight",
    "inputs_norm": "model.per_layer_projection_norm.weight",
    **layer_names(_FOLDER_LAYER),
}


class NamedTensor(NamedTuple):
    """A tensor that a model has: which part of it, its name in the checkpoint, its shape there."""

    part: str
    name: str
    shape: Shape


def list_tensors(config: Config, table: dict[str, str], has: Callable[[str], bool]) -> Iterator[tuple[int, NamedTensor]]:
    """All tensors of a model, each with its layer, or -1. has: whether the checkpoint has a tensor of this name, where more
    than one form is possible. Experts with a tensor each come one after the other, as the same part."""
    vocabulary = (config.vocab_size, config.hidden)
    yield -1, NamedTensor("embedding", table["embedding"], vocabulary)
    yield -1, NamedTensor("norm", table["norm"], (config.hidden,))
    if not config.tied:
        yield -1, NamedTensor("output", table["output"], vocabulary)
    if width := config.layer_inputs:
        all_layers = config.layers * width
        yield -1, NamedTensor("inputs_embedding", table["inputs_embedding"], (config.vocab_size, all_layers))
        yield -1, NamedTensor("inputs_projection", table["inputs_projection"], (all_layers, config.hidden))
        yield -1, NamedTensor("inputs_norm", table["inputs_norm"], (width,))
    for i in range(config.layers + config.next_token_layers):
        for tensor in _layer_tensors(config, table, has, i):
            yield i, tensor


def with_next_token_layers(config: Config, table: dict[str, str], has: Callable[[str], bool], count: int) -> Config:
    """The config of a model after whose layers the checkpoint has `count` for next-token prediction, or says so: those that
    have all their tensors, and the others, which are skipped."""

    def is_whole(i: int) -> bool:
        return all(has(tensor.name) for tensor in _layer_tensors(config, table, has, i))

    grouped = config.grouped  # whose options by layer say nothing of layers after the last one
    by_layer = any(grouped.windows) or any(grouped.ropes) or grouped.head_dims or grouped.kv_heads or grouped.keys_of
    can_draft = config.latent_attention is not None or not by_layer
    whole = sum(1 for _ in takewhile(is_whole, range(config.layers, config.layers + count))) if can_draft else 0
    return replace(config, next_token_layers=whole, skipped_layers=count - whole)


def _layer_tensors(config: Config, table: dict[str, str], has: Callable[[str], bool], i: int) -> Iterator[NamedTensor]:
    norms = {"before": _NORMS, "after": _POST_NORMS, "both": _NORMS + _POST_NORMS, "parallel": _NORMS[:1]}
    has_block = i >= config.layers or config.has_feed_forward(i)
    there = {"attention": config.mixer_of(i) != "none", "ffn": has_block}  # by the beginning of a norm's name
    shapes: dict[str, Shape] = {norm: (config.hidden,) for norm in norms[config.block_norms] if there[norm.split("_")[0]]}
    shapes |= _mixer_shapes(config, table, has, i)
    if config.has_experts(i):
        shapes |= _expert_shapes(config, table, has, i)
    if config.has_dense_block(i):
        shapes |= _dense_shapes(config, table, config.feed_forward_of(i) if i < config.layers else config.feed_forward)
    if config.layer_inputs:
        shapes |= {"input_gate": (config.layer_inputs, config.hidden), "input_output": (config.hidden, config.layer_inputs)}
        shapes |= {"input_norm": (config.hidden,)}
    if config.layer_scales:
        shapes |= {"layer_scale": (1,)}
    if i >= config.layers:
        shapes |= _next_token_shapes(config, table, has, i)
    for part, shape in shapes.items():
        if "{e}" in table[part]:
            for e in range(shape[0]):
                yield NamedTensor(part, table[part].format(i=i, e=e), shape[1:])
        else:
            yield NamedTensor(part, table[part].format(i=i), shape)


def _mixer_shapes(config: Config, table: dict[str, str], has: Callable[[str], bool], i: int) -> dict[str, Shape]:
    match config.mixer_of(i):
        case "delta":
            return delta_shapes(config, table, has, i)
        case "mamba":
            return mamba_shapes(config, table)
        case "convolution":
            return convolution_shapes(config)
        case "none":
            return {}
    latent = config.latent_attention
    if latent is None:
        return _grouped_shapes(config, table, has, i)
    return _latent_shapes(config, latent, table, has, i) | indexer_shapes(config, i)


def _next_token_shapes(config: Config, table: dict[str, str], has: Callable[[str], bool], i: int) -> dict[str, Shape]:
    """What joins an embedding and a hidden state, side by side, and the norm after the layer, in whose place a file may leave
    that of the model."""
    hidden = config.hidden
    shapes: dict[str, Shape] = {
        "next_embedding_norm": (hidden,),
        "next_hidden_norm": (hidden,),
        "next_join": (hidden, 2 * hidden),
    }
    return shapes | ({"next_norm": (hidden,)} if has(table["next_norm"].format(i=i)) else {})


def _grouped_shapes(config: Config, table: dict[str, str], has: Callable[[str], bool], i: int) -> dict[str, Shape]:
    head_dim, options = config.head_dim_of(i), config.grouped
    queries, keys = config.heads * head_dim, config.kv_heads_of(i) * head_dim
    sizes = {"query": queries * (2 if options.gated else 1)}
    if options.source(i) == i:
        sizes |= {"key": keys} | ({"value": keys} if options.has_value_weight(i) else {})
    if "qkv" in table and ("query" not in table or has(table["qkv"].format(i=i))):
        sizes = {"qkv": queries + 2 * keys}
    shapes: dict[str, Shape] = {part: (size, config.hidden) for part, size in sizes.items()}
    shapes["attention_output"] = (config.hidden, queries)
    biased = ["qkv" if "qkv" in shapes and part in ("query", "key", "value") else part for part in config.grouped.biases]
    shapes |= {f"{part}_bias": shapes[part][:1] for part in biased if part in shapes}
    if config.grouped.sinks:
        shapes["sinks"] = (config.heads,)
    if config.grouped.query_key_norm is not None:
        as_rows = config.grouped.query_key_norm == "row"
        shapes |= {"queries_norm": (queries if as_rows else head_dim,)}
        shapes |= {"keys_norm": (keys if as_rows else head_dim,)} if options.source(i) == i else {}
    return shapes


def _latent_shapes(
    config: Config, a: LatentConfig, table: dict[str, str], has: Callable[[str], bool], i: int
) -> dict[str, Shape]:
    hidden, heads, biases = config.hidden, config.heads, a.biases
    queries = heads * (a.nope_dim + a.rope_dim)
    shapes: dict[str, Shape] = {}
    if a.query_rank is None:
        shapes["query"] = (queries, hidden)
    else:
        shapes |= {"query_down": (a.query_rank, hidden), "query_norm": (a.query_rank,), "query_up": (queries, a.query_rank)}
        shapes |= {"query_down_bias": (a.query_rank,)} if biases else {}
    shapes |= {"latent_rope": (a.latent_dim + a.rope_dim, hidden), "latent_norm": (a.latent_dim,)}
    shapes |= {"latent_rope_bias": (a.latent_dim + a.rope_dim,), "attention_output_bias": (hidden,)} if biases else {}
    if "keys_up" in table and not has(table["keys_values_up"].format(i=i)):
        shapes |= {"keys_up": (heads, a.latent_dim, a.nope_dim), "values_up": (heads, a.value_dim, a.latent_dim)}
    else:
        shapes["keys_values_up"] = (heads * (a.nope_dim + a.value_dim), a.latent_dim)
    return {**shapes, "attention_output": (hidden, heads * a.value_dim)}


def _dense_shapes(config: Config, table: dict[str, str], width: int, prefix: str = "") -> dict[str, Shape]:
    if f"{prefix}gate_up" in table:
        shapes: dict[str, Shape] = {"gate_up": (2 * width, config.hidden)}
    else:
        shapes = {part: (width, config.hidden) for part in ("gate", "up")[config.activation == "relu_squared" :]}
    shapes["down"] = (config.hidden, width)
    if config.biases:
        shapes |= {f"{part}_bias": shape[:1] for part, shape in shapes.items()}
    return {prefix + part: shape for part, shape in shapes.items()}


def _experts_in_turn(config: Config, e: Experts, table: dict[str, str], has: Callable[[str], bool], i: int) -> dict[str, Shape]:
    """Of experts whose outputs of gate and up take turns: with the axis of inputs before that of outputs, or as blocks of MXFP4
    and their scales."""
    shapes: dict[str, Shape] = {
        "router_bias": (e.count,),
        "experts_gate_up_in_turn_bias": (e.count, 2 * e.width),
        "experts_down_bias": (e.count, config.hidden),
    }
    products = {"experts_gate_up_in_turn": (config.hidden, 2 * e.width), "experts_down_by_inputs": (e.width, config.hidden)}
    for part, (inputs, outputs) in products.items():
        if has(table[f"{part}_blocks"].format(i=i)):
            shapes[f"{part}_blocks"] = (e.count, outputs, inputs // 32, 16)
            shapes[f"{part}_scales"] = (e.count, outputs, inputs // 32)
        else:
            shapes[part] = (e.count, inputs, outputs)
    return shapes


def _expert_shapes(config: Config, table: dict[str, str], has: Callable[[str], bool], i: int) -> dict[str, Shape]:
    e, hidden = config.experts, config.hidden
    assert e is not None
    shapes: dict[str, Shape] = {"router": (e.count, hidden)}
    if e.corrected:
        shapes["correction"] = (e.count,)
    if e.shared_gated:
        shapes["shared_factor"] = (hidden,)
    if e.latent:
        shapes |= {"latent_down": (e.latent, hidden), "latent_up": (hidden, e.latent)}
    if e.beside_dense:
        shapes |= {"router_scale": (hidden,), "factors_of_experts": (e.count,)}
        shapes |= dict.fromkeys(("dense_post_norm", "routed_norm", "routed_post_norm"), (hidden,))
    if "experts_gate_up_in_turn" in table:
        return shapes | _experts_in_turn(config, e, table, has, i)
    if e.biases:
        shapes |= {"router_bias": (e.count,), "experts_down_bias": (e.count, hidden)}
        shapes |= {f"experts_{part}_bias": (e.count, e.width) for part in ("gate", "up")}
    inputs = e.latent or hidden
    if "experts_gate_up" in table and has(table["experts_gate_up"].format(i=i)):
        shapes["experts_gate_up"] = (e.count, 2 * e.width, inputs)
    else:
        gated = config.activation != "relu_squared"
        shapes |= {f"experts_{part}": (e.count, e.width, inputs) for part in ("gate", "up")[not gated :]}
    together = "experts_down_together" in table and has(table["experts_down_together"].format(i=i))
    shapes["experts_down_together" if together else "experts_down"] = (e.count, inputs, e.width)
    return shapes | (_dense_shapes(config, table, e.shared, "shared_") if e.shared else {})
