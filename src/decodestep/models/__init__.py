"""Models: a GGUF file or a folder of safetensors, loaded as tokenizer, chat template and decoder. Modules by subject:

- `load`: a path to a `model`; `fetch`: the default one; `errors`;
- files: `gguf_file` (`gguf_header`, `gguf_shards`), `model_folder` (`safetensors_file`, `json_file`), on `file_bytes` and
  `metadata`;
- `architectures`: the sizes and parts that a file's keys and names stand for; `checkpoint`: its tensors by part; `summary`;
- text: `tokenizer` (`vocabulary`, `control_tokens`) of a `gguf_tokenizer` or a `folder_tokenizer` (`tiktoken_file`), on
  `tokenizer_engine` and `pre_tokenizers`; `chat` (`message_form`), rendered by a `template_process` (`template_worker`,
  `template_renderer`) as `traced_text`;
- `config`, `layer_weights`, `convert` (`latent_form`), `rope`: a checkpoint to a decoder's sizes and weights;
- `decoder`: what a decoder does; `step_decoder`: in one native call; `layer_decoder` (`grouped_layer`, `latent_layer`):
  operator by operator;
- `kv_cache`, `page_pool`, `sequence`: keys and values; `forward`, `prefill`: tokens of many sequences through a decoder;
- `quantise`, `requantise` (`gguf_source`, `tokenizer_fields`): written as a GGUF file of other types.
"""

from decodestep.models.errors import ModelError
from decodestep.models.fetch import DEFAULT_MODEL
from decodestep.models.load import load
from decodestep.models.model import Model
from decodestep.models.page_pool import CacheFullError
from decodestep.models.sequence import CachedSequence

__all__ = ["DEFAULT_MODEL", "CacheFullError", "CachedSequence", "Model", "ModelError", "load"]
