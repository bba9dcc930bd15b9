"""Drafts: the same text with and without them, the time of both, and how often a model's coupled draws are accepted.

    python benchmarks/bench_drafts.py [--cases text rows] [--draft auto|lookup|FILE] [--temperatures 0 0.7 1] [--tokens 128]
        [--rows 1 4 16] [--file model.gguf] [--threads 1] [--rounds 7]
    python benchmarks/bench_drafts.py --cases acceptance [--positions 5000] [--noise 0.1] [--temperatures 0 0.7 1]

    text        one answer: to an edit of code, a summary, a list in JSON, and a question, which has little to repeat
    rows        several answers at once, half of them edits and half free text
    acceptance  the model as the target, and a copy with noise on its weights drafts for it, with the noise of the row (coupled)
                and with that of another seed; at every position of sampled texts. Promised: (1 - TV) / (1 + TV)

Verified first: the completions are equal, with their log-probabilities. FILE: a smaller model of the same vocabulary. --noise
is relative to the deviation of each weight matrix.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np

import decodestep as ds
from decodestep.generation.drafts.coupled_row import CoupledRow
from decodestep.models import DEFAULT_MODEL
from decodestep.sampling.row_factory import RowFactory
from measuring.harness import Report, options, run_main

CASES = ("text", "rows", "acceptance")
CODE = '''def area(width, height):
    """The area of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError("a side must not be negative")
    return width * height


def volume(width, height, depth):
    return area(width, height) * depth
