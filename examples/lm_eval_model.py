"""lm-evaluation-harness's interface on a model of ours: which of two endings is more likely, and how likely a text is.

Usage: python examples/lm_eval_model.py [--model MODEL]
"""

from __future__ import annotations

import argparse

from lm_eval.api.instance import Instance

from decodestep.integrations.lm_eval import DecodestepLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="what decodestep.load takes; without it, the default model")
    model = DecodestepLM(parser.parse_args().model)
    pairs = [("The sky is", " blue"), ("The sky is", " a spoon")]
    scores = model.loglikelihood([Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)])
    for (context, ending), (score, greedy) in zip(pairs, scores, strict=True):
        print(f"{context}{ending}: {score:.3f}{', the most likely' if greedy else ''}")
    text = "The quick brown fox jumps over the lazy dog."
    print(f"{text} {model.loglikelihood_rolling([Instance('loglikelihood_rolling', {}, (text,), 0)])[0]:.3f}")


if __name__ == "__main__":
    main()
