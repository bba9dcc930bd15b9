"""Where the last message of a user begins in the tokens of a conversation, by what the template writes before such messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from decodestep.errors import ModelError, RequestError

IdsOf = Callable[[list[Mapping[str, Any]]], list[int]]


def count_common(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal tokens two texts begin."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(one), len(other)))


class UserMark(NamedTuple):
    """tokens: those before the content of every message of a user. results: what follows them where they are before results of
    tools."""

    tokens: tuple[int, ...]
    results: frozenset[int] = frozenset()

    def last(self, ids: Sequence[int]) -> int | None:
        """How many of a conversation's tokens are before the content of its last message of a user; None without one."""
        size = len(self.tokens)
        for end in range(len(ids), size - 1, -1):
            is_mark = ids[end - size] == self.tokens[0] and tuple(ids[end - size : end]) == self.tokens
            if is_mark and (end == len(ids) or ids[end] not in self.results):
                return end
        return None


def find_user_mark(ids_of: IdsOf) -> UserMark | None:
    """The mark of a template; None if it has none, or refuses the conversations in which it would show.

    ids_of: the token ids of a conversation.
    """
    try:
        first, later = (_before_content(ids_of, place) for place in (0, 2))
    except (ModelError, RequestError):
        return None
    mark = first[len(first) - count_common(first[::-1], later[::-1]) :]
    return UserMark(tuple(mark), _of_results(ids_of, UserMark(tuple(mark)))) if mark else None


def _before_content(ids_of: IdsOf, place: int) -> list[int]:
    """The tokens of a conversation before the content of its message at a place: those that do not hang on it."""
    texts = []
    for content in ("5", "6"):
        contents = ["7", "8", "7"]
        contents[place] = content
        roles = ("user", "assistant", "user")
        texts.append(ids_of([{"role": role, "content": each} for role, each in zip(roles, contents, strict=True)]))
    one, other = texts
    return one[: count_common(one, other)]


def _of_results(ids_of: IdsOf, mark: UserMark) -> frozenset[int]:
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    asked: list[Mapping[str, Any]] = [
        {"role": "user", "content": "7"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    followed = set()
    for content in ("5", "6"):
        try:
            before, ids = ids_of(asked), ids_of([*asked, {"role": "tool", "name": "f", "content": content}])
        except (ModelError, RequestError):
            return frozenset()
        at = mark.last(ids)
        followed.add(ids[at] if at is not None and count_common(before, ids) < at < len(ids) else None)
    [token, *others] = followed
    return frozenset() if others or token is None else frozenset((token,))
