"""Why a text ends before its end, as the command line tells it: a text that is cut looks like one that is complete."""

from __future__ import annotations

from decodestep.generation.completion import Completion
from decodestep.sampling.params import SamplingParams


def early_end(completion: Completion, params: SamplingParams) -> str:
    """What ended a text early, or "" for one that came to its end or that the user ended. params: as the options gave them."""
    count = len(completion.token_ids)
    match completion.finish_reason:
        case "length" if count == params.max_new_tokens:
            return f"the text is cut after {count} tokens (--max-new-tokens)"
        case "length":
            whole = len(completion.prompt_token_ids) + count
            return f"the text is cut: {whole} tokens, with those of the prompt, fill the context or the cache"
        case "time":
            return f"the text is cut after {params.max_time:g} s (--max-time)"
        case "no_candidate":
            return "the text ends where every token is forbidden"
    return ""
