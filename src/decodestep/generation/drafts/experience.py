"""Experience: what has become of a drafter's tokens, and what they took."""

from __future__ import annotations

_READING = 16  # tokens of a row in one pass: with more, what was measured is the reading of a text


class Experience:
    """What has become of drafts, of which older ones count less and less, and the seconds that they took.

    A drafter claims a chance that its next token is accepted; how often its tokens were, against its claims, corrects it. While
    nothing is drafted this is forgotten, so that a text that has become easier is found again; but slowly, so that drafts that
    are always wrong take a hundredth of the time or so, however dear they are.
    """

    _WEIGHT = 3.0  # as many tokens must contradict a drafter to count as much as it
    _FADING = 0.98, 0.9  # with each draft of which no token was right, and any: what succeeds again has changed
    _PAUSE = 0.997  # with each time that nothing is drafted: the price of forgetting is _WEIGHT * (1 - _PAUSE) of the time
    _MOST = 0.98  # no text is certain

    def __init__(self) -> None:
        self._accepted = self._expected = 0.0
        self._drafting, self._reading = Average(), Average()

    def chance(self, claimed: float) -> float:
        """The chance that a token is accepted for which the drafter claims this one."""
        return min(self._MOST, claimed * (self._accepted + self._WEIGHT) / (self._expected + self._WEIGHT))

    def learn(self, claimed: float, accepted: int, tried: int) -> None:
        """accepted: how many of a draft's tokens were right. tried: how many were compared, one more if one was wrong."""
        self._fade(self._FADING[accepted > 0])
        self._accepted += accepted
        self._expected += claimed * tried

    def rest(self) -> None:
        """Nothing has been drafted."""
        self._fade(self._PAUSE)

    def seconds(self, unread: int = 0, remaining: int = 1) -> float:
        """The time of a drafted token, with its share of reading `unread` tokens first for the sake of `remaining` ones."""
        return self._drafting.value + self._reading.value * unread / max(remaining, 1)

    def time(self, seconds: float, rows: int, tokens: int) -> None:
        """A pass over `tokens` tokens has drafted one for each of `rows` rows."""
        if tokens > _READING * rows:
            self._reading.add(seconds / tokens)
        elif rows:
            self._drafting.add(seconds / rows)

    def _fade(self, share: float) -> None:
        self._accepted *= share
        self._expected *= share


class Average:
    """An average in which older values count less and less; 0 without any."""

    _WEIGHT = 0.2

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, value: float) -> None:
        self.value = self.value + self._WEIGHT * (value - self.value) if self.value else value
