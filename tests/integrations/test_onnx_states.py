"""ONNX's own cases of LinearAttention and CausalConvWithState, by our operators in the reference evaluator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import decodestep as ds
from decodestep.integrations.onnx import REFERENCE_OPS, CausalConvWithState, LinearAttention

attention = pytest.importorskip("onnx.backend.test.case.node.linear_attention")
convolution = pytest.importorskip("onnx.backend.test.case.node.causal_conv_with_state")
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


@pytest.mark.parametrize(
    ("cases", "name", "ours", "stem"),
    [
        (attention, "LinearAttention", LinearAttention, "gated_delta_rule"),
        (convolution, "CausalConvWithState", CausalConvWithState, "causal_conv1d"),
    ],
)
def test_onnx_node_tests(cases: Any, name: str, ours: Any, stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def expect(node: Any, inputs: list[Any], outputs: list[Any], name: str, **_: Any) -> None:
        given = {key: np.asarray(array) for key, array in zip([n for n in node.input if n], inputs, strict=True)}
        wanted = [np.asarray(array) for array in outputs]
        tensors = [helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                   for key, a in [*given.items(), *zip(node.output, wanted, strict=True)]]  # fmt: skip
        graph = helper.make_graph([node], name, tensors[: len(given)], tensors[len(given) :])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 27)])
        with ds.profile() as profile:
            results = ReferenceEvaluator(made, new_ops=[ours]).run(None, given)
        assert (stem, "cpu") in profile.costs
        for result, expected in zip(results, wanted, strict=True):
            assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
            bound = TOLERANCE[expected.dtype.name]
            np.testing.assert_allclose(np.float64(result), np.float64(expected), rtol=bound, atol=bound, err_msg=name)
        seen.append(name)

    monkeypatch.setattr(cases, "expect", expect)
    exports = [each for each in dir(getattr(cases, name)) if each.startswith("export")]
    for each in exports:
        getattr(getattr(cases, name), each)()
    assert len(seen) >= len(exports) >= 5


def run(name: str, arrays: dict[str, np.ndarray], outputs: int = 2, **attributes: Any) -> list[np.ndarray]:
    tensors = [helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(a.dtype), None) for key, a in arrays.items()]
    node = helper.make_node(name, list(arrays), ["y", "s"][:outputs], **attributes)
    results = [helper.make_tensor_value_info(key, tensors[0].type.tensor_type.elem_type, None) for key in ("y", "s")[:outputs]]
    made = helper.make_model(helper.make_graph([node], "g", tensors, results), opset_imports=[helper.make_opsetid("", 27)])
    return ReferenceEvaluator(made, new_ops=REFERENCE_OPS).run(None, arrays)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_two_calls_give_what_one_does(dtype: Any, rng: np.random.Generator) -> None:
    """The state of a narrow convolution is exact; of no tokens it is handed on."""
    x, w = rng.normal(size=(2, 5, 7)).astype(dtype), rng.normal(size=(5, 1, 4)).astype(dtype)
    y, state = run("CausalConvWithState", {"input": x, "weight": w}, activation="swish")
    bias, parts = np.zeros(5, dtype), []
    held = np.zeros((2, 5, 3), dtype)
    for part in (x[:, :, :2], x[:, :, :0], x[:, :, 2:]):
        arrays = {"input": part, "weight": w, "bias": bias, "past_state": held}
        piece, held = run("CausalConvWithState", arrays, activation="silu")
        parts.append(piece)
    assert np.concatenate(parts, axis=2).tobytes() == y.tobytes() and held.tobytes() == state.tobytes()


def test_queries_that_share_a_state(rng: np.random.Generator) -> None:
    q, k, v = (rng.normal(size=(2, 3, n)).astype(np.float32) for n in (4 * 8, 2 * 8, 2 * 6))
    y, state = run("LinearAttention", {"query": q, "key": k, "value": v}, q_num_heads=4, kv_num_heads=2, update_rule="linear")
    expected = np.einsum("bjhi,bjhv->bhiv", k.reshape(2, 3, 2, 8).astype(float), v.reshape(2, 3, 2, 6).astype(float))
    np.testing.assert_allclose(state, expected, rtol=1e-5, atol=1e-5)
    last = np.einsum("bhi,bhiv->bhv", q[:, -1].reshape(2, 4, 8).astype(float), np.repeat(expected, 2, axis=1)) / np.sqrt(8)
    np.testing.assert_allclose(y[:, -1].reshape(2, 4, 6), last, rtol=1e-5, atol=1e-5)


X = np.ones((1, 2, 4), np.float32)
QKV = {"query": X, "key": X, "value": X}
HEADS = {"q_num_heads": 2, "kv_num_heads": 2}


@pytest.mark.parametrize(
    ("name", "arrays", "attributes", "message"),
    [
        ("LinearAttention", QKV, HEADS, "gated_delta_rule: decay must be given for the rule 'gated_delta'; got None"),
        ("LinearAttention", QKV | {"value": X[:, :1]}, HEADS | {"update_rule": "linear"}, "value must be of shape"),
        ("LinearAttention", QKV, HEADS | {"q_num_heads": 3}, "q_num_heads must be a positive multiple of 2; got 3"),
        ("LinearAttention", QKV, HEADS | {"kv_num_heads": 0}, "kv_num_heads must be a positive integer; got 0"),
        ("LinearAttention", QKV | {"past_state": X[None]}, HEADS, "past_state must be of shape 1x2x2x2; got float32 1x1x2x4"),
        ("CausalConvWithState", {"input": X, "weight": X}, {}, r"weight must be of shape \(C, 1, K\)"),
        ("CausalConvWithState", {"input": X[0], "weight": X}, {}, r"input must be of shape \(B, C, T\)"),
        ("CausalConvWithState", {"input": X, "weight": X[0, :, None]}, {"activation": "relu"}, "activation must be one of"),
    ],
)  # fmt: skip
def test_refusals(name: str, arrays: dict[str, np.ndarray], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(name, arrays, **attributes)
