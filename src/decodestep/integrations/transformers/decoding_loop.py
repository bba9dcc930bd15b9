"""The loop of `sampling`: transformers' `_sample`, with `Sampler` in place of its processors and its draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import ALL_CACHE_NAMES, GenerationMixin
from transformers.utils import ModelOutput

from decodestep._base.checks import Phrase, is_int, refuse, require
from decodestep.integrations.transformers.drafts import Drafts
from decodestep.random import sample_seed
from decodestep.sampling.params import DEFAULTS, SamplingParams
from decodestep.sampling.row_processors import Processors
from decodestep.sampling.sampler import Sampler
from decodestep.stopping import StopStringCriteria

OP = "sampling"
# Fields whose processors read the padding in transformers, or count it.
_READ_PADDING = ("no_repeat_ngram_size", "sequence_bias", "bad_words_ids", "min_length", "forced_bos_token_id")
# The field of an output that holds the cache; the second name is that of transformers 5.23.
_CACHE = "cache" if "cache" in GenerateDecoderOnlyOutput.__dataclass_fields__ else "past_key_values"


class DecodingLoop:
    """One call of `generate`: transformers' `_sample` with another draw. Made before the forward pass, to refuse what is not
    supported."""

    def __init__(
        self,
        model: PreTrainedModel,
        ids: Tensor,
        chain: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        model_kwargs: dict[str, Any],
        seed: object,
        assistant: PreTrainedModel | None = None,
    ) -> None:
        self.model, self.ids, self.chain, self.config, self.model_kwargs = model, ids, chain, config, model_kwargs
        self.own_chain = not _is_default(chain, _default_chain(model, ids, config))
        self.criteria = StoppingCriteriaList(each for each in criteria if not _is_in_sampler(each, config))
        # A custom criterion replaces the config's criterion of the same type.
        self.ends = {type(each) for each in criteria if _is_in_sampler(each, config)}
        if config.forced_eos_token_id is not None and MaxLengthCriteria not in self.ends:
            self.own_chain = True  # because it depends on the config's length
        self.pad: int | None = None if config._pad_token_tensor is None else int(config._pad_token_tensor)
        # Without an end token, transformers continues rows that criteria have ended until all have ended.
        self.rows_end = any(hasattr(each, "eos_token_id") for each in criteria)
        # Processes that share the weights, as with FSDP, pass on together until all have ended. `generate` does not say so.
        self.synced = model._extract_generation_mode_kwargs(None, {}, None, None, None)["synced_gpus"]
        self.params = self._params(seed)
        self.padding = _left_padding(ids, model_kwargs.get("attention_mask"))
        if any(self.padding) and any(getattr(row, name) != DEFAULTS[name] for row in self.params for name in _READ_PADDING):
            self.own_chain = True  # because the sampler does not know of the padding
        self.sampler: Sampler | None = None  # until the first logits say how many tokens there are
        self.done = torch.zeros(len(ids), dtype=torch.bool, device="cpu")  # which rows have ended
        self.drafts = Drafts(model, ids, config, assistant)
        self.report = _Report(config)

    def run(self, processors: Processors, stops: StopStringCriteria | None, streamer: BaseStreamer | None) -> Any:
        """Draws tokens until all rows have ended; returns what `generate` does. processors: as for `Sampler`. stops: one more
        criterion. streamer: transformers', or None."""
        if stops is not None:
            self.criteria.append(stops)
        padded = self.pad is not None or len(self.ids) == 1 or not self.rows_end
        require(padded, OP, "pad_token_id", "given if end tokens end the rows of a batch", None)
        self.drafts.begin(self._cache)
        outputs = self.model._prefill(self.ids, self.config, self.model_kwargs, is_first_iteration=True)
        draft: list[int] = []
        ended = False
        with self.model._optimize_model_for_decode():
            while self.model._has_unfinished_sequences(ended, synced_gpus=self.synced, device=self.ids.device):
                if outputs is None:
                    draft = [] if ended else self.drafts.propose(self.sampler)
                    outputs = self._forward(draft)
                taken = 1
                if not ended:  # else another process has not
                    length = self.ids.shape[1]
                    ended = self._steps(outputs, draft, processors, streamer)
                    taken = self.ids.shape[1] - length
                self.model_kwargs = self._kwargs_after(outputs, taken)
                self.drafts.forget(self._cache, len(draft) + 1 - taken)
                outputs = None
        if streamer is not None:
            streamer.end()
        if not self.config.return_dict_in_generate:
            return self.ids
        return GenerateDecoderOnlyOutput(sequences=self.ids, **{_CACHE: self._cache}, **self.report.fields())

    @property
    def _cache(self) -> Any:
        return next((self.model_kwargs[name] for name in ALL_CACHE_NAMES if name in self.model_kwargs), None)

    def _forward(self, draft: list[int]) -> Any:
        """The model's outputs for the tokens that it has not seen, and for those of a draft after them."""
        length = 1 + len(draft) if self.model_kwargs["use_cache"] else None
        ids, kwargs = self.ids, self.model_kwargs
        if draft:
            ids, kwargs = torch.cat([ids, ids.new_tensor([draft])], -1), self._kwargs_after({}, len(draft))
        inputs = self.model.prepare_inputs_for_generation(ids, next_sequence_length=length, **kwargs)
        if draft and "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = len(draft) + 1
        return self.model(**inputs, return_dict=True)

    def _kwargs_after(self, outputs: dict[str, Any], tokens: int) -> dict[str, Any]:
        """The arguments of the pass after one with these outputs, once there are so many more tokens."""
        kwargs = dict(self.model_kwargs)
        made: dict[str, Any] = self.model._update_model_kwargs_for_generation(outputs, kwargs, num_new_tokens=tokens)
        return made

    def _steps(self, outputs: ModelOutput, draft: list[int], processors: Processors, streamer: BaseStreamer | None) -> bool:
        """Steps on the logits of the last token, and of each of the draft until the row draws another; returns whether all rows
        have ended."""
        ended = False
        for place, drafted in enumerate([*draft, None]):
            ended = self._step(self._scores(outputs, place - len(draft) - 1), processors)
            if streamer is not None:
                streamer.put(self.ids[:, -1].cpu())
            if ended or drafted is None or int(self.ids[0, -1]) != drafted:
                break
        return ended

    def _scores(self, outputs: ModelOutput, at: int) -> Tensor:
        """What the sampler draws from, by the model's outputs for the token at this index: the logits, or what transformers'
        chain makes of them."""
        logits: Tensor = outputs.logits[:, at].to(self.ids.device)
        logits = logits.float() if logits.dtype == torch.float64 else logits  # as in `_sample`
        if self.sampler is None:
            # Tokens outside the vocabulary, such as an image's, are known only to transformers' chain.
            self.own_chain |= bool(self._outside(logits.shape[-1]).any())
        scores: Tensor | None = None
        if self.own_chain or self.report.keeps_scores:
            scores = self.chain(self.ids, logits.to(torch.float32, copy=True))
        self.report.add(outputs, logits, scores)
        return scores.float() if scores is not None and self.own_chain else logits

    def _step(self, scores: Tensor, processors: Processors) -> bool:
        """Draws and appends a token for each row; returns whether all rows have ended."""
        self.sampler = sampler = self.sampler or self._sampler(int(scores.shape[-1]), processors)
        result = sampler.step(scores)
        tokens = torch.as_tensor(result.tokens, device=self.ids.device)
        for number, row in enumerate(sampler.rows):
            if row.error is not None:
                raise row.error
            require(
                row.reason != "no_candidate", OP, "processors", "such that a token is left", Phrase(f"none in row {number}")
            )
        if self.pad is not None:
            tokens = tokens.where(tokens >= 0, self.pad)
        self.ids = torch.cat([self.ids, tokens[:, None]], -1)
        self.done = self.done | torch.from_numpy(result.done) | self.criteria(self.ids, self.report.scores).cpu()
        if self.criteria and self.rows_end:
            for row, ended in zip(sampler.rows, self.done.tolist(), strict=True):
                if ended and not row.reason:
                    row.end("stop")
        return bool(self.done.all())

    def _params(self, seed: int | Sequence[int] | Tensor | None) -> list[SamplingParams]:
        """The parameters of each row, by the config."""
        room = self.config.max_length - self.ids.shape[1] if MaxLengthCriteria in self.ends else None
        changes = {
            "num_return_sequences": 1,  # the batch is already repeated
            "max_length": None,
            "eos_token_id": None,  # the sampler's
            "ignore_eos": EosTokenCriteria not in self.ends,
            "max_new_tokens": None if room is None else max(room, 1),
            "max_time": None,  # is one of the criteria
            "stop_strings": (),
        }
        params = SamplingParams.from_generation_config(self.config, **changes)
        return [params.replace(seed=each) for each in _seeds(seed, len(self.ids))]

    def _outside(self, vocabulary: int) -> Tensor:
        """Which tokens of the prompt are none of the vocabulary."""
        return (self.ids < 0) | (self.ids >= vocabulary)

    def _sampler(self, vocabulary: int, processors: Processors) -> Sampler:
        """The sampler of the rows.

        They are without left padding, so that a row's draws, which depend on its length, do not depend on its batch. If
        transformers' whole chain runs, only `processors` read the tokens of a prompt: without them, any token may stand for one
        that is outside the vocabulary.
        """
        params = [_draw_alone(row) for row in self.params] if self.own_chain else self.params
        ends = self.config._eos_token_tensor
        ends = () if ends is None else [token for token in ends.reshape(-1).tolist() if 0 <= token < vocabulary]
        prompt = self.ids if processors or not self.own_chain else self.ids.masked_fill(self._outside(vocabulary), 0)
        prompts = [row[padding:] for row, padding in zip(prompt.tolist(), self.padding, strict=True)]
        return Sampler(params, vocab_size=vocabulary, eos_token_id=ends, prompt_ids=prompts, processors=processors)


