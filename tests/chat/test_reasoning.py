"""Reasoning: its marks in every family's form, found from templates and vocabularies, and what of an answer is told apart."""

from __future__ import annotations

import random
import re
import time

import pytest

from decodestep.chat.answer_format import AnswerFormat
from decodestep.chat.reasoning import THINK, find_reasoning, reasoning_of_tokens
from decodestep.chat.template import ChatTemplate
from decodestep.chat.tool_formats import Harmony, TaggedJson
from decodestep.chat.tools import ToolFormat
from test_chat import published  # noqa: F401 - a fixture

CALL = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
TOOLS = ToolFormat(TaggedJson({"time": {}}), False, True, ())

# Words of a family's template, and an answer: the words, the text, its reasoning, its content.
FAMILIES = {
    "qwen3": ("<think> </think>", "<think>\nHm.\n</think>\n\nHi.", "Hm.", "Hi."),
    "seed": ("<seed:think> </seed:think>", "<seed:think>So.<seed:cot_budget_reflect>9 left.</seed:cot_budget_reflect>\nOk.\n"
             "</seed:think>Hi.", "So.<seed:cot_budget_reflect>9 left.</seed:cot_budget_reflect>\nOk.", "Hi."),
    "minimax_m3": ("'<mm:think>' '</mm:think>' <response>", "<mm:think>Hm.</mm:think>Hi.", "Hm.", "Hi."),
    "magistral": ("[THINK] [/THINK]", "[THINK]Hm.[/THINK]Hi.", "Hm.", "Hi."),
    "kimi_vl": ("◁think▷ ◁/think▷", "◁think▷Hm.◁/think▷Hi.", "Hm.", "Hi."),
    "gpt_oss": ("<|channel|>analysis<|message|> <|end|>", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
                "<|channel|>final<|message|>Hi.", "Hm.", "Hi."),
    "gemma4": ("<|channel>thought\n<channel|>", "<|channel>thought\nHm.\n<channel|>Hi.", "Hm.", "Hi."),
    "command": ("<|START_THINKING|>", "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Hi.<|END_RESPONSE|>",
                "Hm.", "Hi."),
    "granite": ("<think></think> <response></response>", "<think>Hm.</think>\n<response>\nHi.\n</response>", "Hm.", "Hi."),
    "kimi_k3": ("'<|open|>' + tag + '<|sep|>' think", "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>Hi."
                "<|close|>response<|sep|><|close|>message<|sep|>", "Hm.", "Hi."),
    "solar": ("<|begin|>assistant<|think|><|end|>", "<|think|>Hm.<|end|><|begin|>assistant<|content|>Hi.", "Hm.", "Hi."),
    "hunyuan": ("<think:opensource></think:opensource>", "<think:opensource>Hm.</think:opensource>Hi.", "Hm.", "Hi."),
}  # fmt: skip
MARKS = {name: find_reasoning(words) for name, (words, *_) in FAMILIES.items()}


def format_of(name, **options):
    kind = MARKS[name]
    return AnswerFormat(kind, **({"plain": Harmony({})} if kind.in_messages else {}), **options)


def read(format_, pieces):
    """What an answer that comes in pieces says, all of which its parts say: reasoning, content, the names of calls."""
    reader = format_.reader()
    parts = [part for piece in pieces for part in reader.add(piece)] + reader.end()
    told = {kind: "".join(part.text for part in parts if part.kind == kind) for kind in ("reasoning", "content")}
    assert told == {"reasoning": reader.reasoning, "content": reader.content}
    kinds = [part.kind for part in parts if part.kind != "call"]
    assert kinds == sorted(kinds, reverse=True) or format_.reasoning is None or format_.reasoning.in_messages
    return reader.reasoning, reader.content, [call.name for call in reader.calls]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_found_and_read(name):
    _, text, reasoning, content = FAMILIES[name]
    kind = MARKS[name]
    assert read(format_of(name), [text]) == (reasoning, content, [])
    assert read(format_of(name), [f" \n{text}"]) == (reasoning, content, [])
    assert read(format_of(name, separate=False), [text])[0] == ""
    if not kind.in_messages:
        assert read(format_of(name, separate=False), [text]) == ("", text.rstrip("\n") if name != "granite" else text, [])
        # Begun by the prompt; some models write the mark once more.
        for begun in (text, text.removeprefix(kind.opening), "\n" + text.removeprefix(kind.opening)):
            assert read(format_of(name, begun=True), [begun]) == (reasoning, content, [])
    within = text[: text.index("Hm") + 2] if "Hm" in text else text[: text.index("So.") + 3]
    reader = format_of(name).reader()
    assert reader.add(within[:-2]) == [] or name == "seed"
    reader.add(within[-2:])
    assert reader.in_reasoning
    reader.end()
    assert reader.content == "" and not reader.calls and reader.reasoning in ("Hm", "So.")


