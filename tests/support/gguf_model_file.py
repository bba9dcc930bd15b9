"""GGUF files of small random models: what those of every architecture have in common."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from support.family_models import VOCABULARY


class ModelFile:
    """A file that is being made.

    keys: of the metadata, without the architecture; None leaves one out. kind: of the weights that are matrices, where their
    rows fit into its blocks. alignment: of the tensors' places, if the file shall say so.
    """

    def __init__(
        self,
        path: Path,
        architecture: str,
        keys: Mapping[str, bool | int | float | str | list[int] | None],
        kind: str,
        alignment: int | None = None,
    ) -> None:
        self.path, self.type = path, gguf.GGMLQuantizationType[kind]
        self.writer = gguf.GGUFWriter(path, architecture)
        if alignment:
            self.writer.add_custom_alignment(alignment)
        add = {
            bool: self.writer.add_bool,
            int: self.writer.add_uint32,
            float: self.writer.add_float32,
            str: self.writer.add_string,
            list: self.writer.add_array,
        }
        for key, value in keys.items():
            if value is not None:
                shared = key.startswith(("general.", "tokenizer."))
                add[type(value)](key if shared else f"{architecture}.{key}", value)
        self._add_tokenizer()

    def add(self, name: str, value: np.ndarray, *, exact: bool = False) -> None:
        """exact: whether a matrix is float32 whatever the file's kind."""
        value = np.ascontiguousarray(value, np.float32)
        fits = value.ndim > 1 and value.shape[-1] % gguf.GGML_QUANT_SIZES[self.type][0] == 0
        if exact or not fits or self.type == gguf.GGMLQuantizationType.F32:
            self.writer.add_tensor(name, value)
        else:
            self.writer.add_tensor(name, gguf.quants.quantize(value, self.type), raw_dtype=self.type)

    def write(self) -> Path:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        return self.path

    def _add_tokenizer(self) -> None:
        letters = [chr(b) if 33 <= b <= 126 else f"<{b}>" for b in range(VOCABULARY - 4)] + ["ab"]
        self.writer.add_tokenizer_model("gpt2")
        self.writer.add_tokenizer_pre("gpt-2")
        self.writer.add_token_list([*letters, "<bos>", "<eos>", "<pad>"])
        self.writer.add_token_types([1] * (VOCABULARY - 3) + [3] * 3)
        self.writer.add_token_merges(["a b"])
        self.writer.add_bos_token_id(VOCABULARY - 3)
        self.writer.add_eos_token_id(VOCABULARY - 2)
