"""``decodestep quantize``: a GGUF file in other types, or a folder of safetensors as a GGUF file."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from decodestep._base.checks import Phrase, require
from decodestep._base.progress import progress_line
from decodestep.cli.options import INDEXER_TYPES_HELP
from decodestep.models.fetch import resolve_path

_KINDS = "f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k_m, q4_k_m, q5_k_m, q6_k"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = "a GGUF file, best one of F32, F16 or BF16, a folder of safetensors, or a name: the default model's, or org/name"
    parser.add_argument("source", nargs="?", metavar="IN", help=source)
    parser.add_argument("-m", "--model", metavar="NAME_OR_PATH", help="the same as IN")
    parser.add_argument("target", metavar="OUT", help="the GGUF file to write; it appears only when complete")
    parser.add_argument("--type", required=True, metavar="TYPE", help=_KINDS)
    parser.add_argument("--indexer-types", metavar="PATTERN", help=INDEXER_TYPES_HELP)


def run(options: argparse.Namespace) -> int:
    from decodestep.models.requantise import requantise

    named = [name for name in (options.source, options.model) if name is not None]
    require(len(named) == 1, "quantize", "IN", "named once, as IN or with --model", Phrase(" and ".join(named) or "none"))
    require(named[0] != "", "quantize", "IN", "a name or a path", named[0])
    began = time.monotonic()
    source, target = resolve_path(named[0]), Path(options.target)
    with _unwinding(), progress_line(after=0.0) as show:
        show(f"reading {source.name}")
        before = requantise(
            source,
            target,
            options.type.lower(),
            progress=lambda done, values, name: show(f"{done / values:.0%} {name}"),
            indexer_types=options.indexer_types,
        )
    after = target.stat().st_size
    print(f"{target}: {after / 2**20:.1f} MiB, {after / before:.2f} of {source.name}, in {time.monotonic() - began:.1f} s")
    return 0


@contextmanager
def _unwinding() -> Iterator[None]:
    """Inside the block, the signals that end a process raise SystemExit, so that a file half written is removed."""

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)  # as a shell reports it

    ending = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in ending:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)
