"""``decodestep chat``: a conversation in a terminal, or one message per line from a pipe."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from decodestep._base.checks import refuse
from decodestep.cli.endings import early_end, failure
from decodestep.cli.options import (
    BYTE_ORDER_MARK,
    add_beams,
    add_draft,
    add_named_model,
    add_params,
    add_template_variables,
    build_params,
    load,
    load_draft,
    name_model,
    template_variables,
    with_model_defaults,
    write_text,
)
from decodestep.cli.running import Cancelled
from decodestep.errors import CacheFullError, ConstraintError, RequestError
from decodestep.generation.completion import Completion
from decodestep.generation.drafts import Draft
from decodestep.generation.generate import generate
from decodestep.generation.prompts import prompt_ids
from decodestep.models import Model, ModelError
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.row import within_room
from decodestep.sampling.row_factory import RowFactory

_ABOUT = """\
In a terminal it prompts for messages; from a pipe it reads one message per
line and prints only the answers. A line that begins with a slash is a command:"""
_HELP = """\
/reset        forget the conversation, except for the system message
/save FILE    write the conversation to FILE, a JSON list of messages
/help         print this
/exit         end, as Ctrl-D does
//TEXT        send /TEXT as a message
Ctrl-C ends an answer; the conversation keeps its beginning."""
_DEFAULTS: dict[str, Any] = {"max_new_tokens": None}  # an answer may fill the context


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = f"{parser.description}\n\n{_ABOUT}\n\n{_HELP}"
    parser.add_argument("--system", metavar="TEXT", help="a system message before the conversation")
    add_template_variables(parser)
    add_params(parser, **_DEFAULTS)
    add_beams(parser)
    add_draft(parser)
    add_named_model(parser)


def run(options: argparse.Namespace) -> int:
    params = build_params(options, **_DEFAULTS)
    variables = template_variables(options)
    name_model(options)
    draft = load_draft(options)
    model = load(options)
    chat = _Chat(model, with_model_defaults(params, options, model), draft, options.system, variables)
    interactive = sys.stdin.isatty()
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")  # a byte that is not UTF-8 must not end the conversation
    if interactive:
        with suppress(ImportError):
            import readline  # noqa: F401, which makes `input` edit lines and remember them
        print(f"{chat.model.config.name}; /help lists the commands, /exit or Ctrl-D ends")
    for line in _read_terminal() if interactive else _read_pipe():
        try:
            if not chat.take(line):
                break
        except (CacheFullError, ConstraintError, ModelError, RequestError, OSError) as error:
            if isinstance(error, BrokenPipeError) or not interactive:
                raise
            print(f"decodestep: {failure(error)[1]}", file=sys.stderr)
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


class _Chat:
    """A conversation: its messages so far, and how they are answered."""

    def __init__(
        self, model: Model, params: SamplingParams, draft: Draft, system: str | None, variables: dict[str, Any]
    ) -> None:
        self.model, self.params, self._draft, self._variables = model, params, draft, variables
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._system)
        # A template that is missing or refuses a system message, and params that the model refuses, are errors now and not at
        # the first message.
        ids = self._ids([*self.messages, {"role": "user", "content": "Hello"}])
        RowFactory.from_model(model).row(params.without_beams(), ids)

    def _ids(self, messages: list[dict[str, str]]) -> list[int]:
        return prompt_ids(self.model, {"messages": messages, "chat_template_kwargs": self._variables})

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
        """Streams the answer to a message, and keeps both; a message that cannot be answered is dropped."""
        conversation = [*self.messages, {"role": "user", "content": text}]
        pieces: list[str] = []
        completion: Completion | None = None

        def stream(_row: int, piece: str) -> None:
            pieces.append(piece)
            sys.stdout.write(piece)
            sys.stdout.flush()

        with Cancelled() as cancelled, suppress(KeyboardInterrupt):  # a second Ctrl-C ends the answer too
            ids = self._ids(conversation)
            # Where the prompt alone is more than the cache holds, `generate` says so.
            params = within_room(self.params, max(1, self.model.capacity(self.params.num_beams) - len(ids)))
            completion = generate(self.model, [ids], params, stream=stream, cancelled=cancelled.requested, draft=self._draft)[0]
        answer = "".join(pieces)
        print(end="" if answer.endswith("\n") else "\n", flush=True)
        if completion is not None:
            if completion.error is not None:
                raise completion.error
            if early := early_end(completion, self.params):
                print(f"decodestep: {early}", file=sys.stderr)
        if answer or not cancelled.requested():
            self.messages = [*conversation, {"role": "assistant", "content": answer}]
