"""What the tokens of a sampler's rows say: the text of a row, and its constraint."""

from __future__ import annotations

from collections.abc import Callable

from decodestep._base.checks import refuse, require
from decodestep.constraints.processor import ConstraintLogitsProcessor
from decodestep.sampling.params import SamplingParams, languages_of
from decodestep.sampling.text_stream import TextStream


class RowTexts:
    """The functions of a sampler between tokens and texts: see `Sampler`. Raises ValueError for what is no function."""

    def __init__(
        self,
        op: str,
        *,
        token_bytes: Callable[[int], bytes] | None,
        spelled_bytes: Callable[[int], bytes] | None,
        encode: Callable[[str], list[int]] | None,
    ) -> None:
        given = {"token_bytes": token_bytes, "spelled_bytes": spelled_bytes, "encode": encode}
        for name, function in given.items():
            require(function is None or callable(function), op, name, "a function or None", function)
        self._op = op
        self._token_bytes, self._spelled_bytes, self._encode = token_bytes, spelled_bytes, encode

    def check(self, params: SamplingParams) -> None:
        """Raises ValueError for params that need a text, without token_bytes."""
        asked = ["stop strings"] * bool(params.stop_strings) + languages_of(params)
        if asked and self._token_bytes is None:
            refuse(self._op, "token_bytes", f"given where a row has {asked[0]}", None)

    def speller(self) -> Callable[[int], str] | None:
        """Token id -> its text alone, or None without token_bytes."""
        texts = self._token_bytes
        return None if texts is None else lambda token: texts(token).decode("utf-8", "replace")

    def stream(self, params: SamplingParams) -> TextStream | None:
        """The text of a row, or None without token_bytes."""
        if self._token_bytes is None:
            return None
        spelled = self._spelled_bytes
        return TextStream(self._token_bytes, params.stop_strings, spelled_bytes=spelled, min_tokens=params.min_tokens)

    def constraints(
        self, params: SamplingParams, prompt_length: int, *, vocab_size: int, ends: frozenset[int]
    ) -> list[ConstraintLogitsProcessor]:
        """The constraint of a row whose params have been checked, or none."""
        if self._token_bytes is None:
            return []
        texts, encode = self._token_bytes, self._encode
        return [
            ConstraintLogitsProcessor(
                language,
                getattr(params, language),
                prompt_length,
                token_bytes=texts,
                encode=encode,
                vocab_size=vocab_size,
                ends=ends,
            )
            for language in languages_of(params)
        ]
