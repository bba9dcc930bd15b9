"""llama-cpp-python with our sampling: the same seed, the same text, and what llama.cpp's own arguments lack.

Usage: python examples/llama_cpp_sampling.py MODEL.gguf
"""

from __future__ import annotations

import argparse

import llama_cpp

from decodestep import SamplingParams
from decodestep.integrations.llama_cpp import sampling

PARAMS = (
    SamplingParams(top_p=0.9, seed=7),
    SamplingParams(temperature=1.5, top_n_sigma=1.0, dry_multiplier=0.8, seed=7),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--tokens", type=int, default=24)
    chosen = parser.parse_args()
    llm = llama_cpp.Llama(chosen.model, n_ctx=512, verbose=False)
    for params in PARAMS:
        with sampling(llm, params):
            for _ in range(2):
                text = llm.create_completion(chosen.prompt, max_tokens=chosen.tokens)["choices"][0]["text"]
                print(repr(text))


if __name__ == "__main__":
    main()
