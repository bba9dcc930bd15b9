"""How the answers of a conversation are read: reasoning first, then text and calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from decodestep.chat.answer_reader import AnswerReader
from decodestep.chat.reasoning import THINK, ReasoningFormat, find_reasoning, reasoning_of_tokens
from decodestep.chat.tool_call_format import CallFormat, NoCalls
from decodestep.chat.tool_formats import find_call_format
from decodestep.chat.tools import ToolFormat

if TYPE_CHECKING:
    from decodestep.models import Model
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
    def _calls(self) -> CallFormat:
        return self.plain if self.tools is None else self.tools.call_format

    def grammar(self, tokenizer: Tokenizer, answer: dict[str, Any] | None) -> str | None:
        """The grammar of the response; None if it is any text. answer: as for `ToolFormat.grammar`."""
        if self.tools is None:
            return None
        return self.tools.grammar(tokenizer, answer, self.reasoning or THINK, in_reasoning=self.begun)


def build_answer_format(model: Model, prompt_ids: Sequence[int], tools: ToolFormat | None) -> AnswerFormat:
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
