"""expert_router by hand, against transformers' routers and its reference, and to the bit against itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import decodestep as ds
from decodestep import _native
from decodestep.ops.expert_router.arguments import RouterRule
from decodestep.ops.expert_router.cpu import native_rule
from support.tolerances import assert_close

BACKENDS = ["cpu", "reference"]
X = np.zeros((2, 8), np.float32)


def logits_of(*scores):
    """Whose sigmoids are these."""
    scores = np.array(scores)
    return np.log(scores / (1 - scores)).astype(np.float32)[None]


@pytest.mark.parametrize("backend", BACKENDS)
def test_softmax_by_hand(backend):
    logits = np.log(np.array([[1, 4, 2, 3], [0.25, 0.25, 0.25, 0.25]], np.float32))
    routes = ds.expert_router(logits, 2, scale=5.0, backend=backend)
    assert routes.experts.tolist() == [[1, 3], [0, 1]] and routes.experts.dtype == np.int64
    assert_close(routes.weights, np.array([[2, 1.5], [1.25, 1.25]]))
    normed = ds.expert_router(logits, 2, normalise=True, scale=0.5, backend=backend)
    assert_close(normed.weights, np.array([[4 / 14, 3 / 14], [0.25, 0.25]]))
    more = ds.expert_router(logits, 2, normalise=True, eps=0.3, backend=backend)
    assert_close(more.weights, np.array([[0.4, 0.3], [0.3125, 0.3125]]))


def test_the_core_does_not_read_its_results():
    """Other threads may write there, and here the weights lie over the second expert: as an index, it would be outside."""
    memory = np.zeros(2, np.int64)
    experts, weights = memory[None], memory[1:].view(np.float32)[None]
    logits, rule = np.arange(8, dtype=np.float32)[None], native_rule(RouterRule(used=2))
    _native.expert_router(logits=logits, bias=None, experts=experts, weights=weights, threads=1, **rule)
    assert experts[0, 0] == 7


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_bias_chooses_and_does_not_weigh(backend):
    bias = np.array([0, 0.5, 0, -0.5], np.float32)
    routes = ds.expert_router(logits_of(0.5, 0.25, 0.7, 0.9), 2, scores="sigmoid", bias=bias, backend=backend)
    assert routes.experts.tolist() == [[1, 2]]
    assert_close(routes.weights, np.array([[0.25, 0.7]]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_by_their_maximum_or_their_two_best(backend):
    logits = logits_of(0.9, 0.1, 0.2, 0.6, 0.7, 0.1, 0.3, 0.1, 0.2)
    options = {"scores": "sigmoid", "groups": 3, "backend": backend}
    assert ds.expert_router(logits, 2, kept_groups=1, **options).experts.tolist() == [[0, 2]]
    assert ds.expert_router(logits, 2, kept_groups=1, group_score="top_two", **options).experts.tolist() == [[4, 3]]
    assert ds.expert_router(logits, 4, kept_groups=2, **options).experts.tolist() == [[0, 4, 3, 2]]
    tied = logits_of(0.1, 0.5, 0.5, 0.1, 0.5, 0.5)
    assert ds.expert_router(tied, 2, scores="sigmoid", groups=3, kept_groups=1, backend=backend).experts.tolist() == [[1, 0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_that_are_not_finite(backend):
    nan, inf = np.nan, np.inf
    routes = ds.expert_router(np.array([[1, nan, 2], [-inf] * 3], np.float32), 2, backend=backend)
    assert routes.experts.tolist() == [[0, 1]] * 2 and np.isnan(routes.weights).all()
    logits = np.array([[nan, 0, -1, nan, -2, -3], [-inf, 0, inf, nan, nan, nan]], np.float32)
    routes = ds.expert_router(logits, 4, scores="sigmoid", groups=3, kept_groups=2, group_score="top_two", backend=backend)
    assert routes.experts.tolist() == [[1, 4, 5, 0], [2, 1, 0, 3]]  # groups that sum to minus infinity are kept in order
    np.testing.assert_array_equal(np.isnan(routes.weights), [[False, False, False, True]] * 2)
    whole = ds.expert_router(logits[:1], 6, scores="sigmoid", normalise=True, backend=backend)
    assert whole.experts.tolist() == [[1, 2, 4, 5, 0, 3]] and np.isnan(whole.weights).all()


def transformers_routes(kind, logits, **config):
    """What the router of transformers makes of these logits, in the order of experts."""
    if kind == "v2":
        from transformers.models.deepseek_v2.configuration_deepseek_v2 import DeepseekV2Config as Config
        from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter as Router
    else:
        from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config as Config
        from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter as Router
    bias = config.pop("bias", None)
    experts = logits.shape[1]
    router = Router(Config(hidden_size=experts, n_routed_experts=experts, **config))
    router.weight.data = torch.eye(experts)
    if bias is not None:
        router.e_score_correction_bias = torch.from_numpy(bias)
    _, weights, chosen = router(torch.from_numpy(logits))
    order = chosen.argsort(dim=1)
    return chosen.gather(1, order).numpy(), weights.gather(1, order).detach().numpy()


V2 = {"topk_method": "greedy", "n_group": 1, "topk_group": 1}
CASES = [
    ("v2", {"num_experts_per_tok": 6, "routed_scaling_factor": 1.0, **V2}, {}, 64, 6),
    ("v2", {"num_experts_per_tok": 6, "routed_scaling_factor": 16.0, "topk_method": "group_limited_greedy", "n_group": 8,
            "topk_group": 3}, {"groups": 8, "kept_groups": 3, "scale": 16.0}, 160, 6),
    ("v3", {"num_experts_per_tok": 8, "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "norm_topk_prob": True},
     {"groups": 8, "kept_groups": 4, "normalise": True, "scale": 2.5}, 256, 8),
    ("v3", {"num_experts_per_tok": 3, "routed_scaling_factor": 1.8, "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
     {"scale": 1.8}, 7, 3),
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kind", "config", "options", "experts", "used"), CASES)
def test_against_transformers(kind, config, options, experts, used, backend, rng):
    logits = rng.normal(size=(50, experts)).astype(np.float32)
    if kind == "v3":
        bias = (rng.normal(size=experts) * 0.1).astype(np.float32)
        config, options = config | {"bias": bias}, options | {"bias": bias, "scores": "sigmoid", "group_score": "top_two"}
    expected, weights = transformers_routes(kind, logits, **config)
    routes = ds.expert_router(logits, used, **options, backend=backend)
    order = routes.experts.argsort(axis=1)
    np.testing.assert_array_equal(np.take_along_axis(routes.experts, order, 1), expected)
    assert_close(np.take_along_axis(routes.weights, order, 1), weights)


@given(st.integers(0, 2**32 - 1))
def test_the_kernel_against_the_reference(seed):
    """Logits on a grid, so that choices are tied or clearly apart; float64 makes the same choice."""
    rng = np.random.default_rng(seed)
    groups, in_group = (int(rng.integers(1, most)) for most in (5, 20))
    kept, top_two = int(rng.integers(1, groups + 1)), in_group > 1 and bool(rng.integers(2))
    experts = groups * in_group
    options = {
        "scores": "sigmoid" if rng.integers(2) else "softmax",
        "groups": groups,
        "kept_groups": kept,
        "group_score": "top_two" if top_two else "maximum",
        "normalise": bool(rng.integers(2)),
        "scale": 2.5,
    }
    used = int(rng.integers(1, kept * in_group + 1))
    logits = (rng.integers(-3, 4, (4, experts)) / 2).astype(np.float32)
    routes, expected = (ds.expert_router(logits, used, **options, backend=backend) for backend in BACKENDS)
    np.testing.assert_array_equal(routes.experts, expected.experts)
    assert_close(routes.weights, ds.expert_router(logits.astype(np.float64), used, **options).weights)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_tokens_give_no_routes(dtype):
    for logits in (np.zeros((0, 8), dtype), torch.zeros((0, 8), dtype=torch.from_numpy(np.zeros(0, dtype)).dtype)):
        routes = ds.expert_router(logits, 3, groups=4, kept_groups=2, group_score="top_two")
        assert routes.experts.shape == routes.weights.shape == (0, 3)


def test_rows_threads_layouts_and_torch(rng):
    logits = rng.normal(size=(300, 40)).astype(np.float32)
    alone = [ds.expert_router(row[None], 5, scores="sigmoid", groups=4, kept_groups=2) for row in logits]
    for threads in (1, 3):
        with ds.use_threads(threads):
            together = ds.expert_router(logits, 5, scores="sigmoid", groups=4, kept_groups=2)
            for part in (0, 1):
                np.testing.assert_array_equal(together[part], np.concatenate([routes[part] for routes in alone]))
    for view in (logits[::-2, 7:], logits.T[:40].T, logits[:, ::2]):
        for part in (0, 1):
            np.testing.assert_array_equal(ds.expert_router(view, 3)[part], ds.expert_router(np.array(view, order="C"), 3)[part])
    routes = ds.expert_router(torch.from_numpy(logits), 5)
    assert isinstance(routes.experts, torch.Tensor) and isinstance(routes.weights, torch.Tensor)
    assert ds.expert_router(logits[:0], 5).weights.shape == (0, 5)
    assert ds.expert_router(logits.astype(np.float64), 5).weights.dtype == np.float64


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("logits must be float32 or float64; got int64 2x8", {"logits": X.astype(np.int64)}),
        (r"logits must be of shape \(T, E\) with E > 0; got float32 2x0", {"logits": X[:, :0]}),
        (r"used must be an integer in \[1, 8\], the experts of the groups that are kept; got 9", {"used": 9}),
        (r"used must be an integer in \[1, 8\], the experts of the groups that are kept; got 0", {"used": 0}),
        (r"used must be an integer in \[1, 8\], the experts of the groups that are kept; got 3.0", {"used": 3.0}),
        (r"used must be an integer in \[1, 4\], the experts of the groups that are kept; got 5",
         {"used": 5, "groups": 4, "kept_groups": 2}),
        ("scores must be one of 'softmax', 'sigmoid'; got 'tanh'", {"scores": "tanh"}),
        ("scores must be one of 'softmax', 'sigmoid'; got float32 2x8", {"scores": X}),
        ("group_score must be one of 'maximum', 'top_two'; got 'mean'", {"group_score": "mean"}),
        ("groups must be an integer that divides the 8 experts; got 3", {"groups": 3}),
        ("groups must be of two experts or more for 'top_two'; got 8 of 1", {"groups": 8, "group_score": "top_two"}),
        (r"kept_groups must be an integer in \[1, 2\]; got 3", {"groups": 2, "kept_groups": 3}),
        ("bias must be 8 finite numbers; got float32 7", {"bias": np.zeros(7, np.float32)}),
        ("bias must be 8 finite numbers; got float32 8", {"bias": np.full(8, np.nan, np.float32)}),
        ("bias must be float32; got float64 8", {"bias": np.zeros(8)}),
        ("normalise must be a bool; got 1", {"normalise": 1}),
        ("scale must be a finite number; got inf", {"scale": np.inf}),
        ("backend must be able to serve the call; got 'cpu', which needs float32",
         {"logits": X.astype(np.float64), "backend": "cpu"}),
    ],
)  # fmt: skip
def test_refusals(message, changed):
    with pytest.raises(ValueError, match=f"^expert_router: {message}"):
        ds.expert_router(**{"logits": X, "used": 1, **changed})
