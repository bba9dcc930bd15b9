"""The custom ops: torch's own checks of schema and fake kernels, and compiled graphs against the plain functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep._base.arrays import like
from decodestep.integrations.torch import OPERATORS, ops
from support.mla_prolog_cases import EXPONENT8, INT8_SCENARIOS, SCENARIOS, V1, V2, for_version, make
from support.recurrent_calls import OPERATORS as OPERATORS_WITH_STATES
from support.sparse_attention_cases import LAYOUTS, attention_call, index_call


def scatter_cases():
    cache, update = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 2, 4)
    yield (cache, update), {}
    yield (cache, update, torch.tensor([3, 0])), {}
    yield (cache.transpose(1, 3), update.transpose(1, 3), torch.tensor([4, -1])), {"write_mode": "circular"}
    yield (cache.bfloat16(), update.bfloat16(), torch.tensor([1, 2], dtype=torch.int32)), {"axis": 2}
    yield (cache[:0], update[:0]), {}


def rows_cases():
    x = torch.randn(6, 40)
    yield x, torch.randn(40)
    yield x.t(), torch.randn(6)
    yield x.double()[::2, 3:20], torch.randn(17, dtype=torch.float64)
    yield x[:0], torch.randn(40)


def state_cases(name):
    """A call with all arguments, and one with the others left out."""
    op, rng = OPERATORS_WITH_STATES[name], np.random.default_rng(0)
    for options in ({"lengths": [1, 0, 4], "slots": [2, 2, 1], "into": [3, 0, 1]}, {}):
        call = op.make(rng, 5 if options else 4, 4) | {key: torch.tensor(value) for key, value in options.items()}
        if not options:  # nor what may be missing
            call = {key: value for key, value in call.items() if key != "bias"}
        given = tensors(call)
        first = [given.pop(key) for key in (*op.inputs, "state")]
        yield tuple(first), given


def tensors(values):
    return {name: like(torch.empty(0), v) if isinstance(v, np.ndarray) else v for name, v in values.items()}


def prolog_cases(version):
    """By position where the schema has them so, each case on caches of its own; none with eight-bit floats, which torch cannot
    multiply as its checks do.
    """
    rng = np.random.default_rng(version)
    names = ["token_x", "weight_dq", "weight_uq_qr", "weight_uk", "weight_dkv_kr", "rmsnorm_gamma_cq", "rmsnorm_gamma_ckv",
             "rope_sin", "rope_cos", *(["cache_index"] if version < 3 else []), "kv_cache", "kr_cache"]  # fmt: skip
    calls = [
        make(rng, scenario, merged=merged)
        for merged in (True, False)
        for scenario in {1: V1, 2: V2, 3: INT8_SCENARIOS}[version]
    ]
    if version == 3:
        calls += [make(rng, "NO_QUANT", "TND"), make(rng, "FULL", "BSND", False)]
        calls.append(make(rng, "PARTIAL", "PA_BLK_BSND") | {"query_norm_flag": True, "qc_qr_scale": 2.0})
        calls.append(make(rng, "NO_QUANT") | {"query_norm_flag": True})
    for call in calls:
        given = tensors(for_version(call, version))
        yield tuple(given.pop(name) for name in names), given


def attention_cases():
    caches = torch.randn(4, 3, 1, 16), torch.randn(4, 3, 1, 8)
    table, lengths = torch.tensor([[2, 0], [3, 1]]), torch.tensor([5, 2])
    yield (torch.randn(2, 4, 16), torch.randn(2, 4, 8), *caches, table, lengths), {"scale": 0.3}
    yield (None, torch.randn(2, 4, 8), *caches, table, lengths), {"scale": 1.0, "sequence": torch.tensor([1, 1]), "groups": 2}
    bytes_, scale = [(30 * cache).clamp(-128, 127).to(torch.int8) for cache in caches], torch.full((1,), 30.0)
    scales = {"quant_scale_ckv": scale, "quant_scale_ckr": scale}
    yield (torch.randn(2, 4, 16), torch.randn(2, 4, 8), *bytes_, table, lengths), {"scale": 0.3, **scales}
    nz = [ds.cache_to_nz(cache) for cache in caches]
    yield (torch.randn(2, 4, 16), torch.randn(2, 4, 8), *nz, table, lengths), {"scale": 0.3, "cache_mode": "PA_NZ"}
    rows = torch.randint(-100, 100, (4, 3, 1, 128 + 16 + 4), dtype=torch.int8)
    rows[..., -4:] = torch.full((4, 3, 1, 1), 0.01).view(torch.int8)
    rows[..., 128:-4] = torch.randn(4, 3, 1, 8).bfloat16().view(torch.int8)
    yield (torch.randn(2, 4, 128), torch.randn(2, 4, 8), rows, None, table, torch.tensor([5, 0])), {"scale": 0.3}
    half = [tensor.bfloat16() for tensor in (torch.randn(2, 4, 16), torch.randn(2, 4, 8), *caches)]
    yield (*half, table, lengths), {"scale": 0.3}


def index_cases():
    """In each layout; of bytes with the scores."""
    rng = np.random.default_rng(0)
    calls = [index_call(rng, [3, 2], [30, 20], layouts=layouts)[0] | {"sparse_count": 5} for layouts in LAYOUTS]
    calls.append(index_call(rng, [2], [9], dtype=np.int8)[0] | {"return_value": True, "ordered": False})
    yield from (by_position(call, ["query", "key", "weights"]) for call in calls)


def sparse_cases():
    rng, first = np.random.default_rng(0), ["query", "key", "value", "sparse_indices", "scale_value"]
    yield from (by_position(attention_call(rng, [3, 2], [30, 20], layouts=layouts)[0], first) for layouts in LAYOUTS)


def by_position(call, first):
    given = tensors({name: np.array(value) if isinstance(value, list) else value for name, value in call.items()})
    return tuple(given.pop(name) for name in first), given


def sampler_cases(dtype, v2=False):
    logits = torch.randn(3, 50).to(dtype)
    k, p = torch.tensor([5, 0, 50], dtype=torch.int32), torch.tensor([0.9, 0.5, 1.0]).to(dtype)
    yield (logits, k, p), {"is_need_logits": True}
    yield (logits, k, p, torch.rand(3, 50)), {}
    yield (logits, k, p), {"seed": torch.tensor([1, 2, 3]), "position": torch.tensor(4)}
    if v2:
        yield (logits, k, p, None, torch.tensor([0.1, 0.0, 0.2]).to(dtype)), {"is_need_sample_result": True}
        yield (logits, k, p), {"post_sample": "None"}


def apply_cases():
    logits = torch.randn(3, 50)
    yield (logits,), {}
    yield (logits.half(), torch.tensor([0.9, 0.5, 1.0]).half()), {}
    yield (logits.t().contiguous().t(), torch.tensor([0.9, 0.5, 1.0]), torch.tensor([5, 0, 50], dtype=torch.int32)), {}


CASES = {
    "tensor_scatter": list(scatter_cases()),
    "tensor_scatter_": list(scatter_cases()),
    "rms_norm": [((x, gamma), {"eps": 1e-6}) for x, gamma in rows_cases()],
    "swiglu": [((x, x + 1), {}) for x, _ in rows_cases()],
    **{name: list(state_cases(name)) for name in OPERATORS_WITH_STATES},
    "linear": [((torch.randn(3, 8), torch.randn(8, 5)), {}), ((torch.randn(8).double(), torch.randn(8, 5).bfloat16()), {})],
    "mla_attention": list(attention_cases()),
    "mla_attention_lse": list(attention_cases()),
    "lightning_indexer": list(index_cases()),
    "sparse_mla_attention": list(sparse_cases()),
    "sparse_mla_attention_lse": list(sparse_cases()),
    "top_k_top_p_sample": list(sampler_cases(torch.bfloat16)),
    "top_k_top_p_sample_v2": list(sampler_cases(torch.float32, v2=True)),
    "apply_top_k_top_p": list(apply_cases()),
    "mla_prolog": list(prolog_cases(1)),
    "mla_prolog_functional": list(prolog_cases(1))[:1],
    "mla_prolog_v2": list(prolog_cases(2)),
    "mla_prolog_v3": list(prolog_cases(3)),
    "mla_prolog_v2_functional": list(prolog_cases(2))[-1:],
    "mla_prolog_v3_functional": list(prolog_cases(3))[-2:],
}
# Of the function, which has results more than one by a flag.
MORE = {"mla_attention_lse": {"return_lse": True}, "sparse_mla_attention_lse": {"return_softmax_lse": True}}
EACH = [(name, number, *case) for name, cases in CASES.items() for number, case in enumerate(cases)]
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def test_every_operator_has_cases():
    assert set(CASES) == set(OPERATORS)
    assert ops.sparse_flash_attention is ops.sparse_mla_attention


@pytest.mark.parametrize(("name", "number", "args", "kwargs"), EACH)
def test_torchs_own_checks_pass(name, number, args, kwargs):
    """In graphs of dynamic shapes too, which take half a second each: one for each of the other prologs, whose shapes are
    worked out as the last one's."""
    graph = number == 0 or name == "mla_prolog_v3" or not name.startswith("mla_prolog")
    torch.library.opcheck(getattr(ops, name), args, kwargs, test_utils=CHECKS if graph else CHECKS[:-1])


