"""The two base classes of processors, and what several groups of them need."""

from __future__ import annotations

from typing import Any

from array_api_compat import device

from decodestep._base.array_api import namespace, repeat_rows
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.checks import Phrase, refuse, require
from decodestep._base.signatures import read_signature


class LogitsProcessor:
    """A function (input_ids, scores) -> scores: ids [batch, length], scores [batch, vocab], both NumPy or both torch.

    The result has the dtype, device and kind of `scores`. `scores` itself is never written to; a processor with nothing to do
    may return it.
    """

    # Read by transformers' continuous batching: whether rows of different lengths may share a call; None where not known.
    supports_continuous_batching: bool | None = None

    # Whether an object keeps state between calls. Such an object serves one row, or one batch that is always called as a
    # whole; a Sampler refuses it for a second row.
    stateful: bool = False

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        raise NotImplementedError(f"{type(self).__name__}: a subclass must define __call__")


class LogitsProcessorList(list[Any]):
    """A list of processors that is called like a processor: each takes the scores that the previous one returned.

    A processor whose call has more parameters than (input_ids, scores) gets every keyword argument of this call; ValueError if
    one of those parameters is missing.

    Source:
        transformers 5.23's class of this name.
    """

    def __call__(self, input_ids: Array, scores: ArrayT, **kwargs: object) -> ArrayT:
        for processor in self:
            extra = list(read_signature(processor.__call__).parameters)[2:]
            missing = [name for name in extra if name not in kwargs]
            if missing:
                refuse("LogitsProcessorList", ", ".join(missing), f"given for {type(processor).__name__}", Phrase("nothing"))
            scores = processor(input_ids, scores, **kwargs) if extra else processor(input_ids, scores)
        return scores


def rows_of_encoder(op: str, encoder_ids: Array, scores: Array) -> Array:
    """The encoder's ids for each row of scores, of which a row of ids serves an equal number, such as beams."""
    xp, rows, batch = namespace(scores), encoder_ids.shape[0], scores.shape[0]
    serves = batch == rows or (0 < rows <= batch and batch % rows == 0)
    require(serves, op, "scores", f"of a multiple of {rows} rows", scores)
    ids: Array = xp.asarray(encoder_ids, device=device(scores))
    return ids if batch == rows else repeat_rows(xp, ids, batch // rows)
