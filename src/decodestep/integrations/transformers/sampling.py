"""sampling: a decoding loop for transformers' `generate` that draws with `Sampler`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerationMixin

from decodestep._base.arrays import Array
from decodestep._base.checks import Phrase, refuse, require
from decodestep.integrations.transformers.decoding_loop import OP, DecodingLoop
from decodestep.sampling.row_processors import Processors
from decodestep.stopping import StopStringCriteria

_LOOPS = {GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE}
# Fields of a config that ask for drafts which the loop does not make. `generate` does not say whether it has been given an
# assistant_model, and fills in other fields about one by itself.
_DRAFTS = ("use_mtp", "assistant_early_exit", "assistant_ensemble_weight")


def sampling(
    *,
    seed: int | Sequence[int] | Array | None = None,
    streamer: BaseStreamer | None = None,
    stop_strings: str | Sequence[str] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    processors: Processors = (),
    assistant_model: PreTrainedModel | None = None,
) -> Callable[..., Any]:
    """Makes a callable for `generate(custom_generate=...)` that draws with `Sampler`; the forward pass stays the model's.

        model.generate(**inputs, do_sample=True, top_p=0.9, custom_generate=sampling(seed=7))

    The fields of the GenerationConfig keep their meaning in transformers; unknown fields are refused by name. If `generate` is
    given logits processors, prefix_allowed_tokens_fn or a prompt with tokens outside the vocabulary, or if the model's class
    adds processors, transformers' whole chain runs and only the draw is replaced. Custom stopping criteria are called at every
    step.

    The callable returns what `generate` does: ids, or with return_dict_in_generate a GenerateDecoderOnlyOutput with scores and
    logits as transformers reports them (output_scores additionally runs its chain of processors).
    It raises ValueError for beam search, other drafts (use_mtp, assistant_early_exit, assistant_ensemble_weight) and other
    decoding modes, for models with an encoder or with a decoding loop of their own, for unknown fields, and for a wrong number
    of seeds; with drafts for several rows, without a cache, with one that cannot be cropped, and for attentions and hidden
    states.

    Drafts, of an assistant or by prompt_lookup_num_tokens, run in the same forward pass as the token before them, and the row
    accepts those that it draws: processors, criteria and the streamer are given its tokens one by one, as without drafts. So is
    its text the same, as far as the model's logits are: of one token and of several in a pass they differ in torch in the last
    bits, which decides between tokens that are all but equally good. In float64 that is very rare.

    Args:
        seed: an integer in [0, 2^64), with which row b of the batch uses `random.sample_seed(seed, b)`; a sequence or an array
            of one for each row, counted after num_return_sequences; None for a new one for each row. torch's generator is not
            used. The position of a draw is counted without left padding, so that it is the same in any batch.
        streamer: receives the new tokens, as from `generate`, of a single row. With custom_generate, `generate` passes only the
            prompt to its own streamer: pass the streamer to both.
        stop_strings: a row ends after the token that completes one of the strings, as with `generate`'s own arguments, which it
            refuses together with custom_generate. Without an end token, the rows of a batch continue until all have ended.
        tokenizer: that of the model, for stop_strings.
        processors: as for `Sampler`: fused if there is a rule for them, and called with a row's ids without left padding. Those
            of transformers are `generate`'s logits_processor.
        assistant_model: a smaller model with the same tokens under the same ids, to draft for a single row. It draws with the
            row's own parameters and noise, so that most of its tokens are right at any temperature. num_assistant_tokens and
            assistant_confidence_threshold of its generation_config say how long a draft is. `generate` does not pass its own.
    """
    _check_streamer(streamer)
    own = _none_of_transformers(processors)
    if stop_strings is not None and tokenizer is None:
        refuse(OP, "tokenizer", "given together with stop_strings", None)
    stops = None if stop_strings is None else StopStringCriteria(tokenizer, stop_strings)
    is_model = assistant_model is None or isinstance(assistant_model, PreTrainedModel)
    require(is_model, OP, "assistant_model", "a model of transformers or None", assistant_model)

    def decode(
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: object,
    ) -> Any:
        _check_call(model, input_ids, generation_config, streamer)
        loop = DecodingLoop(
            model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs, seed, assistant_model
        )
        return loop.run(own, stops, streamer)

    return decode


def _check_streamer(streamer: object) -> None:
    is_streamer = all(callable(getattr(streamer, name, None)) for name in ("put", "end"))
    require(streamer is None or is_streamer, OP, "streamer", "None or an object with methods put and end", streamer)


def _none_of_transformers(processors: object) -> Any:
    """The processors, or the function that makes those of a row, unless they are transformers', which read tensors."""
    if isinstance(processors, (Sequence, LogitsProcessor)) or not callable(processors):
        given = processors if isinstance(processors, Sequence) else [processors]
        foreign = [type(each).__name__ for each in given if isinstance(each, LogitsProcessor)]
        rule = "decodestep's; pass those of transformers to generate as logits_processor"
        require(not foreign, OP, "processors", rule, Phrase(", ".join(foreign)))
        return processors

    @wraps(processors)
    def of_row(row: int) -> Any:
        return _none_of_transformers(processors(row))

    return of_row


def _check_call(model: PreTrainedModel, ids: Tensor, config: GenerationConfig, streamer: BaseStreamer | None) -> None:
    kind = Phrase(type(model).__name__)
    require(not model.config.is_encoder_decoder, OP, "model", "a decoder without an encoder", kind)
    require(type(model)._sample is GenerationMixin._sample, OP, "model", "one without a decoding loop of its own", kind)
    mode = config.get_generation_mode()
    looked_up = mode == GenerationMode.ASSISTED_GENERATION and config.prompt_lookup_num_tokens is not None
    drafts = ", ".join(f"{name}={value}" for name in _DRAFTS if (value := getattr(config, name, None)))
    got = Phrase(f"{mode.value!r}{drafts and f' with {drafts}'}")
    require((mode in _LOOPS or looked_up) and not drafts, OP, "generation_config", "of greedy search or sampling", got)
    alone = streamer is None or len(ids) == 1
    require(alone, OP, "streamer", "None for a batch", Phrase(f"one for {len(ids)} rows"))
