"""Which fields of `SamplingParams` contradict each other, though each is legal alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodestep._base.checks import refuse, require
from decodestep.sampling import rules

if TYPE_CHECKING:
    from decodestep.sampling.params import SamplingParams

_OP = "SamplingParams"

LANGUAGES = ("json_schema", "regex", "grammar", "choice")  # the fields with a constraint


def languages_of(params: SamplingParams) -> list[str]:
    """Those of `LANGUAGES` that the params have."""
    return [name for name in LANGUAGES if getattr(params, name) is not None]


def refuse_contradictions(params: SamplingParams) -> None:
    """Raises RequestError for fields that contradict each other."""
    _check_beams(params)
    _check_watermark(params)
    _check_constraints(params)
    _check_samplers(params)


def _check_beams(params: SamplingParams) -> None:
    beams, groups, grouped = params.num_beams, params.num_beam_groups, params.num_beam_groups > 1
    require(beams % groups == 0, _OP, "num_beam_groups", f"a divisor of num_beams {beams}", groups)
    rule = "> 0 with several beam groups" if grouped else "0 without several beam groups"
    require(grouped == (params.diversity_penalty > 0), _OP, "diversity_penalty", rule, params.diversity_penalty)
    asked, budget = params.prompt_logprobs, params.thinking_budget
    require(beams == 1 or asked is None, _OP, "prompt_logprobs", "None beside several beams", asked)
    require(params.greedy or not grouped, _OP, "do_sample", "False with several beam groups", params.do_sample)
    require(beams == 1 or budget is None, _OP, "thinking_budget_tokens", "None beside several beams", budget)
    count = params.num_return_sequences
    require(beams == 1 or count <= beams, _OP, "num_return_sequences", f"at most num_beams {beams}", count)


def _check_watermark(params: SamplingParams) -> None:
    config = params.watermarking_config or {}
    rules.check_watermark(_OP, config)
    rule = "without keys beside several beams: SynthID keeps the state of one row"
    require(params.num_beams == 1 or "keys" not in config, _OP, "watermarking_config", rule, params.num_beams)


def _check_constraints(params: SamplingParams) -> None:
    asked = languages_of(params)
    if asked:
        require(len(asked) == 1, _OP, asked[-1], f"None beside {asked[0]}", getattr(params, asked[-1]))
        require(params.num_beams == 1, _OP, asked[0], "None beside several beams", getattr(params, asked[0]))
        require(not params.ignore_eos, _OP, "ignore_eos", f"False beside {asked[0]}, which ends the row", params.ignore_eos)


def _check_samplers(params: SamplingParams) -> None:
    missing = [] if params.samplers is None else [name for name in params.active_samplers if name not in params.samplers]
    if missing:
        names = ", ".join(missing)
        rule = f"one that names {names}"
        sentence = f"samplers must name {names} too, which would change something; got {params.samplers}"
        refuse(_OP, "samplers", rule, params.samplers, sentence=sentence)
