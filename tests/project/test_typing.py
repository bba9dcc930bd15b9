"""Type checkers: every snippet of the docs passes, and what is not allowed is refused, as it is when it runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support import typed_snippets

pytest.importorskip("pyright")

HEAD = """
import numpy as np
import decodestep as ds

model = ds.load()
said = [{"role": "user", "content": "Hi"}]
typed: list[ds.Message] = [{"role": "user", "content": "Hi"}]
"""
# Each line is legal.
LEGAL = """
ds.generate(model, "a")[0].text.upper()
ds.generate(model, ["a", [1, 2], np.array([1]), [{"role": "user", "content": "x"}], said])
ds.generate(model, said), ds.generate(model, typed), ds.generate(model, [said, "a"]), ds.stream(model, typed)
ds.generate(model, [{"role": "user", "content": "Hi", "more": 3}], [ds.SamplingParams()])
ds.SamplingParams(stop="x", max_tokens=12, n=3), ds.SamplingParams(stop=None, stop_token_ids=None)
ds.SamplingParams(stop_strings=["."], stop_token_ids=np.array([2]), eos_token_id=[1, 2], bad_words_ids=[[1, 2]], top_k=-1)
ds.SamplingParams(samplers=["top_k"], json_schema={"type": "object"}, logit_bias={5: -1}, allowed_token_ids={1, 2})
ds.SamplingParams.from_openai({"n": 2}).stop_strings[0].upper()
ds.SamplingParams().replace(stop="x", max_tokens=12, stop_token_ids=[3]).replace(n=2).stop_strings[0].upper()
ds.mla_prolog_plan, ds.gather_cache, ds.PackedWeight, ds.to_nz, ds.errors.RequestError, ds.linear
"""
# Each line is one error.
ILLEGAL = """
ds.SamplingParams(temprature=1)
ds.SamplingParams(16)
ds.SamplingParams(top_k="5")
ds.SamplingParams(early_stopping="always")
ds.SamplingParams().replace(temprature=1)
ds.SamplingParams().replace(top_k="5")
ds.SamplingParams().seed = 3
ds.SamplingParams().stop_strings.append("x")
ds.nonsense
ds.generate(model, [3, 4])
ds.stream(model, 5)
"""


@pytest.mark.slow
def test_the_snippets_of_readme_docs_and_examples_are_well_typed(tmp_path):
    names = typed_snippets.programs().keys()
    assert {"README_0.py", "docs_cookbook_1.py", "docs_hosts_fragment_0.py", "examples_onnx_models.py"} <= names
    ended = typed_snippets.check(tmp_path / "snippets")
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
def test_types_take_what_is_legal_and_nothing_else(tmp_path):
    (tmp_path / "calls.py").write_text(HEAD + LEGAL + ILLEGAL)
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(typed_snippets.ROOT / "src")], "reportUnusedExpression": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = {each["range"]["start"]["line"] for each in json.loads(ended.stdout)["generalDiagnostics"]}
    first = (HEAD + LEGAL).count("\n") + 1
    assert lines == set(range(first, first + ILLEGAL.count("\n") - 1)), ended.stdout
