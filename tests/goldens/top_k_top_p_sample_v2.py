"""TopKTopPSampleV2's golden: the 214 cases of its test bench."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import decodestep as ds
from goldens.bench_cases import draw, off
from goldens.source import Case, Golden, Source, quiet

_FOLDER = "index/top_k_top_p_sample_v2/tests/st/aclnnTopKTopPSampleV2"
SOURCE = Source("hicann/ops-nn", "e5c3fa9327ea95ba26d06227e746923580d10921", (_FOLDER,))


def cases(golden: Golden) -> Iterator[Case]:
    api = golden.module(f"{_FOLDER}/executor_aclnnTopKTopPSampleV2.py").FunctionTopKTopPSampleV2Api()
    for case in golden.json(f"{_FOLDER}/atk_aclnnTopKTopPSampleV2.json"):
        yield Case(f"{case['id']}", lambda case=case: _compare(api, draw(case)))


def _compare(api: Any, given: dict[str, Any]) -> str:
    """Ids and masked logits are compared exactly, values to 1e-5."""
    with quiet():
        index, masked, ids, values = api(SimpleNamespace(kwargs=dict(given)))
    call = dict(given)
    logits, k, p, q = (call.pop(name) for name in ("logits", "top_k", "top_p", "q"))
    call["top_k_guess"] = max(0, call["top_k_guess"])  # a hint that changes nothing; here it is no negative number
    listed = call["is_need_sample_result"]
    ours = ds.top_k_top_p_sample_v2(logits, k, p, None if listed else q, **call)
    text = off(ours.logits_top_kp_select, masked, "logits_top_kp_select") if call["is_need_logits"] else ""
    if not listed:
        return text + off(ours.logits_select_idx, index, "logits_select_idx")
    return text + off(ours.logits_idx, ids, "logits_idx") + off(ours.logits_sort_masked, values, "logits_sort_masked", 1e-5)