@pytest.mark.parametrize("name", FAMILIES)
def test_streams_equal_whole_answers_in_2000_cuts(name):
    words, text, *_ = FAMILIES[name]
    kind, rng = MARKS[name], random.Random(name)
    marks = [kind.opening, kind.closing, *kind.answer, *kind.answer_ends, *kind.control_tokens, "<|start|>assistant", "<|end|>"]
    marks += [mark[: len(mark) // 2] for mark in marks]
    words = [*marks, CALL, CALL[:30], "\n", "\n\n", " ", "So ", "<", "é", "<thinking about>", text, text[: len(text) // 2]]
    for _ in range(2000):
        answer = "".join(rng.choices(words, k=rng.randrange(8)))
        if rng.random() < 0.5:
            answer = rng.choice([text, kind.opening, f"\n{kind.opening}"]) + answer
        options = {"begun": rng.random() < 0.3, "ended": rng.random() < 0.2, "separate": rng.random() < 0.8}
        format_ = format_of(name, tools=None if kind.in_messages or rng.random() < 0.5 else TOOLS, **options)
        cuts = sorted(rng.randrange(len(answer) + 1) for _ in range(rng.randrange(12)))
        pieces = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
        assert read(format_, pieces) == read(format_, [answer])


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("Hi <think>Hm.</think>", "", "Hi <think>Hm.</think>"),  # later in the content
        ("<thinking about> it", "", "<thinking about> it"),
        ("<think", "", "<think"),
        ("<think>A</think>B</think>C", "A", "B</think>C"),  # the first closing mark ends it
        ("<think>A <think> <tool_call></think>B", "A <think> <tool_call>", "B"),
        ("<think>\n\n</think>\n\nHi", "", "Hi"),  # empty
        ("<think> \n </think> Hi", "", " Hi"),
        ("<think></think>", "", ""),
        ("<think>\r\n  A\n\nB  \n\n</think>\r\n\r\n  Hi\n", "  A\n\nB  ", "  Hi\n"),  # line ends beside the marks alone
        ("<think>A\n", "A\n", ""),  # the text ends within
        ("<think>A</thin", "A</thin", ""),
        ("<think>", "", ""),
    ],
)
def test_what_is_reasoning(text, reasoning, content):
    for format_ in (AnswerFormat(THINK), AnswerFormat(), AnswerFormat(THINK, tools=TOOLS), AnswerFormat(tools=TOOLS)):
        assert read(format_, [text]) == read(format_, text) == (reasoning, content, [])


@pytest.mark.parametrize("name", ["qwen3", "gemma4", "command", "granite"])
def test_nothing_is_reasoning_where_it_is_switched_off(name):
    text = FAMILIES[name][1]
    reasoning, content, _ = read(format_of(name, ended=True), [text])
    assert (reasoning, content[:4]) == ("", text[:4])


def test_calls_are_read_after_reasoning_alone():
    """Also where the template knows none, and alike in streams."""
    for kind in (THINK, None):
        format_ = AnswerFormat(kind, tools=TOOLS)
        for pieces in ([0], None):
            text = f"<think>Maybe {CALL}</think>\n\n{CALL}"
            assert read(format_, text if pieces is None else [text]) == (f"Maybe {CALL}", "", ["time"])
            text = f"<think>Maybe {CALL}"
            assert read(format_, text if pieces is None else [text]) == (f"Maybe {CALL}", "", [])


def test_only_what_may_become_a_mark_is_held_back():
    reader = AnswerFormat(THINK).reader()
    told = [[part.text for part in reader.add(piece)] for piece in ("<th", "ink> A", " B<", "/th", "at> C</think", ">", "D")]
    assert told == [[], [" A"], [" B"], [], ["</that> C"], [], ["D"]]
    reader = AnswerFormat(THINK).reader()
    assert [[part.text for part in reader.add(piece)] for piece in ("<thin", "k", "ing>", " x")] == [
        [],
        [],
        ["<thinking>"],
        [" x"],
    ]


def test_parts_are_joined():
    said = [("analysis", "One."), ("commentary", "I look."), ("analysis", "Two.\n"), ("final", "Done.")]
    text = "<|end|><|start|>assistant".join(f"<|channel|>{channel}<|message|>{text}" for channel, text in said)
    assert read(format_of("gpt_oss"), [text]) == ("One.\nTwo.", "I look.\nDone.", [])
    called = f"{text}<|end|><|start|>assistant<|channel|>commentary to=functions.time <|constrain|>json<|message|>{{}}"
    tools = ToolFormat(Harmony({"time": {}}), False, True, ())
    assert read(format_of("gpt_oss", tools=tools), [called]) == ("One.\nTwo.", "I look.\nDone.", ["time"])
    text = "<|channel>thought\nOne.<channel|>\n<|channel>thought\nTwo.<channel|>Done. <|channel>thought\n"
    assert read(format_of("gemma4"), [text]) == ("One.\nTwo.", "Done. <|channel>thought\n", [])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_long_text_is_read_in_time(name):
    began = time.process_time()
    kind = MARKS[name]
    for text in (kind.opening + kind.closing[:-1] * 5000, kind.opening + "\n" * 20000, kind.opening * 5000):
        reader = format_of(name).reader()
        for at in range(0, len(text), 4):
            reader.add(text[at : at + 4])
        reader.end()
    assert time.process_time() - began < 3


# Published templates: the file, variables, and what the prompt's end begins: reasoning, an answer after it, or nothing of it.
ENDINGS = [
    ("Qwen-Qwen3-0.6B", {}, ""),
    ("Qwen-Qwen3-0.6B", {"enable_thinking": False}, "answer"),
    ("Qwen3.5-4B", {}, "reasoning"),
    ("Qwen3.5-4B", {"enable_thinking": False}, "answer"),
    ("HuggingFaceTB-SmolLM3-3B", {}, ""),
    ("HuggingFaceTB-SmolLM3-3B", {"enable_thinking": False}, "answer"),
    ("GLM-4.6", {}, ""),
    ("GLM-4.6", {"enable_thinking": False}, "answer"),
    ("GLM-4.7-Flash", {}, "reasoning"),
    ("GLM-4.7-Flash", {"enable_thinking": False}, "answer"),
    ("LFM2.5-8B-A1B", {}, ""),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", {"enable_thinking": True}, "reasoning"),
    ("deepseek-ai-DeepSeek-V3.1", {"thinking": True}, "reasoning"),
    ("deepseek-ai-DeepSeek-V3.1", {"enable_thinking": False}, "answer"),
    ("deepseek-ai-DeepSeek-V3.2", {"thinking": True}, "reasoning"),
    ("deepseek-ai-DeepSeek-V3.2", {}, "answer"),
    ("MiniMax-M2", {}, "reasoning"),
    ("MiniMax-M3", {}, ""),
    ("MiniMax-M3", {"thinking_mode": "enabled"}, "reasoning"),
    ("MiniMax-M3", {"thinking_mode": "disabled"}, "answer"),
    ("NVIDIA-Nemotron-Nano-v2", {}, "reasoning"),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {}, "reasoning"),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"enable_thinking": False}, "answer"),
    ("StepFun3.5-Flash", {}, "reasoning"),
    ("ByteDance-Seed-OSS", {}, ""),
    ("ByteDance-Seed-OSS", {"thinking_budget": 0}, "answer"),
    ("mistralai-Ministral-3-14B-Reasoning-2512", {}, ""),
    ("openai-gpt-oss-120b", {}, ""),
    ("google-gemma-4-31B-it", {}, "answer"),
    ("google-gemma-4-31B-it", {"enable_thinking": True}, ""),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", {}, "answer"),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", {"enable_thinking": True}, ""),
    ("ibm-granite-granite-3.3-2B-Instruct", {"thinking": True}, ""),
    ("Kimi-K3", {}, "reasoning"),
    ("Kimi-K3", {"thinking": False}, "answer"),
    ("upstage-Solar-Open-100B", {}, ""),
    ("upstage-Solar-Open-100B", {"reasoning_effort": "low"}, ""),
]
# Published templates without reasoning.
WITHOUT = ("Qwen-Qwen2.5-7B-Instruct", "Qwen3-Coder", "meta-llama-Llama-3.1-8B-Instruct", "google-gemma-2-2b-it")


