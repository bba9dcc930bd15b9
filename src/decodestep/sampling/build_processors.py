"""What a row's `SamplingParams` mean: the list of processors that transformers' `generate` would build, and ours among them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from decodestep import processors as p
from decodestep.sampling.params import SamplingParams

_SAMPLERS: dict[str, Callable[[SamplingParams], Any]] = {
    "temperature": lambda o: p.TemperatureLogitsWarper(float(o.temperature)),
    "top_n_sigma": lambda o: p.TopNSigmaLogitsWarper(float(o.top_n_sigma)),
    "top_h": lambda o: p.TopHLogitsWarper(float(o.top_h)),
    "top_k": lambda o: p.TopKLogitsWarper(int(o.top_k)),
    "top_p": lambda o: p.TopPLogitsWarper(float(o.top_p)),
    "min_p": lambda o: p.MinPLogitsWarper(float(o.min_p)),
    "typical_p": lambda o: p.TypicalLogitsWarper(float(o.typical_p)),
    "epsilon_cutoff": lambda o: p.EpsilonLogitsWarper(float(o.epsilon_cutoff)),
    "eta_cutoff": lambda o: p.EtaLogitsWarper(float(o.eta_cutoff)),
    "xtc_probability": lambda o: p.XTCLogitsWarper(float(o.xtc_probability), float(o.xtc_threshold), seed=int(o.seed)),
}


def processors_of(
    params: SamplingParams, *, prompt_length: int, vocab_size: int, eos_token_ids: Collection[int] = ()
) -> list[Any]:
    """The processors of a row, in transformers 5.23's order; each of ours stands beside what it resembles.

    Biases; repetition, presence and frequency, DRY; n-grams and bad words; minimum lengths; forced tokens; repair; decay;
    suppressed and allowed tokens; then, if the row samples, temperature and filters in the order of `params.samplers`; the
    watermark; normalisation. Only what changes something is built.
    """
    eos = sorted(eos_token_ids)
    o = params
    chain: list[Any] = []

    def add(wanted: Any, make: Callable[[], Any]) -> None:
        if wanted:
            chain.append(make())

    add(o.sequence_bias, lambda: p.SequenceBiasLogitsProcessor({k: float(v) for k, v in (o.sequence_bias or {}).items()}))
    add(o.logit_bias, lambda: p.LogitBiasLogitsProcessor(dict(o.logit_bias or {})))
    add(o.repetition_penalty != 1, lambda: p.RepetitionPenaltyLogitsProcessor(float(o.repetition_penalty)))
    add(
        o.presence_penalty or o.frequency_penalty,
        lambda: p.PresenceFrequencyPenaltyLogitsProcessor(
            float(o.presence_penalty), float(o.frequency_penalty), prompt_length=prompt_length
        ),
    )
    add(
        o.dry_multiplier,
        lambda: p.DRYLogitsProcessor(
            float(o.dry_multiplier), float(o.dry_base), int(o.dry_allowed_length), o.dry_sequence_breakers, int(o.dry_range)
        ),
    )
    add(o.no_repeat_ngram_size, lambda: p.NoRepeatNGramLogitsProcessor(int(o.no_repeat_ngram_size)))
    add(o.bad_words_ids, lambda: p.NoBadWordsLogitsProcessor([list(word) for word in o.bad_words_ids], eos or None))
    add(o.min_length and eos, lambda: p.MinLengthLogitsProcessor(int(o.min_length), eos))
    add(o.min_new_tokens and eos, lambda: p.MinNewTokensLengthLogitsProcessor(prompt_length, int(o.min_new_tokens), eos))
    ends = sorted({*eos, *o.stop_token_ids})
    add(o.min_tokens and ends, lambda: p.MinNewTokensLengthLogitsProcessor(prompt_length, int(o.min_tokens), ends))
    add(o.forced_bos_token_id is not None, lambda: p.ForcedBOSTokenLogitsProcessor(o.forced_bos_token_id or 0))
    add(
        o.forced_eos_token_id is not None and o.max_new_tokens,
        lambda: p.ForcedEOSTokenLogitsProcessor(prompt_length + (o.max_new_tokens or 0), o.forced_eos_token_id),
    )
    add(o.remove_invalid_values, p.InfNanRemoveLogitsProcessor)
    add(
        o.exponential_decay_length_penalty and eos,
        lambda: p.ExponentialDecayLengthPenalty(o.exponential_decay_length_penalty or (0, 1.0), eos, prompt_length),
    )
    add(o.suppress_tokens, lambda: p.SuppressTokensLogitsProcessor(o.suppress_tokens))
    add(o.begin_suppress_tokens, lambda: p.SuppressTokensAtBeginLogitsProcessor(o.begin_suppress_tokens, prompt_length))
    add(o.allowed_token_ids is not None, lambda: p.AllowedTokenIdsLogitsProcessor(o.allowed_token_ids or ()))
    chain += [_SAMPLERS[name](o) for name in o.active_samplers]
    add(o.watermarking_config is not None, lambda: _watermark(o.watermarking_config or {}, vocab_size))
    add(o.renormalize_logits, p.LogitNormalization)
    return chain


def _watermark(config: Any, vocab_size: int) -> Any:
    arguments: dict[str, Any] = {name: value for name, value in config.items() if value is not None}
    if "keys" in arguments:
        return p.SynthIDTextWatermarkLogitsProcessor(device="cpu", **arguments)
    return p.WatermarkLogitsProcessor(vocab_size=vocab_size, device="cpu", **arguments)
