"""The default model against llama.cpp on the same file, and transformers: decode, prefill, batches, and accuracy.

    python benchmarks/bench_generate.py [--cases decode prefill batch samples] [--contexts 100 1000] [--prompts 40 400 1000]
        [--batch 8] [--threads 1 2] [--dtype auto] [--transformers ""|float32|bfloat16] [--rounds 7]
    python benchmarks/bench_generate.py --cases accuracy [--positions 2000]
    python benchmarks/bench_generate.py --file model.gguf ...
    python benchmarks/bench_generate.py --model 135m 0.6b 1b 3b v2-lite moonlight glm-flash youtu minicpm3 plm
        [--kind Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K_M Q5_K_M Q6_K IQ4_NL IQ4_XS MXFP4 F16 BF16]
        [--layers 27] [--experts 64] [--folder DIR] ...

With --model, files of the models' shapes with random weights are written to the folder and run one after another, in each kind
(Q4_0 if none is named) and on each number of threads. They have all layers and experts unless --layers and --experts say fewer,
for a machine whose memory is short; each file's line says how many. DECODESTEP_ISA=avx2 measures a lower instruction set;
LLAMA_CPP_LIB_PATH selects a llama.cpp built for the same one. IK_LLAMA_BENCH names the llama-bench of ik_llama.cpp, which is
then a peer of single sequences, with its weights as they are and in its own layouts; its results are not compared.

Steps are timed without sampling: from a token to the next logits. Each round times every peer once. Verified first: the most
likely tokens are the peer's, except near ties. The floor of a decoded token is one read of the weights and of the cache, at the
bandwidth of plain reads in the same rounds. llama.cpp runs with and without flash attention; the faster is the peer. Its PLM
graph takes one token per pass, and so no batch. A batch is also compared with its rows one after another.
Samples are a batch of one prompt of the longest context, beside rows of prompts that differ in their first token. Accuracy:
the KL divergence from transformers in float32, teacher-forced, and how often the most likely token agrees.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import itertools
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import decodestep as ds
from decodestep._base.checks import Phrase, require
from decodestep.decoding.step_decoder import PANEL_FORMATS, QUANTISED, StepDecoder
from decodestep.models import DEFAULT_MODEL
from measuring import random_models
from measuring.harness import Call, Report, Reported, Timed, options, run_main, torch
from peers import ik_llama

try:
    from peers.llama_cpp_model import LlamaCpp
except ImportError:  # its package is not installed
    LlamaCpp = None  # type: ignore[assignment, misc]

DTYPES = [*PANEL_FORMATS, *QUANTISED, "float32"]
CASES = ("accuracy", "decode", "batch", "samples", "prefill")
STEPS = 8  # tokens decoded in one timed call
TEXT = "\n".join(inspect.getsource(module) for module in (argparse, csv, inspect, statistics))


class Ours:
    def __init__(self, model: ds.Model, ids: np.ndarray, rows: int = 1) -> None:
        self.model, self.ids = model, ids
        self.sequences = [model.sequence(capacity=len(ids) + STEPS) for _ in range(rows)]

    def prefill(self, row: int = 0) -> np.ndarray:
        self.sequences[row].truncate(0)
        return self.model.forward([(self.sequences[row], self.ids)])

    def decode(self) -> None:
        for sequence in self.sequences:
            sequence.truncate(len(self.ids))
        for i in range(STEPS):
            self.model.forward([(sequence, [int(self.ids[i])]) for sequence in self.sequences])


class Theirs:
    def __init__(self, path: Path, ids: np.ndarray, threads: int, flash_attention: bool, rows: int = 1) -> None:
        self.ids, self.rows = ids, rows
        together = 1 if takes_one_token(path) else 512
        self.llama = LlamaCpp(
            path, len(ids) + STEPS, threads, flash_attention=flash_attention, sequences=rows, together=together
        )

    def prefill(self, row: int = 0) -> np.ndarray:
        if row == 0:
            self.llama.forget(0)
        return self.llama.evaluate(self.ids, 0, sequence=row)

    def decode(self) -> None:
        self.llama.forget(len(self.ids))
        for i in range(STEPS):
            self.llama.step([int(self.ids[i])] * self.rows, len(self.ids) + i)


def takes_one_token(path: Path) -> bool:
    """Whether llama.cpp (0.3.36) ends the process where a pass over this model has more than one token."""
    return path.name.startswith("plm-")


class Transformers:
    def __init__(self, path: Path, ids: np.ndarray, dtype: str) -> None:
        self.model, self.ids = transformers_model(path, dtype), torch.tensor([ids.tolist()])

    def prefill(self) -> None:
        with torch.no_grad():
            self.cache = self.model(self.ids, use_cache=True, logits_to_keep=1).past_key_values

    def decode(self) -> None:
        with torch.no_grad():
            for i in range(STEPS):
                self.model(self.ids[:, i : i + 1], past_key_values=self.cache, use_cache=True)
            self.cache.crop(-STEPS)


def transformers_model(path: Path, dtype: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=getattr(torch, dtype)).eval()


def tokens_of(model: ds.Model, count: int) -> np.ndarray:
    if len(model.tokenizer.encode("the")) > 2:  # a file of random weights, whose tokenizer knows no text
        return np.random.default_rng(0).integers(0, model.config.vocab_size - 1, count)
    ids = np.array(model.tokenizer.encode(TEXT))
    return np.resize(ids, count)


def bytes_of_a_step(model: ds.Model, context: int, rows: int) -> int:
    """What a step reads at least: of experts, those of one token; of each row's cache, everything."""
    decoder = model.decoder
    weights = read_weights(decoder.native_weights) if isinstance(decoder, StepDecoder) else 0
    return weights + rows * model.cache.page_bytes * context // 16


