"""Converts small random models of the families with llama.cpp's own converter, and compares the logits of the files.

    python tests/run_converter.py SOURCE [model_type ...]

SOURCE: a copy of llama.cpp's repository, of which the converter (conversion/, gguf-py/) is run; none of it belongs into this
repository. A line for each model, over 300 tokens, the largest difference relative to the largest logit of a position: of the
file from the folder that it was made of, from transformers, and from llama.cpp itself, with a float32 cache, where llama_cpp is
installed; and of the drafts of the file and the folder. support/converted_models.py says what is converted, and what is known
to differ. The exit status is 1 if anything else differs, or something of it does not any more.
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
from support.converted_models import CHANGES, EXPECTED, PREDICTING, PUBLISHED, SAME, SAME_BY_LLAMA_CPP
from support.families import CASES
from support.next_token_models import Predicting, from_nothing

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # where the peers are


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a copy of llama.cpp's repository")
    parser.add_argument("families", nargs="*", metavar="model_type", help="all with a GGUF architecture by default")
    options = parser.parse_args()
    if unknown := set(options.families) - set(CASES):
        parser.error(f"no model_type {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    models = [
        (family, size)
        for family in options.families or CASES
        for size in sorted({*CASES[family].in_gguf, CASES[family].written[0]})
    ]
    surprises = sum(_has_a_surprise(options.source, family, size) for family, size in models)
    print(f"{len(models)} models, {surprises} not as expected")
    sys.exit(surprises > 0)


def _has_a_surprise(source: Path, family: str, size: int) -> bool:
    """Prints the line of a model."""
    expected, told, surprise = EXPECTED.get((family, size), {}), [], False
    for step, found in _in_a_process(source, family, size).items():
        same = isinstance(found, float) and found <= (SAME_BY_LLAMA_CPP.get(family, SAME) if step == "llama.cpp" else SAME)
        surprise |= same == (step in expected)
        told.append(f"{step} {found:.1e}" if isinstance(found, float) else f"{step} {found}")
        told[-1] += f" ({expected[step]})" if step in expected else ""
    print(f"{'UNEXPECTED ' * surprise}{family} {size}: {', '.join(told)}", flush=True)
    return surprise


def _in_a_process(source: Path, family: str, size: int) -> dict[str, float | str]:
    """The differences by what is compared, the last one perhaps what a step fails with. In a process of its own, since
    llama.cpp aborts at what it does not take, and its gguf package is another one than that installed."""
    paths = [source, source / "gguf-py", Path(__file__).parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"GGML_NO_BACKTRACE": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-c", f"import run_converter; run_converter.tell({family!r}, {size})"]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    told = dict(json.loads(line) for line in run.stdout.splitlines() if line.startswith('["'))
    found = {step: difference for step, difference in told.items() if difference is not None}
    if run.returncode:
        said = run.stderr.strip().splitlines() or [f"exit status {run.returncode}"]
        found[next(reversed(told), "model")] = said[-1]
    return found


def tell(family: str, size: int) -> None:
    """Prints each step as it begins, and with its difference as it ends."""
    written, changes = CASES[family].written
    changes = CHANGES.get((family, size), changes if size == written else {})
    predicting = Predicting(family, size, **changes) if family in PREDICTING else None
    theirs = predicting.model if predicting else family_models.build_model(family, size, **changes)
    ids = np.random.default_rng(1).integers(0, 297, 300)
    with tempfile.TemporaryDirectory() as work:
        folder, file = Path(work) / "folder", Path(work) / "model.gguf"
        predicting.save(folder) if predicting else family_models.save(theirs, folder)
        config = folder / "config.json"
        config.write_text(json.dumps(PUBLISHED.get(family, dict)(json.loads(config.read_text()))))
        _print_step("converter")
        _convert(folder, file)
        _print_step("file")
        logits = ds.load(file, dtype="float32").logits(ids)
        others = {
            "folder": lambda: ds.load(folder, dtype="float32").logits(ids),
            "transformers": lambda: family_models.model_logits(theirs, ids),
            "llama.cpp": lambda: family_models.llama_cpp_logits(file, ids),
        }
        for other, run in others.items():
            if other != "llama.cpp" or find_spec("llama_cpp") is not None:
                _print_step(other)
                _print_step(other, family_models.relative(logits, run()))
        if predicting:
            _print_step("drafts")
            file_drafts, drafts = (from_nothing(each, ids[:40].tolist(), 3, dtype="float32") for each in (file, folder))
            _print_step("drafts", family_models.relative(file_drafts, drafts))


def _print_step(step: str, difference: float | None = None) -> None:
    print(json.dumps([step, difference]), flush=True)


def _convert(folder: Path, file: Path) -> None:
    """As convert_hf_to_gguf.py does, but with the folder's tokenizer whatever the family's is: it knows those by hashes. And
    with config.json as it is: transformers' classes add defaults, and the converter asks for an older release with fewer."""
    import torch
    from conversion import ModelBase, ModelType, TextModel, get_model_architecture, get_model_class
    from gguf import LlamaFileType, TokenType

    read = json.loads((folder / "tokenizer.json").read_text())
    special = {token["content"]: token["id"] for token in read["added_tokens"]}
    ids: dict[str, int] = read["model"]["vocab"] | special
    kinds = [TokenType.CONTROL if token in special else TokenType.NORMAL for token in ids]
    TextModel.get_vocab_base = lambda model: (list(ids), kinds, "llama-bpe")
    ModelBase.load_hparams = staticmethod(
        lambda dir_model, is_mistral_format: json.loads((dir_model / "config.json").read_text())
    )
    made_of: Any = get_model_class(get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT))
    ours = {"set_vocab": made_of._set_vocab_gpt2, "model_arch": made_of.model_arch}
    byte_tokens = type(made_of.__name__, (made_of,), ours)
    with torch.inference_mode():
        byte_tokens(folder, LlamaFileType.ALL_F32, file).write()


if __name__ == "__main__":
    main()
