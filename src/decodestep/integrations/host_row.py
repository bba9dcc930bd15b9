"""HostRow: a row of `Sampler` in a host program that keeps the tokens, decides when a text ends, and may undo a draw."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from decodestep._base.arrays import ArrayT
from decodestep._base.checks import Phrase, is_int, refuse, require
from decodestep.sampling.contradictions import LANGUAGES
from decodestep.sampling.params import DEFAULTS, SamplingParams
from decodestep.sampling.row import Row
from decodestep.sampling.row_processors import Processors
from decodestep.sampling.sampler import Sampler

# Fields of SamplingParams that belong to the host: when a text ends, as a constraint decides too, and what is reported.
_HOSTS_OWN = (
    "max_new_tokens",
    "max_length",
    "stop_strings",
    "stop_token_ids",
    "max_time",
    "ignore_eos",
    "eos_token_id",
    "forced_eos_token_id",
    "num_beams",
    "num_return_sequences",
    "logprobs",
    "prompt_logprobs",
    *LANGUAGES,
)


class HostRow:
    """One text of a host, drawn as a row of `Sampler`: depends only on its logits, params, seed and history.

    Not safe for concurrent use.

    Args:
        params: a `SamplingParams` with one beam and one sample. Fields about the end of a text (lengths, stop strings and
            tokens, time, end tokens, constraints) and about reporting must have their defaults, because the host decides these.
            DRY has no breakers by default: the usual ones are texts, and a host's rows have none.
        vocab_size: V, the width of the logits.
        prompt_ids: the tokens before the first drawn one.
        eos_token_id: the end tokens for min_length, min_new_tokens and exponential_decay_length_penalty; they do not end the
            row.
        processors: as for `Sampler`.

    Raises:
        ValueError: for fields that belong to the host, and as `Sampler` does.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        vocab_size: int,
        prompt_ids: Sequence[int] = (),
        eos_token_id: int | Collection[int] | None = None,
        processors: Processors = (),
    ) -> None:
        params = without_ends(params)
        if params.dry_sequence_breakers is None:  # the usual ones are texts, which these rows do not have
            params = params.replace(dry_sequence_breakers=())
        self._params = params
        self._options: dict[str, Any] = {"vocab_size": vocab_size, "eos_token_id": eos_token_id, "processors": processors}
        self._prompt = list(prompt_ids)
        self._begin(())
        self._params = self._row.params  # with its seed

    @property
    def seed(self) -> int | None:
        return self._row.seed

    @property
    def tokens(self) -> list[int]:
        """The prompt and the accepted tokens."""
        return self._row.history.tokens[: self._accepted]

    def draw(self, logits: object) -> int:
        """The next token, from logits (1, V). `accept` adds it to the history; another draw replaces it.

        Raises:
            ValueError: if no token is left, and whatever a processor raises; the row does not change then.
        """
        self._keep(self._accepted)
        try:
            token = int(self._sampler.step(logits).tokens[0])
        except BaseException:
            self._keep(self._accepted)  # an interrupt may have come after the draw
            raise
        if token < 0:
            error = self._row.error
            self._keep(self._accepted)
            if error is not None:
                raise error
            refuse("HostRow", "logits", "such that a token is left to draw", Phrase("none"))
        return token

    def processed(self, logits: ArrayT) -> ArrayT:
        """`Sampler.processed` of logits (1, V)."""
        self._keep(self._accepted)
        return self._sampler.processed(logits)

    def accept(self, token: int) -> None:
        """Appends `token` to the history: the one that was drawn last, or another in its place."""
        vocab = self._options["vocab_size"]
        require(is_int(token) and 0 <= token < vocab, "HostRow", "token", f"in [0, {vocab})", token)
        drawn = self._row.history.tokens[self._accepted :]
        if drawn != [token]:
            self._keep(self._accepted)
            self._row.history.append(token)
        self._accepted += 1

    def follow(self, generated: Sequence[int]) -> None:
        """Sets the tokens after the prompt to `generated`, usually one more than before; what both begin with is kept."""
        first = len(self._prompt)
        before = self._row.history.tokens[first : self._accepted]
        known = len(before)
        if before != list(generated[:known]):
            both = zip(before, generated, strict=False)
            known = next((i for i, (ours, theirs) in enumerate(both) if ours != theirs), min(known, len(generated)))
            self._keep(first + known)
        for token in generated[known:]:
            self.accept(int(token))

    def reset(self) -> None:
        """Resets the history to the prompt."""
        self._begin(())

    def clone(self) -> HostRow:
        """A copy with the same params, seed and history. Stateful processors need a factory, as for `Sampler`."""
        copy = type(self)(self._params, prompt_ids=self._prompt, **self._options)
        copy.follow(self.tokens[len(self._prompt) :])
        return copy

    def __reduce__(self) -> NoReturn:  # a shallow copy would share the original's `Sampler`
        raise TypeError("a HostRow cannot be copied or pickled: use clone")

    @property
    def _row(self) -> Row:
        return self._sampler.rows[0]

    def _keep(self, length: int) -> None:
        """Takes back all but the first tokens of the history, and the end of a row that has ended."""
        history = self._row.history
        if len(history) == length and not self._row.reason:
            return
        if self._row.can_go_back:
            self._row.truncate(length)
            self._accepted = length
        else:  # processors begin anew
            self._begin(history.tokens[len(self._prompt) : length])

    def _begin(self, generated: Sequence[int]) -> None:
        self._sampler = Sampler(self._params, prompt_ids=[self._prompt], **self._options)
        for token in generated:
            self._row.history.append(token)
        self._accepted = len(self._row.history)  # tokens; one more has been drawn where the history is longer


def without_ends(params: SamplingParams) -> SamplingParams:
    """The params without anything that ends a row. Raises ValueError for a field that belongs to the host."""
    require(isinstance(params, SamplingParams), "HostRow", "params", "a SamplingParams", params)
    for name in _HOSTS_OWN:
        default, value = DEFAULTS[name], getattr(params, name)
        ended = name in ("max_new_tokens", "ignore_eos") and value in (None, True)  # as set by this function
        require(
            ended or value == default, "SamplingParams", name, f"left at its default {default!r}: the host decides it", value
        )
    return params.replace(max_new_tokens=None, ignore_eos=True)
