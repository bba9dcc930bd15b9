"""llama.cpp's sampler chain, through llama-cpp-python's C interface.

The samplers are in the fastest order that gives the same distribution: the temperature after top-k. The array of
candidates (id, logit, p) is filled by NumPy, 12 bytes a token; `apply_only` leaves that out. Rows are taken one by one,
as llama.cpp does. It has no ban of n-grams.
"""

from __future__ import annotations

import ctypes

import llama_cpp as api
import numpy as np

import decodestep as ds
from decodestep.ops.decode_step import steps as s
from measuring.sampling import HISTORY, Case, Logits

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Chain:
    ties = "cut"
    lacks = (s.Ban,)

    def __init__(self, case: Case) -> None:
        made: dict[tuple[int, bytes], int] = {}
        self.chains = []
        for params, ids in zip(case.params, case.histories, strict=True):
            key = (id(params), ids.tobytes() if params.repetition_penalty != 1 else b"")
            if key not in made:
                made[key] = _chain(params, ids, case.vocab)
            self.chains.append(made[key])
        self._owned = list(made.values())
        self.table = np.zeros(case.vocab, _CANDIDATE)
        self.ids = np.arange(case.vocab, dtype=np.int32)
        data = ctypes.cast(self.table.ctypes.data, ctypes.POINTER(api.llama_token_data))
        self.array = api.llama_token_data_array(data, case.vocab, -1, False)
        self.tokens = np.zeros(case.batch, np.int64)

    def __del__(self) -> None:
        for chain in getattr(self, "_owned", ()):
            api.llama_sampler_free(chain)

    def fill(self, logits: Logits, row: int) -> None:
        self.table["id"] = self.ids
        narrow = logits.array.dtype != np.float32 and logits.tensor is not None  # torch widens faster
        self.table["logit"] = logits.tensor[row].float().numpy() if narrow else logits.array[row]

    def apply_only(self, row: int) -> int:
        array = self.array
        array.size, array.selected, array.sorted = len(self.table), -1, False
        api.llama_sampler_apply(self.chains[row], ctypes.byref(array))
        return array.data[array.selected].id

    def sample(self, logits: Logits) -> np.ndarray:
        for b in range(len(self.tokens)):
            self.fill(logits, b)
            self.tokens[b] = self.apply_only(b)
        return self.tokens

    def kept(self, logits: Logits, row: int) -> tuple[np.ndarray, np.ndarray]:
        self.fill(logits, row)
        self.apply_only(row)
        left = self.table[: self.array.size]
        weight = np.exp(left["logit"].astype(np.float64) - left["logit"].max())
        return left["id"].astype(np.int64), weight / weight.sum()


def _chain(params: ds.SamplingParams, ids: np.ndarray, vocab: int) -> int:
    chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
    if params.repetition_penalty != 1:
        penalties = api.llama_sampler_init_penalties(vocab, HISTORY, params.repetition_penalty, 0.0, 0.0)
        api.llama_sampler_chain_add(chain, penalties)
    if params.greedy:
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_greedy())
    else:
        if params.top_k:
            api.llama_sampler_chain_add(chain, api.llama_sampler_init_top_k(params.top_k))
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_temp(params.temperature))
        if params.top_p < 1:
            api.llama_sampler_chain_add(chain, api.llama_sampler_init_top_p(params.top_p, 1))
        if params.min_p:
            api.llama_sampler_chain_add(chain, api.llama_sampler_init_min_p(params.min_p, 1))
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_dist(1))
    for token in ids.tolist():
        api.llama_sampler_accept(chain, token)
    return chain
