"""HostRow: a row of `Sampler` in a host program that keeps the tokens, decides when a text ends, and may undo a draw."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from decodestep._base.arrays import ArrayT
from decodestep._base.checks import Words, is_int, refuse, require
from decodestep.sampling.params import DEFAULTS, LANGUAGES, SamplingParams
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

    params: a `SamplingParams` with one beam and one sample. Fields about the end of a text (lengths, stop strings and tokens,
        time, end tokens, constraints) and about reporting must have their defaults, because the host decides these.
    vocab_size: V, the width of the logits. prompt_ids: the tokens before the first drawn one.
    eos_token_id: the end tokens for min_length, min_new_tokens and exponential_decay_length_penalty; they do not end the row.
    processors: as for `Sampler`.

    Not safe for concurrent use. Raises ValueError for fields that belong to the host, and as `Sampler` does.
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
        self._params = without_ends(params)
        self._options: dict[str, Any] = {"vocab_size": vocab_size, "eos_token_id": eos_token_id, "processors": processors}
        self._prompt = list(prompt_ids)
        self._begin(())
        self._params = self._sampler.rows[0].params  # with its seed

    @property
    def seed(self) -> int | None:
        return self._sampler.rows[0].seed

    @property
    def tokens(self) -> list[int]:
        """The prompt and the accepted tokens."""
        tokens = list(self._sampler.rows[0].history.tokens)
        return tokens[:-1] if self._drawn else tokens

    def draw(self, logits: object) -> int:
        """The next token, from logits (1, V). `accept` adds it to the history; another draw replaces it.

        Raises ValueError if no token is left, and whatever a processor raises; the row does not change then.
        """
        self._take_back()
        history = self._sampler.rows[0].history
        length = len(history)
        try:
            token = int(self._sampler.step(logits).tokens[0])
        except BaseException:
            if self._sampler.rows[0].reason:  # ended by an interrupt, which may have come after the draw
                self._begin(history.tokens[len(self._prompt) : length])
            raise
        if token < 0:
            error = self._sampler.rows[0].error
            self._begin(self.tokens[len(self._prompt) :])
            if error is not None:
                raise error
            refuse("HostRow", "logits", "such that a token is left to draw", Words("none"))
        self._drawn = True
        return token

    def processed(self, logits: ArrayT) -> ArrayT:
        """`Sampler.processed` of logits (1, V)."""
        self._take_back()
        return self._sampler.processed(logits)

    def accept(self, token: int) -> None:
        """Appends `token` to the history: the one that was drawn last, or another in its place."""
        vocab = self._options["vocab_size"]
        require(is_int(token) and 0 <= token < vocab, "HostRow", "token", f"in [0, {vocab})", token)
        if self._drawn and self._sampler.rows[0].history.tokens[-1] != token:
            self._take_back()
        if not self._drawn:
            self._sampler.rows[0].history.append(token)
        self._drawn = False

    def follow(self, generated: Sequence[int]) -> None:
        """Sets the tokens after the prompt to `generated`, usually one more than before."""
        known = len(self._sampler.rows[0].history) - self._drawn - len(self._prompt)
        if len(generated) < known or self.tokens[len(self._prompt) :] != list(generated[:known]):
            self._begin(())
            known = 0
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

    def _take_back(self) -> None:
        if self._drawn:
            self._begin(self.tokens[len(self._prompt) :])

    def _begin(self, generated: Sequence[int]) -> None:
        self._sampler = Sampler(self._params, prompt_ids=[self._prompt], **self._options)
        for token in generated:
            self._sampler.rows[0].history.append(token)
        self._drawn = False


def without_ends(params: SamplingParams) -> SamplingParams:
    """The params without anything that ends a row. Raises ValueError for a field that belongs to the host."""
    require(isinstance(params, SamplingParams), "HostRow", "params", "a SamplingParams", params)
    for name in _HOSTS_OWN:
        default, value = DEFAULTS[name], getattr(params, name)
        ended = name in ("max_new_tokens", "ignore_eos") and value in (None, True)  # as set by this function
        require(
            ended or value == default, "SamplingParams", name, f"left at its default {default!r}: the host decides it", value
        )
    return replace(params, max_new_tokens=None, ignore_eos=True)
