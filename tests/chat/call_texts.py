"""Texts with calls of every format."""

from __future__ import annotations

import json

from decodestep.chat import tool_formats as formats

STAY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city", "days"]}
FUNCTIONS = {"stay": STAY, "time": {}}
ARGUMENTS = {"city": "Bonn", "days": 2}
JSON = json.dumps(ARGUMENTS)
SEP = "<｜tool▁sep｜>"

# The kind, what a template of it contains, a text with calls, what the reader sees, and the calls' names.
CASES = [
    (
        formats.TaggedJson,
        "<tool_call>",
        f'Well. <tool_call>{{"name": "stay", "arguments": {JSON}}}</tool_call>\n<tool_call>\n'
        '{"name": "time", "arguments": {}}',
        "Well.",
        ["stay", "time"],
    ),
    (formats.BareJson, '{"name": function name, "parameters": x}', f'{{"name": "stay", "parameters": {JSON}}}', "", ["stay"]),
    (
        formats.BareJson,
        "",
        f'On it.<|python_tag|>{{"name": "stay", "parameters": {JSON}}}; {{"name": "time", "parameters": {{}}}}',
        "On it.",
        ["stay", "time"],
    ),
    (formats.BareJson, "", f'\n{{"name": "stay", "parameters": {JSON}}},\n{{"name": "time"}}', "", ["stay", "time"]),
    (
        formats.MistralList,
        "[TOOL_CALLS]",
        f'[TOOL_CALLS][{{"name": "stay", "arguments": {JSON}, "id": "abc"}}, {{"name": "time", "arguments": {{}}}}]',
        "",
        ["stay", "time"],
    ),
    (
        formats.MistralNamed,
        "[TOOL_CALLS] [ARGS]",
        f"Yes [TOOL_CALLS]stay[CALL_ID]a1[ARGS]{JSON}[TOOL_CALLS]time[ARGS]{{}}",
        "Yes",
        ["stay", "time"],
    ),
    (formats.MistralNamed, "", f"[TOOL_CALLS]stay{JSON}", "", ["stay"]),
    (
        formats.DeepSeek,
        SEP,
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>stay{SEP}{JSON}<｜tool▁call▁end｜>"
        f"<｜tool▁call▁begin｜>time{SEP}{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        ["stay", "time"],
    ),
    (
        formats.DeepSeekFenced,
        SEP + "```json",
        "So:\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
        f"function{SEP}stay\n```json\n{JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "So:",
        ["stay"],
    ),
    (
        formats.KimiSection,
        "<|tool_calls_section_begin|>",
        "So:<|tool_calls_section_begin|><|tool_call_begin|>functions.stay:0"
        f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_call_begin|>functions.time:1<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        "So:",
        ["stay", "time"],
    ),
    (
        formats.CohereActions,
        '<|START_ACTION|> {"tool_name":',
        'Plan.<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": '
        f'"stay", "parameters": {JSON}}},\n    '
        '{"tool_call_id": "1", "tool_name": "time", "parameters": {}}\n]<|END_ACTION|>',
        "Plan.",
        ["stay", "time"],
    ),
    (
        formats.CohereFenced,
        'Action: "tool_name":',
        'Plan.\nAction: ```json\n[\n    {\n        "tool_name": "stay",\n'
        f'        "parameters": {JSON}\n    }},\n    {{"tool_name": "time", "parameters": {{}}}}\n]\n```',
        "Plan.",
        ["stay", "time"],
    ),
    (
        formats.GemmaCalls,
        "<|tool_call> call:",
        'So: <|tool_call>call:stay{city:<|"|>Bonn<|"|>,days:2}<tool_call|><|tool_call>call:time{}<tool_call|>',
        "So:",
        ["stay", "time"],
    ),
    (formats.GemmaCalls, "", '<|tool_call>call:stay{"city": "Bonn", <|"|>days<|"|>: 2}<tool_call|>', "", ["stay"]),
    (
        formats.Harmony,
        "<|channel|> functions.",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary"
        f" to=functions.stay <|constrain|>json<|message|>{JSON}<|call|>",
        "",
        ["stay"],
    ),
    (formats.Harmony, "", f" to=functions.stay<|channel|>commentary json<|message|>{JSON}", "", ["stay"]),
    (
        formats.Harmony,
        "",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>a <b>",
        "a <b>",
        [],
    ),
    (
        formats.Harmony,
        "",
        "<|channel|>commentary<|message|>On it.<|end|><|start|>assistant to=functions.stay<|channel|>"
        f"commentary<|message|>{JSON}",
        "On it.",
        ["stay"],
    ),
    (
        formats.TaggedArguments,
        "<tool_call> <arg_key>",
        "<tool_call>stay\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call><tool_call>time</tool_call>",
        "",
        ["stay", "time"],
    ),
    (
        formats.TaggedArguments,
        "",
        "<tool_call>stay<arg_key>\ncity </arg_key><arg_value>Bonn</arg_value>"
        "<arg_key> days\n</arg_key><arg_value>2</arg_value></tool_call>",
        "",
        ["stay"],
    ),
    (
        formats.TaggedFunctions,
        "<tool_call> <function=",
        "<tool_call>\n<function=stay>\n<parameter=city>\nBonn\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        "",
        ["stay"],
    ),
    (
        formats.SeedFunctions,
        "<seed:tool_call>",
        "So:<seed:tool_call>\n<function=stay>\n<parameter=city>Bonn</parameter>\n"
        "<parameter=days>2</parameter>\n</function>\n</seed:tool_call>",
        "So:",
        ["stay"],
    ),
    (
        formats.HunyuanArguments,
        "'<tool_sep{}>' ':opensource'",
        "<tool_calls:opensource>\n<tool_call:opensource>stay<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Bonn</arg_value:opensource>\n<arg_key:opensource>days"
        "</arg_key:opensource>\n<arg_value:opensource>2</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>time"
        "<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
        "",
        ["stay", "time"],
    ),
    (
        formats.MiniCpmFunctions,
        '<function name=" <param name="',
        '<function name="stay"><param name="city"><![CDATA[Bonn]]></param>'
        '<param name="days">2</param></function>\n<function name="time"></function>',
        "",
        ["stay", "time"],
    ),
    (
        formats.MiniMaxInvokes,
        "<minimax:tool_call>",
        'So:\n<minimax:tool_call>\n<invoke name="stay">\n<parameter name="city">Bonn'
        '</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n<invoke name="time">\n</invoke>\n</minimax:tool_call>',
        "So:",
        ["stay", "time"],
    ),
    (
        formats.MiniMaxTags,
        "]<]minimax[>[",
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="stay">]<]minimax[>[<city>Bonn'
        "]<]minimax[>[</city>]<]minimax[>[<days>2]<]minimax[>[</days>]<]minimax[>[</invoke>\n"
        ']<]minimax[>[<invoke name="time">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        "",
        ["stay", "time"],
    ),
    (
        formats.DsmlInvokes,
        "｜DSML｜",
        'So:\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="stay">\n<｜DSML｜parameter name="city" '
        'string="true">Bonn</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="time">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        "So:",
        ["stay", "time"],
    ),
    (
        formats.DsmlCalls,
        "｜DSML｜ tool_calls>",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="time">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        "",
        ["time"],
    ),
    (
        formats.KimiElements,
        "<|open|> <|sep|> xtml",
        '<|open|>tools<|sep|><|open|>call tool="stay" index="1"<|sep|><|open|>argument '
        'key="city" type="string"<|sep|>Bonn<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>2<|close|>argument'
        '<|sep|><|close|>call<|sep|><|open|>call tool="time" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        "",
        ["stay", "time"],
    ),
    (
        formats.GraniteList,
        "<|tool_call|>",
        f'<|tool_call|>[{{"name": "stay", "arguments": {JSON}}}, {{"name": "time", "arguments": {{}}}}]',
        "",
        ["stay", "time"],
    ),
    (
        formats.GraniteFunction,
        "<function_call>",
        f'<function_call> {{"name": "stay", "arguments": {JSON}}}<function_call> {{"name": "time", "arguments": {{}}}}',
        "",
        ["stay", "time"],
    ),
    (
        formats.PhiList,
        "<|tool_call|><|/tool_call|>",
        f'<|tool_call|>[{{"name": "stay", "arguments": {JSON}}}]<|/tool_call|>',
        "",
        ["stay"],
    ),
    (formats.PhiList, "", f'functools[{{"name": "stay", "parameters": {JSON}}}, {{"name": "time"}}]', "", ["stay", "time"]),
    (formats.FunctoolsList, "functools[", f'So: functools[{{"name": "stay", "arguments": {JSON}}}]', "So:", ["stay"]),
    (
        formats.NemotronList,
        "<TOOLCALL>",
        f'So:<TOOLCALL>[{{"name": "stay", "arguments": {JSON}}}, {{"name": "time", "arguments": {{}}}}]</TOOLCALL>',
        "So:",
        ["stay", "time"],
    ),
    (
        formats.AprielList,
        "<tool_calls>[",
        f'So:\n<tool_calls>[{{"name": "stay", "arguments": {JSON}, "id": "1"}}]</tool_calls>',
        "So:",
        ["stay"],
    ),
    (
        formats.GigaChatMessage,
        "function call <|role_sep|>",
        f'So:<|message_sep|>\n\nfunction call<|role_sep|>\n{{"name": "stay", "arguments": {JSON}}}<|message_sep|>',
        "So:<|message_sep|>",
        ["stay"],
    ),
    (
        formats.GigaChatMessage,
        "<|function_call|>",
        f'So:<|function_call|>{{"name": "stay", "arguments": {JSON}}}',
        "So:",
        ["stay"],
    ),
    (
        formats.ApertusList,
        "<|tools_prefix|>",
        f'<|tools_prefix|>[{{"stay": {JSON}}}, {{"time": {{}}}}]<|tools_suffix|>',
        "",
        ["stay", "time"],
    ),
    (
        formats.SolarCalls,
        "<|tool_call:begin|>",
        f"<|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>stay<|tool_call:args|>{JSON}"
        "<|tool_call:end|><|tool_call:begin|>a1<|tool_call:name|>time<|tool_call:args|>{}<|tool_call:end|>",
        "",
        ["stay", "time"],
    ),
    (
        formats.FunctionaryTags,
        "<function=",
        f"So:<function=stay>{JSON}</function><function=time>{{}}</function>",
        "So:",
        ["stay", "time"],
    ),
    (formats.FunctionaryRecipients, ">>>all", f"all\nSo:\n>>>stay\n{JSON}>>>time\n{{}}", "So:", ["stay", "time"]),
    (formats.FunctionaryRecipients, "", f"stay\n{JSON}\n>>>all\nDone.", "Done.", ["stay"]),
    (formats.PythonCalls, "[func_name1(", "[stay(city='Bonn', days=2), time()]", "", ["stay", "time"]),
    (formats.PythonCalls, "", '[time(),stay( city = "Bonn" , days=2,),]', "", ["time", "stay"]),
    (
        formats.MarkedPythonCalls,
        "<|tool_call_start|>",
        "So:<|tool_call_start|>[stay(city='Bonn', days=2)]<|tool_call_end|>",
        "So:",
        ["stay"],
    ),
    (formats.MarkedPythonCalls, "List of tools: [", "[stay(city='Bonn', days=2)]\nSo.", "So.", ["stay"]),
    (
        formats.OlmoCalls,
        "<function_calls>",
        "So:\n<function_calls>stay(city='Bonn', days=2)\ntime()</function_calls>",
        "So:",
        ["stay", "time"],
    ),
    (formats.OlmoCalls, "", "<function_calls>[stay(city='Bonn', days=2)]</function_calls>", "", ["stay"]),
    (formats.CohereFenced, "", 'Action:\n```json\n[{"tool_name": "directly_answer", "parameters": {}}]```Done.', "Done.", []),
    (formats.Harmony, "", f"<|channel|>analysis to=functions.stay code<|message|>{JSON}<|call|>", "", ["stay"]),
    (formats.TaggedJson, "", f'<tool_call>{{"arguments": {JSON}, "name": "stay"}}</tool_call>', "", ["stay"]),
    (formats.TaggedJson, "", f'<tool_call>{{"name": "stay", "arguments": {json.dumps(JSON)}}}</tool_call>', "", ["stay"]),
]
