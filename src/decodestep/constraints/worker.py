"""The process in which a constraint is compiled on trial: a separate script that imports only llguidance.

The cost of intersecting expressions, which schemas and grammars may require, is not covered by llguidance's limits. If it is
too high, this process is ended by a signal or by running out of memory.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

_OPEN, _QUOTE = b'{"'
READY = b"ready"  # written once the imports have succeeded: what ends the process later is the constraint's cost


class _Bytes:
    """The smallest vocabulary: all bytes and an end token."""

    bos_token_id, eos_token_id, special_token_ids = None, 256, (256,)
    tokens = (*(bytes([i]) for i in range(256)), b"\xff<256>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def main(memory: int, seconds: float, parser: str, folder: str) -> None:
    """Does the task of standard input and writes its `answers`, both JSON. Returns if they cost little, grammars wrong or not.

    memory: bytes of address space beyond what the process has after its imports. seconds: of processor time. parser: the
    arguments of LLParserLimits, as JSON. folder: where llguidance is.
    """
    sys.path.append(folder)
    import llguidance  # noqa: F401, before the memory is limited

    task = json.loads(sys.stdin.buffer.read())
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    _limit(memory, seconds)
    print(json.dumps(answers(task, json.loads(parser))))


def answers(task: dict[str, Any], limits: dict[str, Any]) -> list[Any]:
    """Does a task in this process. limits: the arguments of LLParserLimits.

    The task has `grammars`, which are compiled, with the mask of the first token. With `names`, they are of JSON objects, and
    the answers are `_first_names` of each, whose other arguments are in `names`.
    """
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=257, eos_token=[256])
    parser = LLParserLimits(**limits)
    found: list[Any] = []
    for grammar in task["grammars"]:
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser)
        if "names" in task:
            found.append(_first_names(matcher, *task["names"]))
        elif not matcher.is_error():
            matcher.compute_bitmask()
    return found


def _first_names(matcher: Any, most: int, longest: int) -> list[str] | None:
    """The names of the first property; None if they are more than `most`, or one has more than `longest` bytes in JSON."""
    if matcher.is_error() or not matcher.consume_token(_OPEN):
        return None
    names: list[str] = []
    begun = [(b"", matcher)]  # names as JSON, each of which leads to another name: llguidance allows no byte that leads nowhere
    while begun:
        longer: list[tuple[bytes, Any]] = []
        for text, state in begun:
            allowed = _bytes_after(state)
            if len(names) + len(longer) + len(allowed) > most or len(text) > longest + 1:
                return None
            escaped = (len(text) - len(text.rstrip(b"\\"))) % 2 == 1
            for byte in allowed:
                if byte == _QUOTE and text and not escaped:
                    names.append(json.loads(text + b'"'))
                else:
                    after = state.deep_copy()
                    after.consume_token(byte)
                    longer.append((text + bytes([byte]), after))
        begun = longer
    return names


def _bytes_after(matcher: Any) -> list[int]:
    bits = matcher.compute_bitmask()
    return [] if matcher.is_error() else [byte for byte in range(256) if bits[byte // 8] >> byte % 8 & 1]


def _limit(memory: int, seconds: float) -> None:
    """No more address space than now and `memory` bytes, no core dumps, no more time; where the system can."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open("/proc/self/statm") as statm:
            size = int(statm.read().split()[0]) * resource.getpagesize() + memory
    except (ImportError, OSError):  # not Linux
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    size = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4])
