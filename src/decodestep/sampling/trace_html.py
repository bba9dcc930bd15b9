"""A trace as an HTML table, for notebooks: colours and sizes come from the notebook's own style."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from decodestep.sampling.trace import Trace


def table(trace: Trace, tokens: np.ndarray) -> str:
    """The probabilities of these tokens before the plan and after each step, and the token that is drawn."""
    # The scores of these tokens and the normaliser of all: no stage needs all probabilities at once.
    stages = [_probabilities(scores, tokens) for scores in trace.stages]
    heads = ["token", "model", *(f"{n} {step.name}" for n, step in enumerate(trace.steps, 1)), ""]
    rows = [
        f"<tr>{_cell(_spelled(trace, int(token)), left=True)}"
        + "".join(_bar(stage[place], trace.stages[number][token] > -np.inf) for number, stage in enumerate(stages))
        + _cell("drawn" if token == trace.token else "" if trace.scores[token] > -np.inf else "dropped", left=True)
        + "</tr>"
        for place, token in enumerate(tokens)
    ]
    left = "".join(_cell(str(np.count_nonzero(scores > -np.inf))) for scores in trace.stages)
    rows.append(f"<tr>{_cell('tokens left', left=True)}{left}<td></td></tr>")
    how = "greedy" if trace.draw.seed is None else f"seed {trace.draw.seed}"
    caption = f"position {trace.draw.position}, {how}: {_spelled(trace, trace.token)}" if trace.token >= 0 else "no candidate"
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _probabilities(scores: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    top = scores.max()
    if not np.isfinite(top):
        return (scores[tokens] == np.inf) / max(1, int((scores == np.inf).sum()))
    weights = np.exp(scores.astype(np.float64) - float(top))
    return weights[tokens] / weights.sum()


def _spelled(trace: Trace, token: int) -> str:
    return repr(trace.spell(token)) if trace.spell else str(token)


def _cell(text: str, *, left: bool = False) -> str:
    return f'<td style="text-align:{"left" if left else "right"}">{escape(text)}</td>'


def _bar(probability: float, alive: bool) -> str:
    if not alive:
        return _cell("-")
    share = f"{100 * probability:.1f}%"
    shade = f"background:linear-gradient(90deg,rgba(70,130,200,.35) {share},transparent {share})"
    return f'<td style="text-align:right;{shade}">{probability:.2%}</td>'
