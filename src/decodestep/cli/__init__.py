"""The command line: one file per verb, imported on use."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import decodestep
from decodestep._base.extras import extra
from decodestep.cli.endings import TRACEBACK, Parser, failure

_VERBS = {
    "generate": "continue a prompt with a model, streaming",
    "chat": "hold a conversation with a model",
    "serve": "serve a model over an OpenAI-compatible API, with a chat page",
    "quantize": "write a GGUF file in other types: q8_0, q4_k_m and others",
    "explain": "show what happens to the probabilities of the next token before it is drawn",
    "schedule": "run the schedule of MlaProlog in virtual time: races, critical path, pictures",
    "bench": "verify an operator against its peers, then time it against them",
    "env": "print versions, instruction set, backends, threads and the model's location",
}
_EPILOG = "exit codes: 0 success (also if ended by Ctrl-C), 1 failure, 2 invalid request"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0 success, 1 failure, 2 invalid request.

    An error is one line on stderr; `--traceback` after the command also prints where it was raised.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()  # so that an error is reported here rather than by Python at exit
    except BrokenPipeError:
        _drop_output()
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if TRACEBACK in arguments:
            traceback.print_exc()
        code, reason = failure(error)
        print(f"decodestep: {reason}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        return code
    finally:
        # The process ends now: an interrupt ends it at once, not with a traceback of what Python cleans up.
        if argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _open_streams() -> None:
    """Replaces closed standard streams, with which a process may be started, by the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, which stays open as they do


def _drop_output() -> None:
    """Discards output that cannot be written to stdout; otherwise Python would report it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    about = (decodestep.__doc__ or "").partition("\n")[0]  # None under python -OO
    parser = Parser(prog="decodestep", description=about, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"decodestep {decodestep.__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    with extra("generate"):
        for verb, summary in _VERBS.items():
            sub = verbs.add_parser(verb, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=_EPILOG)
            sub.add_argument(TRACEBACK, action="store_true", help="print a traceback after an error")
            if verb in arguments[:1]:
                import_module(f"decodestep.cli.{verb}").add_arguments(sub)
        if not arguments:
            parser.print_help(sys.stderr)
            return 2
        options, unknown = parser.parse_known_args(arguments)
        if unknown:  # an error of the verb's: `parse_args` would name the program alone
            verbs.choices[options.verb].refuse(unknown)
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")  # a character that the terminal cannot show must not end the answer
        return int(import_module(f"decodestep.cli.{options.verb}").run(options))
