"""Descriptions of all processors: a short name, two sentences, a formula, the section of docs/processors.md."""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    name: str
    text: str
    formula: str
    section: str


_FILTERS, _PENALTIES, _MASKS, _EXTRA = "filters", "penalties-and-biases", "masks-lengths-forced-tokens", "beyond-transformers"
_GUIDANCE = "guidance-audio-watermarks"

WORDS = {
    "TemperatureLogitsWarper": Words(
        "temperature",
        "Divides every score by the temperature. Below 1 the likely tokens become likelier, above 1 the unlikely ones do.",
        "s ← s / T",
        _FILTERS,
    ),
    "TopKLogitsWarper": Words(
        "top-k",
        "Keeps the k tokens with the highest scores. Tokens that tie with the k-th stay too.",
        "keep s ≥ the k-th largest s",
        _FILTERS,
    ),
    "TopPLogitsWarper": Words(
        "top-p",
        "Keeps the most likely tokens until their probabilities sum to p. Of tokens that tie at the cut the lowest ids stay.",
        "keep i while Σ p of the likelier ones < top_p",
        _FILTERS,
    ),
    "MinPLogitsWarper": Words(
        "min-p",
        "Keeps tokens of at least a share of the largest probability. The surer the model is, the more it cuts.",
        "keep p ≥ min_p · max p",
        _FILTERS,
    ),
    "TypicalLogitsWarper": Words(
        "typical",
        "Keeps the tokens whose surprise is nearest to the entropy, until their probabilities sum to the mass. "
        "Very likely tokens may be cut as well as unlikely ones.",
        "keep the smallest |−log p − H| until Σ p ≥ mass",
        _FILTERS,
    ),
    "EpsilonLogitsWarper": Words(
        "epsilon",
        "Drops tokens of a probability below a fixed bound. The likeliest always stays.",
        "keep p ≥ ε",
        _FILTERS,
    ),
    "EtaLogitsWarper": Words(
        "eta",
        "As epsilon, with a bound that falls as the entropy rises. Where the model is unsure, more tokens stay.",
        "keep p ≥ min(ε, √ε · e^−H)",
        _FILTERS,
    ),
    "TopHLogitsWarper": Words(
        "top-h",
        "Of the 100 likeliest tokens, keeps the first ones whose part of the entropy is at most a share of it. "
        "It bounds how uncertain the choice may be, not how many tokens it has.",
        "keep i while Σ −p log p ≤ h · H",
        _FILTERS,
    ),
    "TopNSigmaLogitsWarper": Words(
        "top-n-sigma",
        "Keeps scores within n standard deviations of the largest. What it keeps does not depend on the temperature before it.",
        "keep s ≥ max s − n · σ",
        _EXTRA,
    ),
    "XTCLogitsWarper": Words(
        "XTC",
        "With a given probability, drops all tokens above the threshold but the least likely of them. "
        "A coin that the seed and the position decide says whether it acts at this token.",
        "if coin: drop p ≥ t, but the least of them",
        _EXTRA,
    ),
    "RepetitionPenaltyLogitsProcessor": Words(
        "repetition penalty",
        "Lowers the score of every token that occurs in the text, prompt included. How often it occurs does not matter.",
        "s ← s · r if s < 0, else s / r",
        _PENALTIES,
    ),
    "PresenceFrequencyPenaltyLogitsProcessor": Words(
        "presence and frequency",
        "Subtracts from the score of generated tokens: once for having occurred, and again for each time. "
        "The prompt does not count.",
        "s ← s − frequency · count − presence",
        _EXTRA,
    ),
    "DRYLogitsProcessor": Words(
        "DRY",
        "Lowers tokens that would continue a repetition of the text's end. The penalty grows with the repetition's length.",
        "s ← s − m · b^(length − allowed)",
        _EXTRA,
    ),
    "SequenceBiasLogitsProcessor": Words(
        "sequence bias",
        "Adds to the score of the last token of a sequence where the text ends with those before it. "
        "A sequence of one token is always in effect.",
        "s ← s + bias",
        _PENALTIES,
    ),
    "LogitBiasLogitsProcessor": Words(
        "logit bias",
        "Adds a number to the scores of given tokens. −∞ forbids a token.",
        "s ← s + bias",
        _EXTRA,
    ),
    "ExponentialDecayLengthPenalty": Words(
        "length decay",
        "Raises the end tokens' scores once the text is long enough. The rise grows exponentially with every further token.",
        "s ← s + |s| · (factor^n − 1)",
        _PENALTIES,
    ),
    "NoRepeatNGramLogitsProcessor": Words(
        "no repeated n-grams",
        "Forbids tokens that would complete n tokens in a row which the text already has. The earlier place is its cause.",
        "s ← −∞",
        _MASKS,
    ),
    "NoBadWordsLogitsProcessor": Words(
        "banned words",
        "Forbids the last token of a banned sequence where the text ends with those before it. "
        "A word of one token is always forbidden.",
        "s ← −∞",
        _MASKS,
    ),
    "MinLengthLogitsProcessor": Words(
        "minimum length",
        "Forbids the end tokens while prompt and text together are too short. Then it does nothing.",
        "s ← −∞ for end tokens",
        _MASKS,
    ),
    "MinNewTokensLengthLogitsProcessor": Words(
        "minimum new tokens",
        "Forbids the end tokens until enough tokens have been generated. Then it does nothing.",
        "s ← −∞ for end tokens",
        _MASKS,
    ),
    "SuppressTokensLogitsProcessor": Words(
        "suppressed tokens", "Forbids given tokens. It does so at every step.", "s ← −∞", _MASKS
    ),
    "SuppressTokensAtBeginLogitsProcessor": Words(
        "suppressed at the beginning", "Forbids given tokens as the first one. Later it does nothing.", "s ← −∞", _MASKS
    ),
    "AllowedTokenIdsLogitsProcessor": Words(
        "allowed tokens", "Forbids all tokens but given ones. It does so at every step.", "s ← −∞ for all others", _EXTRA
    ),
    "ForcedBOSTokenLogitsProcessor": Words(
        "forced first token",
        "After a prompt of one token, leaves a given token alone. Its score becomes 0.",
        "s ← 0, all others −∞",
        _MASKS,
    ),
    "ForcedEOSTokenLogitsProcessor": Words(
        "forced last token",
        "Where the length limit leaves one token, leaves given ones alone. Their scores become 0.",
        "s ← 0, all others −∞",
        _MASKS,
    ),
    "InfNanRemoveLogitsProcessor": Words(
        "repair", "Turns scores that are no numbers into 0. Infinite ones become the largest finite number.", "NaN ← 0", _MASKS
    ),
    "LogitNormalization": Words(
        "normalisation",
        "Turns scores into log-probabilities. No token becomes likelier or less likely by it.",
        "s ← s − log Σ e^s",
        _MASKS,
    ),
    "WatermarkLogitsProcessor": Words(
        "watermark",
        "Adds to the scores of a list of tokens that the last ones choose. Who knows the key can recognise the text by them.",
        "s ← s + bias on the green list",
        _GUIDANCE,
    ),
    "SynthIDTextWatermarkLogitsProcessor": Words(
        "SynthID watermark",
        "Runs a tournament of keyed coin flips among the tokens. Who knows the keys can recognise the text by its winners.",
        "p ← p · (1 + g − Σ p g), for each key",
        _GUIDANCE,
    ),
}


def words_of(name: str) -> Words:
    """The description of a processor by the name of its class, or a generic one for a caller's own."""
    own = "A processor of the caller's own. It is called as a function of the tokens so far and the scores."
    return WORDS.get(name, Words(name, own, "s ← f(tokens, s)", ""))
