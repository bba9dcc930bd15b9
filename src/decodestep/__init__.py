"""Everything between a hidden state and the next token of a large language model.

Names are loaded when they are first used: `import decodestep` is fast and needs no optional package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors; a test compares it with the tables below
    from decodestep import generation as generation
    from decodestep import integrations as integrations
    from decodestep import models as models
    from decodestep import ops as ops
    from decodestep import processors as processors
    from decodestep import random as random
    from decodestep import sampling as sampling
    from decodestep import stopping as stopping
    from decodestep import weights as weights
    from decodestep._base.profiling import profile as profile
    from decodestep._base.threads import use_threads as use_threads
    from decodestep.errors import ModelError as ModelError
    from decodestep.generation.beam_search import beam_search as beam_search
    from decodestep.generation.completion import Completion as Completion
    from decodestep.generation.engine import Engine as Engine
    from decodestep.generation.generate import generate as generate
    from decodestep.generation.stream import astream as astream
    from decodestep.generation.stream import stream as stream
    from decodestep.models.load import load as load
    from decodestep.models.model import Model as Model
    from decodestep.ops.decode_step import TokenLogprobs as TokenLogprobs
    from decodestep.ops.decode_step import decode_step as decode_step
    from decodestep.ops.decode_step import steps as steps
    from decodestep.ops.decoder_forward import decoder_forward as decoder_forward
    from decodestep.ops.expert_router import expert_router as expert_router
    from decodestep.ops.linear import linear as linear
    from decodestep.ops.mixture_of_experts import mixture_of_experts as mixture_of_experts
    from decodestep.ops.mla_attention import mla_attention as mla_attention
    from decodestep.ops.mla_prolog import MlaPrologTilingKey as MlaPrologTilingKey
    from decodestep.ops.mla_prolog import mla_prolog as mla_prolog
    from decodestep.ops.mla_prolog import mla_prolog_v2 as mla_prolog_v2
    from decodestep.ops.mla_prolog import mla_prolog_v3 as mla_prolog_v3
    from decodestep.ops.rms_norm import rms_norm as rms_norm
    from decodestep.ops.swiglu import swiglu as swiglu
    from decodestep.ops.tensor_scatter import tensor_scatter as tensor_scatter
    from decodestep.ops.top_k_top_p_sample import apply_top_k_top_p as apply_top_k_top_p
    from decodestep.ops.top_k_top_p_sample import top_k_top_p_sample as top_k_top_p_sample
    from decodestep.ops.top_k_top_p_sample import top_k_top_p_sample_v2 as top_k_top_p_sample_v2
    from decodestep.sampling.params import SamplingParams as SamplingParams
    from decodestep.sampling.sampler import Sampler as Sampler
    from decodestep.sampling.sampler import StepResult as StepResult
    from decodestep.sampling.trace import Trace as Trace

__version__ = "0.1.0"

# Each name and the module that defines it. The operators of `decodestep.ops` can be used by their own names too:
# `decodestep.linear` is `decodestep.ops.linear`.
_HOMES = {
    "Completion": "generation.completion",
    "Engine": "generation.engine",
    "Model": "models.model",
    "ModelError": "errors",
    "Sampler": "sampling.sampler",
    "SamplingParams": "sampling.params",
    "StepResult": "sampling.sampler",
    "TokenLogprobs": "ops.decode_step",
    "Trace": "sampling.trace",
    "astream": "generation.stream",
    "beam_search": "generation.beam_search",
    "decode_step": "ops.decode_step",
    "generate": "generation.generate",
    "load": "models.load",
    "profile": "_base.profiling",
    "steps": "ops.decode_step",
    "stream": "generation.stream",
    "use_threads": "_base.threads",
}
_MODULES = ("generation", "integrations", "models", "ops", "processors", "random", "sampling", "stopping", "weights")

__all__ = sorted((*_HOMES, *_MODULES))


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"decodestep.{name}")
    if name in _HOMES:
        value = getattr(import_module(f"decodestep.{_HOMES[name]}"), name)
    elif not name.startswith("_") and name in (ops := import_module("decodestep.ops")).__all__:
        value = getattr(ops, name)
    else:
        raise AttributeError(f"module 'decodestep' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
