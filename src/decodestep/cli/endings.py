"""How a command ends, as the command line tells it: an error, or a text that ends early and might look like a complete one."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from decodestep.errors import RequestError

if TYPE_CHECKING:
    from decodestep.generation.completion import Completion
    from decodestep.sampling.params import SamplingParams

TRACEBACK = "--traceback"


def failure(error: BaseException) -> tuple[int, str]:
    """The exit code, 1 or 2, and the message, which is one line."""
    match error:
        case RequestError():
            return 2, str(error)
        case KeyboardInterrupt():
            return 1, "interrupted"
        case MemoryError():
            return 1, f"out of memory: {error}".removesuffix(": ")  # Python's own says no more
        case OSError(filename=str(path), strerror=str(reason)):
            return 1, f"{path}: {reason}"
        case ImportError() | OSError() | RuntimeError():
            return 1, str(error)
    return 1, f"internal error: {type(error).__name__}: {error} ({TRACEBACK} shows where)"


def early_end(completion: Completion, params: SamplingParams) -> str:
    """What ended a text early, or "" for one that came to its end or that the user ended. params: as the options gave them."""
    count = len(completion.token_ids)
    match completion.finish_reason:
        case "length" if count == params.max_new_tokens:
            return f"the text is cut after {count} tokens (--max-new-tokens)"
        case "length":
            whole = len(completion.prompt_token_ids) + count
            return f"the text is cut: {whole} tokens, with those of the prompt, fill the context or the cache"
        case "time":
            return f"the text is cut after {params.max_time:g} s (--max-time)"
        case "no_candidate":
            return "the text ends where every token is forbidden"
    return ""


class Parser(argparse.ArgumentParser):
    """Its errors are one line too: argparse puts the usage before them, which for some programs is a screenful."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog.replace(' ', ': ')}: {message} ({self.prog} --help lists what it takes)\n")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Ends with the error for words that are not among its options, and the option whose name is like the first."""
        like = difflib.get_close_matches(words[0].partition("=")[0], self._option_string_actions, n=1)
        self.error(f"unrecognized arguments: {' '.join(words)}" + "".join(f"; did you mean {option}?" for option in like))
