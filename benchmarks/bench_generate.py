"""generate on the default model against transformers in float32, decode and prefill, interleaved in one run.

    python benchmarks/bench_generate.py [--rounds 5] [--threads 2] [--tokens 32]

Verified first: the greedy tokens are the same. The floor of a decoded token is one read of the weights' blocks.
"""

from __future__ import annotations

import decodestep as ds
from harness import Report, options, torch

PROMPT = "The history of the Roman Empire began"


def transformers_model(path):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


def main() -> None:
    chosen = options(__doc__, rounds=5, threads=2, tokens=32)
    model = ds.load(threads=chosen.threads)
    ids = model.tokenizer.encode(PROMPT)
    long = model.tokenizer.encode("one two three four five six seven eight " * 50)[:400]
    params = ds.SamplingParams(do_sample=False, max_new_tokens=chosen.tokens, ignore_eos=True)
    one = ds.SamplingParams(do_sample=False, max_new_tokens=1, ignore_eos=True)
    decode = {"ours": lambda: ds.generate(model, [ids], params)}
    prefill = {"ours": lambda: ds.generate(model, [long], one)}
    if torch is not None:
        theirs = transformers_model(model.path)

        def run(prompt, count):
            with torch.no_grad():
                return theirs.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=count, min_new_tokens=count)

        mine = ds.generate(model, [ids], params)[0].token_ids
        assert run(ids, chosen.tokens)[0, len(ids) :].tolist() == mine
        decode["transformers float32"] = lambda: run(ids, chosen.tokens)
        prefill["transformers float32"] = lambda: run(long, 1)
    weights = model.decoder.weights
    read = sum(w.rows.nbytes for layer in weights.layers for w in vars(layer).values() if isinstance(w, ds.PackedWeight))
    report = Report("generate", chosen.threads)
    report.case(
        f"{len(ids)} tokens of prompt, {chosen.tokens} decoded",
        decode,
        chosen.rounds,
        (read + weights.output.rows.nbytes) * chosen.tokens,
    )
    report.case("400 tokens of prompt, 1 decoded", prefill, chosen.rounds)
    report.save()


if __name__ == "__main__":
    main()
