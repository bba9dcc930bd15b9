"""Formats of function calls that write arguments one by one between tags, strings without quotes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any

from decodestep.chat.text_feed import Reading, TextFeed
from decodestep.chat.tool_call_format import ANY_TEXT, CallArguments, CallBegin, CallEnd, CallFormat, Event, Pieces, Reads
from decodestep.chat.tool_notation import as_json, escaped
from decodestep.chat.tool_values import constrained_arguments, is_string, properties, tagged_form, tagged_value

_TAG_NAME = re.compile(r"[^<>\"]*")


class TaggedCalls(CallFormat):
    """A call between tags, with a tag for each argument.

    ends: of the call, then of what stands around it. The arguments become JSON while they come: a string as it comes, another
    value once it has its end.
    """

    _AROUND = ""  # the tag around a call, or around several: models leave it out
    _CALL: tuple[str, str]  # what stands before and after the function's name
    _KEY: tuple[str, str]  # before and after the name of an argument
    _VALUE: tuple[str, str]  # before and after its value
    _LINE_END = ""  # that is no part of a value, on both sides

    def calls(self, feed: TextFeed) -> Reads:
        name = yield from self._name(feed)
        yield CallBegin(name)
        yield from feed.space()
        place = feed.at
        yield from feed.expect(self._KEY[0], *self.ends)  # which decides that it is a call
        feed.at = place
        yield CallArguments("{")
        yield from self._arguments(feed, self.functions.get(name, {}))
        end = yield from feed.optional(*self.ends)
        if not end and not (feed.ended and not feed.cut and (yield from feed.done())):
            yield from feed.expect(*self.ends)
        yield CallArguments("}")
        yield CallEnd(True)
        if end != self.ends[-1]:
            yield from self._end(feed)

    def any_call(self, name: str) -> Pieces:
        return [self.call(name, {})[0], ANY_TEXT, self.ends[-1]]

    def _name(self, feed: TextFeed) -> Reading[str]:
        """The name of the function, with what stands around it."""
        yield from feed.optional(*filter(None, [self._AROUND]))
        yield from feed.space()
        yield from feed.expect(self._CALL[0])
        yield from feed.space()
        name = yield from feed.name()
        if self._CALL[1]:
            yield from feed.expect(self._CALL[1])
        return name

    def _arguments(self, feed: TextFeed, schema: Mapping[str, Any]) -> Iterator[Event]:
        known = properties(schema)
        others = set(known)  # those that may follow
        separator = ""
        while (yield from feed.optional(self._KEY[0])):
            key = (yield from feed.until(self._KEY[1])).strip()
            yield from feed.expect(self._KEY[1])
            others.discard(key)
            yield from self._argument(feed, f"{separator}{as_json(key)}:", known.get(key, {}), schema, others)
            yield from feed.space()
            separator = ","

    def _argument(
        self, feed: TextFeed, begin: str, kind: object, schema: Mapping[str, Any], others: Set[str]
    ) -> Iterator[CallArguments | None]:
        """begin: what stands before the value as JSON. kind: its schema, which is a part of the other one."""
        pieces = self._pieces(feed, others)
        if not is_string(kind, schema):
            value = tagged_value((yield from _joined(pieces)), kind, schema)
            yield CallArguments(begin + as_json(value))
            return
        yield CallArguments(f'{begin}"')
        for piece in pieces:
            yield None if piece is None else CallArguments(escaped(piece))
        yield CallArguments('"')

    def _pieces(self, feed: TextFeed, others: Set[str]) -> Iterator[str | None]:
        """The text of a value. One that is not closed ends before its first tag, if another argument begins there or the call
        ends."""
        opening, closing = self._VALUE
        if opening:
            yield from feed.space()
            yield from feed.expect(opening)
        if self._LINE_END:
            yield from feed.optional(self._LINE_END)
        tags = (closing, self._KEY[0], *self.ends)
        space: list[str] = []  # at the end so far
        while True:
            for piece in feed.pieces_until(*tags):
                text = piece.rstrip() if piece else ""
                if piece is None:
                    yield None
                elif text:
                    yield "".join((*space, text))
                    space = [piece[len(text) :]]
                else:
                    space.append(piece)
            if (yield from feed.optional(closing)):
                yield "".join(space).removesuffix(self._LINE_END)
                return
            if (yield from self._closes(feed, others)):
                return
            yield "".join((*space, (yield from feed.expect(*tags))))
            space = []

    def _closes(self, feed: TextFeed, others: Set[str]) -> Reading[bool]:
        """Whether another argument or the end of the call comes, and not text of a value, which may have such tags too."""
        place = feed.at
        if (yield from feed.optional(self._KEY[0])):
            name = yield from feed.run(_TAG_NAME)
            found = bool((yield from feed.comes(self._KEY[1]))) and name.strip() in others
        else:
            yield from feed.expect(*self.ends)
            yield from self._end(feed)
            yield from feed.space()
            found = (yield from feed.done()) or bool((yield from feed.comes(*self.marks)))
        feed.at = place
        return found


class TaggedArguments(TaggedCalls):
    """GLM 4.5 to 4.7: <tool_call>name, then <arg_key>key</arg_key> <arg_value>value</arg_value> for each argument."""

    marks = ("<tool_call>",)
    ends = ("</tool_call>",)
    _CALL, _KEY, _VALUE = ("<tool_call>", ""), ("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>")

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f"<tool_call>{name}\n"]
        for key, kind in constrained_arguments(schema):
            pieces += [f"<arg_key>{key}</arg_key>\n<arg_value>", tagged_form(kind), "</arg_value>\n"]
        return [*pieces, "</tool_call>"]


class TaggedFunctions(TaggedCalls):
    """Qwen3-Coder, Qwen 3.5: <tool_call> <function=name> <parameter=key> value </parameter> ... </function> </tool_call>."""

    marks: tuple[str, ...] = ("<tool_call>", "<function=")
    ends: tuple[str, ...] = ("</function>", "</tool_call>")
    _AROUND = "<tool_call>"
    _CALL, _KEY, _VALUE = ("<function=", ">"), ("<parameter=", ">"), ("", "</parameter>")
    _LINE_END = "\n"

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f"{self._AROUND}\n<function={name}>\n"]
        for key, kind in constrained_arguments(schema):
            around = self._LINE_END
            pieces += [f"<parameter={key}>{around}", tagged_form(kind), f"{around}</parameter>\n"]
        return [*pieces, f"</function>\n{self.ends[-1]}"]


class SeedFunctions(TaggedFunctions):
    """Seed-OSS: as Qwen3-Coder, within <seed:tool_call> ... </seed:tool_call>, and values without line ends around them."""

    marks = ("<seed:tool_call>", "<function=")
    ends = ("</function>", "</seed:tool_call>")
    _AROUND = "<seed:tool_call>"
    _LINE_END = ""


class MiniMaxInvokes(TaggedCalls):
    """MiniMax M2: <invoke name="..."> <parameter name="key">value</parameter> ... </invoke>, one or several within
    <minimax:tool_call> ... </minimax:tool_call>."""

    marks: tuple[str, ...] = ("<minimax:tool_call>", '<invoke name="')
    ends: tuple[str, ...] = ("</invoke>", "</minimax:tool_call>")
    _AROUND = "<minimax:tool_call>"
    _CALL, _KEY, _VALUE = ('<invoke name="', '">'), ('<parameter name="', '">'), ("", "</parameter>")

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f"{self._AROUND}\n{self._CALL[0]}{name}{self._CALL[1]}\n"]
        for key, kind in constrained_arguments(schema):
            form = tagged_form(kind)
            pieces += [self._key(key, form), form, f"{self._VALUE[1]}\n"]
        return [*pieces, "\n".join(self.ends)]

    def _key(self, key: str, form: object) -> str:
        return f"{self._KEY[0]}{key}{self._KEY[1]}"


class DsmlInvokes(MiniMaxInvokes):
    """DeepSeek V3.2: as MiniMax M2, in tags with |DSML|, which say whether a value is a string; others are JSON."""

    marks: tuple[str, ...] = ("<｜DSML｜function_calls>", '<｜DSML｜invoke name="')
    ends: tuple[str, ...] = ("</｜DSML｜invoke>", "</｜DSML｜function_calls>")
    spelled = ("｜DSML｜",)
    _AROUND = "<｜DSML｜function_calls>"
    _CALL, _KEY = ('<｜DSML｜invoke name="', '">'), ('<｜DSML｜parameter name="', '"')
    _VALUE = ("", "</｜DSML｜parameter>")
    _SAYS = (' string="true">', ' string="false">', ">")

    def _argument(
        self, feed: TextFeed, begin: str, kind: object, schema: Mapping[str, Any], others: Set[str]
    ) -> Iterator[CallArguments | None]:
        says = yield from feed.expect(*self._SAYS)
        if says == self._SAYS[0]:
            kind = {"type": "string"}
        elif says == self._SAYS[1] and is_string(kind, schema):
            kind = {}  # JSON, if it is
        yield from super()._argument(feed, begin, kind, schema, others)

    def _key(self, key: str, form: object) -> str:
        is_text = isinstance(form, re.Pattern)
        return f"{self._KEY[0]}{key}{self._KEY[1]}{self._SAYS[0 if is_text else 1]}"


class DsmlCalls(DsmlInvokes):
    """DeepSeek V4: as V3.2, within tool_calls."""

    marks = ("<｜DSML｜tool_calls>", '<｜DSML｜invoke name="')
    ends = ("</｜DSML｜invoke>", "</｜DSML｜tool_calls>")
    _AROUND = "<｜DSML｜tool_calls>"


def _joined(pieces: Iterator[str | None]) -> Reading[str]:
    found = []
    for piece in pieces:
        if piece is None:
            yield
        else:
            found.append(piece)
    return "".join(found)
