"""Checks of the feed-forward blocks of a decoder's layers."""

from __future__ import annotations

import numpy as np

from decodestep._base.checks import Phrase, require
from decodestep.ops.decoder_forward.checks import CLASS, require_panels, require_vector
from decodestep.ops.decoder_forward.layers import Mixture, SideBySide
from decodestep.ops.expert_router.arguments import RouterRule
from decodestep.weights.feed_forward import FeedForward
from decodestep.weights.linear_panels import LinearPanels


def check_beside(name: str, block: SideBySide, hidden: int) -> None:
    for norm, vector in block.norms().items():
        require_vector(f"{name}.{norm}", vector, hidden)
    check_dense(f"{name}.dense", block.dense, hidden)
    require(isinstance(block.experts, Mixture), CLASS, f"{name}.experts", "a Mixture", Phrase(type(block.experts).__name__))
    check_mixture(f"{name}.experts", block.experts, hidden)
    for part in ("shared", "latent_down"):
        given = getattr(block.experts, part)
        require(given is None, CLASS, f"{name}.experts.{part}", "None beside a dense block", Phrase(type(given).__name__))


def check_mixture(name: str, mixture: Mixture, hidden: int) -> None:
    both = (mixture.latent_down is None) == (mixture.latent_up is None)
    require(both, CLASS, f"{name}.latent_up", "given with latent_down, and only then", mixture.latent_up)
    read = hidden
    if mixture.latent_down is not None and mixture.latent_up is not None:
        read = getattr(mixture.latent_down, "outputs", 0)
        require_panels(f"{name}.latent_down", mixture.latent_down, (hidden, read))
        require_panels(f"{name}.latent_up", mixture.latent_up, (read, hidden))
    _check_block(f"{name}.routed", mixture.routed, read)
    experts = mixture.routed.count
    require_panels(f"{name}.router", mixture.router, (hidden, experts))
    require(isinstance(mixture.rule, RouterRule), CLASS, f"{name}.rule", "a RouterRule", mixture.rule)
    mixture.rule.check(experts, f"{CLASS}: {name}.rule")
    for vector in ("router_bias", "factors"):
        if getattr(mixture, vector) is not None:
            require_vector(f"{name}.{vector}", getattr(mixture, vector), experts)
    if mixture.bias is not None:
        require_vector(f"{name}.bias", mixture.bias, experts)
        require(bool(np.isfinite(mixture.bias).all()), CLASS, f"{name}.bias", "finite", Phrase("a number that is not"))
    if mixture.shared is not None:
        check_dense(f"{name}.shared", mixture.shared, hidden)
    if mixture.shared_gate is not None:
        ok = mixture.shared is not None and mixture.shared.down_bias is None
        require(
            ok, CLASS, f"{name}.shared_gate", "None but for a shared block without a bias of its outputs", mixture.shared_gate
        )
        require_panels(f"{name}.shared_gate", mixture.shared_gate, (hidden, 1))


def check_dense(name: str, block: FeedForward, hidden: int) -> None:
    _check_block(name, block, hidden)
    require(block.count == 1, CLASS, name, "one block", block.count)


def _check_block(name: str, block: FeedForward, hidden: int) -> None:
    require(isinstance(block, FeedForward), CLASS, name, "a FeedForward", Phrase(type(block).__name__))
    ok = all(isinstance(weight, LinearPanels) for weight in block.weights)
    require(ok, CLASS, name, "of LinearPanels", Phrase(type(block.up).__name__))
    require(block.hidden == hidden, CLASS, name, f"of {hidden} inputs", block.hidden)
