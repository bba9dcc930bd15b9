"""The environment of chat templates: jinja2's sandbox with what transformers gives to templates, and own text that is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import count
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace, pass_eval_context
from markupsafe import Markup, escape

from decodestep.chat.traced_text import TracedText, concat, is_own, own_text

# Roles that are the template's words even where it takes them from a message, as in "<|" + message.role + "|>".
_ROLES = frozenset(
    ("system", "developer", "user", "assistant", "model", "tool", "function", "observation", "environment", "ipython")
)


def renderer(most_characters: int) -> Callable[[str, Mapping[str, str], Mapping[str, Any]], str]:
    """render(template, own, given): the text of a template with variables that are its own, and others that are given to it.

    The text is a `TracedText` if any of it is the template's own. most_characters: of a text.
    """
    environment = _Environment()

    @lru_cache(maxsize=8)
    def compile_template(template: str) -> Template:
        return environment.from_string(template)

    def render(template: str, own: Mapping[str, str], given: Mapping[str, Any]) -> str:
        variables = {**{name: own_text(value) for name, value in own.items()}, **given}
        if isinstance(messages := given.get("messages"), list):
            variables["messages"] = [_with_own_role(message) for message in messages]
        text = compile_template(template).render(variables)
        if len(text) > most_characters:
            raise ValueError(f"the prompt is longer than {most_characters} characters")
        return text

    return render


def _with_own_role(message: object) -> object:
    if not isinstance(message, dict) or not isinstance(role := message.get("role"), str) or role not in _ROLES:
        return message
    return {**message, "role": own_text(role)}


class _TracingGenerator(CodeGenerator):
    """Generates code in which the strings of a template's source are its own text."""

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.own({''.join(group)!r})"

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802 - jinja2's names
        if isinstance(node.value, str):
            self.write(f"environment.own({node.value!r})")
        else:
            super().visit_Const(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super().visit_Concat(node, frame)
            return
        self.write("environment.concat(map(str, (")
        for item in node.nodes:
            self.visit(item, frame)
            self.write(", ")
        self.write(")))")


class _Environment(SandboxedEnvironment):
    """As transformers' for chat templates. What a template writes is `TracedText`.

    Unlike there, a template may change lists and mappings, as some keep a queue of calls whose results follow: what it is given
    are copies for one text.
    """

    code_generator_class = _TracingGenerator
    concat = staticmethod(concat)
    own = staticmethod(lru_cache(maxsize=4096)(own_text))  # called wherever a template's source has a string

    def __init__(self) -> None:
        # Unoptimised: a list of constants that is made when a template is compiled would have plain strings.
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], optimized=False)
        self.filters |= {"tojson": _to_json, "join": _join, "replace": _replace, "safe": _Safe}
        self.globals |= {
            "dict": _Dict(),
            "namespace": _PublicNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def call(__self, __context: Context, __function: Callable[..., Any], *args: object, **kwargs: object) -> Any:  # noqa: N805 - as jinja2 does
        text = getattr(__function, "__self__", None)
        if type(text) is str and __function.__name__ in ("join", "replace"):  # methods that may put own text into given text
            __function = getattr(TracedText(text), __function.__name__)
        return super().call(__context, __function, *args, **kwargs)

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        write, text = super().wrap_str_format(value), getattr(value, "__self__", None)
        if write is None or not isinstance(text, TracedText) or getattr(value, "__name__", "") != "format":
            return write

        def format_(*args: object, **kwargs: object) -> str:
            return _formatted(SandboxedFormatter(self), text, write(*args, **kwargs), args, kwargs)

        return format_


def _formatted(
    formatter: SandboxedFormatter, text: TracedText, written: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """`written`, which text.format(*args, **kwargs) gives, with its own characters if all fields are plain: {}, {0}, {a.b}."""
    plain, numbers, parts = str.__str__(written), count(), list[str]()
    for literal, name, form, conversion in formatter.parse(text):
        parts.append(own_text(literal) if is_own(text) else literal)
        if name is None:
            continue
        if form or conversion or name.startswith((".", "[")):
            return plain
        value, _ = formatter.get_field(name or str(next(numbers)), args, kwargs)
        parts.append(str(value))
    made = concat(parts)
    return made if made == plain else plain


class _Safe(Markup):
    """What the filter `safe` returns, a text to which others are added escaped for HTML; sums keep track of own characters."""

    __slots__ = ("_text",)
    _text: str

    def __new__(cls, value: object) -> _Safe:
        made = super().__new__(cls, value)
        made._text = value if isinstance(value, TracedText) else str.__str__(made)
        return made

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: Any) -> Any:
        return _Safe(concat((self._text, _escaped(other)))) if isinstance(other, str) else super().__add__(other)

    def __radd__(self, other: Any) -> Any:
        return _Safe(concat((_escaped(other), self._text))) if isinstance(other, str) else super().__radd__(other)


def _escaped(text: str) -> str:
    if isinstance(text, _Safe):
        return str(text)
    escaped = str(escape(text))
    return text if isinstance(text, TracedText) and escaped == text else escaped


@pass_eval_context
def _join(context: nodes.EvalContext, value: object, d: str = "", attribute: object = None) -> Any:
    return FILTERS["join"](context, value, d if isinstance(d, TracedText) else TracedText(str(d)), attribute)


@pass_eval_context
def _replace(context: nodes.EvalContext, s: object, old: str, new: str, count: object = None) -> Any:
    text = str(s)
    return FILTERS["replace"](context, TracedText(text) if type(text) is str else text, old, new, count)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without jinja's escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


class _Dict:
    """`dict`, but not the type itself: its attributes stay out of reach."""

    def __call__(self, *args: object, **kwargs: object) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Generation(Extension):
    """{% generation %}: marks what the model wrote, for training; the text is that of its body."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body, lineno=line)

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


class _PublicNamespace(Namespace):
    """`namespace` without names that begin with an underscore."""

    def __init__(*args: object, **kwargs: object) -> None:
        self, *given = args  # no parameter of that name: a template may name an attribute `self`
        attributes = dict(*given, **kwargs)
        for name in attributes:
            _require_public(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: object) -> None:
        _require_public(name)
        super().__setitem__(name, value)


def _require_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"an attribute of a namespace must not begin with an underscore; got {name!r}")
