"""torch.onnx.export: exports the custom ops as ONNX operators of the domain "decodestep".

    torch.onnx.export(model, args, "model.onnx", dynamo=True, custom_translation_table=TRANSLATIONS)

A model calls `decodestep.integrations.torch.ops`; for MlaProlog, `mla_prolog_functional`, because ONNX values are immutable.
onnx.reference and onnxruntime run such a model with `decodestep.integrations.onnx` and `.onnxruntime`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from decodestep._base.checks import require
from decodestep._base.extras import extra
from decodestep.integrations.onnx_operators import DOMAIN, OPERATORS, VERSION, Operator

with extra("onnx-export"):
    import onnx.defs
    from onnxscript import evaluator

    from decodestep.integrations.torch import ops

_NAMES = {
    "tensor_scatter": "TensorScatter",
    "top_k_top_p_sample": "TopKTopPSample",
    "top_k_top_p_sample_v2": "TopKTopPSampleV2",
    "apply_top_k_top_p": "ApplyTopKTopP",
    "lightning_indexer": "LightningIndexer",
    "sparse_mla_attention": "SparseFlashAttention",
    "mla_prolog_functional": "MlaProlog",
    "mla_prolog_v2_functional": "MlaPrologV2",
    "mla_prolog_v3_functional": "MlaPrologV3",
}
_RENAMED = {"write_mode": "mode"}
_TYPES = [f"tensor({name})" for name in ("float", "double", "float16", "bfloat16", "int8", "int32", "int64", "bool", "uint8")]


def _schema(name: str, operator: Operator) -> onnx.defs.OpSchema:
    """The operator's ONNX schema: outputs with the type of an input share its type variable."""
    schema = onnx.defs.OpSchema
    inputs = [each.rstrip("?") for each in operator.inputs]
    optional = schema.FormalParameterOption.Optional
    options = [{"param_option": optional} if each.endswith("?") else {} for each in operator.inputs]
    fixed = {"int64": "tensor(int64)", "int32": "tensor(int32)", "float32": "tensor(float)"}
    typed = {*inputs, *operator.outputs.values()} - fixed.keys()
    return schema(
        name,
        DOMAIN,
        VERSION,
        inputs=[schema.FormalParameter(each, f"T_{each}", **option) for each, option in zip(inputs, options, strict=True)],
        outputs=[schema.FormalParameter(each, fixed.get(t, f"T_{t}")) for each, t in operator.outputs.items()],
        type_constraints=[(f"T_{each}", _TYPES, "") for each in sorted(typed)],
        attributes=[schema.Attribute(each, onnx.helper.make_attribute(each, v), "") for each, v in operator.attributes.items()],
    )


def _translation(name: str, op: Any) -> Callable[..., Any]:
    operator = OPERATORS[name]
    schema, by_position = _schema(name, operator), [argument.name for argument in op._schema.arguments]

    def translate(*arguments: object, **options: object) -> Any:
        named = {**dict(zip(by_position, arguments, strict=False)), **options}
        given = {_RENAMED.get(each, each): value for each, value in named.items() if value is not None}
        tensors = [given.pop(each.rstrip("?"), None) for each in operator.inputs]
        unknown = sorted(given.keys() - operator.attributes.keys())
        require(not unknown, "torch.onnx.export", f"the options of {name}", f"among {', '.join(operator.attributes)}", unknown)
        while tensors and tensors[-1] is None:
            tensors.pop()
        attributes = {each: int(value) if isinstance(value, bool) else value for each, value in given.items()}
        return evaluator.default().eval(schema, tensors, attributes)

    return translate


_OPS = {getattr(ops, torch_name)._opoverload: name for torch_name, name in _NAMES.items()}
TRANSLATIONS = {op: _translation(name, op) for op, name in _OPS.items()}