def read_weights(weights: ds.ops.DecoderWeights) -> int:
    """Bytes of the panels that a step of one token reads."""
    mixtures = [layer.feed_forward for layer in weights.layers if isinstance(layer.feed_forward, ds.ops.Mixture)]
    return weights.nbytes - sum(m.routed.nbytes // m.routed.count * (m.routed.count - m.rule.used) for m in mixtures)


def peers(model: ds.Model, ids: np.ndarray, chosen: Any, threads: int, rows: int = 1) -> dict[str, Any]:
    made: dict[str, Any] = {"ours": Ours(model, ids, rows)}
    together = LlamaCpp and (rows == 1 or not takes_one_token(model.path))
    for flash in (False, True) if together else ():
        made[f"llama.cpp, {'' if flash else 'no '}flash attention"] = Theirs(model.path, ids, threads, flash, rows)
    if chosen.transformers and rows == 1:
        made[f"transformers {chosen.transformers}"] = Transformers(model.path, ids, chosen.transformers)
    return made


def verify(made: dict[str, Any]) -> None:
    ours = made["ours"].prefill()[0]
    for name, peer in made.items():
        if name.startswith("llama"):
            theirs = peer.prefill()[0]
            assert ours[theirs.argmax()] > ours.max() - 2 and theirs[ours.argmax()] > theirs.max() - 2, name


def calls(made: dict[str, Any], verb: Callable[[Any], Call]) -> dict[str, Timed]:
    return {name: verb(peer) for name, peer in made.items()}


def ik_calls(model: ds.Model, threads: int, tokens: int, context: int | None) -> dict[str, Timed]:
    """Those of ik_llama.cpp's program, if it is named: of the model's file as it is, and in its own layouts."""

    def call(repacked: bool) -> Reported:
        return Reported(lambda: ik_llama.seconds_of(model.path, threads, tokens, context=context, repacked=repacked))

    return {f"ik_llama.cpp{', repacked' * repacked}": call(repacked) for repacked in (False, True) if ik_llama.BINARY}


def decode(model: ds.Model, report: Report, chosen: Any, context: int, rows: int = 1) -> None:
    ids = tokens_of(model, context)
    made = peers(model, ids, chosen, report.threads, rows)
    verify(made)
    for peer in made.values():  # those that `verify` has not filled
        for row in range(1, rows):
            peer.prefill(row)
        if isinstance(peer, Transformers):
            peer.prefill()
    read = bytes_of_a_step(model, context, rows)
    name = chosen.about + f"decode, context {context}" + (f", batch {rows}" if rows > 1 else "") + f", {STEPS} steps"
    timed = calls(made, lambda peer: peer.decode) | (ik_calls(model, report.threads, STEPS, context) if rows == 1 else {})
    if rows > 1 and LlamaCpp:
        alone = Theirs(model.path, ids, report.threads, flash_attention=True)
        alone.prefill()
        timed["llama.cpp, a row after the other"] = lambda: [alone.decode() for _ in range(rows)]
    report.case(name, timed, chosen.rounds, read * STEPS)


def prefill(model: ds.Model, report: Report, chosen: Any, prompt: int) -> None:
    made = peers(model, tokens_of(model, prompt), chosen, report.threads)
    verify(made)
    timed = calls(made, lambda peer: peer.prefill) | ik_calls(model, report.threads, prompt, None)
    report.case(f"{chosen.about}prefill, {prompt} tokens", timed, chosen.rounds)


def samples(model: ds.Model, report: Report, chosen: Any, context: int) -> None:
    """Rows that share the pages of a prompt, and rows that have pages of their own."""
    ids, rows = tokens_of(model, context), chosen.batch
    apart, shared = Ours(model, ids, rows), Ours(model, ids)
    for row, sequence in enumerate(apart.sequences):
        model.forward([(sequence, [row, *ids[1:].tolist()])])
    shared.prefill()
    shared.sequences += [shared.sequences[0].fork(capacity=len(ids) + STEPS) for _ in range(rows - 1)]
    timed = calls({"ours, one prompt": shared, "ours, prompts apart": apart}, lambda made: made.decode)
    read = bytes_of_a_step(model, context, 1)
    report.case(f"{chosen.about}{rows} samples, context {context}, {STEPS} steps", timed, chosen.rounds, read * STEPS)


def accuracy(model: ds.Model, positions: int) -> None:
    ids = tokens_of(model, positions)
    # llama.cpp takes a window of 512 at a time, and so does everybody.
    windows = np.array_split(ids, -(-positions // 512))
    exact = transformers_model(model.path, "float32")
    measured: dict[str, Callable[[np.ndarray], np.ndarray]] = {f"ours, {model.decoder.description}": model.logits}
    if LlamaCpp:
        llama = LlamaCpp(model.path, 512, 2, flash_attention=False)

        def theirs(window: np.ndarray) -> np.ndarray:
            llama.forget(0)
            return llama.evaluate(window, 0, every=True)

        measured["llama.cpp"] = theirs
    print(f"\nagainst transformers in float32, {positions} positions of program text")
    with torch.no_grad():
        true = [log_softmax(exact(torch.tensor([window.tolist()])).logits[0].numpy()) for window in windows]
    verify_distributions(true, windows, model)
    for name, logits in measured.items():
        found = [log_softmax(logits(window)) for window in windows]
        kl = np.concatenate([(np.exp(p) * (p - q)).sum(-1) for p, q in zip(true, found, strict=True)])
        same = np.concatenate([p.argmax(-1) == q.argmax(-1) for p, q in zip(true, found, strict=True)])
        print(f"  {name:40} KL {kl.mean():.2e} (standard error {kl.std() / len(kl) ** 0.5:.1e})   likeliest {same.mean():.2%}")


def verify_distributions(true: list[np.ndarray], windows: list[np.ndarray], model: ds.Model) -> None:
    """Our own float32 sees the same distributions: both read the same weights and the same tokens."""
    ours = log_softmax(ds.load(model.path, dtype="float32", threads=model.threads).logits(windows[0]))
    assert np.abs(np.exp(ours) - np.exp(true[0])).max() < 1e-3


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def main() -> None:
    chosen = options(__doc__, rounds=7, cases=("decode", "prefill", "batch", "samples"), contexts=(100, 1000),
                     prompts=(40, 400), batch=8, dtype="auto", transformers="", positions=2000, file="", model=("",),
                     kind=("",), layers=0, experts=0, threads=(1,), folder=tempfile.gettempdir(),
                     least={"layers": 0, "experts": 0},
                     choices={"cases": CASES, "transformers": ["", "float32", "bfloat16"],
                              "model": ["", *random_models.SHAPES], "kind": ["", *random_models.KINDS],
                              "dtype": DTYPES})  # fmt: skip
    refuse_what_would_not_count(chosen)
    if not LlamaCpp:
        print("left out: llama.cpp, whose package llama-cpp-python is not installed", file=sys.stderr)
    if "accuracy" in chosen.cases:
        accuracy(ds.load(chosen.file or DEFAULT_MODEL, dtype=chosen.dtype, threads=chosen.threads[0]), chosen.positions)
    if set(chosen.cases) == {"accuracy"}:
        return
    report = Report("generate", chosen.threads[0])
    for name, path in files(chosen):
        model = ds.load(path, dtype=chosen.dtype)
        if name:
            print(model.decoder.description)
        for threads in chosen.threads:
            report.threads = threads
            counted = f"{threads} thread(s)" if len(chosen.threads) > 1 else ""
            chosen.about = "".join(f"{part}, " for part in (name, counted) if part)
            with ds.use_threads(threads):
                measure(model, report, chosen)
    report.save()


def refuse_what_would_not_count(chosen: Any) -> None:
    """Refuses options that another one leaves out of account."""
    op, of_shape = "options", any(chosen.model)
    require(not of_shape or not chosen.file, op, "--file", "left out with --model, which writes files of its own", chosen.file)
    trained = "without accuracy, which needs trained weights, for a --model"
    require(not of_shape or "accuracy" not in chosen.cases, op, "--cases", trained, Phrase(" ".join(chosen.cases)))
    for name, default in (("kind", ("",)), ("layers", 0), ("experts", 0)):
        given = getattr(chosen, name)
        require(of_shape or given == default, op, f"--{name}", "left out without --model", given)
    for name in filter(None, chosen.model):
        random_models.require_sizes(name, chosen.layers, chosen.experts)


def files(chosen: Any) -> Iterator[tuple[str, Path | str]]:
    """The models to run, by what their cases are called: files that are written now, or the one that is given."""
    folder = Path(chosen.folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, kind in itertools.product(filter(None, chosen.model), [kind or "Q4_0" for kind in chosen.kind]):
        path = folder / f"{name}-{kind}-{chosen.layers}-{chosen.experts}.gguf"
        print("\n" + random_models.write(path, name, kind, layers=chosen.layers, experts=chosen.experts))
        yield f"{name} {kind}", path
    if not any(chosen.model):
        yield "", chosen.file or DEFAULT_MODEL


def measure(model: ds.Model, report: Report, chosen: Any) -> None:
    if "decode" in chosen.cases:
        for context in chosen.contexts:
            decode(model, report, chosen, context)
    if "batch" in chosen.cases:
        decode(model, report, chosen, 100, chosen.batch)
    if "samples" in chosen.cases:
        samples(model, report, chosen, max(chosen.contexts))
    if "prefill" in chosen.cases:
        for prompt in chosen.prompts:
            prefill(model, report, chosen, prompt)


if __name__ == "__main__":
    run_main(main)
