"""TopKTopPSampleV2 in an ONNX model, run by onnxruntime and by onnx.reference: the same seed, the same token.

Usage: python examples/onnx_models.py
"""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import decodestep as ds
from decodestep.integrations.onnx import REFERENCE_OPS
from decodestep.integrations.onnxruntime import register

INPUTS = {"logits": TensorProto.FLOAT, "top_k": TensorProto.INT32, "top_p": TensorProto.FLOAT}
NOISE = {"seed": TensorProto.INT64, "position": TensorProto.INT64}


def main() -> None:
    every = INPUTS | NOISE
    node = helper.make_node("TopKTopPSampleV2", [*INPUTS, "", "", *NOISE], ["token", "", "", ""], domain="decodestep")
    values = [helper.make_tensor_value_info(name, type_, None) for name, type_ in every.items()]
    graph = helper.make_graph([node], "sample", values, [helper.make_tensor_value_info("token", TensorProto.INT64, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("decodestep", 1)], ir_version=10)

    options = onnxruntime.SessionOptions()
    register(options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    evaluator = ReferenceEvaluator(model, new_ops=REFERENCE_OPS)
    logits = np.random.default_rng(0).normal(0, 2, (1, 1000)).astype(np.float32)
    for position in range(5):
        k, p, seed = np.array([50], np.int32), np.array([0.9], np.float32), np.array([7])
        arrays = dict(zip(every, (logits, k, p, seed, np.array([position])), strict=True))
        plain = ds.top_k_top_p_sample_v2(logits, k, p, seed=seed, position=np.array([position])).logits_select_idx
        print(plain, *session.run(None, arrays), *evaluator.run(None, arrays))


if __name__ == "__main__":
    main()
