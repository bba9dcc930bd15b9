"""transformers' own processors, in the order of its `generate`, then softmax and multinomial."""

from __future__ import annotations

import numpy as np
import torch
from transformers import generation as hf

from measuring.sampling import Case, Logits, UnableError


class Chain:
    ties = "kept"

    def __init__(self, case: Case) -> None:
        params = case.params[0]
        if not case.alike:
            raise UnableError("the same parameters for all rows")
        self.greedy, self.ids = params.greedy, torch.from_numpy(case.histories)
        chain = hf.LogitsProcessorList()
        if params.repetition_penalty != 1:
            chain.append(hf.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
        if params.no_repeat_ngram_size:
            chain.append(hf.NoRepeatNGramLogitsProcessor(params.no_repeat_ngram_size))
        if not params.greedy:
            chain.append(hf.TemperatureLogitsWarper(params.temperature))
            if params.top_k:
                chain.append(hf.TopKLogitsWarper(params.top_k))
            if params.top_p < 1:
                chain.append(hf.TopPLogitsWarper(params.top_p))
            if params.min_p:
                chain.append(hf.MinPLogitsWarper(params.min_p))
        self.chain = chain

    def _processed(self, logits: Logits) -> torch.Tensor:
        return self.chain(self.ids, logits.tensor.float())  # as generate does: a copy where it is not float32

    def sample(self, logits: Logits) -> np.ndarray:
        scores = self._processed(logits)
        return (scores.argmax(-1) if self.greedy else torch.multinomial(scores.softmax(-1), 1).squeeze(1)).numpy()

    def kept(self, logits: Logits, row: int) -> tuple[np.ndarray, np.ndarray]:
        scores = self._processed(logits)[row]
        ids = scores.isfinite().nonzero().squeeze(1)
        return ids.numpy(), scores.softmax(-1)[ids].numpy()
