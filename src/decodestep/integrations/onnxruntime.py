"""onnxruntime: the library's operators as custom operators of a session, in the domain "decodestep".

    options = onnxruntime.SessionOptions()
    decodestep.integrations.onnxruntime.register(options)
    onnxruntime.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])

onnxruntime calls the operators through its C interface; the functions of `decodestep` check the arguments and compute the
results, so these have the same bits. They are available only in Python processes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_size_t, c_void_p
from typing import Any
from weakref import WeakSet

import numpy as np

from decodestep import _native
from decodestep._base.checks import Phrase, refuse, require
from decodestep._base.extras import extra
from decodestep.integrations.onnx_operators import DOMAIN, OPERATORS, VERSION, Operator
from decodestep.integrations.onnxruntime_interface import ANY, NUMBERS, OPTIONAL, REQUIRED, Api, CustomOp, Registrar
from decodestep.integrations.onnxruntime_interface import VERSION as INTERFACE

with extra("onnx"):
    import onnxruntime

_alive: list[Any] = []  # objects whose addresses onnxruntime holds
_kernels: list[tuple[Operator, tuple[tuple[str, Any], ...]]] = []  # operators with attributes; a kernel's handle is index + 1
_apis: dict[int, Api] = {}
_registered: WeakSet[onnxruntime.SessionOptions] = WeakSet()


def register(options: onnxruntime.SessionOptions) -> None:
    """Registers the operators of the domain "decodestep" for sessions with these options.

    Raises:
        ValueError: for options that have them already, which onnxruntime would refuse when the session is made.
    """
    require(isinstance(options, onnxruntime.SessionOptions), "register", "options", "onnxruntime.SessionOptions", options)
    once = options not in _registered
    require(once, "register", "options", "without the operators of decodestep", Phrase("options that have them"))
    options.register_custom_ops_library(_native.__file__)
    _registered.add(options)


def _register(options: int, base: int) -> int | None:
    """The implementation of RegisterCustomOps; the domain and its operators are created once."""
    api = _apis.get(base)
    try:
        if api is None:
            api = _apis[base] = Api(base)
        domain = api.get("CreateCustomOpDomain", c_void_p, DOMAIN.encode())
        for op in _custom_ops(api):
            api("CustomOpDomain_Add", domain, ctypes.addressof(op))
        api("AddCustomOpDomain", options, domain)
        _alive.append(domain)
        return None
    except BaseException as error:
        return api.status(error) if api is not None else None


_registrar = Registrar(_register)
_KEEP = _native.set_onnxruntime_registrar(ctypes.cast(_registrar, c_void_p).value)


def _custom_ops(api: Api) -> list[CustomOp]:
    """One for each combination of types of each operator."""
    made = getattr(api, "custom_ops", None)
    if made is None:
        made = [_custom_op(api, name, op, types) for name, op in OPERATORS.items() for types in op.types or ({},)]
        api.custom_ops = made  # type: ignore[attr-defined]
    return made


def _custom_op(api: Api, name: str, operator: Operator, types: object) -> CustomOp:
    text = ctypes.create_string_buffer(name.encode())
    kind: dict[str, Any] = {field[0]: field[1] for field in CustomOp._fields_}
    op = CustomOp(version=INTERFACE, KernelDestroy=_KEEP)
    for field, function in {**_description(text, operator, types), **_kernel_functions(api, operator)}.items():
        setattr(op, field, kind[field](function))
    _alive.extend((op, text))
    return op


def _description(text: Any, operator: Operator, types: Any) -> dict[str, Callable[..., Any]]:
    """The functions by which onnxruntime asks for the operator's name, versions, inputs and outputs."""
    names = [each.rstrip("?") for each in operator.inputs]
    inputs = [NUMBERS[types[each]] if each in types else ANY for each in names]
    missing = [OPTIONAL if each.endswith("?") else REQUIRED for each in operator.inputs]
    outputs = [NUMBERS[types.get(dtype, dtype)] for dtype in operator.outputs.values()]
    return {
        "GetName": lambda _: ctypes.addressof(text),
        "GetExecutionProviderType": lambda _: None,
        "GetInputType": lambda _, i: inputs[i],
        "GetInputTypeCount": lambda _: len(inputs),
        "GetOutputType": lambda _, i: outputs[i],
        "GetOutputTypeCount": lambda _: len(outputs),
        "GetInputCharacteristic": lambda _, i: missing[i],
        "GetOutputCharacteristic": lambda _, i: OPTIONAL if i else REQUIRED,
        "GetInputMemoryType": lambda _, i: 0,
        "GetVariadicInputMinArity": lambda _: 1,
        "GetVariadicInputHomogeneity": lambda _: 0,
        "GetVariadicOutputMinArity": lambda _: 1,
        "GetVariadicOutputHomogeneity": lambda _: 0,
        "GetStartVersion": lambda _: VERSION,
        "GetEndVersion": lambda _: 2**31 - 1,
    }


def _kernel_functions(api: Api, operator: Operator) -> dict[str, Callable[..., int | None]]:
    def create(_: int, __: int, info: int, kernel: Any) -> int | None:
        try:
            attributes = tuple((each, api.attribute(info, each, default)) for each, default in operator.attributes.items())
            if (operator, attributes) not in _kernels:
                _kernels.append((operator, attributes))
            kernel[0] = _kernels.index((operator, attributes)) + 1
            return None
        except BaseException as error:
            return api.status(error)

    def compute(kernel: int, context: int) -> int | None:
        try:
            _compute(api, *_kernels[kernel - 1], context)
            return None
        except BaseException as error:
            return api.status(error)

    return {"CreateKernelV2": create, "KernelComputeV2": compute}


def _compute(api: Api, operator: Operator, attributes: tuple[tuple[str, Any], ...], context: int) -> None:
    arrays: list[np.ndarray | None] = []
    for i in range(api.get("KernelContext_GetInputCount", c_size_t, context)):
        value = api.get("KernelContext_GetInput", c_void_p, context, i)
        arrays.append(None if value is None else api.array(value))
    results = operator(arrays, dict(attributes))
    wanted = api.get("KernelContext_GetOutputCount", c_size_t, context)
    for i, (name, result) in enumerate(zip(operator.outputs, results, strict=True)):
        if i < wanted:
            shape = (ctypes.c_int64 * result.ndim)(*result.shape)
            value = api.get("KernelContext_GetOutput", c_void_p, context, i, shape, result.ndim)
            if value is None:  # an output that the model does not use
                continue
            target = api.array(value)
            if (target.dtype, target.shape) != (result.dtype, result.shape):
                refuse("decodestep", name, f"{target.dtype}, as declared in the model", Phrase(result.dtype))
            target[...] = result
