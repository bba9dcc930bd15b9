"""Formats of function calls that write arguments one by one between tags, strings without quotes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any

from decodestep.chat.text_feed import EndedError, Reading, TextFeed, UnreadableError
from decodestep.chat.tool_call_format import ANY_TEXT, CallArguments, CallBegin, CallEnd, CallFormat, Event, Pieces, Reads
from decodestep.chat.tool_notation import as_json, escaped
from decodestep.chat.tool_values import TaggedValue, constrained_arguments, is_string, properties, tagged_form

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
        schema = self.functions.get(name, {})
        place = feed.at
        yield from feed.expect(*self._openings(schema), *self.ends)  # which decides that it is a call
        feed.at = place
        yield CallArguments("{")
        yield from self._arguments(feed, schema)
        end = yield from feed.optional(*self.ends)
        if not end and not (feed.ended and not feed.cut and (yield from feed.done())):
            yield from feed.expect(*self.ends, *self._openings(schema))  # perhaps the beginning of one, where the text ends
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

    def _openings(self, schema: Mapping[str, Any]) -> tuple[str, ...]:
        """What an argument of the schema may begin with."""
        return (self._KEY[0],)

    def _key(self, feed: TextFeed, opening: str) -> Reading[str]:
        """The name of the argument whose opening has been read."""
        name = yield from feed.run(_TAG_NAME)
        yield from feed.expect(self._KEY[1])
        return name.strip()

    def _closing(self, feed: TextFeed, key: str) -> Reading[str]:
        """What ends a value, whose beginning is read."""
        if self._VALUE[0]:
            yield from feed.space()
            yield from feed.expect(self._VALUE[0])
        return self._VALUE[1]

    def _arguments(self, feed: TextFeed, schema: Mapping[str, Any]) -> Iterator[Event]:
        known = properties(schema)
        others = set(known)  # those that may follow
        openings = self._openings(schema)
        separator = ""
        while opening := (yield from feed.optional(*openings)):
            key = yield from self._key(feed, opening)
            others.discard(key)
            kind = yield from self._kind(feed, known.get(key, {}), schema)
            closing = yield from self._closing(feed, key)
            pieces = self._pieces(feed, closing, openings, others)
            yield from self._argument(pieces, f"{separator}{as_json(key)}:", kind, schema)
            yield from feed.space()
            separator = ","

    def _kind(self, feed: TextFeed, kind: object, schema: Mapping[str, Any]) -> Reading[object]:
        """The schema of the value that comes, given that of its argument."""
        yield from ()
        return kind

    def _argument(
        self, pieces: Iterator[str | None], begin: str, kind: object, schema: Mapping[str, Any]
    ) -> Iterator[CallArguments | None]:
        """A value as JSON, with what stands before it. kind: its schema, which is a part of the other one."""
        if not is_string(kind, schema):
            value = TaggedValue(kind, schema)
            for piece in pieces:
                if piece is None:
                    yield None
                else:
                    value.add(piece)
                    yield CallArguments("")  # what has been read need not be kept
            yield CallArguments(begin + value.end())
            return
        yield CallArguments(f'{begin}"')
        for piece in pieces:
            yield None if piece is None else CallArguments(escaped(piece))
        yield CallArguments('"')

    def _pieces(self, feed: TextFeed, closing: str, openings: tuple[str, ...], others: Set[str]) -> Iterator[str | None]:
        """The text of a value. One that is not closed ends before its first tag, if another argument begins there or the call
        ends. others: the names of the arguments that may follow."""
        if self._LINE_END:
            yield from feed.optional(self._LINE_END)
        tags = (closing, *openings, *self.ends)
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
            if (yield from self._closes(feed, openings, others)):
                return
            yield "".join((*space, (yield from feed.expect(*tags))))
            space = []

    def _closes(self, feed: TextFeed, openings: tuple[str, ...], others: Set[str]) -> Reading[bool]:
        """Whether another argument or the end of the call comes, and not text of a value, which may have such tags too."""
        place = feed.at
        if opening := (yield from feed.optional(*openings)):
            try:
                found = (yield from self._key(feed, opening)) in others
            except EndedError:
                raise
            except UnreadableError:
                found = False
        else:
            yield from feed.expect(*self.ends)
            yield from self._end(feed)
            yield from feed.space()
            found = (yield from feed.done()) or bool((yield from feed.comes(*self.marks)))
        feed.at = place
        return found


class TaggedArguments(TaggedCalls):
    """GLM 4.5 to 4.7: <tool_call>name, then <arg_key>key</arg_key> <arg_value>value</arg_value> for each argument."""

    marks: tuple[str, ...] = ("<tool_call>",)
    ends: tuple[str, ...] = ("</tool_call>",)
    _CALL, _KEY, _VALUE = ("<tool_call>", ""), ("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>")

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        around = f"{self._AROUND}\n" if self._AROUND else ""
        pieces: Pieces = [f"{around}{self._CALL[0]}{name}{self._CALL[1]}\n"]
        for key, kind in constrained_arguments(schema):
            begin = f"{self._KEY[0]}{key}{self._KEY[1]}\n{self._VALUE[0]}"
            pieces += [begin, tagged_form(kind), f"{self._VALUE[1]}\n"]
        return [*pieces, "\n".join(self.ends)]


class HunyuanArguments(TaggedArguments):
    """Hunyuan 3: as GLM, in tags of another name, with one after the function's name and one around all calls."""

    marks = ("<tool_calls:opensource>", "<tool_call:opensource>")
    ends = ("</tool_call:opensource>", "</tool_calls:opensource>")
    spelled = (
        *marks,
        *ends,
        "<tool_sep:opensource>",
        "<arg_key:opensource>",
        "</arg_key:opensource>",
        "<arg_value:opensource>",
        "</arg_value:opensource>",
    )
    _AROUND = "<tool_calls:opensource>"
    _CALL = ("<tool_call:opensource>", "<tool_sep:opensource>")
    _KEY, _VALUE = ("<arg_key:opensource>", "</arg_key:opensource>"), ("<arg_value:opensource>", "</arg_value:opensource>")


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


class MiniCpmFunctions(TaggedCalls):
    """MiniCPM 5: <function name="..."><param name="key">value</param> ... </function>, values also as <![CDATA[value]]>."""

    marks = ('<function name="',)
    ends = ("</function>",)
    _CALL, _KEY, _VALUE = ('<function name="', '">'), ('<param name="', '">'), ("", "</param>")
    _VERBATIM = ("<![CDATA[", "]]>")

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f'<function name="{name}">']
        for key, kind in constrained_arguments(schema):
            pieces += [f'<param name="{key}">', tagged_form(kind), "</param>"]
        return [*pieces, "</function>"]

    def _closing(self, feed: TextFeed, key: str) -> Reading[str]:
        begin, end = self._VERBATIM
        return (end if (yield from feed.optional(begin)) else "") + self._VALUE[1]
