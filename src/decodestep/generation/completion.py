"""The result of one row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from html import escape
from typing import Any

from decodestep.ops.decode_step import TokenLogprobs
from decodestep.sampling.row import Row


@dataclass(frozen=True)
class Completion:
    """The result of one row, with an HTML representation for notebooks.

    Attributes:
        text: the generated text, ending before a stop string; control tokens add no text, but for those that mark reasoning or
            calls in the answer to a conversation.
        token_ids: all generated tokens, including the one that ended the row.
        prompt_token_ids: the tokens of the prompt.
        finish_reason: "eos" (an end token, or a constraint's text is complete and its end forbidden), "stop" (a stop string or
            token), "length" (max_new_tokens reached or the context full), "time" (max_time has passed), "cancelled" (by the
            caller), "no_candidate" (every token was at -inf, for the row or for all its beams), or "error" (see `error`).
        logprobs: a `TokenLogprobs` for each of token_ids; None if params.logprobs is None. For beams see `beam_search`.
        seed: the seed of the draws, whether given or chosen: with it the same prompt and params give the same text again. None
            for a greedy row without a given seed.
        prompt_index: the index of its prompt, which `row` is another name of. Ignored by comparisons.
        prompt_logprobs: a `TokenLogprobs` for each of prompt_token_ids given the tokens before it, None for the first;
            `processed` equals `raw`. None if params.prompt_logprobs is None; shorter if the row ended within its prompt.
        error: the exception that ended the row: of its own code (a processor or token_bytes), or a CacheFullError where others
            keep the pages of the cache; None if there was none.
        reasoning: of the answer to a conversation, what the model thought: the text between the marks of its family, without
            the line ends beside them. Empty for other prompts.
        content: likewise, what it answered: without marks, and without calls where the prompt has tools.
        tool_calls: likewise, its calls, {"id", "type", "function": {"name", "arguments"}} each, the arguments as JSON text,
            which is incomplete in a call that was cut. Their ids are chosen anew. The last three are read from the text, and
            ignored by comparisons.
        cached_tokens: how many of the prompt's tokens were in the cache already and did not run.
        drafted: how many tokens were drafted.
        accepted: how many of these are in the text. The last three are about time, and ignored by comparisons too.
    """

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: str
    logprobs: list[TokenLogprobs] | None = None
    seed: int | None = None
    prompt_index: int = field(default=0, compare=False)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    error: BaseException | None = field(default=None, compare=False)
    reasoning: str = field(default="", compare=False)
    content: str = field(default="", compare=False)
    tool_calls: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)
    cached_tokens: int = field(default=0, compare=False)
    drafted: int = field(default=0, compare=False)
    accepted: int = field(default=0, compare=False)
    row: InitVar[int | None] = None  # pyright: ignore[reportRedeclaration, reportAssignmentType]

    def __post_init__(self, row: int | None) -> None:  # pyright: ignore[reportGeneralTypeIssues]
        if isinstance(row, int):  # else the property below, which the class has by this name
            object.__setattr__(self, "prompt_index", row)

    @property  # type: ignore[misc]  # of an argument's name
    def row(self) -> int:  # noqa: F811
        """`prompt_index`, by the name that it also has as an argument."""
        return self.prompt_index

    def _repr_html_(self) -> str:
        facts = [f"{len(self.token_ids)} tokens after {len(self.prompt_token_ids)}"]
        facts += [f"ended by {self.finish_reason or 'nothing yet'}"]
        facts += [f"seed {self.seed}"] if self.seed is not None else []
        facts += [repr(self.error)] if self.error is not None else []
        text, notes = escape(self.text), escape(" · ".join(facts))
        shown = f'<pre style="white-space:pre-wrap">{text}</pre><p><small>{notes}</small></p>'
        return f"<div>{shown}{self._probabilities()}</div>"

    def _probabilities(self) -> str:
        """A collapsed table of each token's probability, by the model and after the processors."""
        if not self.logprobs:
            return ""
        rows = "".join(
            f"<tr><td>{token}</td><td>{math.exp(step.raw):.2%}</td><td>{math.exp(step.processed):.2%}</td></tr>"
            for token, step in zip(self.token_ids, self.logprobs, strict=False)
        )
        head = '<tr><th scope="col">token id</th><th scope="col">model</th><th scope="col">after the processors</th></tr>'
        return f"<details><summary>probabilities</summary><table>{head}{rows}</table></details>"


def build_completion(row: Row, prompt: list[int], prompt_index: int) -> Completion:
    """The completion of a row; its finish_reason is "" while the row is running."""
    asked = row.params
    return Completion(
        text=row.text.text if row.text else "",
        token_ids=row.history.tokens[len(prompt) :],
        prompt_token_ids=prompt,
        finish_reason=row.reason,
        logprobs=list(row.logprobs) if asked.logprobs is not None else None,
        seed=row.seed,
        prompt_index=prompt_index,
        prompt_logprobs=row.prompt_logprobs if asked.prompt_logprobs is not None else None,
        error=row.error,
        cached_tokens=row.cached_tokens,
        drafted=sum(row.drafted.values()),
        accepted=len(row.accepted),
    )