def prompt_of(source, messages, tools=None, **variables):
    template = ChatTemplate({}, source)
    form = template.form(SPECIAL, tools=tools is not None)
    return str.__str__(template.render(messages, tools, None, {"add_generation_prompt": True, **variables}, SPECIAL, form))


SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
HELLO = {"role": "user", "content": "Hello <think>"}


@pytest.mark.parametrize(("name", "variables", "begins"), ENDINGS)
def test_the_prompt_says_where_the_answer_begins(name, variables, begins, published):  # noqa: F811
    source = (published / f"{name}.jinja").read_text()
    kind = find_reasoning(source)
    prompt = prompt_of(source, [HELLO], **variables)
    assert kind is not None and (kind.begun_by(prompt), kind.ended_by(prompt)) == (begins == "reasoning", begins == "answer")


def test_a_prompt_may_begin_a_note_in_reasoning():
    kind = MARKS["seed"]
    assert kind.begun_by("assistant\n<seed:think><seed:cot_budget_reflect>") and not kind.begun_by("<seed:think> I say")


def test_marks_are_found_in_the_vocabulary_where_the_template_has_none():
    for name, kind in MARKS.items():
        if kind.control_tokens[:2] == (kind.opening, kind.closing) and name not in ("granite", "solar"):
            assert reasoning_of_tokens({"</s>", *kind.control_tokens}) is kind
    assert reasoning_of_tokens({"</s>", "<think>"}) is None is find_reasoning("{{ messages }}")


