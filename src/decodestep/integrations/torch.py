"""torch.compile: the library's operators as custom ops, which cause no graph breaks.

    from decodestep.integrations.torch import ops
    ops.rms_norm(x, gamma)          # torch.ops.decodestep.rms_norm; under torch.compile(fullgraph=True) too

Importing this module registers them. Outside compiled code, call the functions of `decodestep` instead: they accept tensors too
and are several microseconds per call faster. Gradients are not defined: a backward pass raises.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from decodestep._base.extras import extra
from decodestep.ops.causal_conv1d import causal_conv1d
from decodestep.ops.gated_delta_rule import gated_delta_rule
from decodestep.ops.lightning_indexer import lightning_indexer
from decodestep.ops.linear import linear
from decodestep.ops.mla_attention import mla_attention
from decodestep.ops.mla_attention.caches import joined_latent
from decodestep.ops.mla_prolog import mla_prolog, mla_prolog_v2, mla_prolog_v3
from decodestep.ops.mla_prolog.call import Call, find_scenario
from decodestep.ops.mla_prolog.problem import columns_of
from decodestep.ops.mla_prolog.results import MlaPrologV3Result, result_specs
from decodestep.ops.rms_norm import rms_norm
from decodestep.ops.selective_state_update import selective_state_update
from decodestep.ops.sparse_mla_attention import sparse_mla_attention
from decodestep.ops.swiglu import swiglu
from decodestep.ops.tensor_scatter import tensor_scatter
from decodestep.ops.top_k_top_p_sample import apply_top_k_top_p, top_k_top_p_sample, top_k_top_p_sample_v2

with extra("torch"):
    import torch
    from torch import Tensor


class CustomOp(NamedTuple):
    """The definition of an operator for torch.

    schema: its signature in torch's schema language, tensors before the `*`; `Tensor(a!)` is an argument that is written to.
    kernel: computes the results, on CPU tensors.
    fake: returns tensors of the results' shape, strides and dtype, given arguments without data.
    mutates: the arguments that are written to.
    Both functions are called with every argument by name.
    """

    schema: str
    kernel: Callable[..., Any]
    fake: Callable[..., Any]
    mutates: tuple[str, ...] = ()


def _scatter(*, write_mode: str, **call: Any) -> Tensor:
    return tensor_scatter(**call, mode=write_mode)


def _scatter_in_place(*, write_mode: str, **call: Any) -> None:
    tensor_scatter(**call, mode=write_mode, out=call["past_cache"])


def _new_like(name: str) -> Callable[..., Any]:
    """The fake of an operator whose result has the shape of an argument and is contiguous."""
    return lambda **call: call[name].new_empty(call[name].shape)


def _fake_in_place(**_: object) -> None:
    """The fake of an operator that writes to an argument and returns nothing."""


def _fake_linear(*, x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[1]))


def _attention_lse(**call: Any) -> tuple[Tensor, Tensor]:
    return mla_attention(**call, return_lse=True)


def _fake_attention(*, query_rope: Tensor, kv_cache: Tensor, kr_cache: Tensor | None, groups: int, **_: object) -> Tensor:
    latent = kv_cache.shape[3] if kr_cache is not None else joined_latent(kv_cache.shape[3], query_rope.shape[2])
    return query_rope.new_empty((*query_rope.shape[:2], latent // groups))


def _fake_attention_lse(*, query_rope: Tensor, **call: Any) -> tuple[Tensor, Tensor]:
    wide = query_rope.dtype if query_rope.dtype == torch.float64 else torch.float32
    return _fake_attention(query_rope=query_rope, **call), query_rope.new_empty(query_rope.shape[:2], dtype=wide)


def _index(**call: Any) -> tuple[Tensor, Tensor]:
    indices, values = lightning_indexer(**call)
    return indices, _or_placeholder(call["query"], values, torch.float32)


def _fake_index(*, query: Tensor, sparse_count: int, return_value: bool, **_: object) -> tuple[Tensor, Tensor]:
    shape = (*query.shape[:-2], 1, sparse_count)
    values = query.new_empty(shape if return_value else 1, dtype=torch.float32)
    return query.new_empty(shape, dtype=torch.int32), values


def _sparse_lse(**call: Any) -> tuple[Tensor, Tensor, Tensor]:
    return sparse_mla_attention(**call, return_softmax_lse=True)


def _fake_sparse_lse(*, query: Tensor, **_: object) -> tuple[Tensor, Tensor, Tensor]:
    shape = list(query.shape[:-1])
    shape.insert(len(shape) - 2, 1)
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    return query.new_empty(query.shape), query.new_empty(shape, dtype=dtype), query.new_empty(shape, dtype=dtype)


def _or_placeholder(like: Tensor, result: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The result; if the call does not produce it, a meaningless single element, as in torch_npu."""
    return like.new_zeros(1, dtype=dtype) if result is None else result


