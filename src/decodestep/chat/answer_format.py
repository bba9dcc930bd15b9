"""How the answers of a conversation are read: reasoning first, then text and calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from decodestep.chat.answer_reader import AnswerReader
from decodestep.chat.reasoning import THINK, ReasoningFormat, find_reasoning, reasoning_of_tokens
from decodestep.chat.tool_call_format import CallFormat, NoCalls
from decodestep.chat.tool_formats import find_call_format
from decodestep.chat.tool_grammar import Thought, answer_or_calls
from decodestep.chat.tools import ToolFormat
from decodestep.sampling.thinking_budget import ReasoningMarks

if TYPE_CHECKING:
    from decodestep.chat.template import ChatModel
    from decodestep.tokenizers.tokenizer import Tokenizer

_TAIL = 16  # tokens at the end of a prompt, which may begin the model's reasoning


@dataclass(frozen=True)
class AnswerFormat:
    """How the answers of one conversation are read.

    reasoning: that of the chat template; None if it knows none: a model may write `<think>` all the same. begun: whether the
    prompt ends within it. ended: whether the prompt ends with a mark after which the answer begins. tools: those that may be
    called; None without. plain: what reads the text of an answer without tools. separate: whether reasoning is told apart;
    otherwise it is content as it was written, marks and all.
    """

    reasoning: ReasoningFormat | None = None
    begun: bool = False
    ended: bool = False
    tools: ToolFormat | None = None
    plain: CallFormat = field(default_factory=lambda: NoCalls({}))
    separate: bool = True

    @property
    def spelled(self) -> tuple[str, ...]:
        """The names of the control tokens that must be in the text for `reader`."""
        return (*self._calls.spelled, *(self.reasoning or THINK).control_tokens)

    def reader(self, call_ids: dict[int, str] | None = None) -> AnswerReader:
        """What reads one answer. call_ids: as for `AnswerReader`."""
        tools = self.tools
        return AnswerReader(
            self._calls,
            self.reasoning or THINK,
            begun=self.begun,
            ended=self.ended,
            separate=self.separate,
            several=tools is None or tools.several,
            earlier=0 if tools is None else tools.earlier,
            call_ids=call_ids,
        )

    @property
    def marks(self) -> ReasoningMarks:
        """What begins and ends the reasoning in the answer."""
        known = self.reasoning or THINK
        again = "later" if known.in_messages else "next" if known.repeats else ""
        return ReasoningMarks(known.opening, known.closing, self.begun, again)

    @property
    def _calls(self) -> CallFormat:
        return self.plain if self.tools is None else self.tools.call_format

    def grammar(self, tokenizer: Tokenizer, answer: dict[str, Any] | None, *, continues: bool = False) -> str | None:
        """The grammar of the response; None if it is any text, or JSON of the schema and nothing else.

        It binds what comes after the reasoning, which stands there if the prompt has begun it, and not if that has closed it.
        answer: as for `ToolFormat.grammar`. continues: whether the response goes on with a message, and has no reasoning.
        """
        thought = Thought(self.reasoning or THINK, self.begun, self.reasoning is None or self.ended or continues)
        if self.tools is not None:
            return self.tools.grammar(tokenizer, answer, thought)
        marked = thought.format.answer or self.plain.answer_begin
        if answer is None or continues or (thought.off and not marked):
            return None
        return answer_or_calls([], answer, thought, begin=self.plain.answer_begin)


def build_answer_format(model: ChatModel, prompt_ids: Sequence[int], tools: ToolFormat | None) -> AnswerFormat:
    """The format of the answers to a conversation. prompt_ids: of its rendered prompt. tools: as `tools.read` returns them."""
    template = model.template.text(tools=tools is not None)
    tokenizer = model.tokenizer
    reasoning, kind = find_reasoning(template), find_call_format(template)
    if reasoning is None:
        reasoning = reasoning_of_tokens({tokenizer.token(i) for i in tokenizer.special})
    tail = tokenizer.spell(prompt_ids[-_TAIL:])
    known = reasoning or THINK
    plain = kind({}) if kind is not None and kind.whole else NoCalls({})
    return AnswerFormat(reasoning, known.begun_by(tail), known.ended_by(tail), tools, plain)
