"""Arrays as rules."""

from __future__ import annotations

import math
from collections.abc import Callable

from decodestep.constraints.schemas.families import Families
from decodestep.constraints.schemas.leaves import constant
from decodestep.constraints.schemas.rules import Rules
from decodestep.constraints.schemas.shapes import All, Array

_COMMA = '", "'
Value = Callable[[All], str]  # the name of the rule of values


def array_rules(rules: Rules, families: Families, shape: Array, value: Value) -> str:
    """Writes the rules of an array; returns the name of the first."""
    name = rules.new("array")
    most = families.longest(shape)
    if most == 0:
        rules.add(name, '"[" "]"')
    elif shape.contains and shape.contains[0][1]:
        _containing(rules, name, families, shape, value)
    elif shape.unique and most > 1:
        _unique(rules, name, families, shape)
    else:
        _plain(rules, name, families, shape, value)
    return name


def _plain(rules: Rules, name: str, families: Families, shape: Array, value: Value) -> None:
    """One item after the other; those with a schema of their own first."""
    most, prefix = families.longest(shape), families.prefix(shape)
    first = value(families.item(shape, 0))
    rules.add(name, *['"[" "]"'] * (shape.least == 0), f'"[" {first} {name}_1 "]"')
    place = 1
    while place < prefix and place < most:
        ends = ['""'] * (place >= shape.least)
        rules.add(f"{name}_{place}", *ends, f"{_COMMA} {value(families.item(shape, place))} {name}_{place + 1}")
        place += 1
    if place >= most:
        rules.add(f"{name}_{place}", '""')
        return
    least = max(shape.least - place, 0)
    times = f"{{{least},{'' if math.isinf(most) else int(most) - place}}}"
    rules.add(f"{name}_{place}", f"({_COMMA} {value(families.item(shape, place))}){times}")


def _unique(rules: Rules, name: str, families: Families, shape: Array) -> None:
    """Each value once: the bits of the parameter are those that have been written."""
    values = families.values(families.item(shape, 0))
    if values is None:
        families.refuse(
            shape, "uniqueItems", "false, unless the items have at most 64 values, all constants or bounded integers"
        )
    most = int(min(families.longest(shape), len(values)))
    ends = f'"" %if bit_count_ge(_, {shape.least})'
    items = [(f"{constant(each)} {name}_more::set_bit({i})", f"bit_clear({i})") for i, each in enumerate(values)]
    rules.add(name, f'"[" {name}_first::0 "]"')
    rules.add(f"{name}_first::_", *['""'] * (shape.least == 0), *(text for text, _ in items))
    fits = f"bit_count_lt(_, {most})"
    rules.add(f"{name}_more::_", ends, *(f"{_COMMA} {text} %if and({clear}, {fits})" for text, clear in items))


def _containing(rules: Rules, name: str, families: Families, shape: Array, value: Value) -> None:
    """As many items as `contains` asks for are of its schema, and any number of others: two counters."""
    [(_, least, _)] = shape.contains
    others = max(shape.least - least, 0)
    fits = "" if shape.most is None else f"lt([32:64], {shape.most - least})"
    chosen, other = value(families.containing(shape)), families.item(shape, 0)
    ways = [(f"{chosen} {name}_more::incr([0:32])", f"lt([0:32], {least})")]
    if other in families.alive and shape.most != least:
        ways.append((f"{value(other)} {name}_more::incr([32:64])", fits))
    rules.add(name, f'"[" {name}_first::0 "]"')
    rules.add(f"{name}_first::_", *(text for text, _ in ways))
    guarded = (f"{_COMMA} {text}" + (f" %if {guard}" if guard else "") for text, guard in ways)
    rules.add(f"{name}_more::_", f'"" %if and(eq([0:32], {least}), ge([32:64], {others}))', *guarded)
