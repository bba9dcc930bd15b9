"""``decodestep chat``: a conversation in a terminal, or one message per line from a pipe."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from decodestep._base.checks import refuse, require
from decodestep.chat.answer_reader import Part
from decodestep.cli.chat_tools import Functions, answer_calls, load_functions
from decodestep.cli.endings import early_end, failure
from decodestep.cli.options import (
    BYTE_ORDER_MARK,
    add_beams,
    add_draft,
    add_named_model,
    add_params,
    add_template_variables,
    add_thinking_budget,
    build_params,
    load,
    load_draft,
    name_model,
    template_variables,
    with_model_defaults,
    with_thinking_budget,
    write_text,
)
from decodestep.cli.prompt_cache import add_prompt_cache, prompt_cache
from decodestep.cli.running import Cancelled, prompt_progress
from decodestep.errors import CacheFullError, ConstraintError, RequestError
from decodestep.generation.completion import Completion
from decodestep.generation.drafts import Draft
from decodestep.generation.generate import generate
from decodestep.generation.pieces import Piece, text_of
from decodestep.generation.prompts import prompt_ids, read_prompt
from decodestep.models import Model, ModelError
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.row import within_room
from decodestep.sampling.row_factory import RowFactory

_ABOUT = """\
In a terminal it prompts for messages, shows what a model thinks dimly, and
asks before it calls a function of --tools; from a pipe it reads one message
per line and prints only the answers. A line that begins with a slash is a
command:"""
_HELP = """\
/reset        forget the conversation, except for the system message
/save FILE    write the conversation to FILE, a JSON list of messages
/help         print this
/exit         end, as Ctrl-D does
//TEXT        send /TEXT as a message
Ctrl-C ends an answer; the conversation keeps its beginning."""
_DIM, _NOT_DIM = "\x1b[2m", "\x1b[22m"
_DEFAULTS: dict[str, Any] = {"max_new_tokens": None}  # an answer may fill the context


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = f"{parser.description}\n\n{_ABOUT}\n\n{_HELP}"
    parser.add_argument("--system", metavar="TEXT", help="a system message before the conversation")
    parser.add_argument(
        "--tools", metavar="FILE", help="a Python file with functions that the model may call, each time if you allow it"
    )
    add_template_variables(parser)
    add_params(parser, **_DEFAULTS)
    add_thinking_budget(parser)
    add_beams(parser)
    add_draft(parser)
    add_prompt_cache(parser)
    add_named_model(parser)


def run(options: argparse.Namespace) -> int:
    params = with_thinking_budget(build_params(options, **_DEFAULTS), options)
    variables = template_variables(options)
    name_model(options)
    draft = load_draft(options)
    interactive = sys.stdin.isatty()
    require(
        options.tools is None or interactive, "chat", "--tools", "given in a terminal, where calls are allowed", options.tools
    )
    functions = {} if options.tools is None else load_functions(options.tools)
    model = load(options)
    chat = _Chat(model, with_model_defaults(params, options, model), draft, options.system, variables, functions, interactive)
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")  # a byte that is not UTF-8 must not end the conversation
    if interactive:
        with suppress(ImportError):
            import readline  # noqa: F401, which makes `input` edit lines and remember them
        print(f"{chat.model.config.name}; /help lists the commands, /exit or Ctrl-D ends")
    with prompt_cache(model, options.prompt_cache) as texts:
        for line in _read_terminal() if interactive else _read_pipe():
            try:
                if not chat.take(line):
                    break
            except (CacheFullError, ConstraintError, ModelError, RequestError, OSError) as error:
                if isinstance(error, BrokenPipeError) or not interactive:
                    raise
                print(f"decodestep: {failure(error)[1]}", file=sys.stderr)
            finally:
                texts[:] = [chat.text] if chat.text else []
    return 0


def _read_terminal() -> Iterator[str]:
    while True:
        try:
            yield input("> ")
        except KeyboardInterrupt:
            print("\n(/exit or Ctrl-D ends)")
        except EOFError:
            print()
            return


def _read_pipe() -> Iterator[str]:
    mark = BYTE_ORDER_MARK
    for line in sys.stdin:
        yield line.removeprefix(mark).removesuffix("\n").removesuffix("\r")
        mark = ""


class _Shown:
    """Writes the parts of an answer to standard output. thoughts: whether also what the model thinks, dimly in a terminal."""

    def __init__(self, *, thoughts: bool) -> None:
        self._thoughts = thoughts
        self._can_dim = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
        self._thinks = False
        self._last = ""  # the last text that has been written

    def write(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if part.kind == "reasoning" and self._thoughts:
                self._print(part.text if self._thinks else f"{_DIM if self._can_dim else ''}{part.text}")
                self._thinks = True
            elif part.kind == "content":
                self._end_thoughts("\n\n")
                self._print(part.text)

    def end(self, *, called: bool) -> None:
        """Ends the line. called: whether the answer has calls, and so need not say anything."""
        ended = self._last.endswith("\n")
        self._end_thoughts("")
        if not ended and (self._last or not called):
            self._print("\n")

    def _end_thoughts(self, gap: str) -> None:
        if self._thinks:
            self._thinks = False
            self._print(f"{_NOT_DIM if self._can_dim else ''}{gap}")

    def _print(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        self._last = text


class _Chat:
    """A conversation: its messages so far, and how they are answered.

    functions: that the model may call. thoughts: whether what it thinks is shown. text: the last answer and all before it, as
    token ids.
    """

    def __init__(
        self,
        model: Model,
        params: SamplingParams,
        draft: Draft,
        system: str | None,
        variables: dict[str, Any],
        functions: Functions,
        thoughts: bool,
    ) -> None:
        self.model, self.params, self._draft, self._variables = model, params, draft, variables
        self._functions, self._thoughts = functions, thoughts
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, Any]] = list(self._system)
        self.text: list[int] = []
        # A template that is missing or refuses a system message, and params that the model refuses, are errors now and not at
        # the first message.
        read = read_prompt(model, self._prompt([*self.messages, {"role": "user", "content": "Hello"}]))
        RowFactory.from_model(model).showing(model.tokenizer, read.marks(params)).row(params.without_beams(), read.ids)

    def _prompt(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        tools = list(self._functions.values())
        return {"messages": messages, "tools": tools, "chat_template_kwargs": self._variables}

    def take(self, line: str) -> bool:
        """Executes a command, or answers a message; False if the line ends the conversation."""
        command, _, argument = line.partition(" ")
        argument = argument.strip()
        if not line.strip():
            return True
        if not line.startswith("/"):
            self._answer(line)
        elif line.startswith("//"):
            self._answer(line[1:])
        elif command == "/exit" and not argument:
            return False
        elif command == "/help" and not argument:
            print(_HELP)
        elif command == "/reset" and not argument:
            self.messages = list(self._system)
        elif command == "/save" and argument and "\0" not in argument:
            text = json.dumps(self.messages, ensure_ascii=False, indent=1)
            # Unlike Path's, this expanduser leaves the name of an unknown user to be an error of the file's.
            write_text(os.path.expanduser(argument), f"{text}\n")
        else:
            refuse("chat", "command", "/reset, /save FILE, /help or /exit", line)
        return True

    def _answer(self, text: str) -> None:
        """Answers a message, and the results of the functions that the answers call. Keeps all; a message that cannot be
        answered is dropped."""
        conversation = [*self.messages, {"role": "user", "content": text}]
        goes_on = True
        while goes_on and (answer := self._answered(conversation)) is not None:
            results, goes_on = answer_calls(self._functions, answer.get("tool_calls", ()))
            goes_on = goes_on and bool(results)
            conversation += [answer, *results]
            self.messages = conversation

    def _answered(self, conversation: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Streams the answer to a conversation; its message, None if it was interrupted before it said anything."""
        parts: list[Part] = []
        completion: Completion | None = None
        shown = _Shown(thoughts=self._thoughts)

        def stream(_row: int, piece: Piece) -> None:
            parts.extend(piece.parts)
            shown.write(piece.parts)

        try:
            # A second Ctrl-C ends the answer too.
            with Cancelled() as cancelled, suppress(KeyboardInterrupt), prompt_progress() as progress:
                prompt = self._prompt(conversation)
                # Where the prompt alone is more than the cache holds, `generate` says so.
                room = self.model.capacity(self.params.num_beams) - len(prompt_ids(self.model, prompt))
                params = within_room(self.params, max(1, room))
                [completion, *_] = generate(
                    self.model,
                    prompt,
                    params,
                    stream=stream,
                    cancelled=cancelled.requested,
                    progress=progress,
                    draft=self._draft,
                )
        except BaseException:
            shown.end(called=True)  # else the terminal would stay dim
            raise
        cut = completion is None or completion.finish_reason not in ("eos", "stop")
        calls = [] if completion is None or cut else list(completion.tool_calls)  # a call that was cut is none
        shown.end(called=bool(calls))
        if completion is not None:
            self.text = [*completion.prompt_token_ids, *completion.token_ids]
            if completion.error is not None:
                raise completion.error
            if early := early_end(completion, self.params):
                print(f"decodestep: {early}", file=sys.stderr)
        reasoning, content = text_of(parts, "reasoning"), text_of(parts, "content")
        if not (reasoning or content or calls) and cancelled.requested():
            return None
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        return message
