"""The formats in which models write function calls, and which one a chat template has."""

from __future__ import annotations

from decodestep.chat.tool_call_format import CallFormat
from decodestep.chat.tool_gemma import GemmaCalls
from decodestep.chat.tool_harmony import Harmony
from decodestep.chat.tool_invokes import DsmlCalls, DsmlInvokes, KimiElements, MiniMaxInvokes, MiniMaxTags
from decodestep.chat.tool_json_formats import (
    AprielList,
    BareJson,
    CohereActions,
    CohereFenced,
    FunctoolsList,
    GigaChatMessage,
    GraniteFunction,
    GraniteList,
    MistralList,
    MistralNamed,
    NemotronList,
    PhiList,
    TaggedJson,
)
from decodestep.chat.tool_named_formats import (
    ApertusList,
    DeepSeek,
    DeepSeekFenced,
    FunctionaryRecipients,
    FunctionaryTags,
    KimiSection,
    SolarCalls,
)
from decodestep.chat.tool_python import MarkedPythonCalls, OlmoCalls, PythonCalls
from decodestep.chat.tool_tags import HunyuanArguments, MiniCpmFunctions, SeedFunctions, TaggedArguments, TaggedFunctions

# A template has the first format all of whose words it contains.
_FORMATS: tuple[tuple[tuple[str, ...], type[CallFormat]], ...] = (
    (("<|channel|>", "functions."), Harmony),
    (("｜DSML｜", "tool_calls>"), DsmlCalls),
    (("｜DSML｜",), DsmlInvokes),
    (("<｜tool▁sep｜>", "```json"), DeepSeekFenced),
    (("<｜tool▁sep｜>",), DeepSeek),
    (("<|tool_calls_section_begin|>",), KimiSection),
    (("<|open|>", "<|sep|>", "xtml"), KimiElements),
    (("<|START_ACTION|>", "tool_name"), CohereActions),
    (("Action:", '"tool_name"'), CohereFenced),
    (("<|tool_call>", "call:"), GemmaCalls),
    (("<|tool_call:begin|>",), SolarCalls),
    (("<|tools_prefix|>",), ApertusList),
    (("[TOOL_CALLS]", "[ARGS]"), MistralNamed),
    (("[TOOL_CALLS]",), MistralList),
    (("]<]minimax[>[",), MiniMaxTags),
    (("<minimax:tool_call>",), MiniMaxInvokes),
    (("<seed:tool_call>",), SeedFunctions),
    (("<tool_sep", ":opensource"), HunyuanArguments),
    (("<TOOLCALL>",), NemotronList),
    (("<tool_calls>[",), AprielList),
    (("<|tool_call|>", "<|/tool_call|>"), PhiList),
    (("<|tool_call|>",), GraniteList),
    (("functools[",), FunctoolsList),
    (("<function_call>",), GraniteFunction),
    (("<function_calls>",), OlmoCalls),
    (("<|tool_call_start|>",), MarkedPythonCalls),
    (("<|tool_list_start|>",), MarkedPythonCalls),
    (("List of tools: [",), MarkedPythonCalls),
    (("<tool_call>", "<arg_key>"), TaggedArguments),
    (("<tool_call>", "<function="), TaggedFunctions),
    (("<tool_call>",), TaggedJson),
    ((">>>all",), FunctionaryRecipients),
    (("<function=",), FunctionaryTags),
    (('<function name="', '<param name="'), MiniCpmFunctions),
    (("<|function_call|>",), GigaChatMessage),
    (("function call", "<|role_sep|>"), GigaChatMessage),
    (("[func_name1(",), PythonCalls),
    (('{"name": function name, "parameters"',), BareJson),
)


def find_call_format(template: str) -> type[CallFormat] | None:
    """The format of calls in a chat template; None if it is unknown."""
    return next((kind for words, kind in _FORMATS if all(word in template for word in words)), None)
