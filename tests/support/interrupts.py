"""Interrupts at any place of the code that changes who has what in a cache."""

from __future__ import annotations

import linecache
import sys

FILES = ("page_pool.py", "paged_tokens.py", "sequence.py", "sequence_state.py", "state_rows.py")


def interrupted_at(event, pool, work):
    """Whether `work` comes to so many events, calls and lines, in FILES, at the last of which it is interrupted."""
    events = 0

    def trace(frame, kind, _):
        nonlocal events
        code = frame.f_code
        if not code.co_filename.endswith(FILES) or code.co_name == "<genexpr>":
            return None  # one that is dropped is called too, and what it raises is ignored
        # No exception comes from where a block with a lock ends, which has a line event too.
        leaves = kind == "line" and linecache.getline(code.co_filename, frame.f_lineno).lstrip().startswith("with ")
        events += kind in ("call", "line") and not leaves
        if events == event:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        work(pool)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
