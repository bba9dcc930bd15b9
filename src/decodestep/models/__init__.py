"""Models: a GGUF file or a folder of safetensors, loaded as tokenizer, chat template and decoder.

- `load`: a name or path to a `model`, with its `sampling_defaults`; `fetch`, `hub`: what names are;
- `checkpoint`: the tensors of a file by the part of the model; `convert` (`layer_parts`): these as weights; `summary`;
- `quantise`, `requantise` (`gguf_source`): written as a GGUF file of other types.
"""

from decodestep.decoding.sequence import CachedSequence
from decodestep.errors import CacheFullError, ModelError
from decodestep.models.fetch import DEFAULT_MODEL
from decodestep.models.load import load
from decodestep.models.model import Model

__all__ = ["DEFAULT_MODEL", "CacheFullError", "CachedSequence", "Model", "ModelError", "load"]
