"""GGUF keys of another kind than theirs: each that a family reads is refused by its name, and none is taken as absent."""

from __future__ import annotations

import numpy as np
import pytest

from decodestep.errors import ModelError
from decodestep.files.gguf_file import GgufFile
from decodestep.models.checkpoint import Checkpoint
from support import family_models, grouped_gguf_files, hybrid_gguf_files, latent_gguf_files

WRONG = [np.zeros(0, np.int32), np.array([1.5]), [], ["a"], "a", True]
# Keys in a file that say nothing of it: sizes of parts that this model lacks, or that its tensors say.
UNREAD = {
    "lfm2": set(),
    "qwen3_5_text": {"rope.dimension_sections"},
    "nemotron_h": {"rope.dimension_count"},
    "llama": set(),
    "gemma3_text": set(),
    "gpt_oss": set(),
    "deepseek_v3": {"attention.head_count_kv", "attention.key_length", "attention.value_length"},
}
WRITERS = {"lfm2": hybrid_gguf_files, "qwen3_5_text": hybrid_gguf_files, "nemotron_h": hybrid_gguf_files}
WRITERS |= {"llama": grouped_gguf_files, "gemma3_text": grouped_gguf_files, "gpt_oss": grouped_gguf_files}
WRITERS |= {"deepseek_v3": latent_gguf_files}


def told(path, key, value):
    """What is said of a file with another value; "" if it is taken."""
    file = GgufFile(path)
    file.metadata[key] = value
    try:
        checkpoint = Checkpoint(file)
        checkpoint.tokenizer()
        checkpoint.ropes()
    except ModelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("family", UNREAD)
def test_a_key_of_another_kind_is_refused_by_its_name(tmp_path, family):
    path = WRITERS[family].write_gguf(family_models.build_model(family, 0), tmp_path / "m.gguf")
    metadata = GgufFile(path).metadata
    taken = set()
    for key in metadata.keys() - {"general.architecture"}:
        others = [value for value in WRONG if type(value) is not type(metadata[key])]
        messages = [told(path, key, value) for value in others]
        assert all(message == "" or key in message for message in messages), (key, messages)
        taken |= {key.partition(".")[2]} if "" in messages else set()
    assert taken == UNREAD[family]


@pytest.mark.parametrize("value", [*WRONG, 0.5, 3.0])
def test_a_size_of_the_vocabulary_beside_its_tokens_is_an_integer(tmp_path, value):
    path = grouped_gguf_files.write_gguf(family_models.build_model("llama", 0), tmp_path / "m.gguf")
    assert "metadata llama.vocab_size must be an integer in" in told(path, "llama.vocab_size", value)
    assert told(path, "llama.vocab_size", 32000) == ""
