"""The logits processors of transformers 5.23, under the same names, and those of other engines (`extra`).

They work on NumPy arrays, and on torch tensors on their device. Each is called as processor(input_ids, scores) and can be given
to `model.generate(logits_processor=[...])`. The docstring of a class is its contract: its rule, its arguments, its ties and
boundaries, and where it differs from transformers.
"""

from decodestep.processors.audio import (
    AlternatingCodebooksLogitsProcessor,
    BarkEosPrioritizerLogitsProcessor,
    DiaEOSChannelFilterLogitsProcessor,
    DiaEOSDelayPatternLogitsProcessor,
    WhisperNoSpeechDetection,
    WhisperTimeStampLogitsProcessor,
)
from decodestep.processors.base import LogitsProcessor, LogitsProcessorList
from decodestep.processors.entropy import EpsilonLogitsWarper, EtaLogitsWarper, TopHLogitsWarper, TypicalLogitsWarper
from decodestep.processors.extra import (
    AllowedBitsLogitsProcessor,
    AllowedTokenIdsLogitsProcessor,
    DRYLogitsProcessor,
    LogitBiasLogitsProcessor,
    PresenceFrequencyPenaltyLogitsProcessor,
    RecentRepetitionPenaltyLogitsProcessor,
    TopNSigmaLogitsWarper,
    XTCLogitsWarper,
)
from decodestep.processors.filters import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
from decodestep.processors.guidance import (
    ClassifierFreeGuidanceLogitsProcessor,
    DiaClassifierFreeGuidanceLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from decodestep.processors.lengths import (
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    ForceTokensLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
)
from decodestep.processors.masks import (
    EncoderNoRepeatNGramLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from decodestep.processors.penalties import (
    EncoderRepetitionPenaltyLogitsProcessor,
    HammingDiversityLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)
from decodestep.processors.synthid import (
    BayesianDetector,
    SynthIDTextWatermarkDetector,
    SynthIDTextWatermarkLogitsProcessor,
    SynthIDTextWatermarkState,
)
from decodestep.processors.watermark import WatermarkDetector, WatermarkDetectorOutput, WatermarkLogitsProcessor

__all__ = [
    "AllowedBitsLogitsProcessor",
    "AllowedTokenIdsLogitsProcessor",
    "AlternatingCodebooksLogitsProcessor",
    "BarkEosPrioritizerLogitsProcessor",
    "BayesianDetector",
    "ClassifierFreeGuidanceLogitsProcessor",
    "DRYLogitsProcessor",
    "DiaClassifierFreeGuidanceLogitsProcessor",
    "DiaEOSChannelFilterLogitsProcessor",
    "DiaEOSDelayPatternLogitsProcessor",
    "EncoderNoRepeatNGramLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor",
    "EpsilonLogitsWarper",
    "EtaLogitsWarper",
    "ExponentialDecayLengthPenalty",
    "ForceTokensLogitsProcessor",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "HammingDiversityLogitsProcessor",
    "InfNanRemoveLogitsProcessor",
    "LogitBiasLogitsProcessor",
    "LogitNormalization",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "MinPLogitsWarper",
    "NoBadWordsLogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",
    "PresenceFrequencyPenaltyLogitsProcessor",
    "RecentRepetitionPenaltyLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
    "SequenceBiasLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor",
    "SuppressTokensLogitsProcessor",
    "SynthIDTextWatermarkDetector",
    "SynthIDTextWatermarkLogitsProcessor",
    "SynthIDTextWatermarkState",
    "TemperatureLogitsWarper",
    "TopHLogitsWarper",
    "TopKLogitsWarper",
    "TopNSigmaLogitsWarper",
    "TopPLogitsWarper",
    "TypicalLogitsWarper",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "WatermarkDetector",
    "WatermarkDetectorOutput",
    "WatermarkLogitsProcessor",
    "WhisperNoSpeechDetection",
    "WhisperTimeStampLogitsProcessor",
    "XTCLogitsWarper",
]