def assert_shape_function_knows(name, args, kwargs):
    """The results for tensors without data have the shape, dtype and strides of the real ones."""

    def call(change):
        def changed(value):
            return change(value) if isinstance(value, torch.Tensor) else value

        made = getattr(ops, name)(*map(changed, args), **{key: changed(value) for key, value in kwargs.items()})
        made = made if isinstance(made, tuple) else () if made is None else (made,)
        return [(tuple(result.shape), result.dtype, result.stride()) for result in made]

    assert call(lambda tensor: tensor.to("meta")) == call(torch.clone), name


@pytest.mark.parametrize(("name", "number", "args", "kwargs"), EACH)
def test_shape_functions_know_the_results(name, number, args, kwargs):
    assert_shape_function_knows(name, args, kwargs)


def device_sized(call):
    """A call of sizes that every limits accept; the largest arrays are zeros."""
    x, down, latent = call["token_x"], call["weight_dq"], call["weight_dkv_kr"]
    of_hidden = ("dequant_scale_x", "dequant_scale_w_dq", "dequant_scale_w_dkv_kr")
    scales = {name: call[name] for name in of_hidden if name in call}
    return call | {
        **{
            name: np.ones((len(scale), 7168 // 32), EXPONENT8) if scale.dtype == EXPONENT8 else scale
            for name, scale in scales.items()
        },
        "token_x": np.zeros((*x.shape[:-1], 7168), x.dtype),
        "weight_dq": np.zeros((7168, down.shape[1]), down.dtype),
        "weight_dkv_kr": np.zeros((7168, latent.shape[1]), latent.dtype),
    }


@pytest.mark.parametrize("limits", ["design-note", "nov2025", "latest"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_shape_functions_know_the_scenario_under_limits(scenario, limits):
    """Which the modes of the third version name, its dtypes, or its dtypes under some limits."""
    sizes = {"Hcq": 1536, "N": 1, "D": 128, "Hckv": 512, "Dr": 64, "block": 16, "blocks": 1, "B": 1, "S": 1}
    call = device_sized(make(np.random.default_rng(0), scenario, "PA_BSND", tiles=4, **sizes))
    versions = [
        version for version, known in ((1, V1), (2, V2), (3, V2 if limits == "nov2025" else SCENARIOS)) if scenario in known
    ]
    for version in versions:
        given = tensors(for_version(call, 2 if limits == "nov2025" else version)) | {"limits": limits}
        assert_shape_function_knows(f"mla_prolog_v{version}".removesuffix("_v1"), (), given)
        if version == 3 and limits != "nov2025":
            assert_shape_function_knows("mla_prolog_v3_functional", (), given | {"query_norm_flag": True})


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if not name.endswith("TILE")])
def test_shape_functions_know_the_results_of_wide_tensors(scenario, real):
    for merged in (True, False):
        given = tensors(make(np.random.default_rng(0), scenario, merged=merged, real=real)) | {"query_norm_flag": True}
        assert_shape_function_knows("mla_prolog_v3", (), given)


def test_a_scenario_that_does_not_exist_is_refused_while_compiling():
    call = tensors(make(np.random.default_rng(0), "FULL")) | {"query_quant_mode": 1}
    with pytest.raises(ValueError, match=r"\(weight_quant_mode, kv_cache_quant_mode, query_quant_mode\) must be one of"):
        ops.mla_prolog_v3(**{name: v.to("meta") if isinstance(v, torch.Tensor) else v for name, v in call.items()})


@pytest.mark.parametrize("name", ["top_k_top_p_sample", "top_k_top_p_sample_v2"])
def test_what_follows_the_noise_is_a_tensor(name):
    """In npu_top_k_top_p_sample it is eps."""
    logits, half = torch.zeros(2, 3).bfloat16(), torch.full((2,), 0.5).bfloat16()
    with pytest.raises(RuntimeError):
        getattr(ops, name)(logits, torch.ones(2, dtype=torch.int32), half, torch.ones(2, 3), 1e-8)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CASES)
def test_compiled_equals_plain(name, backend):
    """In one graph without a break, between operators of torch's own."""
    torch.compiler.reset()
    custom, args, kwargs = getattr(ops, name), *CASES[name][0]
    written = [i for i, a in enumerate(OPERATORS[name].schema.split(",")[: len(args)]) if "!" in a]

    def chain(*tensors):
        tensors = [t * 1 if i in written else t for i, t in enumerate(tensors)]  # of the graph's own, to be written to
        result = custom(*tensors, **kwargs)
        results = () if result is None else result if isinstance(result, tuple) else (result,)
        return [torch.neg(t) for t in (*results, *(tensors[i] for i in written))]

    plain = [t.clone() if i in written or name.endswith("_functional") else t for i, t in enumerate(args)]
    function = getattr(ds, name.removesuffix("_functional").removesuffix("_lse").rstrip("_"))
    more = MORE.get(name, {})
    expected = function(*plain, **{"mode" if k == "write_mode" else k: v for k, v in kwargs.items()}, **more)
    results = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    if name.endswith("_"):  # whose public function returns what the operator writes
        plain[written[0]] = results.pop()
    if name == "mla_prolog_v3_functional":
        results += plain[-2:]
    wanted = [t for t in results if all(t is not plain[i] for i in written)] + [plain[i] for i in written]
    compiled = torch.compile(chain, backend=backend, fullgraph=True)(*args)
    for mine, tensor in zip(compiled, wanted, strict=True):
        # An operator of torch returns tensors: one zero stands for a result that was not requested.
        tensor = torch.zeros(1, dtype=mine.dtype) if tensor is None else tensor
        assert mine.dtype == tensor.dtype
        assert torch.equal(-mine, tensor)


def test_the_default_compiler():
    """Inductor, on nothing but our operators: pointwise work of torch's own would cost half a minute of C++ compiling."""
    torch.compiler.reset()
    x, gamma = torch.randn(4, 32), torch.randn(32)

    def chain(x, gamma):
        normed = ops.rms_norm(x, gamma)
        ops.tensor_scatter_(normed, gamma[:4, None], axis=1)
        return ops.swiglu(ops.tensor_scatter(x, gamma[4:8, None], torch.arange(4), axis=1), normed)

    assert torch.equal(torch.compile(chain, fullgraph=True)(x, gamma), chain(x, gamma))


def test_in_place_writes_to_the_argument():
    (cache, update, starts), _ = CASES["tensor_scatter_"][1]
    mine, expected = cache.clone(), ds.tensor_scatter(cache, update, starts)
    version = mine._version
    torch.compile(lambda *t: ops.tensor_scatter_(*t), backend="aot_eager", fullgraph=True)(mine, update, starts)
    assert torch.equal(mine, expected)
    assert mine._version > version
    assert ops.tensor_scatter_(mine, update) is None


def test_lengths_may_vary_in_one_graph():
    torch.compiler.reset()
    compiled = torch.compile(lambda x, g: ops.rms_norm(x, g) + 1, backend="aot_eager", fullgraph=True, dynamic=True)
    gamma = torch.randn(16)
    for tokens in (1, 2, 7):
        x = torch.randn(tokens, 16)
        assert torch.equal(compiled(x, gamma), ds.rms_norm(x, gamma) + 1)


def test_refusals_and_gradients():
    with pytest.raises(ValueError, match="rms_norm: gamma must be"):
        ops.rms_norm(torch.zeros(2, 3), torch.zeros(2))
    x = torch.zeros(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError):
        ops.swiglu(x, x).sum().backward()


def test_registered_under_the_name_of_the_package():
    x = torch.randn(2, 3)
    assert torch.equal(torch.ops.decodestep.swiglu(x, x), ds.swiglu(x, x))
