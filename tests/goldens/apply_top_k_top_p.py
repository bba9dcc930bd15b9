"""ApplyTopKTopP's golden: the 210 cases of its test bench."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import decodestep as ds
from goldens.bench_cases import draw, off
from goldens.source import Case, Golden, Source, quiet

_FOLDER = "index/apply_top_k_top_p_with_sorted/tests/st/aclnnApplyTopKTopP"
SOURCE = Source("hicann/ops-nn", "e5c3fa9327ea95ba26d06227e746923580d10921", (_FOLDER,))


def cases(golden: Golden) -> Iterator[Case]:
    api = golden.module(f"{_FOLDER}/executor_aclnnApplyTopKTopP.py").AclnnIndexPut()
    for number, case in enumerate(golden.json(f"{_FOLDER}/atk_aclnnApplyTopKTopP.json")):
        yield Case(f"{number}", lambda case=case, number=number: _compare(api, draw(case | {"id": number})))


def _compare(api: Any, given: dict[str, Any]) -> str:
    with quiet():
        want = api(SimpleNamespace(kwargs={name: value.clone() for name, value in given.items()}))
    return off(ds.apply_top_k_top_p(given["logits"], given["p"], given["k"]), want, "logits")
