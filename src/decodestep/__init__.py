"""Everything between a hidden state and the next token of a large language model.

Names are loaded when they are first used: `import decodestep` is fast and needs no optional package. The operators of
`decodestep.ops` can be used by their own names too: `decodestep.linear` is `decodestep.ops.linear`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what type checkers and editors see; a test compares it with the tables below
    from decodestep import errors as errors
    from decodestep import generation as generation
    from decodestep import integrations as integrations
    from decodestep import models as models
    from decodestep import ops as ops
    from decodestep import processors as processors
    from decodestep import random as random
    from decodestep import sampling as sampling
    from decodestep import stopping as stopping
    from decodestep import weights as weights
    from decodestep._base.numa import set_numa as set_numa
    from decodestep._base.profiling import profile as profile
    from decodestep._base.threads import use_threads as use_threads
    from decodestep.chat.template import Message as Message
    from decodestep.errors import CacheFileError as CacheFileError
    from decodestep.errors import CacheFullError as CacheFullError
    from decodestep.errors import ConstraintError as ConstraintError
    from decodestep.errors import DecodestepError as DecodestepError
    from decodestep.errors import EngineClosedError as EngineClosedError
    from decodestep.errors import MissingExtraError as MissingExtraError
    from decodestep.errors import ModelError as ModelError
    from decodestep.errors import QueueFullError as QueueFullError
    from decodestep.errors import RequestError as RequestError
    from decodestep.errors import TemplateProcessError as TemplateProcessError
    from decodestep.errors import UnknownFieldError as UnknownFieldError
    from decodestep.generation.beam_search import beam_search as beam_search
    from decodestep.generation.completion import Completion as Completion
    from decodestep.generation.engine import Engine as Engine
    from decodestep.generation.generate import generate as generate
    from decodestep.generation.stream import astream as astream
    from decodestep.generation.stream import stream as stream
    from decodestep.models.load import load as load
    from decodestep.models.model import Model as Model
    from decodestep.ops import *  # noqa: F403
    from decodestep.ops.decode_step import TokenLogprobs as TokenLogprobs
    from decodestep.ops.decode_step import decode_step as decode_step
    from decodestep.ops.decode_step import steps as steps
    from decodestep.sampling.params import SamplingParams as SamplingParams
    from decodestep.sampling.sampler import Sampler as Sampler
    from decodestep.sampling.sampler import StepResult as StepResult
    from decodestep.sampling.trace import Trace as Trace

__version__ = "0.1.0"

__all__ = [
    "CacheFileError",
    "CacheFullError",
    "Completion",
    "ConstraintError",
    "DecodestepError",
    "Engine",
    "EngineClosedError",
    "Message",
    "MissingExtraError",
    "Model",
    "ModelError",
    "QueueFullError",
    "RequestError",
    "Sampler",
    "SamplingParams",
    "StepResult",
    "TemplateProcessError",
    "TokenLogprobs",
    "Trace",
    "UnknownFieldError",
    "astream",
    "beam_search",
    "decode_step",
    "errors",
    "generate",
    "generation",
    "integrations",
    "load",
    "models",
    "ops",
    "processors",
    "profile",
    "random",
    "sampling",
    "set_numa",
    "steps",
    "stopping",
    "stream",
    "use_threads",
    "weights",
]

# Each name and the module that defines it.
_HOMES = {
    "CacheFileError": "errors",
    "CacheFullError": "errors",
    "Completion": "generation.completion",
    "ConstraintError": "errors",
    "DecodestepError": "errors",
    "Engine": "generation.engine",
    "EngineClosedError": "errors",
    "Message": "chat.template",
    "MissingExtraError": "errors",
    "Model": "models.model",
    "ModelError": "errors",
    "QueueFullError": "errors",
    "RequestError": "errors",
    "Sampler": "sampling.sampler",
    "SamplingParams": "sampling.params",
    "StepResult": "sampling.sampler",
    "TemplateProcessError": "errors",
    "TokenLogprobs": "ops.decode_step",
    "Trace": "sampling.trace",
    "UnknownFieldError": "errors",
    "astream": "generation.stream",
    "beam_search": "generation.beam_search",
    "decode_step": "ops.decode_step",
    "generate": "generation.generate",
    "load": "models.load",
    "profile": "_base.profiling",
    "set_numa": "_base.numa",
    "steps": "ops.decode_step",
    "stream": "generation.stream",
    "use_threads": "_base.threads",
}
_MODULES = ("errors", "generation", "integrations", "models", "ops", "processors", "random", "sampling", "stopping", "weights")

if not TYPE_CHECKING:  # which would take any name for one of the package

    def __getattr__(name: str) -> object:
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
    return sorted({*__all__, *import_module("decodestep.ops").__all__})
