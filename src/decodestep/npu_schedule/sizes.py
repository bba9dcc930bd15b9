"""The sizes of a call, recovered from its plan."""

from __future__ import annotations

from dataclasses import dataclass

from decodestep._base.checks import Phrase, is_int, refuse, require
from decodestep.ops.mla_prolog.plan import Matmul, MlaPrologPlan, Widths
from decodestep.ops.mla_prolog.scenarios import SCENARIOS, Scenario

_OP = "mla_prolog_schedule"
_SCHEDULED = [s for s in SCENARIOS.values() if s.key is not None]
_BY_KEY = {(2 if s.partial else 1, s.key): s for s in _SCHEDULED}
_BY_KEY_2026 = {(2 if s.partial else 1, s.key_2026): s for s in _SCHEDULED}


@dataclass(frozen=True)
class Sizes(Widths):
    """The widths of a call, what else its schedule depends on, and its cores."""

    scenario: Scenario
    tokens: int
    cached: bool  # whether the caches have blocks
    by_head: bool  # whether dequantisation overlaps with the products, head by head
    cubes: int
    group: int  # vector cores of each cube core

    @property
    def vectors(self) -> int:
        return self.cubes * self.group


def read_sizes(plan: MlaPrologPlan, group: int) -> Sizes:
    """Checks that a plan fits its cores, and reads its sizes."""
    if not isinstance(plan, MlaPrologPlan):
        refuse(_OP, "plan", "a MlaPrologPlan", plan)
    require(is_int(group) and group >= 1, _OP, "group", "an integer >= 1", group)
    cubes = plan.block_dim
    require(is_int(cubes) and cubes >= 1, _OP, "plan", "of a block_dim >= 1", cubes)
    tokens = _tokens(plan, cubes * group)
    empty = plan.key.empty_tensor_mode
    if tokens == 0:
        names = [m.name for m in plan.matmuls]
        require(not names and empty == 2, _OP, "plan", "without products where there are no tokens", names)
        return Sizes(0, 0, 0, 0, 0, 0, SCENARIOS["NO_QUANT"], 0, False, False, cubes, group)
    products = _products(plan, cubes)
    scenario, by_head = _scenario(plan)
    cq, qcqr, qn = products["MatmulCq"], products["MatmulQcQr"], products["MatmulQn"]
    head = qcqr.n // qn.batch
    _check_fit(products, head)
    return Sizes(qn.batch, cq.k, cq.n, qn.n, qn.k, head - qn.k, scenario, tokens, empty == 0, by_head, cubes, group)


def _products(plan: MlaPrologPlan, cubes: int) -> dict[str, Matmul]:
    """The products of a plan, each on at most `cubes` cores, by their name."""
    by_name = {m.name: m for m in plan.matmuls}
    wanted = ["MatmulCq", "MatmulCkvKr", "MatmulQcQr", "MatmulQn"]
    if plan.key.empty_tensor_mode == 1:
        wanted.remove("MatmulCkvKr")
    require([m.name for m in plan.matmuls] == wanted, _OP, "plan", f"of the products {', '.join(wanted)}", list(by_name))
    for m in plan.matmuls:
        _check_product(m, cubes)
    return by_name


def _scenario(plan: MlaPrologPlan) -> tuple[Scenario, bool]:
    """The scenario of a plan's key, and whether dequantisation goes head by head."""
    by_key = _BY_KEY_2026 if plan.key.cv_mode else _BY_KEY
    scenario = by_key.get((plan.key.scenario, plan.key.quant_mode))
    if scenario is None:
        refuse(_OP, "plan", "of a key whose scenario has a schedule", plan.key)
    require(not plan.key.group_compute_optional, _OP, "plan", "without the group computation", plan.key)
    require(not plan.key.split_m_mode, _OP, "plan", "of cores that share the weights' columns", plan.key)
    by_head = bool(plan.key.dequant_optional)
    require(not by_head or scenario.partial, _OP, "plan", "of a key that dequantises int8 products only", plan.key)
    return scenario, by_head


def _check_fit(products: dict[str, Matmul], head: int) -> None:
    """Refuses products whose sizes contradict each other. head: the columns of a head in MatmulQcQr."""
    cq, qcqr, qn, ckvkr = (products.get(f"Matmul{name}") for name in ("Cq", "QcQr", "Qn", "CkvKr"))
    assert cq is not None and qcqr is not None and qn is not None
    ok = (
        qcqr.k == cq.n
        and qcqr.n == qn.batch * head
        and head > qn.k
        and (head - qn.k) % 2 == 0
        and (ckvkr is None or (ckvkr.k == cq.k and ckvkr.n == qn.n + head - qn.k))
        and qn.heads * qn.blocks >= qn.batch > qn.heads * (qn.blocks - 1)
    )
    found = Phrase("; ".join(f"{m.name} {m.m}x{m.k}x{m.n}" for m in products.values()))
    require(ok, _OP, "plan", "of products that fit each other", found)


def _tokens(plan: MlaPrologPlan, vectors: int) -> int:
    steps, blocks = plan.steps, plan.vector_blocks
    require(all(is_int(s) and s > 0 for s in steps), _OP, "plan", "of steps of at least one token", steps)
    require(len(set(steps[:-1])) <= 1 and (not steps or steps[-1] <= steps[0]), _OP, "plan", "of equal steps and a tail", steps)
    if steps:
        require(
            len(blocks) <= vectors and sum(blocks) == steps[0] and min(blocks) > 0,
            _OP,
            "plan",
            f"of vector blocks for at most {vectors} vector cores, {steps[0]} tokens together",
            Phrase(f"{len(blocks)} blocks of {sum(blocks)} tokens"),
        )
    return sum(steps)


def _check_product(m: Matmul, cubes: int) -> None:
    sizes = (m.m, m.k, m.n, m.columns, m.blocks, m.batch)
    require(all(is_int(s) and s > 0 for s in sizes), _OP, "plan", f"of sizes > 0 in {m.name}", sizes)
    require(m.blocks <= cubes, _OP, "plan", f"of at most {cubes} blocks in {m.name}, one to a cube core", m.blocks)
    covered = m.columns * m.blocks if m.batch == 1 else m.n
    require(
        m.n <= covered < m.n + m.columns,
        _OP,
        "plan",
        f"of blocks that cover {m.name} once",
        Phrase(f"{m.blocks} x {m.columns} of {m.n}"),
    )
    require(m.batch == 1 or m.heads >= 1, _OP, "plan", f"of heads >= 1 in {m.name}", m.heads)
