"""Our operators in onnxruntime and in onnx.reference, against the plain functions, and a model exported from torch."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph

import decodestep as ds
from decodestep.integrations import onnxruntime as ours
from decodestep.integrations.onnx import REFERENCE_OPS
from decodestep.integrations.onnx_operators import DOMAIN, OPERATORS
from decodestep.integrations.onnx_states import causal_conv_with_state, linear_attention
from decodestep.integrations.torch import ops
from support.mla_prolog_cases import FUNCTIONS, INT8_SCENARIOS, MODES, V1, V2, for_version, legal, make
from support.sparse_attention_cases import LAYOUTS, attention_call, index_call

RNG = np.random.default_rng(0)
FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16]


def build_model(name: str, arrays: dict[str, np.ndarray | None], results: Any = (), **attributes: Any) -> onnx.ModelProto:
    """One node; an input that is None is missing. results: arrays of the dtypes of outputs, None for the table's."""
    op = OPERATORS[name]
    names = [each.rstrip("?") for each in op.inputs]
    given = {each: array for each in names if (array := arrays.get(each)) is not None}
    inputs = [each if each in given else "" for each in names]
    while not inputs[-1]:
        inputs.pop()

    def value(each: str, dtype: Any) -> onnx.ValueInfoProto:
        shape = [None] * given[each].ndim if each in given else None
        return helper.make_tensor_value_info(each, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    types = {each: given[dtype].dtype if dtype in given else dtype for each, dtype in op.outputs.items()}
    # The type of itself or of a missing input.
    types |= {each: np.float32 for each, dtype in types.items() if dtype == each or dtype in names}
    types |= {each: result.dtype for each, result in zip(types, results, strict=False) if result is not None}
    node = helper.make_node(name, inputs, list(op.outputs), domain=DOMAIN, **attributes)
    graph = helper.make_graph(
        [node], "g", [value(each, array.dtype) for each, array in given.items()], [value(*item) for item in types.items()]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def in_onnxruntime(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs, by an IO binding: session.run knows neither bfloat16 nor float8."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    ours.register(options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in arrays.items():
        number = helper.np_dtype_to_tensor_dtype(array.dtype)
        as_bits = array.dtype.kind == "V" or array.dtype.name.startswith(("bfloat", "float8"))
        flat = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}") if as_bits else np.ascontiguousarray(array)
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(flat, number))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    session.run_with_iobinding(binding)
    return [array_of(value) for value in binding.get_outputs()]


def array_of(value: Any) -> np.ndarray:
    """The elements of an OrtValue of any type."""
    dtype = helper.tensor_dtype_to_np_dtype(value.element_type())
    size = int(np.prod(value.shape())) * dtype.itemsize
    memory = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(memory, np.uint8).view(dtype).reshape(value.shape())


def in_reference(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ReferenceEvaluator(model, new_ops=REFERENCE_OPS).run(None, arrays)


def assert_everywhere(name: str, arrays: dict[str, np.ndarray | None], expected: list[Any], **attributes: Any) -> None:
    model, given = build_model(name, arrays, expected, **attributes), {each: a for each, a in arrays.items() if a is not None}
    for run in (in_onnxruntime, in_reference):
        results = run(model, given)
        for result, wanted in zip(results, expected, strict=True):
            if wanted is not None:
                assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
                assert result.tobytes() == np.ascontiguousarray(wanted).tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_samplers_give_our_results_in_every_runtime(dtype: Any) -> None:
    logits = RNG.normal(0, 3, (3, 50)).astype(dtype)
    k, p = np.array([5, 0, 50], np.int32), np.array([0.9, 0.5, 1.0], dtype)
    seed, position = np.array([1, 2, 3]), np.array([4, 4, 5])
    arrays = {"logits": logits, "top_k": k, "top_p": p, "seed": seed, "position": position}
    if dtype != np.float32:
        drawn = ds.top_k_top_p_sample(logits, k, p, seed=seed, position=position, is_need_logits=True)
        assert_everywhere("TopKTopPSample", arrays, list(drawn), is_need_logits=1)
        q = RNG.random((3, 50), np.float32)
        raced = ds.top_k_top_p_sample(logits, k, p, q)
        assert_everywhere("TopKTopPSample", {"logits": logits, "top_k": k, "top_p": p, "q": q}, list(raced))
    drawn = ds.top_k_top_p_sample_v2(logits, k, p, seed=seed, position=position)
    assert_everywhere("TopKTopPSampleV2", arrays, list(drawn))
    min_ps = np.array([0.1, 0, 0.2], dtype)
    sorted_ = ds.top_k_top_p_sample_v2(logits, k, p, min_ps=min_ps, is_need_sample_result=True)
    arrays = {"logits": logits, "top_k": k, "top_p": p, "min_ps": min_ps}
    assert_everywhere("TopKTopPSampleV2", arrays, list(sorted_), is_need_sample_result=1)
    for given in ({"p": p}, {"p": p, "k": k}, {"p": None, "k": k}):
        assert_everywhere("ApplyTopKTopP", {"logits": logits, **given}, [ds.apply_top_k_top_p(logits, **given)])


@pytest.mark.parametrize("dtype", [*FLOATS, np.int8, np.bool_, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_tensor_scatter_has_the_types_and_indices_that_onnxruntime_lacks(dtype: Any) -> None:
    cache, update = (RNG.integers(0, 2, shape).astype(dtype) for shape in ((2, 3, 5, 4), (2, 3, 2, 4)))
    starts = np.array([-1, 3])
    wanted = ds.tensor_scatter(cache, update, starts, mode="circular")
    arrays = {"past_cache": cache, "update": update, "write_indices": starts}
    assert_everywhere("TensorScatter", arrays, [wanted], mode="circular")
    assert_everywhere("TensorScatter", arrays | {"write_indices": None}, [ds.tensor_scatter(cache, update)])


PROLOGS = [
    (version, scenario, dtype)
    for version, scenarios in ((1, V1), (2, V2), (3, INT8_SCENARIOS))
    for scenario in scenarios
    for dtype in (["bfloat16"] if scenario.endswith("TILE") else ["bfloat16", "float32"])
]


@pytest.mark.parametrize(("version", "scenario", "dtype"), PROLOGS)
def test_mla_prolog(version: int, scenario: str, dtype: str) -> None:
    more = {"query_norm_flag": True, "qc_qr_scale": 0.7, "kc_scale": 1.3} if version == 3 else {}
    call = for_version(make(RNG, scenario), version) | more
    if version == 2:
        call["rounding"] = "half_away"
    if dtype == "float32":
        halves = [name for name, value in call.items() if getattr(value, "dtype", None) == ml_dtypes.bfloat16]
        call = call | {name: call[name].astype(np.float32) for name in halves}
    arrays = {name: value for name, value in call.items() if isinstance(value, np.ndarray)}
    attributes = {name: value for name, value in call.items() if not isinstance(value, np.ndarray) and value is not None}
    before = {name: arrays[name].copy() for name in ("kv_cache", "kr_cache")}
    written = {name: array.copy() for name, array in before.items()}
    wanted = list(FUNCTIONS[version](**call | written))
    if version == 3:
        wanted += written.values()
    assert (wanted[0].dtype == np.int8) == (scenario == "FULL_KV")
    assert_everywhere("MlaProlog" + ("" if version == 1 else f"V{version}"), arrays, wanted, **attributes)
    for name, array in before.items():
        assert arrays[name].tobytes() == array.tobytes()


MODES_OF_V3 = [(mode, merged) for mode in MODES for merged in (True, False) if legal("PARTIAL", mode, merged)]


@pytest.mark.parametrize(("mode", "merged"), MODES_OF_V3)
@pytest.mark.parametrize("scenario", ["PARTIAL", "FULL_TILE"])
def test_mla_prolog_v3_in_every_cache_mode_without_what_is_not_asked_for(scenario: str, mode: str, merged: bool) -> None:
    if not legal(scenario, mode, merged):
        return
    call = make(RNG, scenario, mode, merged)
    if scenario == "FULL_TILE":
        call["kr_cache"] = np.zeros((0, 1), call["weight_uk"].dtype)  # empty, of any type
    arrays = {name: value for name, value in call.items() if isinstance(value, np.ndarray)}
    attributes = {name: value for name, value in call.items() if not isinstance(value, np.ndarray) and value is not None}
    caches = [arrays[name].copy() for name in ("kv_cache", "kr_cache")]
    query, query_rope, *nothing = ds.mla_prolog_v3(**call | dict(zip(("kv_cache", "kr_cache"), caches, strict=True)))
    assert nothing == [None] * 3
    zeros = [np.zeros(1, dtype) for dtype in (np.float32, np.int8, np.float32)]
    assert_everywhere("MlaPrologV3", arrays, [query, query_rope, *zeros, *caches], **attributes)


def test_what_the_functions_refuse_is_an_error_of_the_session() -> None:
    logits, k = np.zeros((2, 5), np.float32), np.array([1, 2], np.int32)
    arrays = {"logits": logits.astype(np.float16), "top_k": k, "top_p": np.zeros(3, np.float16)}
    with pytest.raises(Exception, match="top_p must"):
        in_onnxruntime(build_model("TopKTopPSample", arrays), arrays)
    with pytest.raises(Exception, match="top_p must"):
        in_reference(build_model("TopKTopPSample", arrays), arrays)
    bad = {"past_cache": logits, "update": logits, "write_indices": np.array([0, 9])}
    for attributes in ({}, {"mode": "spiral"}, {"axis": 77}):
        with pytest.raises(Exception, match="tensor_scatter: "):
            in_onnxruntime(build_model("TensorScatter", bad, **attributes), bad)
    for attributes in ({"mode": 1}, {"axis": 0.5}, {"axis": "x"}):
        with pytest.raises(Exception, match="mode|axis"):
            in_onnxruntime(build_model("TensorScatter", bad, **attributes), bad)


@pytest.mark.parametrize("run", [in_onnxruntime, in_reference])
def test_a_flag_is_0_or_1_and_a_string_is_read_whole(run: Any) -> None:
    logits = np.zeros((1, 8), np.float32)
    arrays = {"logits": logits, "top_k": np.array([1], np.int32), "top_p": np.ones(1, np.float32)}
    for value in (2, -1):
        with pytest.raises(Exception, match=f"decodestep: is_need_logits must be 0 or 1; got {value}"):
            run(build_model("TopKTopPSampleV2", arrays, is_need_logits=value), arrays)
    arrays = {"past_cache": logits, "update": logits}
    with pytest.raises(Exception, match="tensor_scatter: mode must be one of"):
        run(build_model("TensorScatter", arrays, axis=1, mode="linear\0circular"), arrays)


@pytest.mark.parametrize("dtype", FLOATS)
def test_operators_with_states_give_our_results_in_every_runtime(dtype: Any) -> None:
    x, weight = RNG.normal(size=(2, 5, 7)).astype(dtype), RNG.normal(size=(5, 1, 4)).astype(dtype)
    arrays = {"input": x, "weight": weight, "bias": None, "past_state": RNG.normal(size=(2, 5, 3)).astype(dtype)}
    assert_everywhere("CausalConvWithState", arrays, list(causal_conv_with_state(**arrays)))
    q, k, v, decay = (RNG.normal(size=(2, 3, n)).astype(dtype) for n in (24, 12, 10, 2))
    arrays = {
        "query": q,
        "key": k,
        "value": v,
        "past_state": RNG.normal(size=(2, 2, 6, 5)).astype(np.float32),
        "decay": -abs(decay),
    }
    rule = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": "gated", "scale": 0.5}
    assert_everywhere("LinearAttention", arrays, list(linear_attention(**arrays, **rule)), **rule)


@pytest.mark.parametrize("dtype", [*FLOATS, np.int8])
@pytest.mark.parametrize("layouts", LAYOUTS, ids="/".join)
def test_an_indexer_gives_our_results_in_every_runtime(dtype: Any, layouts: tuple[str, str]) -> None:
    call, _, _ = index_call(RNG, [3, 2], [30, 20], dtype=dtype, layouts=layouts)
    arrays, attributes = as_node(call)
    for options in ({}, {"return_value": True, "ordered": False, "sparse_mode": 0}):
        wanted = ds.lightning_indexer(**call, sparse_count=5, **options)
        assert_everywhere("LightningIndexer", arrays, list(wanted), sparse_count=5, **attributes, **options)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layouts", LAYOUTS, ids="/".join)
def test_sparse_attention_gives_our_results_in_every_runtime(dtype: Any, layouts: tuple[str, str]) -> None:
    call, _, _ = attention_call(RNG, [3, 2], [30, 20], dtype=dtype, layouts=layouts)
    arrays, attributes = as_node(call)
    assert_everywhere("SparseFlashAttention", arrays, [ds.sparse_mla_attention(**call), None, None], **attributes)
    call["sinks"] = arrays["sinks"] = np.array([1, 0, -2], np.float32)
    wanted = ds.sparse_mla_attention(**call, return_softmax_lse=True)
    assert_everywhere("SparseFlashAttention", arrays, list(wanted), return_softmax_lse=1, **attributes)


def as_node(call: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the attributes of a call."""
    given = {name: np.array(value) if isinstance(value, list) else value for name, value in call.items() if value is not None}
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    return arrays, {name: value for name, value in given.items() if name not in arrays}


HANDED = np.arange(4, dtype=np.float32).reshape(2, 2)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("handed", [HANDED, HANDED[:0], HANDED.astype(np.int64), HANDED.astype(np.float16), np.array(3.0)])
def test_no_input_ends_the_process(name: str, handed: np.ndarray) -> None:
    """Whatever is handed over: a refusal when the model is loaded or run, or a result."""
    op = OPERATORS[name]
    for names in (op.inputs, [each for each in op.inputs if not each.endswith("?")], op.inputs[:1]):
        arrays = {each.rstrip("?"): handed for each in names}
        refusal = ""
        try:
            in_onnxruntime(build_model(name, arrays), arrays)
        except (Fail, InvalidGraph, RuntimeError) as error:
            refusal = str(error)
        assert not refusal or re.search(r"Type Error|INVALID_GRAPH|RequestError: \w+: .* must be ", refusal)


def test_the_library_alone_refuses_and_a_process_ends_with_its_sessions_alive() -> None:
    program = """
import onnxruntime, decodestep._native as native
options = onnxruntime.SessionOptions()
try:
    options.register_custom_ops_library(native.__file__)
except Exception as error:
    assert "decodestep.integrations.onnxruntime" in str(error), error
else:
    raise AssertionError
from decodestep.integrations import onnxruntime as ours
from onnx import TensorProto as T, helper
ours.register(options)
node = helper.make_node("TopKTopPSample", ["l", "k", "p"], ["t", "m"], domain="decodestep")
values = [helper.make_tensor_value_info(*v, None) for v in (("l", T.FLOAT), ("k", T.INT32), ("p", T.FLOAT))]
graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("t", T.INT64, None)])
made = helper.make_model(graph, opset_imports=[helper.make_opsetid("decodestep", 1)], ir_version=10)
session = onnxruntime.InferenceSession(made.SerializeToString(), options)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


class Prologs(torch.nn.Module):
    """V2 with an int8 query, V3 with the normed one, and what another node makes of a result."""

    def __init__(self) -> None:
        super().__init__()
        calls = for_version(make(RNG, "FULL_KV"), 2), make(RNG, "PARTIAL") | {"query_norm_flag": True, "kc_scale": 0.7}
        self.calls = [{name: self.tensor(value) for name, value in call.items()} for call in calls]

    @staticmethod
    def tensor(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return torch.tensor(value.astype(np.float32) if value.dtype == ml_dtypes.bfloat16 else value)

    def forward(self, *tokens: Any) -> Any:
        v2 = ops.mla_prolog_v2_functional(**self.calls[0] | {"token_x": tokens[0]})
        v3 = ops.mla_prolog_v3_functional(**self.calls[1] | {"token_x": tokens[1]})
        return *v2, *v3, v2[0].to(torch.float32) * v2[4].reshape(-1, 2, 1)


def test_exported_prologs_have_the_results_of_torch_in_onnxruntime_and_onnx_reference() -> None:
    pytest.importorskip("onnxscript")
    from decodestep.integrations.torch_onnx import TRANSLATIONS

    module = Prologs()
    tokens = tuple(call["token_x"] for call in module.calls)
    exported = torch.onnx.export(
        module, tokens, dynamo=True, custom_translation_table=TRANSLATIONS, verbose=False, optimize=False
    ).model_proto
    assert [node.op_type for node in exported.graph.node if node.domain == DOMAIN] == ["MlaPrologV2", "MlaPrologV3"]
    arrays = {value.name: each.numpy() for value, each in zip(exported.graph.input, tokens, strict=True)}
    wanted = [each.numpy() for each in module(*tokens)]
    assert [wanted[i].dtype.name for i in (0, 8)] == ["int8", "int8"]
    for run in (in_onnxruntime, in_reference):
        for result, each in zip(run(exported, arrays), wanted, strict=True):
            assert (result.dtype, result.tobytes()) == (each.dtype, each.tobytes())


class Sparse(torch.nn.Module):
    """What an indexer selects, and attention to it."""

    def forward(self, query: Any, rope: Any, latents: Any, rope_keys: Any, weights: Any) -> Any:
        chosen, _ = ops.lightning_indexer(rope, rope_keys, weights, sparse_count=5)
        return ops.sparse_mla_attention(query, latents, None, chosen, 0.3, rope, rope_keys)


def test_exported_sparse_attention_has_the_results_of_torch() -> None:
    pytest.importorskip("onnxscript")
    from decodestep.integrations.torch_onnx import TRANSLATIONS

    shapes = (1, 3, 2, 16), (1, 3, 2, 8), (1, 20, 1, 16), (1, 20, 1, 8), (1, 3, 2)
    given = tuple(torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) for shape in shapes)
    exported = torch.onnx.export(
        Sparse(), given, dynamo=True, custom_translation_table=TRANSLATIONS, verbose=False, optimize=False
    ).model_proto
    kinds = [node.op_type for node in exported.graph.node if node.domain == DOMAIN]
    assert kinds == ["LightningIndexer", "SparseFlashAttention"]
    arrays = {value.name: each.numpy() for value, each in zip(exported.graph.input, given, strict=True)}
    wanted = Sparse()(*given).numpy()
    for run in (in_onnxruntime, in_reference):
        assert run(exported, arrays)[0].tobytes() == wanted.tobytes()


class Step(torch.nn.Module):
    """One step of a small model with latent attention: tokens, their position and the caches to the next tokens and caches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        sizes = {"embedding": (60, 32), "down": (32, 24), "up": (24, 32), "absorb": (2, 8, 16), "latent": (32, 24)}
        for name, shape in {**sizes, "out": (32, 60)}.items():
            self.register_buffer(name, torch.randn(shape) * shape[-2] ** -0.5 * (3 if name == "out" else 1))
        angles = torch.outer(torch.arange(16.0), 0.5 ** torch.arange(4.0)).repeat(1, 2)
        self.register_buffer("sin", angles.sin())
        self.register_buffer("cos", angles.cos())

    def forward(self, tokens: Any, position: Any, kv_cache: Any, kr_cache: Any, seen: Any) -> Any:
        x, slots = self.embedding[tokens], torch.arange(2) * 16 + position
        rope = [table[position].expand(2, 8).contiguous() for table in (self.sin, self.cos)]
        weights = (self.down, self.up, self.absorb, self.latent, torch.ones(24), torch.ones(16))
        query, query_rope, kv_cache, kr_cache = ops.mla_prolog_functional(x, *weights, *rope, slots, kv_cache, kr_cache)
        seen = ops.tensor_scatter(seen, torch.ones(2, 1, 1), position.expand(2).contiguous())
        keys, rope_keys = kv_cache[:, :, 0], kr_cache[:, :, 0]
        scores = (query @ keys.mT + query_rope @ rope_keys.mT) * 0.25 + torch.log(seen).mT
        logits = torch.tanh((scores.softmax(-1) @ keys).flatten(1)) @ self.out
        options = {"seed": torch.tensor([7, 8]), "position": position.expand(2).contiguous()}
        k, p = torch.tensor([30, 0], dtype=torch.int32), torch.tensor([0.95, 0.9])
        return ops.top_k_top_p_sample_v2(logits, k, p, **options)[0], kv_cache, kr_cache, seen


def test_an_exported_model_draws_the_same_tokens_in_torch_onnxruntime_and_onnx_reference() -> None:
    pytest.importorskip("onnxscript")
    from decodestep.integrations.torch_onnx import TRANSLATIONS

    step = Step()
    state = [torch.tensor([1, 2]), torch.tensor(0), torch.zeros(2, 16, 1, 16), torch.zeros(2, 16, 1, 8), torch.zeros(2, 16, 1)]
    exported = torch.onnx.export(
        step, tuple(state), dynamo=True, custom_translation_table=TRANSLATIONS, verbose=False, optimize=False
    ).model_proto
    names = {node.op_type for node in exported.graph.node if node.domain == DOMAIN}
    assert names == {"MlaProlog", "TensorScatter", "TopKTopPSampleV2"}
    options = onnxruntime.SessionOptions()
    ours.register(options)
    session = onnxruntime.InferenceSession(exported.SerializeToString(), options, providers=["CPUExecutionProvider"])
    evaluator = ReferenceEvaluator(exported, new_ops=REFERENCE_OPS)
    inputs = [value.name for value in exported.graph.input]

    def run_by(call: Any) -> list[list[int]]:
        tokens, _, *caches = [tensor.numpy() for tensor in state]
        drawn = []
        for position in range(14):
            tokens, *caches = call(tokens, np.array(position), *caches)
            drawn.append(tokens.tolist())
        return drawn

    in_torch = run_by(lambda *arrays: [tensor.numpy() for tensor in step(*(torch.tensor(array) for array in arrays))])
    assert len({tuple(tokens) for tokens in in_torch}) > 8
    assert run_by(lambda *arrays: session.run(None, dict(zip(inputs, arrays, strict=True)))) == in_torch
    assert run_by(lambda *arrays: evaluator.run(None, dict(zip(inputs, arrays, strict=True)))) == in_torch


def test_operators_are_registered_once():
    """onnxruntime itself says so when a session is made, and of a domain."""
    options, others = onnxruntime.SessionOptions(), onnxruntime.SessionOptions()
    ours.register(options)
    with pytest.raises(ValueError, match="^register: options must be without the operators of decodestep"):
        ours.register(options)
    ours.register(others)
    with pytest.raises(ValueError, match="^register: options must be onnxruntime.SessionOptions; got None"):
        ours.register(None)
