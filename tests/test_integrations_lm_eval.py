"""lm-evaluation-harness: our model against its transformers backend, on the same checkpoint, without the network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import decodestep as ds
import families
import processes

lm_eval = pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402

from decodestep.integrations.lm_eval import DecodestepLM  # noqa: E402


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A checkpoint of random weights in both backends, float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=384, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=96, initializer_range=0.3, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    import torch

    torch.manual_seed(0)
    folder = families.save(LlamaForCausalLM(config).eval(), tmp_path_factory.mktemp("lm") / "model")
    theirs = HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=1)
    return DecodestepLM(str(folder), dtype="float32"), theirs


def requests(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, each, i) for i, each in enumerate(arguments)]


PAIRS = [("The sky is", " blue"), ("The sky is ", "grey"), ("", "Hello"), ("a" * 90, "bcdefghijkl" * 3), ("x", "y")]


def test_loglikelihood(pair: tuple[Any, Any]) -> None:
    """Spaces that move into the continuation, an empty context, and one that is cut from the left."""
    ours, theirs = (lm.loglikelihood(requests("loglikelihood", *PAIRS), disable_tqdm=True) for lm in pair)
    np.testing.assert_allclose([score for score, _ in ours], [score for score, _ in theirs], rtol=1e-5)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]


def test_is_greedy_is_told_of_the_models_own_text(pair: tuple[Any, Any]) -> None:
    params = ds.SamplingParams(do_sample=False, max_new_tokens=3, ignore_eos=True)
    [text] = ds.generate(pair[0].model, [[97, 98]], params)
    ids = [97, 98, *text.token_ids]
    for lm in pair:
        assert lm._loglikelihood_tokens([(None, ids[:2], ids[2:5])], disable_tqdm=True)[0][1]
        assert not lm._loglikelihood_tokens([(None, ids[:2], [ids[2], ids[3] ^ 1])], disable_tqdm=True)[0][1]


def test_loglikelihood_rolling_over_several_windows(pair: tuple[Any, Any]) -> None:
    texts = [("The quick brown fox. " * 13,), ("a",)]
    ours, theirs = (lm.loglikelihood_rolling(requests("loglikelihood_rolling", *texts), disable_tqdm=True) for lm in pair)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_generate_until(pair: tuple[Any, Any]) -> None:
    first = pair[0].generate_until(requests("generate_until", ("The sky", {"until": [], "max_gen_toks": 12})))[0]
    asked = [("The sky", {"until": [first[5]], "max_gen_toks": 12}), ("b" * 120, {"until": ["q"], "max_gen_toks": 9})]
    ours, theirs = (lm.generate_until(requests("generate_until", *asked), disable_tqdm=True) for lm in pair)
    assert ours == theirs and ours[0] == first[: first.index(first[5])]


def test_sampled_text_has_a_seed_and_unknown_arguments_are_refused(pair: tuple[Any, Any]) -> None:
    ours, _ = pair
    sampled = requests("generate_until", *[("The sky", {"do_sample": True, "temperature": 1.0, "max_gen_toks": 9})] * 2)
    texts = ours.generate_until(sampled)
    assert texts == ours.generate_until(sampled) and texts[0] != texts[1]
    with pytest.raises(ValueError, match="lm_eval: generation_kwargs must be .*; got num_beams"):
        ours.generate_until(requests("generate_until", ("a", {"num_beams": 2})))


def test_a_task_of_the_harness_agrees(pair: tuple[Any, Any], tmp_path: Path) -> None:
    """The shipped configuration of sciq, on questions that lie here."""
    rows = [
        {"question": f"What is {i} and {j}?", "support": "Sums.", "correct_answer": str(i + j)}
        | {f"distractor{k}": str(i + j + k) for k in (1, 2, 3)}
        for i in range(3)
        for j in range(2)
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {name: str(data) for name in ("train", "validation", "test")}
    import yaml

    shipped = Path(lm_eval.__file__).parent / "tasks/sciq/sciq.yaml"
    task = {**yaml.safe_load(shipped.read_text()), "dataset_path": "json", "dataset_kwargs": {"data_files": files}}
    results = [lm_eval.simple_evaluate(model=lm, tasks=[dict(task)], bootstrap_iters=0, log_samples=True) for lm in pair]
    ours, theirs = [result["samples"]["sciq"] for result in results]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose([x[0][0] for x in a["resps"]], [x[0][0] for x in b["resps"]], rtol=1e-5)
    assert [a["acc"] for a in ours] == [b["acc"] for b in theirs]
    assert results[0]["results"]["sciq"]["acc,none"] == results[1]["results"]["sciq"]["acc,none"]


def test_the_example_runs(tiny_file: Any) -> None:
    example = Path(__file__).parent.parent / "examples/lm_eval_model.py"
    lines = processes.run([sys.executable, str(example), "--model", str(tiny_file())], check=True).stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["The sky is blue", "The sky is a spoon"] and len(lines) == 3
