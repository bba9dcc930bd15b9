"""Classifier-free guidance: contrasts scores with a prompt and scores without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from decodestep._base.array_api import fill, highest, kth_largest, log_softmax, namespace, quiet, times
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.checks import require
from decodestep.processors.base import LogitsProcessor

_CACHE_NAMES = ("cache", "past_key_values")  # of transformers 5.24, where the other one warns, and of those before it


class ClassifierFreeGuidanceLogitsProcessor(LogitsProcessor):
    """Moves the scores away from those without the prompt; both come in one batch.

        c, u = s[:B], s[B:];  result = u + (c - u) * guidance_scale      # [B, vocab] of [2 B, vocab]

    Args:
        guidance_scale: a number > 1.

    Raises:
        ValueError: if scores do not have twice the rows of input_ids.

    Source:
        Copet et al., "Simple and controllable music generation" (MusicGen), 2023; as in transformers 5.23.
    """

    def __init__(self, guidance_scale: float) -> None:
        _require_scale("ClassifierFreeGuidanceLogitsProcessor", guidance_scale)
        self.guidance_scale = guidance_scale

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        with_prompt, without = halves("ClassifierFreeGuidanceLogitsProcessor", input_ids, scores)
        with quiet():
            return without + times(namespace(scores), with_prompt - without, self.guidance_scale)


class UnbatchedClassifierFreeGuidanceLogitsProcessor(LogitsProcessor):
    """Moves the scores away from the model's own scores without the prompt, or with another prompt.

        c = log softmax(s);  u = log softmax(model(unconditional ids)[:, -1])
        result = guidance_scale * (c - u) + u                            # c itself where guidance_scale == 1

    Keeps state: one object serves one generation.

    Args:
        guidance_scale: a number; above 1 moves towards the prompt.
        model: called as model(ids, attention_mask=, use_cache=); its result has a `logits` attribute and `.get`. The cache that
            the result has as "cache" or "past_key_values" is passed to the next call under the same name.
        unconditional_ids: [batch, length]; by default the last id of the prompt at the first call.
        unconditional_attention_mask: likewise; ones by default.
        use_cache: whether the model keeps its keys and values, so that later calls pass only the newest id.

    Source:
        Sanchez et al., "Stay on topic with classifier-free guidance", 2023; as in transformers 5.23.
    """

    stateful = True

    def __init__(
        self,
        guidance_scale: float,
        model: Callable[..., Any],
        unconditional_ids: Array | None = None,
        unconditional_attention_mask: Array | None = None,
        use_cache: bool = True,
    ) -> None:
        self.guidance_scale = guidance_scale
        self.model = model
        self.unconditional_context: dict[str, Any] = {
            "input_ids": unconditional_ids,
            "attention_mask": unconditional_attention_mask,
            "use_cache": use_cache,
            "cache": {},
            "first_pass": True,
        }

    def get_unconditional_logits(self, input_ids: Array) -> Array:
        """The model's logits [batch, length, vocab] for the unconditional ids; each call after the first adds one id."""
        xp, state, newest = namespace(input_ids), self.unconditional_context, input_ids[:, -1:]
        if state["first_pass"]:
            state["first_pass"] = False
            ids = state["input_ids"] = newest if state["input_ids"] is None else state["input_ids"]
            if state["attention_mask"] is None:
                state["attention_mask"] = xp.ones_like(ids, dtype=xp.int64)
        else:
            seen = xp.ones_like(newest, dtype=xp.int64)
            state["attention_mask"] = xp.concat([state["attention_mask"], seen], axis=1)
            ids = newest if state["use_cache"] else xp.concat([state["input_ids"], newest], axis=1)
            state["input_ids"] = ids
        out = self.model(ids, attention_mask=state["attention_mask"], use_cache=state["use_cache"], **state["cache"])
        if state["use_cache"]:
            found = ({name: cache} for name in _CACHE_NAMES if (cache := out.get(name, None)) is not None)
            state["cache"] = next(found, {})
        return out.logits

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        conditional = log_softmax(xp, scores)
        if self.guidance_scale == 1:
            return conditional
        unconditional: Any = log_softmax(xp, self.get_unconditional_logits(input_ids)[:, -1])
        with quiet():
            return times(xp, conditional - unconditional, self.guidance_scale) + unconditional


class DiaClassifierFreeGuidanceLogitsProcessor(LogitsProcessor):
    """Guidance that only selects tokens; their scores remain those with the prompt.

        c, u = s[:B], s[B:];  g = c + (c - u) * guidance_scale
        result = g, or where guidance_top_k is given c with -inf outside the guidance_top_k highest g

    Args:
        guidance_scale: a number > 1.
        guidance_top_k: an int >= 1, or None. Of ties the lowest ids stay; more than the vocabulary keeps all. NaN, as of a
            token at -inf with and without the prompt, ranks above all.

    Raises:
        ValueError: if scores do not have twice the rows of input_ids.

    Source:
        Nari Labs, Dia-1.6B, 2025; as in transformers 5.23.
    """

    def __init__(self, guidance_scale: float, guidance_top_k: int | None = None) -> None:
        op = "DiaClassifierFreeGuidanceLogitsProcessor"
        _require_scale(op, guidance_scale)
        require(guidance_top_k is None or guidance_top_k >= 1, op, "guidance_top_k", "an int >= 1 or None", guidance_top_k)
        self.guidance_scale = guidance_scale
        self.guidance_top_k = guidance_top_k

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        with_prompt, without = halves("DiaClassifierFreeGuidanceLogitsProcessor", input_ids, scores)
        with quiet():
            guided = with_prompt + times(xp, with_prompt - without, self.guidance_scale)
        if self.guidance_top_k is None:
            return guided
        k = min(self.guidance_top_k, guided.shape[-1])
        return fill(xp, with_prompt, ~highest(xp, guided, kth_largest(xp, guided, k), k))


def halves(op: str, input_ids: Array, scores: Array) -> tuple[Any, Any]:
    rows = input_ids.shape[0]
    require(scores.shape[0] == 2 * rows, op, "scores", f"of {2 * rows} rows, with the prompt and then without it", scores)
    return scores[:rows], scores[rows:]


def _require_scale(op: str, guidance_scale: float) -> None:
    require(bool(guidance_scale > 1), op, "guidance_scale", "> 1", guidance_scale)
