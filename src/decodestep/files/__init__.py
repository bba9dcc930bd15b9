"""Files of models: bytes, headers and values, read within bounds. Nothing here knows a model.

- GGUF: `gguf_file` (`gguf_header`, `gguf_shards`), and `metadata`, typed access to its keys;
- folders: `model_folder` (`safetensors_file`, `json_file`);
- `file_bytes`: bytes of a file; `tensor_values`: a tensor's values as float32, whatever its type.
"""