def _sample(**call: Any) -> tuple[Tensor, Tensor]:
    chosen, masked = top_k_top_p_sample(**call)
    return chosen, _or_placeholder(call["logits"], masked, torch.float32)


def _fake_sample(*, logits: Tensor, is_need_logits: bool, **_: object) -> tuple[Tensor, Tensor]:
    masked = logits.new_empty(logits.shape if is_need_logits else 1, dtype=torch.float32)
    return logits.new_empty(logits.shape[0], dtype=torch.int64), masked


def _sample_v2(**call: Any) -> tuple[Tensor, ...]:
    types = (torch.int64, torch.float32, torch.int64, torch.float32)
    results = zip(top_k_top_p_sample_v2(**call), types, strict=True)
    return tuple(_or_placeholder(call["logits"], result, dtype) for result, dtype in results)


def _fake_sample_v2(*, logits: Tensor, is_need_logits: bool, is_need_sample_result: bool, **_: object) -> tuple[Tensor, ...]:
    def fake(produced: bool, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        return logits.new_empty(shape if produced else 1, dtype=dtype)

    return (
        fake(not is_need_sample_result, logits.shape[:1], torch.int64),
        fake(is_need_logits, logits.shape, torch.float32),
        fake(is_need_sample_result, logits.shape, torch.int64),
        fake(is_need_sample_result, logits.shape, torch.float32),
    )


def _prolog(**call: Any) -> tuple[Tensor, Tensor]:
    return mla_prolog(**call)[:2]


def _prolog_v2(**call: Any) -> tuple[Tensor, ...]:
    query, query_rope, _, _, scale = mla_prolog_v2(**call)
    return query, query_rope, _or_placeholder(query, scale, torch.float32)


def _prolog_v3(**call: Any) -> tuple[Tensor, ...]:
    query, query_rope, *others = mla_prolog_v3(**call)
    types = (torch.float32, call["weight_uq_qr"].dtype, torch.float32)
    return query, query_rope, *(_or_placeholder(query, o, dtype) for o, dtype in zip(others, types, strict=True))


def _fake_prolog(op: str, *results: str) -> Callable[..., tuple[Tensor, ...]]:
    """The fake of a version of the prolog: these of its results."""

    def fake(**given: Any) -> tuple[Tensor, ...]:
        given = {name: int(value) if isinstance(value, torch.SymInt) else value for name, value in given.items()}
        call: Any = Call(op=op, backend="auto", **given)
        x, up = call.token_x, call.weight_uq_qr
        x_int8, uq_int8, kv_int8 = (tensor.dtype == torch.int8 for tensor in (x, up, call.kv_cache))
        specs = result_specs(
            find_scenario(call, x_int8=x_int8, uq_int8=uq_int8, kv_int8=kv_int8),
            x.shape[:-1],
            call.weight_uk.shape[0],
            call.weight_uk.shape[2],
            call.rope_sin.shape[-1],
            columns_of(call.weight_dq),
            query_norm=call.query_norm_flag,
        )

        def fake_result(name: str) -> Tensor:
            if (spec := specs.get(name)) is None:
                return x.new_empty(1, dtype=up.dtype if name == "query_norm" else torch.float32)
            return x.new_empty(spec.shape, dtype=call.weight_uk.dtype if spec.dtype == "real" else getattr(torch, spec.dtype))

        return tuple(map(fake_result, results))

    return fake


def _with_caches(
    make: Callable[..., tuple[Tensor, ...]], copy: Callable[[Tensor], Tensor], place: int
) -> Callable[..., tuple[Tensor, ...]]:
    """`make`, which writes to its caches, in functional form: it gets copies, which are returned at `place` in the results."""

    def call(*, kv_cache: Tensor, kr_cache: Tensor, **others: object) -> tuple[Tensor, ...]:
        caches = copy(kv_cache), copy(kr_cache)
        made = make(kv_cache=caches[0], kr_cache=caches[1], **others)
        return *made[:place], *caches, *made[place:]

    return call


def _functional(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any], *, place: int) -> CustomOp:
    """`CustomOp(schema, kernel, fake)` with the caches among the results, at `place`, instead of modified: exported graphs are
    functional."""
    arguments, results = schema.replace("(a!)", "").replace("(b!)", "").split(" -> ")
    more = results.replace("Tensor", "Tensor, Tensor, Tensor", 1)
    return CustomOp(
        f"{arguments} -> {more}", _with_caches(kernel, torch.clone, place), _with_caches(fake, torch.empty_like, place)
    )


# Not `mode`, as in `tensor_scatter`: torch's functionalisation has an argument of that name.
_SCATTER = 'Tensor update, Tensor? write_indices=None, *, int axis=-2, str write_mode="linear"'

