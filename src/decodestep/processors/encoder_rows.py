"""The ids of an encoder, for processors that compare a batch with them."""

from __future__ import annotations

from array_api_compat import device

from decodestep._base.array_api import namespace, repeat_rows
from decodestep._base.arrays import Array
from decodestep._base.checks import require


def rows_of_encoder(op: str, encoder_ids: Array, scores: Array) -> Array:
    """The encoder's ids for each row of scores, of which a row of ids serves an equal number, such as beams."""
    xp, rows, batch = namespace(scores), encoder_ids.shape[0], scores.shape[0]
    serves = batch == rows or (0 < rows <= batch and batch % rows == 0)
    require(serves, op, "scores", f"of a multiple of {rows} rows", scores)
    ids: Array = xp.asarray(encoder_ids, device=device(scores))
    return ids if batch == rows else repeat_rows(xp, ids, batch // rows)
