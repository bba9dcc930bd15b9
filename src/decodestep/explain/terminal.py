"""Tables of probabilities for a terminal, with colours and bars if it supports them, plain text otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_EIGHTHS = " ▏▎▍▌▋▊▉"
_BAR = 16  # columns
_TOKEN = 24  # columns at most: some vocabularies have tokens of 80 hyphens or spaces


def can_draw(console: Console) -> bool:
    """Whether the terminal supports colours and bar characters."""
    return console.is_terminal and console.color_system is not None and (console.encoding or "").lower().startswith("utf")


def bar(share: float, columns: int = _BAR) -> str:
    """A bar of `share` in [0, 1] of `columns` columns, in eighths of a column; a share above 0 is always visible."""
    eighths = round(share * columns * 8) or (1 if share > 0 else 0)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def percent(p: float | None) -> str:
    return "-" if p is None else f"{p:.2%}"


def print_whole(console: Console, table: Table, columns: int | None = None) -> None:
    """Prints a table whose cells are not cut: on a terminal that is narrower, its lines are wrapped.

    columns: how many it needs at least; None for as many as it would take.
    """
    narrow = console.width
    columns = columns or console.measure(table, options=console.options.update(max_width=1000)).maximum
    console.width = max(narrow, columns)
    console.print(table)
    console.width = narrow


def _token_columns(tokens: Sequence[str]) -> int:
    """The width of the column of tokens, as they are spelled."""
    return min(_TOKEN, max([len("tokens left"), *(cell_len(repr(token)) for token in tokens)]))


def print_stages(console: Console, stages: dict[str, Any], names: Sequence[str], end: str) -> None:
    """One token's table: the result of `stages.tabulate_stages`. names: of the steps. end: how the token was drawn."""
    colours = can_draw(console)
    columns = _token_columns([token["token"] for token in stages["tokens"]])
    heads = _heads(names, console.width - 28 - columns - (_BAR + 2) * colours)
    drawn = colours and console.width >= 20 + columns + 8 * len(heads) + _BAR
    table = _stages_table(columns, heads, drawn)
    ends = [p for token in stages["tokens"] for p in (token["probabilities"][0], token["probabilities"][-1])]
    largest = max(filter(None, ends), default=1)
    taken = stages["next_token"] and stages["next_token"]["token_id"]
    for token in stages["tokens"]:
        kept = token["probabilities"][-1] is not None
        style = "bold green" if drawn and token["token_id"] == taken else "" if kept else "dim"
        table.add_row(*_stages_cells(token, heads, drawn, largest), style=style)
    blank = [""] if drawn else []
    table.add_row("all others", *map(percent, stages["others"]), *blank)
    table.add_row("tokens left", *map(str, stages["left"]), *blank)
    console.print()
    print_whole(console, table)
    said = "no candidate is left" if stages["next_token"] is None else f"{end}: {stages['next_token']['token']!r}"
    console.print(Text(said, style="bold" if drawn else ""))


def print_drafts(console: Console, tokens: Sequence[dict[str, Any]]) -> None:
    """The text of several tokens, with those marked that were drafted and accepted, if any were. tokens: as for
    `print_stages`, with `accepted`."""
    count = sum(token["accepted"] for token in tokens)
    if not count:
        return
    drawn, text = can_draw(console), Text()
    for accepted, run in groupby((token for token in tokens if token["next_token"]), lambda token: bool(token["accepted"])):
        words = "".join(token["next_token"]["token"] for token in run)
        text.append(words if drawn or not accepted else f"[{words}]", style="black on cyan" if drawn and accepted else "")
    console.print()
    console.print(text)
    said = f"{count} of {len(tokens)} tokens came free: drafted ahead, they ran together with an earlier one"
    console.print(Text(said, style="dim" if drawn else ""))


def _heads(names: Sequence[str], room: int) -> list[str]:
    """The number and the name of each step; the numbers alone, which the printed plan lists, where the room is less."""
    heads = [f"{n} {name}" for n, name in enumerate(names, 1)]
    return heads if sum(len(head) + 2 for head in heads) <= room else [head.split()[0] for head in heads]


def _stages_table(columns: int, heads: Sequence[str], drawn: bool) -> Table:
    """The columns of `print_stages`: the token, its probabilities, their bars where they are drawn, and its fate."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("token", no_wrap=True, width=columns)
    for head in ("model", *heads):
        table.add_column(head, justify="right", no_wrap=True)
    if drawn:
        table.add_column("", no_wrap=True, width=_BAR)
    table.add_column("", no_wrap=True)
    return table


def _stages_cells(token: dict[str, Any], heads: Sequence[str], drawn: bool, largest: float) -> list[Any]:
    """A token's row. largest: the probability whose bar fills the column."""
    after = token["probabilities"]
    cells: list[Any] = [Text(repr(token["token"])), *map(percent, after)]
    if drawn:
        cells.append(_two_bars(after[0] or 0.0, after[-1] or 0.0, largest))
    if after[-1] is not None:
        return [*cells, "kept"]
    return [*cells, why_dropped(after, heads) if drawn else "dropped"]


def _two_bars(before: float, after: float, largest: float) -> Text:
    """The probability after the steps, bright; what the model's probability has beyond it, faint."""
    text = Text(bar(after / largest), style="cyan")
    return text.append("░" * max(0, round(before / largest * _BAR) - len(text)), style="bright_black")


def why_dropped(after: Sequence[float | None], heads: Sequence[str]) -> Text:
    """The step, by its number, that dropped the token. after: its probability before the steps and after each."""
    at = max((n for n in range(1, len(after)) if after[n] is None and after[n - 1] is not None), default=0)
    return Text("never a candidate" if at == 0 else f"dropped by {heads[at - 1].split()[0]}", style="red")


class DrawnToken(NamedTuple):
    """raw, processed: its probability in the model and after the steps. others: the most likely ones instead, with theirs."""

    text: str
    raw: float
    processed: float
    others: Sequence[tuple[str, float]]


def print_alternatives(console: Console, tokens: Sequence[DrawnToken]) -> None:
    """One line for each token."""
    drawn = can_draw(console)
    columns = _token_columns([token.text for token in tokens])
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("token", no_wrap=True, width=columns)
    for head in ("model", "drawn with"):
        table.add_column(head, justify="right", no_wrap=True)
    if drawn:
        table.add_column("", no_wrap=True, width=_BAR // 2)
    table.add_column("instead")
    for text, raw, processed, others in tokens:
        instead = ", ".join(f"{other!r} {p:.1%}" for other, p in others) or "nothing else"
        rare = "yellow" if drawn and raw < 0.1 else ""
        cells: list[Any] = [Text(repr(text), style=rare), percent(raw), percent(processed)]
        cells += [Text(bar(processed, _BAR // 2), style="cyan")] if drawn else []
        table.add_row(*cells, Text(instead, style="dim" if drawn else ""))
    print_whole(console, table, 48 + columns)
