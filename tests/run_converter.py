"""Converts small random models of the families with llama.cpp's own converter, and compares the logits of the files.

    python tests/run_converter.py SOURCE [model_type ...]

SOURCE: a copy of llama.cpp's repository, of which the converter (conversion/, gguf-py/) is run; none of it belongs into this
repository. A line for each model, over 300 tokens, the largest difference relative to the largest logit of a position: of the
file from the folder that it was made of, from transformers, and from llama.cpp itself where llama_cpp is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import decodestep as ds
from support import family_models
from support.families import CASES

# What the converter needs of a published config.json, and transformers' classes neither read nor write.
PUBLISHED: dict[str, dict[str, Any]] = {"cohere2": {"rotary_pct": 1.0}, "deepseek_v3": {"scoring_func": "sigmoid"}}
_ENDED = "llama.cpp ended the process"
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # where the peers are


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a copy of llama.cpp's repository")
    parser.add_argument("families", nargs="*", metavar="model_type", help="all with a GGUF architecture by default")
    options = parser.parse_args()
    if unknown := set(options.families) - set(CASES):
        parser.error(f"no model_type {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    for family in options.families or CASES:
        for size in sorted({*CASES[family].in_gguf, CASES[family].written[0]}):
            print(f"{family} {size}: {_in_a_process(options.source, family, size)}", flush=True)


def _in_a_process(source: Path, family: str, size: int) -> str:
    """Of its own, since llama.cpp aborts at what it does not take, and its gguf package is another one than that installed."""
    paths = [source, source / "gguf-py", Path(__file__).parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"GGML_NO_BACKTRACE": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-c", f"import run_converter; print(run_converter.compare({family!r}, {size}))"]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode == 0:
        return run.stdout.strip().splitlines()[-1]
    lines = run.stderr.strip().splitlines()
    return next((line for line in lines if line.endswith(_ENDED)), " ".join(lines[-4:]))


def compare(family: str, size: int) -> str:
    """As that file of the family which llama.cpp takes, where that is said to be of this size."""
    written, changes = CASES[family].written
    theirs = family_models.build_model(family, size, **(changes if size == written else {}))
    ids = np.random.default_rng(1).integers(0, 297, 300)
    with tempfile.TemporaryDirectory() as work:
        folder, file = family_models.save(theirs, Path(work) / "folder"), Path(work) / "model.gguf"
        _add(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
        _add(folder / "config.json", PUBLISHED.get(family, {}))
        _convert(folder, file)
        logits = ds.load(file, dtype="float32").logits(ids)
        said = [
            f"folder {family_models.relative(logits, ds.load(folder, dtype='float32').logits(ids)):.1e}",
            f"transformers {family_models.relative(logits, family_models.model_logits(theirs, ids)):.1e}",
        ]
        if find_spec("llama_cpp") is not None:
            print(*said, _ENDED, sep=", ", file=sys.stderr)  # which is read if it does
            said.append(_from_llama_cpp(logits, ids, file))
    return ", ".join(said)


def _from_llama_cpp(logits: np.ndarray, ids: np.ndarray, file: Path) -> str:
    try:
        return f"llama.cpp {family_models.relative(logits, family_models.llama_cpp_logits(file, ids)):.1e}"
    except RuntimeError as error:
        return " ".join(str(error).split())


def _add(file: Path, keys: dict[str, Any]) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def _convert(folder: Path, file: Path) -> None:
    """As convert_hf_to_gguf.py does, but with the folder's tokenizer whatever the family's is: it knows those by hashes."""
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    from gguf import LlamaFileType

    made_of: Any = get_model_class(get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT))
    ours = {"set_vocab": made_of._set_vocab_gpt2, "get_vocab_base_pre": lambda *_: "llama-bpe"}
    ours |= {"model_arch": made_of.model_arch, "no_mtp": True}  # transformers' models have no layers that draft
    byte_tokens = type(made_of.__name__, (made_of,), ours)
    with torch.inference_mode():
        byte_tokens(folder, LlamaFileType.ALL_F32, file).write()


if __name__ == "__main__":
    main()
