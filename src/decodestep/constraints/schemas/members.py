"""Objects as rules."""

from __future__ import annotations

from collections.abc import Callable

from decodestep.constraints.schemas.families import Families
from decodestep.constraints.schemas.leaves import json_text, literal
from decodestep.constraints.schemas.rules import Rules
from decodestep.constraints.schemas.shapes import All, Object

_COMMA = '", "'
MOST_IN_ANY_ORDER = 32  # properties of an object
_MOST_BITS = 64  # of a parameter
_SPAN = 4  # properties that one rule passes over: each that may come next is then little more than one item of a row
Value = Callable[[All], str]  # the name of the rule of values


def object_rules(rules: Rules, families: Families, shape: Object, value: Value, *, in_order: bool) -> str:
    """Writes the rules of an object; returns the name of the first. in_order: whether properties have the schema's order."""
    name = rules.new("object")
    members = families.members[shape]
    listed = {each: parts for each, parts in members.listed.items() if parts in families.alive}
    others = [names for names in members.others if names.value in families.alive]
    required = [each for each in listed if each in members.required]
    if others and shape.least > max(len(required), 1):
        families.refuse(shape, "minProperties", "at most the number of required names, unless additionalProperties is false")
    least = max(shape.least - len(required), 0)
    most = None if shape.most is None else shape.most - len(required)
    if most is not None and not others and most >= len(listed) - len(required):
        most = None
    if most == 0:
        listed, others, most = {each: parts for each, parts in listed.items() if each in required}, [], None
    counted = least > 0 or most is not None
    written: dict[str, str] = {}
    for each, parts in listed.items():
        written[each] = f'{literal(json_text(each))} ": " {value(parts)}'  # no rule, which would be one more item of a row each
    loose = members.loose
    if counted and others:  # of which any may then be written more than once: only `least` would notice
        named = [written.pop(each) for each in list(written) if each in loose and each not in required]
        loose = set()
    if others:
        ways = (f'{rules.terminal(rules.new("NAME").upper(), names.terminal)} ": " {value(names.value)}' for names in others)
        rules.add(f"{name}_other", *ways, *(named if counted else ()))
    tail = {each: rule for each, rule in written.items() if not in_order or (counted and loose) or each in loose}
    if 0 < len(tail) <= _MOST_BITS and (len(tail) == len(loose) or len(tail) <= MOST_IN_ANY_ORDER) and not (counted and others):
        chain = {each: rule for each, rule in written.items() if each not in tail}
        _in_any_order(rules, name, tail, [each for each in tail if each in required], least, most, bool(others))
    else:
        chain, tail = written, {}
    if chain or not tail:
        _in_order(rules, name, chain, required, least, most, others=bool(others), tail=bool(tail))
    else:
        rules.add(name, f'"{{" {name}_first::0 "}}"')
    return name


def _in_order(
    rules: Rules,
    name: str,
    written: dict[str, str],
    required: list[str],
    least: int,
    most: int | None,
    *,
    others: bool,
    tail: bool,
) -> None:
    """A chain of rules, each of which is what may follow before (first) or after (more) the first member; where the number of
    members is bounded, the parameter counts those that are not required. tail: whether `_in_any_order` has written the end."""
    counted = not tail and (least > 0 or most is not None)
    rules.add(name, f'"{{" {name}_first0{"::0" * counted} "}}"')
    here, same, more = ("::_", "::_", "::incr(_)") if counted else ("", "", "")
    fits = f" %if lt(_, {most})" if most is not None else ""
    order = list(written)
    span = 1 if counted else _SPAN
    optional = sum(each not in required for each in order)
    for i, each in enumerate(order):
        for kind, comma in (("first", ""), ("more", f"{_COMMA} ")):
            if kind == "first" and i % span:  # what is passed over ends with a span
                continue
            ways = []
            for j in range(i, min(i - i % span + span, len(order))):
                counts = same if order[j] in required else more
                ways.append(f"{comma}{written[order[j]]} {name}_more{j + 1}{counts}{'' if order[j] in required else fits}")
                if order[j] in required:
                    break
            else:
                lacking = least - (optional - 1)
                skips = f" %if ge(_, {lacking})" if lacking > 0 and not others else ""
                ways.append(f"{name}_{kind}{j + 1}{same}{skips}")
            rules.add(f"{name}_{kind}{i}{here}", *ways)
        optional -= each not in required
    end = len(written)
    for kind, comma in (("first", ""), ("more", f"{_COMMA} ")):
        if tail:
            ways = [f"{name}_{kind}::0"]
        elif counted:
            ways = [f'"" %if ge(_, {least})'] + [f"{comma}{name}_other {name}_more{end}{more}{fits}"] * others
        else:
            first = [f"{name}_other"] * (kind == "first")
            ways = ['""'] * (not others or kind == "first") + [" ".join([*first, f"({_COMMA} {name}_other)*"])] * others
        rules.add(f"{name}_{kind}{end}{here}", *ways)


def _in_any_order(
    rules: Rules, name: str, written: dict[str, str], required: list[str], least: int, most: int | None, others: bool
) -> None:
    """The bits of the parameter are the members that have been written, those that are required first."""
    order = [*required, *(each for each in written if each not in required)]
    needed, count = len(required), len(order)
    ways = []
    for i, each in enumerate(order):
        fits = f"bit_count_lt([{needed}:{count}], {most})" if i >= needed and most is not None else ""
        ways.append(
            (f"{written[each]} {name}_more::set_bit({i})", f"and(bit_clear({i}), {fits})" if fits else f"bit_clear({i})")
        )
    if others:
        ways.append((f"{name}_other {name}_more::_", "true"))
    enough = [f"is_ones([0:{needed}])"] * (needed > 0) + [f"bit_count_ge([{needed}:{count}], {least})"] * (least > 0)
    done = f'"" %if {enough[0] if len(enough) == 1 else f"and({enough[0]}, {enough[1]})"}' if enough else '""'
    rules.add(f"{name}_first::_", done, *(f"{text} %if {guard}" for text, guard in ways))
    rules.add(f"{name}_more::_", done, *(f"{_COMMA} {text} %if {guard}" for text, guard in ways))
