"""The command line: one file for each verb, imported when it is used."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import decodestep

_VERBS = {
    "generate": "continue a prompt with a model, streaming",
    "explain": "show what happens to the probabilities of the next token before it is drawn",
    "bench": "verify an operator against its peers, then time it against them",
    "env": "print versions, instruction set, backends, threads and the model's location",
}
_EPILOG = "exit codes: 0 done (also when ended by Ctrl-C), 1 the work could not be done, 2 the request is wrong"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0 done, 1 the work could not be done, 2 the request is wrong."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except ValueError as error:
        return _fail(2, error)
    except ModuleNotFoundError as error:
        return _fail(1, f"{error.name or error} is missing; install decodestep[generate]")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more when it exits
        return 1
    except MemoryError as error:
        return _fail(1, f"out of memory: {error}")
    except (ImportError, OSError, RuntimeError) as error:
        return _fail(1, error)
    except KeyboardInterrupt:
        return _fail(1, "interrupted")


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="decodestep", description=decodestep.__doc__.split("\n")[0], epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"decodestep {decodestep.__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, summary in _VERBS.items():
        sub = verbs.add_parser(verb, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=_EPILOG)
        if verb in arguments[:1]:
            import_module(f"decodestep.cli.{verb}").add_arguments(sub)
    options = parser.parse_args(arguments)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character must not end the answer
    return int(import_module(f"decodestep.cli.{options.verb}").run(options))


def _fail(code: int, reason: object) -> int:
    print(f"decodestep: {reason}", file=sys.stderr)
    return code
