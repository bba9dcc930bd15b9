"""vLLM with what it lacks, request by request: DRY, XTC, top-n-sigma, and a seed that no batch changes.

Usage: python examples/vllm_sampling.py [MODEL]
"""

from __future__ import annotations

import argparse

from vllm import LLM, SamplingParams

PROMPTS = ["Once upon a time", "The sky is blue because", "My favourite word is"]
FIELDS = [{"dry_multiplier": 0.8}, {"xtc_probability": 0.5}, {"top_n_sigma": 1.0}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    llm = LLM(parser.parse_args().model, logits_processors=["decodestep.integrations.vllm:Processor"])
    params = [SamplingParams(seed=7, max_tokens=24, extra_args={"decodestep": fields}) for fields in FIELDS]
    for batch in (PROMPTS, PROMPTS[1:]):  # the second and third text twice the same
        for output in llm.generate(batch, params[-len(batch) :]):
            print(repr(output.outputs[0].text))


if __name__ == "__main__":
    main()
