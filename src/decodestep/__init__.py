"""Everything between a hidden state and the next token of a large language model.

The public names load on first use, so that importing the package costs nothing that a program does not ask for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decodestep import processors as processors
    from decodestep import random as random
    from decodestep import stopping as stopping
    from decodestep._base.dispatch import profile as profile
    from decodestep._base.dispatch import use_threads as use_threads
    from decodestep.generation.beam_search import beam_search as beam_search
    from decodestep.generation.generate import Completion as Completion
    from decodestep.generation.generate import generate as generate
    from decodestep.models import Model as Model
    from decodestep.models import load as load
    from decodestep.ops.decode_step import decode_step as decode_step
    from decodestep.ops.linear import PackedWeight as PackedWeight
    from decodestep.ops.linear import linear as linear
    from decodestep.ops.mla_attention import mla_attention as mla_attention
    from decodestep.ops.mla_prolog import MlaPrologTilingKey as MlaPrologTilingKey
    from decodestep.ops.mla_prolog import PanelWeight as PanelWeight
    from decodestep.ops.mla_prolog import cache_from_nz as cache_from_nz
    from decodestep.ops.mla_prolog import cache_to_nz as cache_to_nz
    from decodestep.ops.mla_prolog import from_nz as from_nz
    from decodestep.ops.mla_prolog import gather_cache as gather_cache
    from decodestep.ops.mla_prolog import mla_prolog as mla_prolog
    from decodestep.ops.mla_prolog import mla_prolog_plan as mla_prolog_plan
    from decodestep.ops.mla_prolog import mla_prolog_v2 as mla_prolog_v2
    from decodestep.ops.mla_prolog import mla_prolog_v3 as mla_prolog_v3
    from decodestep.ops.mla_prolog import slots_from_block_table as slots_from_block_table
    from decodestep.ops.mla_prolog import to_nz as to_nz
    from decodestep.ops.rms_norm import rms_norm as rms_norm
    from decodestep.ops.swiglu import swiglu as swiglu
    from decodestep.ops.tensor_scatter import tensor_scatter as tensor_scatter
    from decodestep.ops.top_k_top_p_sample import apply_top_k_top_p as apply_top_k_top_p
    from decodestep.ops.top_k_top_p_sample import top_k_top_p_sample as top_k_top_p_sample
    from decodestep.ops.top_k_top_p_sample import top_k_top_p_sample_v2 as top_k_top_p_sample_v2
    from decodestep.sampling.params import SamplingParams as SamplingParams
    from decodestep.sampling.sampler import Sampler as Sampler
    from decodestep.sampling.sampler import StepResult as StepResult

__version__ = "0.1.0"

_HOME = {
    "Completion": "generation.generate",
    "MlaPrologTilingKey": "ops.mla_prolog",
    "Model": "models",
    "PackedWeight": "ops.linear",
    "PanelWeight": "ops.mla_prolog",
    "Sampler": "sampling.sampler",
    "SamplingParams": "sampling.params",
    "StepResult": "sampling.sampler",
    "apply_top_k_top_p": "ops.top_k_top_p_sample",
    "beam_search": "generation.beam_search",
    "cache_from_nz": "ops.mla_prolog",
    "cache_to_nz": "ops.mla_prolog",
    "decode_step": "ops.decode_step",
    "from_nz": "ops.mla_prolog",
    "gather_cache": "ops.mla_prolog",
    "generate": "generation.generate",
    "linear": "ops.linear",
    "load": "models",
    "mla_attention": "ops.mla_attention",
    "mla_prolog": "ops.mla_prolog",
    "mla_prolog_plan": "ops.mla_prolog",
    "mla_prolog_v2": "ops.mla_prolog",
    "mla_prolog_v3": "ops.mla_prolog",
    "processors": "processors",
    "profile": "_base.dispatch",
    "random": "random",
    "rms_norm": "ops.rms_norm",
    "slots_from_block_table": "ops.mla_prolog",
    "stopping": "stopping",
    "swiglu": "ops.swiglu",
    "tensor_scatter": "ops.tensor_scatter",
    "to_nz": "ops.mla_prolog",
    "top_k_top_p_sample": "ops.top_k_top_p_sample",
    "top_k_top_p_sample_v2": "ops.top_k_top_p_sample",
    "use_threads": "_base.dispatch",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'decodestep' has no attribute {name!r}")
    module = import_module(f"decodestep.{home}")
    value = module if name in ("processors", "random", "stopping") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
