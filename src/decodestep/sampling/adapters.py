"""Other people's requests as the fields of `SamplingParams`. What is not understood is an error, never dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from decodestep._base.checks import is_int, is_real, refuse, require
from decodestep.sampling.params import SamplingParams

_OURS = {field.name for field in fields(SamplingParams)}

# Fields of a GenerationConfig that say nothing about which token is drawn, or that a model or a call supplies here.
_NOT_ABOUT_SAMPLING = {
    "use_cache",
    "cache_implementation",
    "cache_config",
    "max_cache_len",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "output_logits",
    "return_dict_in_generate",
    "compile_config",
    "disable_compile",
    "continuous_batching_config",
    "low_memory",
    "prefill_chunk_size",
    "transformers_version",
    "_from_model_config",
    "max_length",
    "is_assistant",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "max_matching_ngram_size",
    "assistant_early_exit",
    "assistant_lookbehind",
    "target_lookbehind",
    "assistant_ensemble_weight",
}
# Fields of an OpenAI request that carry the prompt or the transport.
_ENVELOPE = {
    "model",
    "messages",
    "prompt",
    "stream",
    "stream_options",
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
}
# Values by which an OpenAI request asks for nothing, of fields that are otherwise not done.
_OPENAI_NEUTRAL = {"n": 1, "best_of": 1, "echo": False, "modalities": ["text"], "response_format": {"type": "text"}}


def from_generation_config(config: Any) -> dict[str, Any]:
    """Fields of a GenerationConfig, or of a mapping, with transformers' defaults: greedy, and top_k 50 where it samples.

    max_length is not read: it counts the prompt, which is not known here. Raises ValueError for a field that is set to
    something this library does not do.
    """
    ok = isinstance(config, Mapping) or hasattr(config, "to_dict")
    require(ok, "from_generation_config", "config", "a GenerationConfig or a mapping of its fields", config)
    given = dict(config) if isinstance(config, Mapping) else config.to_dict()
    unknown = sorted(
        name
        for name, value in given.items()
        if value is not None and name not in _OURS | _NOT_ABOUT_SAMPLING and not _is_neutral(name, value)
    )
    require(not unknown, "from_generation_config", "config", "of fields that are understood", ", ".join(unknown))
    taken = {name: value for name, value in given.items() if name in _OURS and value is not None}
    taken.setdefault("do_sample", False)
    if taken["do_sample"]:
        taken.setdefault("top_k", 50)
    watermark = taken.get("watermarking_config")
    if watermark is not None and not isinstance(watermark, Mapping):
        taken["watermarking_config"] = watermark.to_dict()
    biases = taken.get("sequence_bias")
    if isinstance(biases, list):
        taken["sequence_bias"] = {tuple(ids): float(bias) for ids, bias in biases}
    return taken


def _is_neutral(name: str, value: Any) -> bool:
    """Values by which transformers' older files say "off" for what they do not use."""
    neutral = {"guidance_scale": 1, "encoder_repetition_penalty": 1, "encoder_no_repeat_ngram_size": 0, "penalty_alpha": 0}
    return value is False or value == neutral.get(name, [])


def from_openai(body: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a completions or chat-completions request; names of `SamplingParams` are taken as they are.

    max_tokens and max_completion_tokens -> max_new_tokens; stop -> stop_strings; logit_bias with its string keys; logprobs and
    top_logprobs, or logprobs as a number, -> logprobs; a negative seed counts from 2^64. The fields of the envelope (model,
    messages, prompt, stream, user ...) are left to the caller; n and best_of must be 1, and what comes back is text. Raises
    ValueError for every other field, for two fields that say one thing differently, and outside the interface's own intervals.
    """
    require(isinstance(body, Mapping), "from_openai", "body", "a mapping of a request's fields", body)
    taken: dict[str, Any] = {}
    for name, value in body.items():
        if name in _ENVELOPE or value is None or (name in _OPENAI_NEUTRAL and value == _OPENAI_NEUTRAL[name]):
            continue
        if name in _OPENAI_RANGES:
            low, high = _OPENAI_RANGES[name]
            require(is_real(value) and low <= value <= high, "from_openai", name, f"in [{low}, {high}]", repr(value))
        if name in _RENAMED:
            said = taken.setdefault(_RENAMED[name], value)
            require(said == value, "from_openai", name, f"{said!r}, as another field says", repr(value))
        elif name == "seed" and is_int(value):
            taken["seed"] = int(value) % 2**64 if -(2**63) <= value < 0 else value
        elif name in _OPENAI_NEUTRAL:
            refuse("from_openai", name, repr(_OPENAI_NEUTRAL[name]), repr(value))
        elif name == "logit_bias":
            taken["logit_bias"] = _logit_bias(value)
        elif name in ("logprobs", "top_logprobs"):
            taken["logprobs"] = _logprobs(body)
        elif name in _OURS:
            taken[name] = value
        else:
            refuse("from_openai", "body", "of fields that are understood", name)
    return taken


_RENAMED = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens", "stop": "stop_strings"}
_OPENAI_RANGES = {"temperature": (0, 2), "top_p": (0, 1), "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2)}


def _logit_bias(value: Any) -> dict[int, float]:
    rule = "a mapping of token ids to numbers in [-100, 100]"
    require(isinstance(value, Mapping), "from_openai", "logit_bias", rule, value)
    biases = {}
    for token, bias in value.items():
        is_id = is_int(token) or (isinstance(token, str) and token.isascii() and token.isdecimal())
        ok = is_id and is_real(bias) and -100 <= bias <= 100
        require(ok, "from_openai", "logit_bias", rule, repr({token: bias}))
        biases[int(token)] = float(bias)
    return biases


def _logprobs(body: Mapping[str, Any]) -> int | None:
    """Chat requests say logprobs=true and top_logprobs=n; completions say logprobs=n."""
    asked, top = body.get("logprobs"), body.get("top_logprobs")
    if top is not None:
        require(
            asked is True and is_int(top) and 0 <= top <= 20,
            "from_openai",
            "top_logprobs",
            "an integer in [0, 20] beside logprobs=true",
            repr(top),
        )
        return int(top)
    if isinstance(asked, bool):
        return 0 if asked else None
    count: Any = asked
    require(is_int(count) and count >= 0, "from_openai", "logprobs", "a bool or an integer >= 0", repr(asked))
    return int(count)
