"""Checks of a call whose tensors are on a GPU, where their values stay; only index arrays are copied to the host."""

from __future__ import annotations

from dataclasses import fields, replace

from decodestep._base import arrays, devices
from decodestep._base.aliasing import footprint, require_apart
from decodestep._base.checks import Phrase, refuse
from decodestep.ops.mla_prolog.arguments import bind
from decodestep.ops.mla_prolog.call import HOST_WEIGHTS, Call
from decodestep.ops.mla_prolog.problem import Problem, kernel_obstacle

_INDEXES = ("cache_index", "actual_seq_len")  # whose values are checked


def bind_on_device(call: Call) -> Problem:
    devices.choose_triton(call.op, call.backend, call.token_x)
    outlines = {}
    for name, value in ((field.name, getattr(call, field.name)) for field in fields(call)):
        if name in _INDEXES:
            outlines[name] = devices.to_host(value)
        elif arrays.is_array(value):
            outlines[name] = devices.outline(call.op, name, value, call.token_x.device)
        elif isinstance(value, HOST_WEIGHTS):
            rule, got = f"a tensor on {call.token_x.device}", f"a {type(value).__name__}, whose memory is the host's"
            refuse(call.op, name, rule, Phrase(got))
    problem = bind(replace(call, **outlines), outlined=True)
    _check_memory(call)
    devices.choose_triton(call.op, "triton", call.token_x, kernel_obstacle(problem))
    return problem


def _check_memory(call: Call) -> None:
    there = {
        field.name: footprint(value)
        for field in fields(call)
        if arrays.is_torch(value := getattr(call, field.name)) and value.device == call.token_x.device
    }
    caches = {name: there.pop(name) for name in ("kv_cache", "kr_cache")}
    require_apart(call.op, caches, there)
