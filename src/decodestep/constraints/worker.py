"""The process in which a constraint is compiled on trial: a separate script that imports only llguidance.

The cost of intersecting expressions, which schemas and grammars may require, is not covered by llguidance's limits. If it is
too high, this process is ended by a signal or by running out of memory.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLMatcher

_OPEN, _QUOTE = b'{"'
READY = b"ready"  # written once the imports have succeeded: what ends the process later is the constraint's cost


class _Bytes:
    """The smallest vocabulary: all bytes and an end token."""

    bos_token_id, eos_token_id, special_token_ids = None, 256, (256,)
    tokens = (*(bytes([i]) for i in range(256)), b"\xff<256>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def main(memory: int, seconds: float, parser: str, folder: str) -> None:
    """Reads questions from standard input and writes their `answers`, both JSON. Returns if they cost little.

    memory: bytes of address space beyond what the process has after its imports. seconds: of processor time. parser: the
    arguments of LLParserLimits, as JSON. folder: where llguidance is.
    """
    sys.path.append(folder)
    import llguidance  # noqa: F401, before the memory is limited

    questions = json.loads(sys.stdin.buffer.read())
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    _limit(memory, seconds)
    print(json.dumps(answers(questions, json.loads(parser))))


def answers(questions: list[list[Any]], limits: dict[str, Any]) -> list[Any]:
    """The answers to questions about grammars in this process. limits: the arguments of LLParserLimits.

    Each question is a grammar and what is asked about it, after the mask of the first token:
        []: the error, or "" if there is none;
        ["texts", several]: which of these are texts of it, a list of bools, or the error;
        ["names", most, longest]: of JSON objects, `_first_names`, or the error.
    """
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=257, eos_token=[256])
    found: list[Any] = []
    for grammar, *asked in questions:
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**limits))
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error() or not asked:
            found.append(matcher.get_error() or "")
        elif asked[0] == "texts":
            found.append([_is_text(matcher, text.encode("utf-8", "replace")) for text in asked[1]])
        else:
            found.append(_first_names(matcher, *asked[1:]))
    return found


def _is_text(matcher: LLMatcher, text: bytes) -> bool:
    reader = matcher.deep_copy()
    return all(reader.consume_token(byte) for byte in text) and bool(reader.is_accepting())


def _first_names(matcher: LLMatcher, most: int, longest: int) -> list[str] | None:
    """The names of the first property; None if they are more than `most`, or one has more than `longest` bytes in JSON."""
    if not matcher.consume_token(_OPEN):
        return None
    names: list[str] = []
    begun = [(b"", matcher)]  # names as JSON, each of which leads to another name: llguidance allows no byte that leads nowhere
    while begun:
        longer: list[tuple[bytes, LLMatcher]] = []
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


def _bytes_after(matcher: LLMatcher) -> list[int]:
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
