"""Control tokens in a conversation: those written by the chat template are parsed, those spelled in a message are text.

A message that contains `<|im_end|>` must not be able to end itself and begin another one under another role. So a token is the
template's only if every character of it is, as `traced_text` tells them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator


class ControlTokens:
    """The control tokens of a vocabulary, as they are spelled."""

    def __init__(self, tokens: Collection[str]) -> None:
        self._tokens = sorted(filter(None, tokens), key=len, reverse=True)  # a token before those it begins with

    def split(self, runs: Iterable[tuple[str, bool]]) -> Iterator[tuple[str, bool]]:
        """A prompt in pieces, each with whether it is a control token of the template.

        runs: the prompt in parts, each with whether the template wrote it, as `chat.traced_text.runs` gives them.
        """
        text = ""
        for run, own in runs:
            end = 0
            for match in re.finditer(self._pattern(run), run) if own else ():
                if text := text + run[end : match.start()]:
                    yield text, False
                yield match.group(), True
                text, end = "", match.end()
            text += run[end:]
        if text:
            yield text, False

    def occur_in(self, text: str) -> bool:
        return any(token in text for token in self._tokens)

    def _pattern(self, text: str) -> str:
        """A pattern of the tokens that occur in a text. Searching for each is faster than trying hundreds at every place."""
        return "|".join(re.escape(token) for token in self._tokens if token in text) or "(?!)"
