"""Control tokens in a conversation: those written by the chat template are parsed, those spelled in a message are text.

A message that contains `<|im_end|>` must not be able to end itself and begin another one under another role. Its control
tokens are therefore marked before the template is rendered, and the tokenizer reads a marked one as the text it is.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator
from typing import Any

from decodestep._base.checks import refuse
from decodestep.models.errors import ModelError

# Noncharacters of Unicode: valid in a string and in UTF-8, and in no text.
_BEGIN, _END = "\ufdd0", "\ufdd1"
_ESCAPED = re.compile(r"\\ufdd[01]", re.IGNORECASE)


class ControlTokens:
    """The control tokens of a vocabulary, as they are spelled."""

    def __init__(self, tokens: Collection[str]) -> None:
        self._tokens = sorted(filter(None, tokens), key=len, reverse=True)  # a token before those it begins with
        self._alphabetical = sorted(self._tokens)

    def mark(self, value: Any) -> Any:
        """`value`, of dicts, lists, tuples and strings, with the control tokens in its strings marked.

        The value itself if there are none. ValueError for a string that holds one of the marks besides a control token.
        """
        if isinstance(value, str):
            return self._mark_tokens(value) + _END * self._begins_a_token(value)
        if isinstance(value, dict):
            return {self._mark_tokens(key) if isinstance(key, str) else key: self.mark(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.mark, value))
        return value

    def _mark_tokens(self, text: str) -> str:
        marked = re.sub(self._pattern(text), f"{_BEGIN}\\g<0>{_END}", text)
        if marked != text and (_BEGIN in text or _END in text):
            refuse("chat_ids", "messages", "without U+FDD0 and U+FDD1 where they spell a control token", text)
        return marked

    def _begins_a_token(self, text: str) -> bool:
        """Whether a text ends with the beginning of a token, so that the one that follows it may hold the rest."""
        longest = len(self._tokens[0]) if self._tokens else 0
        return any(self._is_beginning(text[-n:]) for n in range(1, min(longest, len(text) + 1)))

    def _is_beginning(self, part: str) -> bool:
        """Whether there is a token that begins with this part and is longer: it would be the next in alphabetical order."""
        at = bisect_right(self._alphabetical, part)
        return at < len(self._alphabetical) and self._alphabetical[at].startswith(part)

    def split(self, prompt: str) -> Iterator[tuple[str, bool]]:
        """The prompt in pieces, each with whether it is a control token of the template; marks are left out.

        ModelError if the template has escaped a mark, so that it cannot be told what was marked.
        """
        if _ESCAPED.search(prompt):
            raise ModelError(
                "the chat template escapes the marks around control tokens in these messages: "
                'remove the tokens, or pass control_tokens="parse"'
            )
        spelled = self._pattern(prompt)
        pieces = re.compile(
            # One mark is enough: a template may have cut off the other.
            f"{_BEGIN}(?P<begun>{spelled}){_END}?|(?P<ended>{spelled}){_END}|[{_BEGIN}{_END}]|(?P<control>{spelled})"
        )
        text, end = "", 0
        for match in pieces.finditer(prompt):
            text += prompt[end : match.start()] + (match["begun"] or match["ended"] or "")
            end = match.end()
            if match["control"]:
                if text:
                    yield text, False
                yield match["control"], True
                text = ""
        text += prompt[end:]
        if text:
            yield text, False

    def occur_in(self, text: str) -> bool:
        return any(token in text for token in self._tokens)

    def _pattern(self, text: str) -> str:
        """A pattern of the tokens that occur in a text. Searching for each is faster than trying hundreds at every place."""
        return "|".join(re.escape(token) for token in self._tokens if token in text) or "(?!)"
