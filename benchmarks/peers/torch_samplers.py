"""torch.argmax; torch.topk first; a sort of every row, as GPU servers without a kernel do, eager and compiled.

All of them work on float32, draw by an exponential race, and patch penalties in by gather and scatter.
"""

from __future__ import annotations

import numpy as np
import torch

from decodestep.ops.decode_step import steps as s
from measuring.sampling import Case, Logits, UnableError


class Argmax:
    ties = "kept"

    def __init__(self, case: Case) -> None:
        if not (case.alike and case.params[0].greedy):
            raise UnableError("greedy only")

    def sample(self, logits: Logits) -> np.ndarray:
        return logits.tensor.argmax(-1).numpy()


class _Filters:
    """Patches, then `filtered(scores) -> (probabilities, ids or None)`, then the race."""

    ties = "cut"

    def __init__(self, case: Case) -> None:
        params = case.params[0]
        if not case.alike:
            raise UnableError("the same parameters for all rows")
        if params.greedy:
            raise UnableError("greedy is torch.argmax")
        self.t, self.k, self.p, self.m = params.temperature, params.top_k, params.top_p, params.min_p
        self.penalty = params.repetition_penalty
        self.seen = torch.from_numpy(case.histories) if self.penalty != 1 else None
        self.banned = self._banned(case) if params.no_repeat_ngram_size else None

    @staticmethod
    def _banned(case: Case) -> torch.Tensor:
        """(B, n) ids that would repeat an n-gram, made beforehand: a server keeps them as the tokens come."""
        bans = [next(step.ids for step in steps if isinstance(step, s.Ban)) for steps in case.steps()]
        width = max(map(len, bans))
        return torch.from_numpy(np.stack([np.pad(ids, (0, width - len(ids)), mode="edge") for ids in bans]))

    def _patched(self, scores: torch.Tensor) -> torch.Tensor:
        if self.seen is not None:
            scores = scores.float()  # or what is penalised would be rounded to bfloat16
            old = scores.gather(1, self.seen)
            scores = scores.scatter(1, self.seen, torch.where(old < 0, old * self.penalty, old / self.penalty))
        if self.banned is not None:
            scores = scores.scatter(1, self.banned, -torch.inf)
        return scores

    def _cut(self, values: torch.Tensor) -> torch.Tensor:
        """Probabilities of descending scores, after top-p and min-p."""
        probs = values.softmax(-1)
        if self.p < 1:
            probs = probs.masked_fill(probs.cumsum(-1) - probs >= self.p, 0)
        if self.m > 0:
            probs = probs.masked_fill(probs < self.m * probs[:, :1], 0)
        return probs / probs.sum(-1, keepdim=True)

    def filtered(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        raise NotImplementedError

    def draw(self, scores: torch.Tensor) -> torch.Tensor:
        probs, ids = self.filtered(scores)
        best = (probs / torch.empty_like(probs).exponential_()).argmax(-1, keepdim=True)
        return (best if ids is None else ids.gather(1, best)).squeeze(1)

    def sample(self, logits: Logits) -> np.ndarray:
        return self.draw(logits.tensor).numpy()

    def kept(self, logits: Logits, row: int) -> tuple[np.ndarray, np.ndarray]:
        probs, ids = self.filtered(logits.tensor)
        at = probs[row].nonzero().squeeze(1)
        return (at if ids is None else ids[row, at]).numpy(), probs[row, at].numpy()


class TopKFirst(_Filters):
    def __init__(self, case: Case) -> None:
        super().__init__(case)
        if not self.k:
            raise UnableError("needs a top-k")

    def filtered(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        values, ids = self._patched(scores).topk(self.k, -1)
        return self._cut(values.float() / self.t), ids


class Sort(_Filters):
    def filtered(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        scores = self._patched(scores.float()) / self.t
        if not self.k and self.p >= 1:  # nothing needs an order
            probs = scores.softmax(-1)
            if self.m > 0:
                probs = probs.masked_fill(probs < self.m * probs.amax(-1, keepdim=True), 0)
                probs = probs / probs.sum(-1, keepdim=True)
            return probs, None
        values, ids = scores.sort(dim=-1, descending=True)
        if self.k:
            values = values.masked_fill(torch.arange(values.shape[1]) >= self.k, -torch.inf)
        return self._cut(values), ids


class CompiledSort(Sort):
    def __init__(self, case: Case) -> None:
        super().__init__(case)
        torch.compiler.reset()  # of one function it compiles eight shapes, and runs further ones as they are
        self.draw = torch.compile(super().draw, dynamic=False)
        self.filtered = torch.compile(super().filtered, dynamic=False)