'''
ARTICLE = """The river Aare is the longest river that both rises and ends entirely within Switzerland. Its total length is about
291 kilometres, and it drains 17,779 square kilometres, almost half of the area of the country. The Aare rises in the glaciers
of the Bernese Alps, flows through the lakes of Brienz and Thun, and around the old town of Bern, the capital."""
TASKS = {
    "edit": f"Write this program again, with `size` in place of `width`:\n{CODE}",
    "summary": f"Summarise this text in two sentences:\n{ARTICLE}",
    "list": 'Write a JSON list of the first ten months, each as {"name": ..., "number": ..., "days": ...}.',
    "question": "Why do people like to walk along a river? Answer as a poet.",
}


def params_of(temperature: float, tokens: int, seed: int) -> ds.SamplingParams:
    return ds.SamplingParams(temperature=temperature, seed=seed, max_new_tokens=tokens, logprobs=0)


def answer(model: ds.Model, tasks: list[str], params: list[ds.SamplingParams], draft: Any) -> list[ds.Completion]:
    prompts = [[{"role": "user", "content": TASKS[task]}] for task in tasks]
    return ds.generate(model, prompts, params, draft=draft)


def compare(report: Report, case: str, model: ds.Model, draft: Any, tasks: list[str], chosen: Any, temperature: float) -> None:
    """Verifies that both sides have the same completions, and times them."""
    params = [params_of(temperature, chosen.tokens, seed) for seed in range(len(tasks))]
    drafted, plain = (answer(model, tasks, params, each) for each in (draft, None))
    assert drafted == plain, f"{case}: another text with drafts"
    calls = {
        "drafts": partial(answer, model, tasks, params, draft),
        "none": partial(answer, model, tasks, params, None),
    }
    times = report.case(case, calls, chosen.rounds)
    count = sum(len(completion.token_ids) for completion in plain)
    guessed, right = (sum(getattr(one, name) for one in drafted) for name in ("drafted", "accepted"))
    rates = ", ".join(f"{name} {count / np.median(seconds):.0f} tokens/s" for name, seconds in times.items())
    print(f"  {rates}; {right} of {guessed} drafted tokens accepted, of {count}")


def write_noisy(source: Path, target: Path, noise: float) -> Path:
    """A copy of a GGUF file with noise on its weight matrices, in their own formats."""
    shutil.copyfile(source, target)
    rng = np.random.default_rng(0)
    for tensor in gguf.GGUFReader(target, "r+").tensors:
        if len(tensor.shape) > 1:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            values = values + noise * values.std() * rng.standard_normal(values.shape, np.float32)
            tensor.data[:] = gguf.quants.quantize(values, tensor.tensor_type)
    return target


def sampled_texts(
    model: ds.Model, temperature: float, positions: int
) -> Iterator[tuple[list[int], list[int], ds.SamplingParams]]:
    """Prompts, their continuations, and the params of these, until there are enough positions."""
    prompts = [model.chat_ids([{"role": "user", "content": content}]) for content in TASKS.values()]
    length, seed = min(256, positions), 0
    batch = min(8, -(-positions // length))
    params = replace(params_of(temperature, length, 0), logprobs=None, ignore_eos=True)
    while positions > 0:
        some = [prompts[(seed + i) % len(prompts)] for i in range(batch)]
        each = [replace(params, seed=seed + i) for i in range(batch)]
        for ids, own, completion in zip(some, each, ds.generate(model, some, each, draft=None), strict=True):
            if positions > 0:
                yield ids, completion.token_ids[:positions], own
                positions -= len(completion.token_ids)
        seed += batch


def distribution(logits: np.ndarray, temperature: float) -> np.ndarray:
    if temperature == 0:
        return np.eye(1, len(logits), int(logits.argmax()))[0]
    raised = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    return raised / raised.sum()


def acceptance(target: ds.Model, drafter: ds.Model, temperature: float, positions: int) -> None:
    coupled: list[bool] = []
    independent: list[bool] = []
    promised: list[float] = []
    factory = RowFactory(target.config.vocab_size)
    for prompt, text, params in sampled_texts(target, temperature, positions):
        tokens = [*prompt, *text]
        p, q = (model.logits(tokens[:-1])[len(prompt) - 1 :] for model in (target, drafter))
        rows = [CoupledRow(factory.row(each, prompt)) for each in (params, replace(params, seed=2**63 + params.seed))]
        for place, token in enumerate(text):
            past = tokens[: len(prompt) + place]
            for row, same in zip(rows, (coupled, independent), strict=True):
                row.follow(past)
                same.append(row.draw(q[place]) == token)
            ours, theirs = (distribution(logits[place], temperature) for logits in (p, q))
            variation = np.abs(ours - theirs).sum() / 2
            promised.append((1 - variation) / (1 + variation))
    count, rate = len(coupled), float(np.mean(coupled))
    error = (rate * (1 - rate) / count) ** 0.5
    print(
        f"  temperature {temperature:<4} {count} positions: accepted {rate:.3f} (standard error {error:.3f}), "
        f"promised {np.mean(promised):.3f}, with another seed {np.mean(independent):.3f}"
    )
    assert rate >= np.mean(promised) - 2 * error, "fewer drafts are accepted than coupling promises"


def main() -> None:
    chosen = options(
        __doc__, {"cases": CASES}, rounds=7, cases=("text", "rows"), draft="auto", temperatures=(0.0, 0.7, 1.0), tokens=128,
        rows=(1, 4, 16), file="", positions=5000, noise=0.1,
    )  # fmt: skip
    model = ds.load(chosen.file or DEFAULT_MODEL, threads=chosen.threads)
    if "acceptance" in chosen.cases:
        print(f"{model.decoder.description}; a copy with noise {chosen.noise} on its weights drafts")
        with tempfile.TemporaryDirectory() as folder:
            drafter = ds.load(write_noisy(Path(model.path), Path(folder) / "noisy.gguf", chosen.noise), threads=chosen.threads)
            for temperature in chosen.temperatures:
                acceptance(model, drafter, temperature, chosen.positions)
    if set(chosen.cases) == {"acceptance"}:
        return
    report = Report("drafts", chosen.threads)
    draft = chosen.draft if chosen.draft in ("auto", "lookup", "mtp") else ds.load(chosen.draft, threads=chosen.threads)
    for temperature in chosen.temperatures:
        for task in TASKS if "text" in chosen.cases else ():
            compare(report, f"{task}, temperature {temperature}", model, draft, [task], chosen, temperature)
        for rows in chosen.rows if "rows" in chosen.cases else ():
            tasks = [("edit", "question")[i % 2] for i in range(rows)]
            compare(report, f"{rows} rows, temperature {temperature}", model, draft, tasks, chosen, temperature)
    report.save()


if __name__ == "__main__":
    run_main(main)
