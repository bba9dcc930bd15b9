"""A GGUF file in transformers on the CPU: with its blocks kept, and decoded as transformers does alone.

    python examples/transformers_gguf.py model.Q4_K_M.gguf [--alone] [--threads 2] [--prompt 128] [--tokens 20] [--rounds 3]

Prints what a model takes to load, the memory that it adds, and the times of a prompt and of a token, as medians. With --alone
the model is loaded a second time without `register_gguf`; the two take turns, and their logits of the prompt are compared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from decodestep.integrations.transformers import register_gguf


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--alone", action="store_true", help="load the file without register_gguf too")
    parser.add_argument("--threads", type=int, help="torch's; those of decodestep are DECODESTEP_THREADS")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    with register_gguf():
        models = {"blocks": load(options.file)}
    if options.alone:
        models["alone"] = load(options.file)
    ids = torch.randint(models["blocks"].config.vocab_size, (1, options.prompt), generator=torch.Generator().manual_seed(0))
    times: dict[str, list[list[float]]] = {name: [] for name in models}
    logits = {}
    for _ in range(options.rounds):
        for name, model in models.items():
            logits[name], taken = run(model, ids, options.tokens)
            times[name].append(taken)
    for name, rounds in times.items():
        prompt = statistics.median(taken[0] for taken in rounds)
        token = statistics.median(seconds for taken in rounds for seconds in taken[1:])
        print(
            f"{name}: {prompt * 1e3:.0f} ms for {options.prompt} tokens of a prompt, {token * 1e3:.1f} ms for each further one"
        )
    if options.alone:
        difference = (logits["blocks"] - logits["alone"]).square().mean().sqrt() / logits["alone"].square().mean().sqrt()
        same = (logits["blocks"].argmax(-1) == logits["alone"].argmax(-1)).float().mean()
        print(f"logits: {difference:.2%} apart, root mean square; {same:.0%} of the positions have the same likeliest token")


def load(file: Path) -> Any:
    before, start = resident(), time.perf_counter()
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    seconds, added = time.perf_counter() - start, resident() - before
    print(f"loaded in {seconds:.1f} s, {added >> 20} MiB more memory; the file has {file.stat().st_size >> 20} MiB")
    return model


def resident() -> int:
    """Bytes of this process in memory, 0 where Linux does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS")), 0)


@torch.inference_mode()
def run(model: Any, ids: torch.Tensor, tokens: int) -> tuple[torch.Tensor, list[float]]:
    """The logits of a prompt, and the seconds that it and each of the greedy tokens after it take."""
    taken, cache, new, logits = [], None, ids, ids
    for i in range(1 + tokens):
        start = time.perf_counter()
        out = model(new, past_key_values=cache, use_cache=True)
        cache, new = out.past_key_values, out.logits[:, -1:].argmax(-1)
        taken.append(time.perf_counter() - start)
        logits = out.logits if i == 0 else logits
    return logits, taken


if __name__ == "__main__":
    main()
