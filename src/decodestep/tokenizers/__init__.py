"""Tokenizers: text to token ids and back, of GGUF files and of folders.

- `tokenizer` (`vocabulary`, `control_tokens`, `shown_tokens`): what a model has;
- `gguf_tokenizer`, `folder_tokenizer` (`tiktoken_file`): where it comes from, on `engine` and `pre_tokenizers`;
- `gguf_fields`: a folder's tokenizer as the keys of a GGUF file.
"""
