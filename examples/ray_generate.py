"""Ray Data with one model an actor: eight prompts, each with its own temperature and key.

Usage: python examples/ray_generate.py [--model MODEL]
"""

from __future__ import annotations

import argparse

import ray

from decodestep.integrations.ray import Generate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="what decodestep.load takes; without it, the default model")
    parser.add_argument("--actors", type=int, default=2)
    chosen = parser.parse_args()
    ray.init(num_cpus=chosen.actors + 1, include_dashboard=False)
    rows = [{"key": f"row {i}", "prompt": f"Number {i} is", "temperature": 0.2 + i / 10} for i in range(8)]
    texts = ray.data.from_items(rows).map_batches(
        Generate,
        fn_constructor_kwargs={"model": chosen.model, "params": {"max_new_tokens": 12, "top_p": 0.9}},
        compute=ray.data.ActorPoolStrategy(size=chosen.actors),
        num_cpus=1,
        batch_size=4,
    )
    for row in sorted(texts.take_all(), key=lambda row: row["key"]):
        print(row["key"], repr(row["completion"]), row["error"])


if __name__ == "__main__":
    main()
