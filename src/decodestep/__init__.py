"""Everything between a hidden state and the next token of a large language model.

The public names load on first use, so that importing the package costs nothing that a program does not ask for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decodestep import random as random
    from decodestep.dispatch import profile as profile
    from decodestep.dispatch import use_threads as use_threads
    from decodestep.generation import Completion as Completion
    from decodestep.generation import generate as generate
    from decodestep.models import Model as Model
    from decodestep.models import load as load
    from decodestep.ops.decode_step import decode_step as decode_step
    from decodestep.ops.linear import PackedWeight as PackedWeight
    from decodestep.ops.linear import linear as linear
    from decodestep.ops.mla_attention import mla_attention as mla_attention
    from decodestep.ops.mla_prolog import mla_prolog as mla_prolog
    from decodestep.ops.rms_norm import rms_norm as rms_norm
    from decodestep.ops.swiglu import swiglu as swiglu
    from decodestep.ops.tensor_scatter import tensor_scatter as tensor_scatter
    from decodestep.ops.top_k_top_p_sample import apply_top_k_top_p as apply_top_k_top_p
    from decodestep.ops.top_k_top_p_sample import top_k_top_p_sample as top_k_top_p_sample
    from decodestep.ops.top_k_top_p_sample import top_k_top_p_sample_v2 as top_k_top_p_sample_v2
    from decodestep.params import SamplingParams as SamplingParams

__version__ = "0.1.0"

_HOME = {
    "Completion": "generation",
    "Model": "models",
    "PackedWeight": "ops.linear",
    "SamplingParams": "params",
    "apply_top_k_top_p": "ops.top_k_top_p_sample",
    "decode_step": "ops.decode_step",
    "generate": "generation",
    "linear": "ops.linear",
    "load": "models",
    "mla_attention": "ops.mla_attention",
    "mla_prolog": "ops.mla_prolog",
    "profile": "dispatch",
    "random": "random",
    "rms_norm": "ops.rms_norm",
    "swiglu": "ops.swiglu",
    "tensor_scatter": "ops.tensor_scatter",
    "top_k_top_p_sample": "ops.top_k_top_p_sample",
    "top_k_top_p_sample_v2": "ops.top_k_top_p_sample",
    "use_threads": "dispatch",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'decodestep' has no attribute {name!r}")
    module = import_module(f"decodestep.{home}")
    value = module if name == "random" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
