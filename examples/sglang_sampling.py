"""SGLang with what it lacks, request by request, and with our sampler behind it.

Usage: python examples/sglang_sampling.py [MODEL]
"""

from __future__ import annotations

import argparse

import sglang

from decodestep.integrations.sglang import Processor, custom_params

PROMPTS = ["Once upon a time", "The sky is blue because", "My favourite word is"]
FIELDS = [{"dry_multiplier": 0.8}, {"xtc_probability": 0.5}, {"top_n_sigma": 1.0}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    engine = sglang.Engine(
        model_path=parser.parse_args().model,
        enable_custom_logit_processor=True,
        disable_overlap_schedule=True,
        sampling_backend="decodestep",
    )
    params = [{"max_new_tokens": 24, "sampling_seed": 7, "custom_params": custom_params(**fields)} for fields in FIELDS]
    for text in engine.generate(PROMPTS, params, custom_logit_processor=[Processor.to_str()] * 3):
        print(repr(text["text"]))
    engine.shutdown()


if __name__ == "__main__":
    main()
