"""Describes a checkpoint and how it would run, from its header alone: no weight is read."""

from __future__ import annotations

from typing import Any

from decodestep.chat.template import ChatTemplate
from decodestep.decoding import layer_decoder, step_decoder
from decodestep.decoding.config import Config
from decodestep.decoding.kv_cache import PAGE
from decodestep.decoding.states import replay_width, state_layout
from decodestep.files.gguf_file import GgufFile
from decodestep.models.checkpoint import Checkpoint

_EXPERTS = "experts_gate", "experts_up", "experts_gate_up", "experts_down"  # parts of a layer, each of several tensors


def summary(checkpoint: Checkpoint) -> dict[str, Any]:
    """Facts by name. Raises ModelError as `load` does before it reads weights, so what is described here can be loaded.

    weight_bytes: the bytes of the weights that one token needs, as stored: without the experts that it does not use, and with
    one row of an embedding that is not tied to the logits. all_weight_bytes: of all. converted: the types that are not run as
    stored, if there are any. cache: the type of cached keys and values. cache_bytes: per position. state_bytes: of the
    recurrent state of a sequence, 0 without recurrent layers. draft_bytes: what is kept of a drafted token to replay it.
    """
    ChatTemplate(checkpoint.file.chat_templates())
    checkpoint.tokenizer()
    checkpoint.check()
    checkpoint.ropes()
    config = checkpoint.config
    latent, experts = config.latent_attention, config.experts
    why = step_decoder.obstacle(config)
    cache = step_decoder.choose_cache_dtype(checkpoint.types()) if why is None else "float32"
    layout = step_decoder.page_layout(config, cache) if why is None else layer_decoder.page_layout(config)
    states = state_layout(config)
    facts: dict[str, Any] = {
        "file": _file(checkpoint),
        "architecture": f"{config.architecture}: {config.layers} layers of {config.hidden}, vocabulary {config.vocab_size}, "
        f"context {config.context}",
        "attention": f"{config.heads} query heads, {config.kv_heads} key-value heads of width {config.head_dim}",
        "feed-forward": f"{config.activation}, {config.feed_forward} wide",
        "runs": "one native call a step" if why is None else f"layer by layer, float32: {why}",
        "weights": ", ".join(f"{kind} {size / 2**20:.1f} MiB" for kind, size in checkpoint.bytes_by_type().items()),
        "weight_bytes": checkpoint.weight_bytes_per_token(),
        "all_weight_bytes": sum(checkpoint.bytes_by_type().values()),
        "cache": cache,
        "cache_bytes": layout.page_bytes // PAGE,
        "state_bytes": 0 if states is None else states.row_bytes,
        "draft_bytes": 4 * replay_width(config) if why is None else 0,
    }
    if latent:
        queries = "" if latent.query_rank is None else f", queries through {latent.query_rank}"
        facts["attention"] = (
            f"{config.heads} heads of {latent.nope_dim} + {latent.rope_dim} with rope, values of {latent.value_dim}, "
            f"latent of {latent.latent_dim}{queries}"
        )
    if config.mixers:
        facts["attention"] += f", in {config.cache_layers} of the layers; {_states(config)}"
    if experts:
        facts["feed-forward"] += (
            f"; in {sum(experts.layers)} layers {experts.count} experts of {experts.width}, {experts.rule.used} a token, "
            f"{experts.shared} shared"
        )
    if converted := _converted(checkpoint):
        facts["converted"] = f"{', '.join(converted)}: to {'Q8_0' if why is None else 'float32'} when loaded"
    if config.next_token_layers:
        facts["drafts"] = f"{config.next_token_layers} layer(s) for next-token prediction"
    if config.skipped_layers:
        facts["left out"] = f"{config.skipped_layers} layer(s) for next-token prediction"
    return facts


def _states(config: Config) -> str:
    """The layers that have a state in place of keys and values."""
    count = sum(mixer not in ("attention", "none") for mixer in config.mixers)
    if (d := config.delta) is not None:
        what = f"the gated delta rule, {d.value_heads} heads of {d.key_dim} x {d.value_dim}"
    elif (m := config.mamba) is not None:
        what = f"Mamba2, {m.heads} heads of {m.state} x {m.head_dim}"
    else:
        what = "a short convolution"
    return f"in {count} {what}"


def _converted(checkpoint: Checkpoint) -> list[str]:
    """What is not multiplied in its own type: one that no kernel has, and experts of several types, which are one weight."""
    found = checkpoint.types_without_kernel()
    count = sum(any(checkpoint.is_widened_mix(i, part) for part in _EXPERTS) for i in range(checkpoint.config.layers))
    return found + ([f"experts of {count} layer{'s' if count > 1 else ''}"] if count else [])


def _file(checkpoint: Checkpoint) -> str:
    file = checkpoint.file
    kind = "GGUF" if isinstance(file, GgufFile) else f"safetensors in {len({t.path for t in file.tensors.values()})} file(s)"
    return f"{checkpoint.path}: {kind}, {len(file.tensors)} tensors"