@pytest.mark.parametrize("name", WITHOUT)
def test_templates_without_reasoning(name, published):  # noqa: F811
    assert find_reasoning((published / f"{name}.jinja").read_text()) is None


# Published templates that write the reasoning of a message with calls, while the calls are answered.
KEPT = [
    "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "GLM-4.6", "GLM-4.7-Flash", "MiniMax-M2", "MiniMax-M3", "google-gemma-4-31B-it", "Kimi-K3",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "StepFun3.5-Flash", "LFM2.5-8B-A1B", "ByteDance-Seed-OSS", "openai-gpt-oss-120b",
    "mistralai-Ministral-3-14B-Reasoning-2512", "upstage-Solar-Open-100B", "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
]  # fmt: skip
WEATHER = {"name": "weather", "description": "", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
LOOP = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "I look.", "refusal": None, "tool_calls": [
        {"id": "abcdefg12", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}]},
    {"role": "tool", "tool_call_id": "abcdefg12", "name": "weather", "content": "sunny"},
]  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_reasoning_comes_back_in_a_loop_of_calls(name, published):  # noqa: F811
    """Whatever it is called, and as the template reads it: a field, or a part of the content."""
    source = (published / f"{name}.jinja").read_text()
    tools, variables = [{"type": "function", "function": WEATHER}], {"thinking": True, "enable_thinking": True}
    prompts = set()
    for field in ("reasoning_content", "reasoning", "thinking"):
        user, called, result = LOOP
        prompts.add(prompt_of(source, [user, {**called, field: "Numbat."}, result], tools, **variables))
    [prompt] = prompts
    assert "Numbat." in prompt and re.search("Bonn", prompt)
    opening, closing = find_reasoning(source).opening.strip(), find_reasoning(source).closing.strip()
    assert re.search(rf"{re.escape(opening)}\s*Numbat\.\s*{re.escape(closing)}", prompt)


def test_content_beside_reasoning_and_calls_that_a_template_refuses_is_left_out(published):  # noqa: F811
    source = (published / "openai-gpt-oss-120b.jinja").read_text()
    user, called, result = LOOP
    tools = [{"type": "function", "function": WEATHER}]
    assert "I look." in prompt_of(source, [user, called, result], tools)
    assert "I look." not in prompt_of(source, [user, {**called, "reasoning_content": "Numbat."}, result], tools)
