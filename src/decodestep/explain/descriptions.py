"""Descriptions of all processors: a short name, two sentences, a formula, and the section of docs/processors.md."""

from __future__ import annotations

from typing import NamedTuple


class Description(NamedTuple):
    """name: the short one. section: of docs/processors.md, the anchor of its heading; "" for a custom processor."""

    name: str
    text: str
    formula: str
    section: str


_FILTERS, _PENALTIES, _MASKS, _EXTRA = "filters", "penalties-and-biases", "masks-lengths-forced-tokens", "beyond-transformers"
_GUIDANCE = "guidance-audio-watermarks"

DESCRIPTIONS = {
    "TemperatureLogitsWarper": Description(
        "temperature",
        "Divides every score by the temperature. Below 1, likely tokens become more likely; above 1, unlikely ones do.",
        "s ← s / T",
        _FILTERS,
    ),
    "TopKLogitsWarper": Description(
        "top-k",
        "Keeps the k tokens with the highest scores. Tokens that tie with the k-th are kept too.",
        "keep s ≥ the k-th largest s",
        _FILTERS,
    ),
    "TopPLogitsWarper": Description(
        "top-p",
        "Keeps the most likely tokens until their probabilities sum to p. Of tokens tied at the cut, the lowest ids are kept.",
        "keep i while Σ p of more likely tokens < top_p",
        _FILTERS,
    ),
    "MinPLogitsWarper": Description(
        "min-p",
        "Keeps tokens with at least a given fraction of the largest probability. It drops more when the model is more certain.",
        "keep p ≥ min_p · max p",
        _FILTERS,
    ),
    "TypicalLogitsWarper": Description(
        "typical",
        "Keeps the tokens whose surprisal is closest to the entropy, until their probabilities sum to the mass. "
        "It may drop very likely tokens as well as unlikely ones.",
        "keep the smallest |−log p − H| until Σ p ≥ mass",
        _FILTERS,
    ),
    "EpsilonLogitsWarper": Description(
        "epsilon",
        "Drops tokens whose probability is below a fixed threshold. The most likely token is always kept.",
        "keep p ≥ ε",
        _FILTERS,
    ),
    "EtaLogitsWarper": Description(
        "eta",
        "Like epsilon, but the threshold falls as the entropy rises. It keeps more tokens when the model is less certain.",
        "keep p ≥ min(ε, √ε · e^−H)",
        _FILTERS,
    ),
    "TopHLogitsWarper": Description(
        "top-h",
        "Keeps the most likely of the top 100 tokens while their part of the entropy is at most a given fraction of it. "
        "It limits the uncertainty of the choice rather than the number of tokens.",
        "keep i while Σ −p log p ≤ h · H",
        _FILTERS,
    ),
    "TopNSigmaLogitsWarper": Description(
        "top-n-sigma",
        "Keeps scores within n standard deviations of the largest. A temperature before it does not change what it keeps.",
        "keep s ≥ max s − n · σ",
        _EXTRA,
    ),
    "XTCLogitsWarper": Description(
        "XTC",
        "With a given probability, drops all tokens at or above the threshold except the least likely of them, and those that "
        "are named as special. "
        "The seed and the position determine whether it acts on this token.",
        "if coin: drop p ≥ t, except the smallest and the special ones",
        _EXTRA,
    ),
    "RepetitionPenaltyLogitsProcessor": Description(
        "repetition penalty",
        "Divides the score of every token that occurs in the text, prompt included; a negative score is multiplied. "
        "The number of occurrences does not matter.",
        "s ← s · r if s < 0, else s / r",
        _PENALTIES,
    ),
    "RecentRepetitionPenaltyLogitsProcessor": Description(
        "repetition penalty",
        "Divides the score of every token that occurs among the last tokens; a negative score is multiplied. "
        "The number of occurrences does not matter.",
        "s ← s · r if s < 0, else s / r",
        _EXTRA,
    ),
    "PresenceFrequencyPenaltyLogitsProcessor": Description(
        "presence and frequency",
        "Subtracts from the scores of generated tokens: the presence penalty once, the frequency penalty per occurrence. "
        "The prompt does not count.",
        "s ← s − frequency · count − presence",
        _EXTRA,
    ),
    "DRYLogitsProcessor": Description(
        "DRY",
        "Lowers tokens that would extend a repetition at the end of the text. The penalty grows with the repetition's length.",
        "s ← s − m · b^(length − allowed)",
        _EXTRA,
    ),
    "SequenceBiasLogitsProcessor": Description(
        "sequence bias",
        "Adds a bias to the last token of a sequence if the text ends with the tokens before it. "
        "A sequence of one token always applies.",
        "s ← s + bias",
        _PENALTIES,
    ),
    "LogitBiasLogitsProcessor": Description(
        "logit bias",
        "Adds a bias to the scores of given tokens. −∞ forbids a token.",
        "s ← s + bias",
        _EXTRA,
    ),
    "ExponentialDecayLengthPenalty": Description(
        "length decay",
        "Raises the scores of the end tokens once the text is long enough, or lowers them if the factor is below 1. "
        "The change is exponential in the length.",
        "s ← s + |s| · (factor^n − 1)",
        _PENALTIES,
    ),
    "NoRepeatNGramLogitsProcessor": Description(
        "no repeated n-grams",
        "Forbids tokens that would complete an n-gram already in the text. The marked cause is its earlier occurrence.",
        "s ← −∞",
        _MASKS,
    ),
    "NoBadWordsLogitsProcessor": Description(
        "banned words",
        "Forbids the last token of a banned sequence if the text ends with the tokens before it. "
        "A sequence of one token is always forbidden.",
        "s ← −∞",
        _MASKS,
    ),
    "MinLengthLogitsProcessor": Description(
        "minimum length",
        "Forbids the end tokens while prompt and generated text together are too short. After that it has no effect.",
        "s ← −∞ for end tokens",
        _MASKS,
    ),
    "MinNewTokensLengthLogitsProcessor": Description(
        "minimum new tokens",
        "Forbids the end tokens until enough tokens have been generated. After that it has no effect.",
        "s ← −∞ for end tokens",
        _MASKS,
    ),
    "SuppressTokensLogitsProcessor": Description(
        "suppressed tokens", "Forbids given tokens. It acts at every position.", "s ← −∞", _MASKS
    ),
    "SuppressTokensAtBeginLogitsProcessor": Description(
        "suppressed at the beginning", "Forbids given tokens at the first position. Later it has no effect.", "s ← −∞", _MASKS
    ),
    "AllowedTokenIdsLogitsProcessor": Description(
        "allowed tokens", "Forbids all but given tokens. It acts at every position.", "s ← −∞ for all others", _EXTRA
    ),
    "AllowedBitsLogitsProcessor": Description(
        "packed mask", "Forbids the tokens whose bit is 0 in a mask that a function gives.", "s ← −∞ where the bit is 0", _EXTRA
    ),
    "ConstraintLogitsProcessor": Description(
        "constraint",
        "Forbids tokens after which the text could no longer match its schema, expression or grammar. End tokens are allowed "
        "where the text is complete.",
        "s ← −∞ unless some text of the language begins so",
        _EXTRA,
    ),
    "ForcedBOSTokenLogitsProcessor": Description(
        "forced first token",
        "After a prompt of one token, allows only a given token. Its score becomes 0.",
        "s ← 0, all others −∞",
        _MASKS,
    ),
    "ForcedEOSTokenLogitsProcessor": Description(
        "forced last token",
        "For the last token before the length limit, allows only given tokens. Their scores become 0.",
        "s ← 0, all others −∞",
        _MASKS,
    ),
    "InfNanRemoveLogitsProcessor": Description(
        "repair", "Replaces NaN scores by 0. Infinite scores become the largest finite numbers.", "NaN ← 0", _MASKS
    ),
    "LogitNormalization": Description(
        "normalisation",
        "Converts scores to log-probabilities. It changes no probability.",
        "s ← s − log Σ e^s",
        _MASKS,
    ),
    "WatermarkLogitsProcessor": Description(
        "watermark",
        "Adds a bias to a list of tokens selected by the preceding ones. Anyone with the key can detect the text by them.",
        "s ← s + bias on the green list",
        _GUIDANCE,
    ),
    "SynthIDTextWatermarkLogitsProcessor": Description(
        "SynthID watermark",
        "Runs a tournament of keyed coin flips among the tokens. Anyone with the keys can detect the text by its winners.",
        "p ← p · (1 + g − Σ p g), for each key",
        _GUIDANCE,
    ),
}


def describe_processor(name: str) -> Description:
    """The description of a processor by its class name; a generic one for custom processors."""
    own = "A custom processor. It is called with the tokens so far and the scores."
    return DESCRIPTIONS.get(name, Description(name, own, "s ← f(tokens, s)", ""))
