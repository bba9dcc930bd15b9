"""A token's sampling inside llama-cpp-python's create_completion: our row in place of llama.cpp's own chain of samplers.

    python benchmarks/bench_llama_cpp.py [--model PATH] [--threads 1] [--rounds 5] [--tokens 32] [--temperature 1.0]

Timed are the calls of the sampler that `Llama.generate` makes, from the logits of a decode to the token, and the whole of
create_completion for each token. Both sides sample by top_p = 0.95 alone. First it verifies: greedy texts are equal.

Without --model the file has the shape of Llama 3.2 1B, whose vocabulary is 128256, with one layer of random weights.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from decodestep import SamplingParams
from measuring import random_models
from measuring.harness import Report, options, run_main

try:
    import llama_cpp
except ImportError:
    print("bench_llama_cpp: llama-cpp-python is not installed: pip install 'decodestep[llama-cpp]'")
    sys.exit(0)

from decodestep.integrations.llama_cpp import sampling
from peers.llama_cpp_model import QUIET

PROMPT = list(range(1000, 1016))
ALONE = {"top_k": 0, "min_p": 0.0}  # turns off what create_completion would sample by besides top_p


class Timed:
    """A sampler that adds up the seconds of its calls."""

    def __init__(self, sampler: Any) -> None:
        self._sampler, self.seconds, self.calls = sampler, 0.0, 0

    def sample(self, *arguments: Any) -> int:
        start = time.perf_counter()
        token = self._sampler.sample(*arguments)
        self.seconds += time.perf_counter() - start
        self.calls += 1
        return int(token)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


@contextmanager
def timed(llm: Any) -> Iterator[list[Timed]]:
    """The samplers that `llm` makes meanwhile."""
    made: list[Timed] = []
    make = llm._init_sampler

    def init_sampler(**arguments: Any) -> Timed:
        made.append(Timed(make(**arguments)))
        return made[-1]

    llm._init_sampler = init_sampler
    try:
        yield made
    finally:
        llm._init_sampler = make


def run(llm: Any, params: SamplingParams | None, tokens: int, **arguments: Any) -> tuple[float, float, str]:
    """(seconds of a token's sampling, seconds of a token in all, text). params: ours; None: llama.cpp's chain."""
    with sampling(llm, params) if params else nullcontext(), timed(llm) as made:
        start = time.perf_counter()
        answer = llm.create_completion(PROMPT, max_tokens=tokens, **arguments)
        seconds = time.perf_counter() - start
    [sampler] = made
    return sampler.seconds / sampler.calls, seconds / sampler.calls, answer["choices"][0]["text"]


def main() -> None:
    chosen = options(__doc__, model="", rounds=5, tokens=32, temperature=1.0)
    llama_cpp.llama_log_set(QUIET, ctypes.c_void_p(0))
    with tempfile.TemporaryDirectory() as folder:
        path, what = Path(chosen.model), chosen.model
        if not chosen.model:
            path = Path(folder) / "random.gguf"
            what = random_models.write(path, "1b", "Q4_0", layers=1)
        llm = llama_cpp.Llama(str(path), n_ctx=512, n_threads=chosen.threads, seed=7, verbose=False)
        greedy = run(llm, SamplingParams(do_sample=False), chosen.tokens)[2]
        if greedy != run(llm, None, chosen.tokens, temperature=0.0)[2]:
            raise SystemExit("greedy texts differ")
        ours = SamplingParams(top_p=0.95, temperature=chosen.temperature, seed=7)
        theirs = {"top_p": 0.95, "temperature": chosen.temperature, "seed": 7, **ALONE}
        times = [(run(llm, ours, chosen.tokens)[:2], run(llm, None, chosen.tokens, **theirs)[:2]) for _ in range(chosen.rounds)]
        report = Report("llama_cpp", chosen.threads)
        for place, part in enumerate(("a token's sampling", "a token of create_completion")):
            seconds = {"ours": [o[place] for o, _ in times], "llama.cpp's chain": [t[place] for _, t in times]}
            report.show(f"{part}, top_p, vocabulary of {llm.n_vocab()}, {what}", seconds, None, "")
        report.save()
        llm.close()


if __name__ == "__main__":
    run_main(main)
