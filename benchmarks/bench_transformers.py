"""transformers' DeepSeek-V2 accelerated, against itself: a decode step, a prompt, and the sampling part of a step.

    python benchmarks/bench_transformers.py [--cases decode prefill sampling] [--contexts 256 1024 4096 16384] [--batches 1 8]
        [--dtypes float32 bfloat16] [--feed_forward dense] [--layers 2] [--prompt 512] [--rounds 9] [--threads 1]

Layers have the sizes of DeepSeek-V2-Lite with random weights, and a small vocabulary; contexts are random latents. A step is
the whole forward pass of one token a row, after which the cache is cropped, untimed. Verified first: the logits of a step are
those of sdpa. "sdpa" and "eager" are unaccelerated models with the same weights. The floor is one read of the
layers' weights, of the experts those of one token, and of the latents. Sampling goes from rows of bfloat16 logits to their
tokens, as `generate` does it and with `Sampler`, at a vocabulary of 128256 after 1024 tokens.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

import decodestep as ds
from measuring.harness import Prepared, Report, options, run_main

try:
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, DynamicCache, LogitsProcessorList
    from transformers.generation import logits_process as theirs
except ModuleNotFoundError as error:
    print(f"bench_transformers: {error.name} is not installed: pip install 'decodestep[transformers]'")
    sys.exit(0)

from decodestep.integrations.transformers import LatentLayer, accelerate

CASES, FORWARDS = ("decode", "prefill", "sampling"), ("dense", "experts")
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2}
VOCABULARY, HISTORY = 128256, 1024
ACCELERATED = "decodestep"


def model_of(layers: int, feed_forward: str, dtype: str) -> Any:
    config = DeepseekV2Config(
        vocab_size=1024,
        hidden_size=2048,
        intermediate_size=2816,
        moe_intermediate_size=1408,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=16,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        n_routed_experts=64,
        n_shared_experts=2,
        num_experts_per_tok=6,
        first_k_dense_replace=layers if feed_forward == "dense" else 0,
        max_position_embeddings=32768,
    )
    torch.manual_seed(0)
    config._attn_implementation = "sdpa"
    return DeepseekV2ForCausalLM(config).eval().to(getattr(torch, dtype))


def cache_of(model: Any, batch: int, context: int, grows: bool) -> DynamicCache:
    """A cache with random latents."""
    cache, generator = DynamicCache(config=model.config), torch.Generator().manual_seed(1)
    for layer in range(model.config.num_hidden_layers):
        if grows:
            cache.layers[layer] = LatentLayer()
        parts = [torch.randn(batch, 1, context, width, generator=generator).to(model.dtype) for width in (512, 64)]
        cache.update(*parts, layer)
    return cache


def step_of(model: Any, attention: str, cache: DynamicCache, batch: int) -> Prepared:
    ids, context = torch.full((batch, 1), 7), cache.get_seq_length()

    def prepare() -> None:
        model.set_attn_implementation(attention)
        cache.crop(context - cache.get_seq_length())

    @torch.inference_mode()
    def call() -> torch.Tensor:
        return model(ids, past_key_values=cache).logits

    return Prepared(torch.no_grad()(prepare), call)


def logits_of(step: Prepared) -> torch.Tensor:
    step.prepare()
    return step.call()


def verify(actual: torch.Tensor, expected: torch.Tensor, dtype: str) -> None:
    error = float((actual - expected).abs().max() / expected.abs().max())
    assert error <= TOLERANCE[dtype], error
    print(f"verified: logits within {error:.1e} of the largest")


def share(name: str) -> float:
    """How much of a weight one token reads: six experts of 64, and all else."""
    return 6 / 64 if ".experts." in name else 1.0


def decode(report: Report, chosen: Any) -> None:
    for dtype in chosen.dtypes:
        for feed_forward in chosen.feed_forward:
            stock = model_of(chosen.layers, feed_forward, dtype)
            weights = sum(p.nbytes * share(name) for name, p in stock.model.layers.named_parameters())
            model = copy.deepcopy(stock)
            accelerate(model)
            models = {ACCELERATED: model, "sdpa": stock, "eager": stock}
            for batch in chosen.batches:
                for context in chosen.contexts:
                    caches = {name: cache_of(model, batch, context, name == ACCELERATED) for name in (ACCELERATED, "sdpa")}
                    caches["eager"] = caches["sdpa"]
                    steps = {name: step_of(models[name], name, cache, batch) for name, cache in caches.items()}
                    verify(logits_of(steps[ACCELERATED]), logits_of(steps["sdpa"]), dtype)
                    size = weights + chosen.layers * batch * context * 576 * model.dtype.itemsize
                    name = f"decode {feed_forward} {dtype} B={batch} context {context}, {chosen.layers} layers"
                    report.case(name, steps, chosen.rounds, size)


def prefill(report: Report, chosen: Any) -> None:
    ids = torch.arange(chosen.prompt)[None] % 1024
    for dtype in chosen.dtypes:
        stock = model_of(chosen.layers, "dense", dtype)
        model = copy.deepcopy(stock)
        accelerate(model)

        def call(model: Any) -> torch.Tensor:
            with torch.inference_mode():
                return model(ids, past_key_values=DynamicCache(config=model.config)).logits

        models = {ACCELERATED: model, "sdpa": stock}
        calls = {name: Prepared(lambda: None, functools.partial(call, each)) for name, each in models.items()}
        verify(logits_of(calls[ACCELERATED]), logits_of(calls["sdpa"]), dtype)
        report.case(f"prefill dense {dtype} {chosen.prompt} tokens, {chosen.layers} layers", calls, chosen.rounds)


SAMPLINGS = {
    "greedy": ds.SamplingParams(do_sample=False, max_new_tokens=None),
    "top-k, top-p": ds.SamplingParams(temperature=0.7, top_k=50, top_p=0.9, seed=1, max_new_tokens=None),
}


def sampling(report: Report, chosen: Any) -> None:
    for batch in chosen.batches:
        for name, params in SAMPLINGS.items():
            ids = torch.randint(VOCABULARY, (batch, HISTORY))
            logits = (torch.randn(batch, VOCABULARY) * 2.5).bfloat16()
            chain = LogitsProcessorList()
            if params.do_sample:
                chain += [
                    theirs.TemperatureLogitsWarper(params.temperature),
                    theirs.TopKLogitsWarper(params.top_k),
                    theirs.TopPLogitsWarper(params.top_p),
                ]
            sampler = ds.Sampler(params, vocab_size=VOCABULARY, prompt_ids=ids.tolist())
            verify_kept(chain(ids, logits.float()).isfinite(), sampler.processed(logits).isfinite(), logits.float())

            def ours(sampler: Any = sampler, logits: torch.Tensor = logits, ids: torch.Tensor = ids) -> torch.Tensor:
                return torch.cat([ids, sampler.step(logits).tokens[:, None]], -1)

            calls: dict[str, Callable[[], Any]] = {"ours, Sampler": ours, "transformers": stock(chain, logits, ids, params)}
            report.case(f"sampling {name} bfloat16 B={batch} V={VOCABULARY}", calls, chosen.rounds)


def verify_kept(theirs: torch.Tensor, ours: torch.Tensor, logits: torch.Tensor) -> None:
    """Both keep the same tokens, but for those that share the smallest kept logit: of these a sum decides."""
    smallest = logits.masked_fill(~(theirs | ours), torch.inf).amin(1, keepdim=True)
    assert ((theirs == ours) | (logits == smallest)).all()
    print("verified: the same tokens are kept")


def stock(chain: Any, logits: torch.Tensor, ids: torch.Tensor, params: ds.SamplingParams) -> Callable[[], torch.Tensor]:
    """What `_sample` does between the logits and the longer ids."""

    def call() -> torch.Tensor:
        scores = chain(ids, logits.to(copy=True, dtype=torch.float32))
        tokens = torch.multinomial(scores.softmax(-1), 1).squeeze(1) if params.do_sample else scores.argmax(-1)
        return torch.cat([ids, tokens[:, None]], -1)

    return call


def main() -> None:
    chosen = options(
        __doc__,
        {"cases": CASES, "dtypes": tuple(TOLERANCE), "feed_forward": FORWARDS},
        cases=CASES,
        contexts=(256, 1024, 4096),
        batches=(1,),
        dtypes=("float32",),
        feed_forward=("dense",),
        layers=2,
        prompt=512,
    )
    report = Report("transformers", chosen.threads)
    for case in chosen.cases:
        {"decode": decode, "prefill": prefill, "sampling": sampling}[case](report, chosen)
    report.save()


if __name__ == "__main__":
    run_main(main)
