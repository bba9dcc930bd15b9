"""transformers: decodes models with latent attention on the latents, and draws the tokens of `generate` with `Sampler`,
and keeps the blocks of GGUF files.

    from decodestep.integrations.transformers import accelerate, register_gguf, sampling
    accelerate(model)                                              # DeepSeek-V2, -V3 and relatives
    model.generate(**inputs, custom_generate=sampling(seed=7))     # any decoder
    register_gguf()                                                # from_pretrained(..., gguf_file=...) keeps the file's blocks

Importing this module registers the attention implementations "decodestep", which is sdpa until `accelerate` is called, and
"decodestep_grouped", which models with blocks of GGUF files have.
"""

from decodestep._base.extras import extra

with extra("transformers"):
    import transformers as _transformers  # noqa: F401

from decodestep.integrations.transformers import grouped_attention as _grouped_attention  # noqa: F401
from decodestep.integrations.transformers.acceleration import Acceleration, accelerate
from decodestep.integrations.transformers.gguf_registration import GgufRegistration, register_gguf
from decodestep.integrations.transformers.latent_layer import IndexedLatentLayer, LatentLayer
from decodestep.integrations.transformers.sampling import sampling

__all__ = [
    "Acceleration",
    "GgufRegistration",
    "IndexedLatentLayer",
    "LatentLayer",
    "accelerate",
    "register_gguf",
    "sampling",
]
