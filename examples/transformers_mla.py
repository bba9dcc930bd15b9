"""What `accelerate` does to a DeepSeek model of transformers: the milliseconds of a token by the length of the context.

    python examples/transformers_mla.py                       # 2 layers of DeepSeek-V2-Lite's sizes, random weights
    python examples/transformers_mla.py --model FOLDER        # a checkpoint
    python examples/transformers_mla.py --plot tokens.png     # needs matplotlib

Each context is decoded with the model as it is and accelerated, and the logits of both are compared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DeepseekV2Config, DynamicCache

from decodestep.integrations.transformers import accelerate, sampling

STEPS = 5


def load_model(name: str | None, hidden: int) -> Any:
    """A checkpoint, or without a name a model of random weights."""
    if name:
        return AutoModelForCausalLM.from_pretrained(name).eval()
    config = DeepseekV2Config(
        vocab_size=1024,
        hidden_size=hidden,
        intermediate_size=2816,
        num_hidden_layers=2,
        num_attention_heads=16,
        num_key_value_heads=16,
        q_lora_rank=None,
        first_k_dense_replace=2,
        max_position_embeddings=32768,
    )
    return AutoModelForCausalLM.from_config(config).eval()


@torch.inference_mode()
def decode(model: Any, context: int) -> tuple[float, torch.Tensor]:
    """Milliseconds a token after a context, the median of some, and the logits of the last."""
    cache = DynamicCache(config=model.config)
    ids = torch.arange(context + STEPS)[None] % model.config.vocab_size
    for chunk in ids[:, :context].split(512, 1):
        model(chunk, past_key_values=cache, logits_to_keep=1)
    seconds = []
    for token in ids[:, context:].split(1, 1):
        start = time.perf_counter()
        logits = model(token, past_key_values=cache).logits
        seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds), logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a name or folder of a checkpoint; without it, random weights")
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--hidden", type=int, default=2048, help="the hidden size of the random model")
    parser.add_argument("--plot", help="write a plot to this file")
    chosen = parser.parse_args()
    if min(*chosen.contexts, chosen.hidden) < 1:
        parser.error("--contexts and --hidden must be at least 1")
    model = load_model(chosen.model, chosen.hidden)

    rows = []
    for context in chosen.contexts:
        stock, expected = decode(model, context)
        with accelerate(model):
            ours, logits = decode(model, context)
        error = float((logits - expected).abs().max() / expected.abs().max())
        rows.append((context, stock, ours))
        print(f"context {context:6}: {stock:8.1f} ms a token as it is, {ours:7.1f} accelerated; logits within {error:.0e}")

    accelerate(model)  # without `with`, until .undo()
    new = model.generate(
        torch.tensor([[5, 6, 7]]), do_sample=True, top_p=0.9, max_new_tokens=8, custom_generate=sampling(seed=7)
    )
    print("generate, with our sampling:", new[0].tolist())
    if chosen.plot:
        draw(rows, chosen.plot)


def draw(rows: list[tuple[int, float, float]], path: str) -> None:
    from matplotlib import pyplot

    contexts, stock, ours = zip(*rows, strict=True)
    pyplot.loglog(contexts, stock, "o-", label="transformers")
    pyplot.loglog(contexts, ours, "o-", label="accelerated")
    pyplot.xlabel("tokens in the context")
    pyplot.ylabel("ms a token")
    pyplot.legend()
    pyplot.savefig(path)


if __name__ == "__main__":
    main()
