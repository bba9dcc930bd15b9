"""Drafts in `sampling`'s loop: by prompt lookup, or by an assistant, a smaller model of transformers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig, PreTrainedModel, QuantizedCache

from decodestep._base.checks import Phrase, require
from decodestep.generation.drafts.coupled_row import CoupledRow
from decodestep.generation.drafts.drafter import Drafter, count_equal
from decodestep.generation.drafts.lookup import LookupDrafter, PairIndex
from decodestep.sampling.row import Row
from decodestep.sampling.sampler import Sampler

_OP = "sampling"
# Of an assistant's GenerationConfig, with the defaults of transformers.
_TOKENS, _CONFIDENCE = 20, 0.4


class AssistantDrafter(Drafter):
    """Proposes what an assistant draws for a row, with the row's own params and noise: see `CoupledRow`.

    A draft ends with a token to which the assistant gives less than the assistant_confidence_threshold of its
    GenerationConfig, and has at most its num_assistant_tokens.
    """

    def __init__(self, assistant: PreTrainedModel, row: Row) -> None:
        self._model, self._coupled = assistant, CoupledRow(row)
        self._tokens: list[int] = []  # those in the cache
        self._same = 0  # how many of them are certainly the row's
        self._cache = DynamicCache(config=assistant.config.get_text_config(decoder=True))
        self._cache.activate_past_recording()
        self._options = {"logits_to_keep": 1} if assistant._supports_logits_to_keep() else {}
        threshold = assistant.generation_config.assistant_confidence_threshold
        self._confidence = _CONFIDENCE if threshold is None else threshold

    def propose(self, row: Row, limit: int) -> Sequence[int]:
        tokens = row.history.tokens
        self._coupled.follow(tokens)
        same = min(count_equal(self._tokens, tokens, self._same), len(tokens) - 1)
        self._same = len(tokens)
        if self._tokens:
            self._cache.crop(same - len(self._tokens))
            del self._tokens[same:]
        draft: list[int] = []
        new = tokens[same:]
        while len(draft) < limit:
            logits = self._logits(new)
            token = self._coupled.draw(logits.numpy())
            draft += [token] * (token >= 0)
            if self._coupled.is_end(token) or logits.softmax(0)[token] < self._confidence:
                break
            new = [token]
        return draft

    def _logits(self, tokens: list[int]) -> Tensor:
        """Those after the tokens, which it runs."""
        ids = torch.tensor([tokens], device=self._model.device)
        outputs = self._model(input_ids=ids, past_key_values=self._cache, use_cache=True, **self._options)
        self._tokens += tokens
        _require_croppable("assistant_model", self._cache)
        logits: Tensor = outputs.logits[0, -1].float().cpu()
        return logits


class Drafts:
    """What a call of `generate` drafts for its row: nothing, unless its config or an assistant asks for it.

    most: tokens of a draft.

    Refuses what cannot be done with drafts, as far as it is known before the prompt has run.
    """

    def __init__(
        self, model: PreTrainedModel, ids: Tensor, config: GenerationConfig, assistant: PreTrainedModel | None
    ) -> None:
        self._assistant = assistant
        self._drafter: Drafter | None = None  # until the row is known
        self.most = config.prompt_lookup_num_tokens or 0
        if assistant is not None:
            _check_assistant(model, assistant)
            asked = config.prompt_lookup_num_tokens
            require(asked is None, _OP, "prompt_lookup_num_tokens", "None beside an assistant_model", asked)
            self.most = assistant.generation_config.num_assistant_tokens or _TOKENS
        if self.most:
            _check_call(ids, config)

    def propose(self, sampler: Sampler | None) -> list[int]:
        """Tokens that the sampler's row may draw next, without its last one."""
        if not self.most or sampler is None:
            return []
        [row] = sampler.rows
        drawn = len(row.history) - row.history.prompt_length
        limit = min(self.most, (row.params.max_new_tokens or drawn + self.most + 1) - drawn - 1)
        if limit <= 0:
            return []
        if self._drafter is None:
            lookup = self._assistant is None
            self._drafter = LookupDrafter(PairIndex(row.history)) if lookup else AssistantDrafter(self._assistant, row)
        return list(self._drafter.propose(row, limit))

    def begin(self, cache: object) -> None:
        """Before the prompt runs: layers that keep a window of keys keep all of a pass until it is known what to forget."""
        if self.most and isinstance(cache, Cache):
            cache.activate_past_recording()

    def forget(self, cache: Cache, tokens: int) -> None:
        """Takes the last tokens of a pass out of the cache: drafts that the row has not drawn."""
        if self.most:
            _require_croppable("model", cache)
            cache.crop(-tokens)


def _check_assistant(model: PreTrainedModel, assistant: PreTrainedModel) -> None:
    vocabulary, own = (each.config.get_text_config(decoder=True).vocab_size for each in (model, assistant))
    rule = f"a decoder with the model's {vocabulary} tokens"
    require(not assistant.config.is_encoder_decoder, _OP, "assistant_model", rule, Phrase("one with an encoder"))
    require(own == vocabulary, _OP, "assistant_model", rule, Phrase(f"one with {own}"))


def _check_call(ids: Tensor, config: GenerationConfig) -> None:
    require(len(ids) == 1, _OP, "input_ids", "of a single row with drafts", Phrase(f"{len(ids)} rows"))
    require(bool(config.use_cache), _OP, "use_cache", "True with drafts", config.use_cache)
    for name in ("output_attentions", "output_hidden_states"):
        asked = config.return_dict_in_generate and getattr(config, name)
        require(not asked, _OP, name, "False with drafts, which share a pass with the token before", asked)


def _require_croppable(argument: str, cache: object) -> None:
    """Refuses a cache that does not forget tokens exactly. Of some this is known only once they have been written to."""
    fit = isinstance(cache, Cache) and cache.is_croppable and not isinstance(cache, QuantizedCache)
    require(fit, _OP, argument, "one whose cache can be cropped, to forget drafts", Phrase(f"one with {type(cache).__name__}"))
