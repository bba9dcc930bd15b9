"""The process in which a constraint is compiled on trial: a separate script that imports only llguidance.

The cost of intersecting expressions, which schemas and grammars may require, is not covered by llguidance's limits. If it is
too high, this process is ended by a signal or by running out of memory.
"""

from __future__ import annotations

import json
import signal
import sys

READY = b"ready"  # written once the imports have succeeded: what ends the process later is the constraint's cost


class _Bytes:
    """The smallest vocabulary: all bytes and an end token."""

    bos_token_id, eos_token_id, special_token_ids = None, 256, (256,)
    tokens = (*(bytes([i]) for i in range(256)), b"\xff<256>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def main(memory: int, seconds: float, parser: str, folder: str) -> None:
    """Compiles what standard input has, and the mask of its first token. Returns where that is affordable, wrong or not.

    memory: bytes of address space beyond what the process has after its imports. seconds: of processor time. parser: the
    arguments of LLParserLimits, as JSON. folder: where llguidance is.
    """
    sys.path.append(folder)
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=257, eos_token=[256])
    limits = LLParserLimits(**json.loads(parser))
    grammar = sys.stdin.buffer.read().decode()
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    _limit(memory, seconds)
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.compute_bitmask()


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
