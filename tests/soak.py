"""Many threads, random requests, one model: every seeded result equals that of the same request alone, and memory stays flat.

    python tests/soak.py [--seconds 600] [--threads 8] [--requests 40] [--calls N] [--seed 0]

Each thread generates batches, reads streams to their end or leaves them, runs rows whose processors raise, and forks children
that generate. Exits with 1 and says what differed. With --calls each thread makes so many calls instead of stopping by time.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from typing import Any

import decodestep as ds
from support.processes import resident

SYSTEM = "You are a careful assistant. Answer in one short sentence, and never repeat the question. " * 3
QUESTIONS = ("What is ice?", "Name a river.", "Why is the sky blue?", "Count to five.", "Say hello in French.")


class PlannedError(Exception):
    """What a processor raises on purpose."""


def request(number: int) -> tuple[Any, ds.SamplingParams]:
    """A prompt and its parameters, as a function of the number."""
    rng = random.Random(number)
    question = rng.choice(QUESTIONS)
    prompt = (
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        if rng.random() < 0.5
        else SYSTEM + question
    )
    options: dict[str, Any] = {"max_new_tokens": rng.randint(1, 24), "seed": rng.choice((0, 1, number))}
    if rng.random() < 0.15:
        return prompt, ds.SamplingParams(num_beams=3, num_return_sequences=2, **(options | {"max_new_tokens": 6}))
    if rng.random() < 0.3:
        options |= {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3}
    if rng.random() < 0.3:
        options["stop_strings"] = ["the", "."]
    if rng.random() < 0.2:
        options["num_return_sequences"] = 3
    return prompt, ds.SamplingParams(
        temperature=rng.choice((0.5, 1.0, 1.5)), top_k=rng.choice((0, 40)), top_p=rng.choice((0.9, 1.0)), **options
    )


class Soak:
    def __init__(self, model: ds.Model, requests: int) -> None:
        self.model = model
        self.requests = [request(number) for number in range(requests)]
        self.expected = []
        for prompt, params in self.requests:
            model.cache.clear()  # alone, and without a past
            self.expected.append(ds.generate(model, [prompt], params))
        self.problems: list[str] = []
        self.calls = 0

    def work(self, seed: int, go_on: Any) -> None:
        rng = random.Random(seed)
        actions = [self.batch] * 4 + [self.stream, self.leave, self.fail, self.fork]
        done = 0
        while go_on(done) and not self.problems:
            action = rng.choice(actions)
            try:
                action(rng)
            except BaseException as error:  # a thread must not end unheard
                self.problems.append(f"{action.__name__}: {error!r}")
            done += 1
            self.calls += 1

    def check(self, what: str, number: int, completions: list[ds.Completion]) -> None:
        if completions != self.expected[number]:
            self.problems.append(f"{what}: request {number} gave {completions}, alone {self.expected[number]}")

    def batch(self, rng: random.Random) -> None:
        numbers = [rng.randrange(len(self.requests)) for _ in range(rng.randint(1, 4))]
        found = ds.generate(self.model, [self.requests[n][0] for n in numbers], [self.requests[n][1] for n in numbers])
        for row, number in enumerate(numbers):
            self.check("batch", number, [completion for completion in found if completion.row == row])

    def single(self, rng: random.Random) -> int:
        return rng.choice([n for n, (_, params) in enumerate(self.requests) if params.num_return_sequences == 1])

    def stream(self, rng: random.Random) -> None:
        number = self.single(rng)
        stream = ds.stream(self.model, *self.requests[number])
        text = "".join(stream)
        self.check("stream", number, [stream.completion])
        if text != stream.completion.text:
            self.problems.append(f"stream: request {number} had pieces {text!r} of {stream.completion.text!r}")

    def leave(self, rng: random.Random) -> None:
        number, pieces = self.single(rng), []
        with ds.stream(self.model, *self.requests[number]) as stream:
            for piece in stream:
                pieces.append(piece)
                if len(pieces) >= rng.randint(1, 10):
                    break
        whole = self.expected[number][0]
        if stream.completion.token_ids != whole.token_ids[: len(stream.completion.token_ids)]:
            self.problems.append(f"leave: request {number} gave {stream.completion}, alone {whole}")

    def fail(self, rng: random.Random) -> None:
        """Two rows, of which one has a processor that raises after a few tokens."""
        numbers, tokens = [self.single(rng), self.single(rng)], rng.randint(0, 5)

        def processors(row: int) -> list[Any]:
            lengths = []

            def raise_later(ids: Any, scores: Any) -> Any:
                lengths.append(ids.shape[1])
                if ids.shape[1] - lengths[0] >= tokens:
                    raise PlannedError
                return scores

            return [raise_later] if row == 0 else []

        first, second = ds.generate(
            self.model, [self.requests[n][0] for n in numbers], [self.requests[n][1] for n in numbers], processors=processors
        )
        self.check("beside a row that fails", numbers[1], [second])
        whole = self.expected[numbers[0]][0]
        ended = first == whole or isinstance(first.error, PlannedError)
        if not ended or first.token_ids != whole.token_ids[: len(first.token_ids)]:
            self.problems.append(f"fail: request {numbers[0]} gave {first}, alone {whole}")

    def fork(self, rng: random.Random) -> None:
        number = rng.randrange(len(self.requests))
        child = os.fork()
        if child == 0:
            try:
                prompt, params = self.requests[number]
                os._exit(0 if ds.generate(self.model, [prompt], params) == self.expected[number] else 1)
            finally:
                os._exit(2)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            self.problems.append(f"fork: the child of request {number} ended with {status}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--calls", type=int, default=0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    soak = Soak(ds.load(cache_bytes=48 * 2**20), options.requests)
    end = time.monotonic() + options.seconds
    go_on = (lambda done: done < options.calls) if options.calls else (lambda _: time.monotonic() < end)
    threads = [threading.Thread(target=soak.work, args=(options.seed + i, go_on)) for i in range(options.threads)]
    for thread in threads:
        thread.start()
    sizes = []
    while any(thread.is_alive() for thread in threads):
        threads[0].join(1.0)
        for thread in threads[1:]:
            thread.join(0)
        sizes.append(resident())
    if soak.model.cache.held:
        soak.problems.append(f"{soak.model.cache.held} pages are still held")
    quarter = max(1, len(sizes) // 4)
    early, late = max(sizes[: 2 * quarter]) / 2**20, max(sizes[-quarter:]) / 2**20
    print(f"{soak.calls} calls by {options.threads} threads; at most {early:.0f} MiB in the first half, {late:.0f} at the end")
    if not options.calls and late > early + 16:
        soak.problems.append(f"memory grew from {early:.0f} to {late:.0f} MiB")
    print("\n".join(soak.problems) or "every result as alone")
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
