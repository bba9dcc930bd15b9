"""The choices in a schedule that the plan does not make, or that override the plan's."""

from __future__ import annotations

from dataclasses import dataclass

JOINS = ("flag", "copies", "none")


@dataclass(frozen=True)
class Design:
    """How the programs differ from the published design. The defaults are that design, except for `join`.

    step: tokens of a step, >= 1. cq_columns, ckvkr_columns, qcqr_columns: columns that a core computes of these products.
    core_heads: heads that a core computes of MatmulQn. None: as in the plan.
    join: what keeps MatmulCkvKr of a step from overwriting rows of the previous step that vector cores still read. "flag": they
        set CKVKR_DONE. "copies": two copies of that workspace, used alternately. "none": nothing, as published; a race.
    ckvkr_first: MatmulCkvKr and its norms come before MatmulCq and its norm.
    ckvkr_from_last: the blocks of MatmulCkvKr go to the last cube cores instead of the first.
    preload: cube cores load the first weights of MatmulQcQr before they wait for the norms.
    overlap: the first two products of the next step come before MatmulQn of a step.
    """

    step: int | None = None
    cq_columns: int | None = None
    ckvkr_columns: int | None = None
    qcqr_columns: int | None = None
    core_heads: int | None = None
    join: str = "flag"
    ckvkr_first: bool = False
    ckvkr_from_last: bool = False
    preload: bool = False
    overlap: bool = False

    def __str__(self) -> str:
        changed = {n: v for n, v in vars(self).items() if v != getattr(Design, n)}
        return (
            ", ".join(n.replace("_", " ") if v is True else f"{n.replace('_', ' ')} {v}" for n, v in changed.items())
            or "the design"
        )
