"""expert_router against the routers of transformers."""

from __future__ import annotations

import numpy as np

import decodestep as ds
from measuring.harness import Call, Report, options, run_main, torch

# experts, used, groups, kept groups: of DeepSeek-V2-Lite, V2 and V3
SIZES = {"softmax": [(64, 6, 1, 1), (160, 6, 8, 3)], "sigmoid": [(64, 6, 1, 1), (256, 8, 8, 4)]}
TOKENS = (1, 8, 512)


def in_torch(logits: np.ndarray, scores: str, used: int, groups: int, kept: int) -> Call:
    x = torch.from_numpy(logits)
    tokens, experts = logits.shape

    def call() -> np.ndarray:
        score = x.softmax(-1) if scores == "softmax" else x.sigmoid()
        choice = score
        if kept < groups:
            grouped = score.view(tokens, groups, -1)
            group = grouped.max(-1).values if scores == "softmax" else grouped.topk(2, -1)[0].sum(-1)
            mask = torch.zeros_like(group).scatter_(1, group.topk(kept, -1, sorted=False)[1], 1)
            mask = mask.unsqueeze(-1).expand(-1, -1, experts // groups).reshape(tokens, experts)
            choice = score.masked_fill(~mask.bool(), float("-inf"))
        chosen = choice.topk(used, -1, sorted=False)[1]
        return np.sort(score.gather(1, chosen).numpy(), axis=1)

    return call


def main() -> None:
    chosen = options(__doc__)
    report = Report("expert_router", chosen.threads)
    rng = np.random.default_rng(0)
    for scores, sizes in SIZES.items():
        for experts, used, groups, kept in sizes:
            for tokens in TOKENS:
                logits = rng.standard_normal((tokens, experts), np.float32)
                rule = {"scores": scores, "groups": groups, "kept_groups": kept,
                        "group_score": "maximum" if scores == "softmax" else "top_two"}  # fmt: skip
                calls: dict[str, Call] = {"ours": lambda x=logits, k=used, rule=rule: ds.expert_router(x, k, **rule)}
                expected = np.sort(ds.expert_router(logits.astype(np.float64), used, **rule).weights, axis=1)
                assert np.allclose(np.sort(calls["ours"]().weights, axis=1), expected, rtol=1e-5)
                if torch is not None:
                    calls["torch"] = in_torch(logits, scores, used, groups, kept)
                    assert np.allclose(calls["torch"](), expected, rtol=1e-5)
                report.case(f"{scores} E={experts} K={used} T={tokens}", calls, chosen.rounds, logits.nbytes)
    report.save()


if __name__ == "__main__":
    run_main(main)