class _Report:
    """What `generate` returns of each step, as return_dict_in_generate and the config's output_* say."""

    def __init__(self, config: GenerationConfig) -> None:
        names = ("scores", "logits", "attentions", "hidden_states") if config.return_dict_in_generate else ()
        self._kept: dict[str, list[Any]] = {name: [] for name in names if getattr(config, f"output_{name}")}

    @property
    def keeps_scores(self) -> bool:
        return "scores" in self._kept

    @property
    def scores(self) -> tuple[Any, ...] | None:
        """The scores of the steps so far; None if they are not kept."""
        return tuple(self._kept["scores"]) if self.keeps_scores else None

    def add(self, outputs: ModelOutput, logits: Tensor, scores: object) -> None:
        for name, kept in self._kept.items():
            if name == "scores":
                kept.append(scores)
            elif name == "logits":
                kept.append(logits.to(torch.float32, copy=True))
            else:
                kept.append(getattr(outputs, name))

    def fields(self) -> dict[str, tuple[Any, ...]]:
        return {name: tuple(kept) for name, kept in self._kept.items()}


def _draw_alone(params: SamplingParams) -> SamplingParams:
    """Only the draw and the end of a row, whose scores transformers' whole chain makes."""
    return SamplingParams(
        do_sample=params.do_sample, seed=params.seed, max_new_tokens=params.max_new_tokens, ignore_eos=params.ignore_eos
    )


