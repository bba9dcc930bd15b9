"""The shapes of a schema as rules of llguidance's kind of Lark."""

from __future__ import annotations

from decodestep.constraints.schemas.elements import array_rules
from decodestep.constraints.schemas.families import Families, leaf_schemas
from decodestep.constraints.schemas.leaves import STRING, constant, embedded
from decodestep.constraints.schemas.members import object_rules
from decodestep.constraints.schemas.numbers import NUMBER, WHOLE, decimal_terminal, whole_terminal
from decodestep.constraints.schemas.rules import Rules
from decodestep.constraints.schemas.shapes import All, Array, Constant, Number, Object, Shape, String

_SHARED = {String(): ("STRING", STRING), Number(): ("NUMBER", NUMBER), Number(whole=True): ("WHOLE", WHOLE)}


def write_rules(families: Families, prefix: str, *, in_order: bool) -> list[str]:
    """The lines of a grammar whose rule `prefix` is the texts of a schema, and whose other names begin with it."""
    rules = Rules(prefix)
    written: dict[Shape, str] = {}
    waiting: list[All] = [families.root]

    def value(parts: All) -> str:
        """The name of a family's rule, which is written at some time."""
        if parts not in rules.of_values:
            rules.of_values[parts] = rules.new("v")
            waiting.append(parts)
        return rules.of_values[parts]

    def of_shape(shape: Shape) -> str:
        if isinstance(shape, Object):
            return object_rules(rules, families, shape, value, in_order=in_order)
        if isinstance(shape, Array):
            return array_rules(rules, families, shape, value)
        assert not isinstance(shape, Constant)
        if shape in _SHARED:
            return rules.terminal(*_SHARED[shape])
        if isinstance(shape, Number) and not shape.multiples:
            terminal = whole_terminal(shape) if shape.whole else decimal_terminal(shape)
            return rules.terminal(rules.new("WHOLE" if shape.whole else "NUMBER").upper(), terminal)
        return rules.add(rules.new("leaf"), *map(embedded, leaf_schemas(shape)))

    rules.add(prefix, value(families.root))
    while waiting:
        parts = waiting.pop()
        if parts not in rules.of_values:
            rules.of_values[parts] = rules.new("v")
        name = rules.of_values[parts]
        if name in rules.done:
            continue
        shapes = families.alive_shapes(parts)
        values = [shape.value for shape in shapes if isinstance(shape, Constant)]
        scalars = [constant(each) for each in values if not isinstance(each, (list, dict))]
        ways = [constant(each) for each in values if isinstance(each, (list, dict))]
        ways += [rules.terminal(rules.new("words").upper(), " | ".join(scalars))] if len(scalars) > 1 else scalars
        for shape in shapes:
            if not isinstance(shape, Constant):
                if shape not in written:
                    written[shape] = of_shape(shape)
                ways.append(written[shape])
        rules.add(name, *ways)
    return rules.lines