_STATE = "Tensor(a!) state, Tensor? lengths=None"
_SLOTS = "Tensor? slots=None, Tensor? into=None"

_SPARSE = (
    "(Tensor query, Tensor key, Tensor? value, Tensor sparse_indices, float scale_value, Tensor query_rope, "
    "Tensor? key_rope, Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_kv=None, "
    "Tensor? block_table=None, Tensor? sinks=None, *, "
    'int sparse_block_size=1, str layout_query="BSND", str layout_kv="BSND", int sparse_mode=3)'
)
_ATTENTION = (
    "(Tensor? query, Tensor query_rope, Tensor kv_cache, Tensor? kr_cache, Tensor block_table, Tensor lengths, "
    "Tensor? sequence=None, Tensor? quant_scale_ckv=None, Tensor? quant_scale_ckr=None, "
    'Tensor? dequant_scale_q_nope=None, *, float scale, int groups=1, str cache_mode="PA_BSND")'
)

_NOISE = "Tensor? seed=None, Tensor? position=None"
_WEIGHTS = "Tensor token_x, Tensor weight_dq, Tensor weight_uq_qr, Tensor weight_uk, Tensor weight_dkv_kr, "
_NORMS = "Tensor rmsnorm_gamma_cq, Tensor rmsnorm_gamma_ckv, Tensor rope_sin, Tensor rope_cos, "
_CACHES = "Tensor(a!) kv_cache, Tensor(b!) kr_cache, "
_SCALES = (
    "Tensor? dequant_scale_x=None, Tensor? dequant_scale_w_dq=None, Tensor? dequant_scale_w_uq_qr=None, "
    "Tensor? dequant_scale_w_dkv_kr=None, Tensor? quant_scale_ckv=None, Tensor? quant_scale_ckr=None, "
    "Tensor? smooth_scales_cq=None, "
)
_EPSILONS = 'float rmsnorm_epsilon_cq=1e-05, float rmsnorm_epsilon_ckv=1e-05, str cache_mode="PA_BSND", '
_V3 = (
    "bool query_norm_flag=False, int weight_quant_mode=0, int kv_cache_quant_mode=0, int query_quant_mode=0, "
    "int ckvkr_repo_mode=0, int quant_scale_repo_mode=0, int tile_size=128, float qc_qr_scale=1.0, float kc_scale=1.0, "
    "int? token_x_dtype=None, int? weight_dq_dtype=None, int? weight_uq_qr_dtype=None, int? weight_dkv_kr_dtype=None, "
    "int? kv_cache_dtype=None, "
)
_LIMITS = "str? limits=None"
_IN_PLACE = ("kv_cache", "kr_cache")
_QUERIES = ("query", "query_rope")
_PROLOGS = {
    "mla_prolog": (
        f"({_WEIGHTS}{_NORMS}Tensor cache_index, {_CACHES}{_SCALES}*, {_EPSILONS}{_LIMITS}) -> (Tensor, Tensor)",
        _prolog,
        _fake_prolog("mla_prolog", *_QUERIES),
    ),
    "mla_prolog_v2": (
        f"({_WEIGHTS}{_NORMS}Tensor cache_index, {_CACHES}{_SCALES}*, {_EPSILONS}{_LIMITS}, "
        'str rounding="half_even") -> (Tensor, Tensor, Tensor)',
        _prolog_v2,
        _fake_prolog("mla_prolog_v2", *_QUERIES, "dequant_scale_q_nope"),
    ),
    "mla_prolog_v3": (
        f"({_WEIGHTS}{_NORMS}{_CACHES}Tensor? cache_index=None, {_SCALES}Tensor? actual_seq_len=None, "
        f'Tensor? k_nope_clip_alpha=None, *, {_EPSILONS}{_V3}{_LIMITS}, str rounding="half_even") '
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        _prolog_v3,
        _fake_prolog("mla_prolog_v3", *MlaPrologV3Result._fields),
    ),
}

