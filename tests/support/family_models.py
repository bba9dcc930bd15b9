"""Small random models of the families that are loaded: by transformers, and as folders."""

from __future__ import annotations

import json
import tempfile
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decodestep.families.common.description import attention_alone
from decodestep.families.common.latent import LatentKeys
from decodestep.families.common.registry import MODEL_TYPES
from support import processes
from support.families import CASES

VOCABULARY = 300
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": 297,
    "eos_token_id": 298,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
HYBRID = [family for family in CASES if MODEL_TYPES[family].mixers is not attention_alone]  # with layers that have a state
ALIGNED = {family: cases.aligned for family, cases in CASES.items() if cases.aligned}


def in_gguf(kind: str) -> list[tuple[str, int]]:
    """The sizes that GGUF has keys for, of families with "latent" attention, with "grouped" attention, or "hybrid" ones."""
    latent = {family for family in CASES if isinstance(MODEL_TYPES[family].attention, LatentKeys)}
    own = {"latent": latent, "hybrid": HYBRID, "grouped": [each for each in CASES if each not in {*latent, *HYBRID}]}[kind]
    return [(family, size) for family in CASES if family in own for size in CASES[family].in_gguf]


def config_class(family: str) -> Any:
    """transformers' class of a family's config.json."""
    place = CASES[family].place or family
    suffix = "TextConfig" if family.endswith("_text") else "Config"
    return getattr(import_module(f"transformers.models.{place}.configuration_{place}"), f"{CASES[family].class_name}{suffix}")


def build_model(family: str, size: int, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A model of transformers in evaluation mode whose weights are large enough for every part to matter."""
    place = CASES[family].place or family
    modelling = import_module(f"transformers.models.{place}.modeling_{place}")
    config = config_class(family)(**deepcopy({**SMALL, **CASES[family].sizes[size], **changes}))  # which it changes
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = getattr(modelling, f"{CASES[family].class_name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" in name or "embed_scale" in name or not parameter.is_floating_point():
                continue
            if "norm" in name or "scale" in name:
                parameter.uniform_(0.5, 1.5)
            elif "embed_tokens" in name:
                parameter.normal_()
            elif "bias" in name or "sinks" in name:
                parameter.normal_(0, 0.2)
            elif name.endswith("A_log"):
                parameter.uniform_(-4, 0)  # of states that last
            elif name.endswith(".D"):
                parameter.uniform_(0.5, 1.5)
            elif parameter.dim() > 1:
                parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
    return model.to(dtype)


def save(model: Any, path: Path, **options: Any) -> Path:
    """The model as a folder, with a tokenizer of bytes."""
    model.save_pretrained(path, **options)
    write_tokenizer(path)
    return path


def write_tokenizer(path: Path, template: str | None = "{{ messages[0].content }}") -> None:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*letters, "ab", "abc"])}
    vocabulary |= {f"<{i}>": i for i in range(len(vocabulary), 297)}
    engine = Tokenizer(BPE(vocabulary, [("a", "b"), ("ab", "c")]))
    engine.pre_tokenizer, engine.decoder = ByteLevel(add_prefix_space=False), Decoder()
    engine.add_special_tokens([AddedToken(name, special=True) for name in ("<bos>", "<eos>", "<pad>")])
    engine.save(str(path / "tokenizer.json"))
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": template}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


def model_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(ids)[None]).logits[0].float().numpy()


_LLAMA_CPP = """
import numpy as np
from peers.llama_cpp_model import LlamaCpp
peer = LlamaCpp(path, 512, 1, flash_attention=False, exact_cache=True)
np.save(found, peer.evaluate(np.load(given), 0, every=True))
"""


def llama_cpp_logits(path: Path, ids: np.ndarray) -> np.ndarray:
    """In a process of its own, which llama.cpp ends where it finds a file's sizes impossible. Raises RuntimeError then."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "ids.npy"), Path(folder, "logits.npy")
        np.save(given, ids)
        places = f"path, given, found = {(str(path), str(given), str(found))}"
        ended = processes.run_python(places + _LLAMA_CPP)
        if ended.returncode:
            raise RuntimeError(f"llama.cpp ended with {ended.returncode}: {ended.stderr}")
        return np.load(found)


def greedy_tokens(model: Any, ids: list[int], count: int) -> list[int]:
    """The tokens that transformers' cached greedy search adds."""
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False, eos_token_id=None, use_cache=True)
    return out[0, len(ids) :].tolist()


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, relative to the largest magnitude of a row."""
    return float((np.abs(ours - theirs).max(axis=1) / np.abs(theirs).max(axis=1)).max())
