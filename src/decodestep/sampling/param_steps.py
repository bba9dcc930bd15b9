"""Builds a row's processors from its `SamplingParams`: those of transformers' `generate`, and additional ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from decodestep import processors as p
from decodestep._base.checks import Words, refuse
from decodestep._base.extras import extra
from decodestep.sampling.params import SamplingParams

# The filters and the temperature, by the names in `params.SAMPLERS`, of params and the number of tokens to keep at least.
_SAMPLERS: dict[str, Callable[[SamplingParams, int], Any]] = {
    "temperature": lambda params, keep: p.TemperatureLogitsWarper(float(params.temperature)),
    "top_n_sigma": lambda params, keep: p.TopNSigmaLogitsWarper(float(params.top_n_sigma)),
    "top_h": lambda params, keep: p.TopHLogitsWarper(float(params.top_h)),
    "top_k": lambda params, keep: p.TopKLogitsWarper(int(params.top_k), min_tokens_to_keep=keep),
    "top_p": lambda params, keep: p.TopPLogitsWarper(float(params.top_p), min_tokens_to_keep=keep),
    "min_p": lambda params, keep: p.MinPLogitsWarper(float(params.min_p), min_tokens_to_keep=keep),
    "typical_p": lambda params, keep: p.TypicalLogitsWarper(float(params.typical_p), min_tokens_to_keep=keep),
    "epsilon_cutoff": lambda params, keep: p.EpsilonLogitsWarper(float(params.epsilon_cutoff), min_tokens_to_keep=keep),
    "eta_cutoff": lambda params, keep: p.EtaLogitsWarper(float(params.eta_cutoff), min_tokens_to_keep=keep),
    "xtc_probability": lambda params, keep: _xtc(params),
}


def _xtc(params: SamplingParams) -> p.XTCLogitsWarper:
    if params.seed is None:
        refuse("processors_of", "params", "those of a row, whose seed has been drawn", Words("seed None"))
    return p.XTCLogitsWarper(float(params.xtc_probability), float(params.xtc_threshold), seed=int(params.seed))


def processors_of(
    params: SamplingParams,
    *,
    prompt_length: int,
    vocab_size: int,
    eos_token_ids: Collection[int] = (),
    own: Sequence[Any] = (),
    num_beams: int = 1,
) -> list[Any]:
    """The processors of a row, in transformers 5.23's order; additional ones are next to the one that they resemble.

    Biases and penalties; bans; minimum lengths; forced tokens; repair; length decay; suppressed and allowed tokens; those in
    `own`, which are not built from params; then, if the row samples, temperature and filters in the order of
    `params.samplers`; the watermark; normalisation. A processor that would change nothing is not built.

    num_beams: of the search that they serve. With several, filters keep one token more than there are end tokens, at least two,
        so that a beam can go on; all but top_h, top_n_sigma and XTC.
    """
    eos = sorted(eos_token_ids)
    keep = 1 if num_beams == 1 else max(2, 1 + len(eos))
    chain = [*_biases_and_penalties(params, prompt_length), *_bans_and_lengths(params, prompt_length, eos), *own]
    chain += [_SAMPLERS[name](params, keep) for name in params.active_samplers]
    if params.watermarking_config is not None:
        chain.append(_watermark(params.watermarking_config, vocab_size))
    if params.renormalize_logits:
        chain.append(p.LogitNormalization())
    return chain


def _biases_and_penalties(params: SamplingParams, prompt_length: int) -> list[Any]:
    chain: list[Any] = []
    if params.sequence_bias:
        biases = {ids: float(bias) for ids, bias in params.sequence_bias.items()}
        chain.append(p.SequenceBiasLogitsProcessor(biases))
    if params.logit_bias:
        chain.append(p.LogitBiasLogitsProcessor(params.logit_bias))
    if params.repetition_penalty != 1:
        chain.append(p.RepetitionPenaltyLogitsProcessor(float(params.repetition_penalty)))
    if params.presence_penalty or params.frequency_penalty:
        presence, frequency = float(params.presence_penalty), float(params.frequency_penalty)
        chain.append(p.PresenceFrequencyPenaltyLogitsProcessor(presence, frequency, prompt_length=prompt_length))
    if params.dry_multiplier:
        chain.append(
            p.DRYLogitsProcessor(
                multiplier=float(params.dry_multiplier),
                base=float(params.dry_base),
                allowed_length=int(params.dry_allowed_length),
                breakers=params.dry_sequence_breakers,
                range=int(params.dry_range),
            )
        )
    return chain


def _bans_and_lengths(params: SamplingParams, prompt_length: int, eos: list[int]) -> list[Any]:
    chain: list[Any] = []
    ends = sorted({*eos, *params.stop_token_ids})
    if params.no_repeat_ngram_size:
        chain.append(p.NoRepeatNGramLogitsProcessor(int(params.no_repeat_ngram_size)))
    if params.bad_words_ids:
        chain.append(p.NoBadWordsLogitsProcessor([list(word) for word in params.bad_words_ids], eos or None))
    if params.min_length and eos:
        chain.append(p.MinLengthLogitsProcessor(int(params.min_length), eos))
    if params.min_new_tokens and eos:
        chain.append(p.MinNewTokensLengthLogitsProcessor(prompt_length, int(params.min_new_tokens), eos))
    if params.min_tokens and ends:
        chain.append(p.MinNewTokensLengthLogitsProcessor(prompt_length, int(params.min_tokens), ends))
    if params.forced_bos_token_id is not None:
        chain.append(p.ForcedBOSTokenLogitsProcessor(params.forced_bos_token_id))
    if params.forced_eos_token_id is not None and params.max_new_tokens:
        chain.append(p.ForcedEOSTokenLogitsProcessor(prompt_length + params.max_new_tokens, params.forced_eos_token_id))
    if params.remove_invalid_values:
        chain.append(p.InfNanRemoveLogitsProcessor())
    if params.exponential_decay_length_penalty and eos:
        chain.append(p.ExponentialDecayLengthPenalty(params.exponential_decay_length_penalty, eos, prompt_length))
    if params.suppress_tokens:
        chain.append(p.SuppressTokensLogitsProcessor(params.suppress_tokens))
    if params.begin_suppress_tokens:
        # The first token after a forced one.
        first = prompt_length + (prompt_length <= 1 and params.forced_bos_token_id is not None)
        chain.append(p.SuppressTokensAtBeginLogitsProcessor(params.begin_suppress_tokens, first))
    if params.allowed_token_ids is not None:
        chain.append(p.AllowedTokenIdsLogitsProcessor(params.allowed_token_ids))
    return chain


def _watermark(config: Mapping[str, Any], vocab_size: int) -> Any:
    arguments: dict[str, Any] = {name: value for name, value in config.items() if value is not None}
    with extra("torch"):
        if "keys" in arguments:
            return p.SynthIDTextWatermarkLogitsProcessor(device="cpu", **arguments)
        return p.WatermarkLogitsProcessor(vocab_size=vocab_size, device="cpu", **arguments)