def _left_padding(ids: Tensor, mask: object) -> list[int]:
    """How many positions before each prompt are hidden; a mask of another shape, such as one of embeddings, hides none."""
    if not isinstance(mask, Tensor) or mask.shape != ids.shape or mask.numel() == 0:
        return [0] * len(ids)
    return (mask != 0).int().argmax(1).tolist()


def _seeds(seed: object, rows: int) -> list[int | None]:
    plain = seed.tolist() if hasattr(seed, "tolist") else seed
    if plain is None:
        return [None] * rows
    if is_int(plain):
        return [sample_seed(plain, row) for row in range(rows)]
    if not isinstance(plain, Sequence) or isinstance(plain, (str, bytes, bytearray)) or len(plain) != rows:
        refuse(OP, "seed", f"an integer, or one for each of {rows} rows", seed)
    return list(plain)


def _default_chain(model: PreTrainedModel, ids: Tensor, config: GenerationConfig) -> Any:
    """The processors that transformers makes from the config alone, without those that a model's class adds."""
    return GenerationMixin._get_logits_processor(
        model, config, input_ids_seq_length=ids.shape[1], encoder_input_ids=ids, device=ids.device
    )


def _is_default(chain: LogitsProcessorList, default: LogitsProcessorList) -> bool:
    """Whether a chain is the config's: the same processors with the same attributes."""
    return len(chain) == len(default) and all(
        type(a) is type(b)
        and vars(a).keys() == vars(b).keys()
        and all(_equal(vars(a)[name], vars(b)[name]) for name in vars(a))
        for a, b in zip(chain, default, strict=True)
    )


def _equal(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b)


def _is_in_sampler(criterion: StoppingCriteria, config: GenerationConfig) -> bool:
    """Whether the sampler already implements a criterion: the length and the end tokens of the config."""
    if type(criterion) is MaxLengthCriteria:
        return bool(criterion.max_length == config.max_length)
    ends = config._eos_token_tensor
    return type(criterion) is EosTokenCriteria and ends is not None and torch.equal(criterion.eos_token_id, ends)
