"""Converts a recording to plain values for a page: for each token the most likely candidates at every stage, and the draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from decodestep import random
from decodestep.explain.omitted import TEMPERATURES, entry_stage, summarise_omitted
from decodestep.explain.record import Recording, record
from decodestep.explain.tokens import pieces, token_to_text
from decodestep.generation.drafts import Draft
from decodestep.models import Model
from decodestep.ops.decode_step import reference
from decodestep.sampling.distribution import likeliest
from decodestep.sampling.params import SAMPLERS, SamplingParams
from decodestep.sampling.trace import StepTrace, Trace

_MOST_TOUCHED = 16  # penalised or banned tokens that are included, most likely first, in addition to the `top` of the logits
_MOST_MARKED = 8  # causes of a token that are marked in the text: the latest
_WHAT_IF = ("temperature", "top_k", "top_p", "min_p")  # what the page's sliders move
_OFF = SamplingParams()
_INFINITE = 3.5e38  # what stands for infinity, which JSON lacks: in float32 it rounds to that


def record_document(
    model: Model,
    prompt: str,
    prompt_ids: Sequence[int],
    each: Sequence[SamplingParams],
    *,
    steps: int,
    top: int,
    draft: Draft = None,
    progress: Callable[[int], object] = lambda done: None,
) -> dict[str, Any]:
    """Runs the prompt once for each of the parameters, and returns everything that the page shows.

    prompt: as given. steps: the largest number of tokens. top: the number of most likely tokens to include, at least. draft,
        progress: as for `record`.
    """
    own = {float(params.temperature) for params in each if params.temperature and not params.greedy}
    temperatures = tuple(sorted({*TEMPERATURES, *own}))
    keep = partial(_token, top=top, temperatures=temperatures)
    runs = [_run(model, record(model, prompt_ids, params, steps, keep, draft, progress)) for params in each]
    words: dict[str, str] = {}
    for run in runs:
        for token in _collect_tokens(run):
            words.setdefault(str(token), token_to_text(model.tokenizer, token))
    return {"model": model.config.name, "prompt": prompt, "temperatures": temperatures, "words": words, "runs": runs}


def list_settings(params: SamplingParams, spell: Callable[[int], str]) -> dict[str, str]:
    """The fields that differ from the defaults, as text, with banned tokens spelled out; without the seed."""
    shown = ((f.name, getattr(params, f.name), f.default) for f in fields(params))
    found = {name: str(value) for name, value, default in shown if value != default and name not in ("seed", "max_new_tokens")}
    if "bad_words_ids" in found:
        found["bad_words_ids"] = " ".join(f"“{''.join(map(spell, word))}”" for word in params.bad_words_ids)
    return found


def _run(model: Model, recording: Recording[dict[str, Any]]) -> dict[str, Any]:
    params, row = recording.params, recording.row
    ids = [*recording.prompt_ids, *(token["token"] for token in recording.tokens if token["token"] >= 0)]
    chosen = params.samplers or SAMPLERS
    order = [name for name in chosen if name in _WHAT_IF]
    return {
        "settings": list_settings(params, partial(token_to_text, model.tokenizer)),
        "seed": None if params.greedy or row.seed is None else str(row.seed),  # text: JavaScript's numbers have 53 bits
        "greedy": params.greedy,
        "plan": [
            {"name": stage.name, "text": line.strip().split(None, 1)[1], "kind": stage.kind}
            for stage, line in zip(row.plan.stages, row.plan.explain().splitlines(), strict=True)
        ],
        "what_if": {
            "order": [*order, *(name for name in _WHAT_IF if name not in order)],
            **{name: float(getattr(params if name in params.active_samplers else _OFF, name)) for name in _WHAT_IF},
        },
        "prompt": list(recording.prompt_ids),
        "pieces": pieces(model.tokenizer, ids),
        "reason": row.reason,
        "text": recording.text,
        "tokens": list(recording.tokens),
        "accepted": list(recording.accepted),
    }


def _token(trace: Trace, top: int, temperatures: tuple[float, ...]) -> dict[str, Any]:
    entry = entry_stage(trace)
    included = _candidates(trace, entry, top)
    raw, processed = trace.logprobs(trace.token) if trace.token >= 0 else (None, None)
    return {
        "token": trace.token,
        "position": trace.draw.position,
        "raw": None if raw is None else _finite(raw),
        "processed": None if processed is None else _finite(processed),
        "ids": included.tolist(),
        "start": _stage(trace.logits, included),
        "steps": [_step(step, before, included) for step, before in zip(trace.steps, trace.stages, strict=False)],
        "entry": entry,
        "noise": None
        if trace.draw.seed is None
        else _floats(np.asarray(random.gumbel(trace.draw.seed, trace.draw.position, included))),
        "tail": summarise_omitted(trace, trace.stages[entry].copy(), included, temperatures),
    }


def _candidates(trace: Trace, entry: int, top: int) -> np.ndarray:
    """The candidate ids that the page includes for a token, most likely by the logits first."""
    found = set(likeliest((trace.logits, trace.stages[entry], trace.scores), top).tolist())
    race = trace.draw
    found |= {int(race.ids[i]) for i in np.argsort(-race.race, kind="stable")[:8]}
    for step in trace.steps[:entry]:
        changed = np.concatenate((step.touched, step.dropped))
        found |= set(changed[np.argsort(-trace.logits[changed], kind="stable")[:_MOST_TOUCHED]].tolist())
    return np.array(sorted(found, key=lambda i: (-trace.logits[i], i)), np.int64)


def _stage(scores: np.ndarray, included: np.ndarray) -> dict[str, Any]:
    """scores: of the included tokens, None for -inf. norm: log of the sum of exp(score) over all candidates. others: the
    probability of the candidates not included. left: the number of candidates."""
    row = reference.candidates(scores, (), 0)
    if not len(row.ids):
        return {"scores": [None] * len(included), "norm": 0.0, "others": 0.0, "left": 0}
    top = float(row.scores.max())
    weights = reference.weights(row.scores)
    total = float(weights.sum())
    others = float(weights[~np.isin(row.ids, included)].sum())
    norm = _finite(top) + float(np.log(total))
    return {"scores": _floats(scores[included]), "norm": norm, "others": _short(others / total), "left": len(row.ids)}


def _step(step: StepTrace, before: np.ndarray, included: np.ndarray) -> dict[str, Any]:
    stage = _stage(step.scores, included)
    same = np.isneginf(step.scores[included]) | (step.scores[included] == before[included])
    if same.all():  # a filter: no score changes, so the dropped tokens suffice
        stage["gone"] = np.flatnonzero(np.isneginf(step.scores[included]) & (before[included] > -np.inf)).tolist()
        del stage["scores"]
    threshold = step.threshold
    shown = set(included.tolist())
    return {
        **stage,
        "touched": len(step.touched),
        "dropped": len(step.dropped),
        "mass": _short(step.mass),
        "entropy": _short(step.entropy),
        "threshold": None if threshold is None else [threshold.quantity, _short(_finite(threshold.value))],
        "ties": [int(i) for i in step.ties if int(i) in shown],
        "tied": len(step.ties),
        "causes": {
            str(token): {"count": len(spans), "latest": spans[-_MOST_MARKED:]}
            for token, spans in step.causes.items()
            if token in shown
        },
    }


def _floats(values: np.ndarray) -> list[float | None]:
    """float32 values as shortest decimals; None for -inf."""
    return [None if v == -np.inf else _finite(float(str(v))) for v in values.astype(np.float32)]


def _finite(value: float) -> float:
    return min(max(value, -_INFINITE), _INFINITE)


def _short(value: float) -> float:
    return float(f"{value:.7g}")


def _collect_tokens(run: dict[str, Any]) -> set[int]:
    found: set[int] = set()
    for token in run["tokens"]:
        found |= {*token["ids"], *(i for best in token["tail"]["best"] if best for i in best[:1])}
        found |= {token["token"]} - {-1}
    return found