# One entry per operator, tested in tests/integrations/test_torch.py.
OPERATORS = {
    "tensor_scatter": CustomOp(f"(Tensor past_cache, {_SCATTER}) -> Tensor", _scatter, _new_like("past_cache")),
    "tensor_scatter_": CustomOp(
        f"(Tensor(a!) past_cache, {_SCATTER}) -> ()", _scatter_in_place, _fake_in_place, ("past_cache",)
    ),
    "rms_norm": CustomOp("(Tensor x, Tensor gamma, *, float eps=1e-5) -> Tensor", rms_norm, _new_like("x")),
    "swiglu": CustomOp("(Tensor gate, Tensor up) -> Tensor", swiglu, _new_like("gate")),
    "causal_conv1d": CustomOp(
        f"(Tensor x, Tensor weight, {_STATE}, Tensor? bias=None, {_SLOTS}, *, str? activation=None) -> Tensor",
        causal_conv1d,
        _new_like("x"),
        ("state",),
    ),
    "gated_delta_rule": CustomOp(
        f"(Tensor query, Tensor key, Tensor value, {_STATE}, Tensor? decay=None, Tensor? beta=None, {_SLOTS}, *, float scale, "
        'str update_rule="gated_delta", bool l2_norm=False, str head_map="grouped") -> Tensor',
        gated_delta_rule,
        _new_like("value"),
        ("state",),
    ),
    "selective_state_update": CustomOp(
        f"(Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, {_STATE}, Tensor? d=None, Tensor? dt_bias=None, {_SLOTS}) "
        "-> Tensor",
        selective_state_update,
        _new_like("x"),
        ("state",),
    ),
    "linear": CustomOp("(Tensor x, Tensor weight) -> Tensor", linear, _fake_linear),
    "mla_attention": CustomOp(f"{_ATTENTION} -> Tensor", mla_attention, _fake_attention),
    "mla_attention_lse": CustomOp(f"{_ATTENTION} -> (Tensor, Tensor)", _attention_lse, _fake_attention_lse),
    "lightning_indexer": CustomOp(
        "(Tensor query, Tensor key, Tensor weights, Tensor? query_dequant_scale=None, Tensor? key_dequant_scale=None, "
        "Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None, Tensor? block_table=None, *, "
        'str layout_query="BSND", str layout_key="BSND", int sparse_count=2048, int sparse_mode=3, '
        "bool return_value=False, bool ordered=True) -> (Tensor, Tensor)",
        _index,
        _fake_index,
    ),
    "sparse_mla_attention": CustomOp(f"{_SPARSE} -> Tensor", sparse_mla_attention, _new_like("query")),
    "sparse_mla_attention_lse": CustomOp(f"{_SPARSE} -> (Tensor, Tensor, Tensor)", _sparse_lse, _fake_sparse_lse),
    "top_k_top_p_sample": CustomOp(
        "(Tensor logits, Tensor top_k, Tensor top_p, Tensor? q=None, "
        f"{_NOISE}, *, float eps=1e-8, bool is_need_logits=False, int top_k_guess=32, bool kernel_exact=False) "
        "-> (Tensor, Tensor)",
        _sample,
        _fake_sample,
    ),
    "top_k_top_p_sample_v2": CustomOp(
        "(Tensor logits, Tensor top_k, Tensor top_p, Tensor? q=None, Tensor? min_ps=None, "
        f"{_NOISE}, *, float eps=1e-8, bool is_need_logits=False, int top_k_guess=32, int ks_max=1024, "
        "bool input_is_logits=True, bool is_need_sample_result=False, "
        'str post_sample="qSample") -> (Tensor, Tensor, Tensor, Tensor)',
        _sample_v2,
        _fake_sample_v2,
    ),
    "apply_top_k_top_p": CustomOp(
        "(Tensor logits, Tensor? p=None, Tensor? k=None) -> Tensor", apply_top_k_top_p, _new_like("logits")
    ),
    **{name: CustomOp(*op, _IN_PLACE) for name, op in _PROLOGS.items()},
    # The same without mutation: the new caches are returned among the results.
    "mla_prolog_functional": _functional(*_PROLOGS["mla_prolog"], place=2),
    "mla_prolog_v2_functional": _functional(*_PROLOGS["mla_prolog_v2"], place=2),
    "mla_prolog_v3_functional": _functional(*_PROLOGS["mla_prolog_v3"], place=5),
}


def _by_name(schema: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapts `function` to torch's calls: torch passes arguments before the `*` by position, and omits arguments of a fake that
    have their default."""
    arguments = [part.split("=") for part in schema[1 : schema.rindex(") ->")].split(", ")]
    names = [argument[0].split()[-1] for argument in arguments if argument[0] != "*"]
    defaults = {a[0].split()[-1]: ast.literal_eval(a[1]) for a in arguments if len(a) == 2}

    def call(*args: object, **kwargs: object) -> Any:
        return function(**{**defaults, **dict(zip(names, args, strict=False)), **kwargs})

    return call


def _register(name: str, op: CustomOp) -> Any:
    kernel, fake = _by_name(op.schema, op.kernel), _by_name(op.schema, op.fake)
    custom = torch.library.custom_op(
        f"decodestep::{name}", kernel, mutates_args=op.mutates, device_types="cpu", schema=op.schema
    )
    custom.register_fake(fake)
    return custom


ops = SimpleNamespace(**{name: _register(name, op) for name, op in OPERATORS.items()})
ops.sparse_flash_attention = ops.sparse_mla_attention  # CANN's name, as for the functions
