"""A trace as an HTML table, for notebooks: colours and sizes come from the notebook's own style."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from decodestep.sampling.distribution import probabilities


def table(
    stages: Sequence[np.ndarray],
    steps: Sequence[str],
    tokens: np.ndarray,
    drawn: int,
    where: str,
    spell: Callable[[int], str] | None,
) -> str:
    """The probabilities of these tokens before the plan and after each step, and the token that is drawn, -1 for none."""

    def spelled(token: int) -> str:
        return repr(spell(token)) if spell else str(token)

    # Of these tokens alone: no two stages need all probabilities at once.
    shares = [probabilities(scores)[tokens] for scores in stages]
    heads = ["token", "model", *(f"{n} {name}" for n, name in enumerate(steps, 1)), ""]
    rows = [
        f"<tr>{_cell(spelled(int(token)), left=True)}"
        + "".join(_bar(share[place], scores[token] > -np.inf) for share, scores in zip(shares, stages, strict=True))
        + _cell("drawn" if token == drawn else "" if stages[-1][token] > -np.inf else "dropped", left=True)
        + "</tr>"
        for place, token in enumerate(tokens)
    ]
    left = "".join(_cell(str(np.count_nonzero(scores > -np.inf))) for scores in stages)
    rows.append(f"<tr>{_cell('tokens left', left=True)}{left}<td></td></tr>")
    caption = f"{where}: {spelled(drawn)}" if drawn >= 0 else "no candidate"
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cell(text: str, *, left: bool = False) -> str:
    return f'<td style="text-align:{"left" if left else "right"}">{escape(text)}</td>'


def _bar(probability: float, alive: bool) -> str:
    if not alive:
        return _cell("-")
    share = f"{100 * probability:.1f}%"
    shade = f"background:linear-gradient(90deg,rgba(70,130,200,.35) {share},transparent {share})"
    return f'<td style="text-align:right;{shade}">{probability:.2%}</td>'
