"""Formats of function calls that write arguments one by one, not as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any

from decodestep.chat.text_feed import WORD, Reading, TextFeed
from decodestep.chat.tool_call_format import ANY_TEXT, Call, CallFormat, Pieces
from decodestep.chat.tool_json import UnreadableError
from decodestep.chat.tool_values import constrained_arguments, properties, tagged_form, tagged_value


class TaggedArguments(CallFormat):
    """GLM 4.5 to 4.7: <tool_call>name, then <arg_key>key</arg_key> <arg_value>value</arg_value> for each argument."""

    marks: tuple[str, ...] = ("<tool_call>",)
    _KEY, _VALUE = ("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>")
    _ENDS: tuple[str, ...] = ("</tool_call>",)

    def calls(self, feed: TextFeed) -> Reading[list[Call]]:
        name = yield from self._name(feed)
        yield from feed.space()
        arguments = yield from self._arguments(feed, self.functions.get(name, {}))
        if not (yield from self._ended(feed)):  # cut off, or between two arguments is something else
            raise UnreadableError
        return [Call(name, arguments)]

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f"<tool_call>{name}\n"]
        for key, kind in constrained_arguments(schema):
            pieces += [f"<arg_key>{key}</arg_key>\n<arg_value>", tagged_form(kind), "</arg_value>\n"]
        return [*pieces, "</tool_call>"]

    def any_call(self, name: str) -> Pieces:
        return [self.call(name, {})[0], ANY_TEXT, self._ENDS[-1]]

    def _name(self, feed: TextFeed) -> Reading[str]:
        yield from feed.expect(*self.marks)
        yield from feed.space()
        return (yield from feed.run(WORD))

    def _arguments(self, feed: TextFeed, schema: Mapping[str, Any]) -> Reading[dict[str, Any]]:
        known, found = properties(schema), dict[str, Any]()
        opening, closing = self._KEY
        while (yield from feed.optional(opening)):
            key = (yield from feed.until(closing)).strip()
            yield from feed.expect(closing)
            text = yield from self._value(feed, known.keys() - found.keys() - {key})
            found[key] = tagged_value(text, known.get(key, {}), schema)
            yield from feed.space()
        return found

    def _value(self, feed: TextFeed, others: Set[str]) -> Reading[str]:
        """The text of a value. One that is not closed ends before its first tag, if another argument begins there or the call
        ends. others: the names of the arguments that may follow."""
        opening, closing = self._VALUE
        if opening:
            yield from feed.space()
            yield from feed.expect(opening)
        text = yield from feed.until(closing, self._KEY[0], *self._ENDS)
        if not (yield from feed.comes(closing)) and not (yield from self._closes(feed, others)):
            text += yield from feed.until(closing)
        return text if (yield from feed.optional(closing)) else text.rstrip()

    def _closes(self, feed: TextFeed, others: Set[str]) -> Reading[bool]:
        """Whether another argument or the end of the call comes, and not text of a value, which may have such tags too."""
        at = feed.at
        opening, closing = self._KEY
        if (yield from feed.optional(opening)):
            name = yield from feed.until(closing, self._VALUE[1])
            found = bool((yield from feed.comes(closing))) and name.strip() in others
        else:
            yield from self._ended(feed)
            yield from feed.space()
            found = (yield from feed.done()) or bool((yield from feed.comes(*self.marks)))
        feed.at = at
        return found

    def _ended(self, feed: TextFeed) -> Reading[bool]:
        """Whether the end of a call comes, which is read."""
        found = False
        for end in self._ENDS:
            if found:
                yield from feed.space()
            found = bool((yield from feed.optional(end))) or found
        return found


class TaggedFunctions(TaggedArguments):
    """Qwen3-Coder, Qwen3.5: <tool_call> <function=name> <parameter=key> value </parameter> ... </function> </tool_call>."""

    marks = ("<tool_call>", "<function=")
    _KEY, _VALUE = ("<parameter=", ">"), ("", "</parameter>")
    _ENDS = ("</function>", "</tool_call>")

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f"<tool_call>\n<function={name}>\n"]
        for key, kind in constrained_arguments(schema):
            pieces += [f"<parameter={key}>\n", tagged_form(kind), "\n</parameter>\n"]
        return [*pieces, "</function>\n</tool_call>"]

    def _name(self, feed: TextFeed) -> Reading[str]:
        yield from feed.optional("<tool_call>")
        yield from feed.space()
        yield from feed.expect("<function=")
        name = yield from feed.run(WORD)
        yield from feed.expect(">")
        return name

    def _value(self, feed: TextFeed, others: Set[str]) -> Reading[str]:
        text = yield from super()._value(feed, others)
        return text.removeprefix("\n").removesuffix("\n")


class GemmaCalls(CallFormat):
    """Gemma 4: <|tool_call>call:name{key:value,...}<tool_call|>, strings between control tokens, keys without quotes.

    Within lists and objects the models also write JSON, so strings in quotes are read too.
    """

    _QUOTE = '<|"|>'
    marks = ("<|tool_call>",)
    spelled = ("<|tool_call>", "<tool_call|>", _QUOTE)
    _KEY = re.compile(r"[^:,{}\[\]]*")
    _BARE = re.compile(r"[^,{}\[\]]*")

    def calls(self, feed: TextFeed) -> Reading[list[Call]]:
        yield from feed.expect(*self.marks)
        yield from feed.space()
        yield from feed.expect("call:")
        yield from feed.space()
        name = yield from feed.run(WORD)
        try:
            arguments = yield from self._value(feed)
        except RecursionError:
            raise UnreadableError from None
        yield from feed.space()
        yield from feed.optional("<tool_call|>")
        return [Call(name, arguments)]

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f"<|tool_call>call:{name}{{"]
        for i, (key, kind) in enumerate(constrained_arguments(schema)):
            value = tagged_form(kind)
            quoted = [self._QUOTE, value, self._QUOTE] if isinstance(value, re.Pattern) else [value]
            pieces += [f"{',' if i else ''}{key}:", *quoted]
        return [*pieces, "}<tool_call|>"]

    def any_call(self, name: str) -> Pieces:
        return [f"<|tool_call>call:{name}{{", ANY_TEXT, "}<tool_call|>"]

    def _value(self, feed: TextFeed) -> Reading[Any]:
        yield from feed.space()
        if (yield from feed.optional(self._QUOTE)):
            text = yield from feed.until(self._QUOTE)
            yield from feed.expect(self._QUOTE)
            return text
        if (yield from feed.comes('"')):
            return (yield from feed.json('"'))
        if (yield from feed.optional("[")):
            return (yield from self._members(feed))
        if (yield from feed.optional("{")):
            return (yield from self._pairs(feed))
        bare = (yield from feed.run(self._BARE)).strip()
        if not bare:
            raise UnreadableError
        return tagged_value(bare, {}, {})

    def _members(self, feed: TextFeed) -> Reading[list[Any]]:
        """The members of a list whose opening bracket has been read."""
        found = list[Any]()
        while (yield from self._another(feed, "]", bool(found))):
            found.append((yield from self._value(feed)))
        return found

    def _pairs(self, feed: TextFeed) -> Reading[dict[str, Any]]:
        """The members of an object whose opening bracket has been read."""
        found = dict[str, Any]()
        while (yield from self._another(feed, "}", bool(found))):
            key = yield from feed.run(self._KEY)
            yield from feed.expect(":")
            found[key.strip().replace(self._QUOTE, "").strip('"')] = yield from self._value(feed)
        return found

    def _another(self, feed: TextFeed, closing: str, found: bool) -> Reading[bool]:
        """Whether another member comes; reads what stands before it, or the closing bracket."""
        yield from feed.space()
        if (yield from feed.optional(closing)):
            return False
        if found:
            yield from feed.expect(",")
        return True
