"""lm-evaluation-harness: our model against its transformers backend, on the same checkpoint, without the network."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import decodestep as ds
from support import family_models, processes
from support.project import ROOT

lm_eval = pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402

from decodestep.integrations.lm_eval import DecodestepLM, _log_probabilities  # noqa: E402

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim if m.content | length < 16 else m.content }}[end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def backends(path: Path, write_tokenizer: Callable[[Path], None]) -> tuple[Any, Any]:
    """A checkpoint of random weights in both backends, float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=384, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=96, initializer_range=0.3, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(path)
    write_tokenizer(path)
    theirs = HFLM(pretrained=str(path), device="cpu", dtype="float32", batch_size=1)
    return DecodestepLM(str(path), dtype="float32"), theirs


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return backends(tmp_path_factory.mktemp("lm"), partial(family_models.write_tokenizer, template=TEMPLATE))


def write_words_with_spaces(path: Path) -> None:
    """A tokenizer that puts a space before a text and takes it away again, as those of Llama 2 and Mistral."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    letters = [chr(number) for number in range(33, 127)]
    words = [f"▁{x}{y}" for x in letters for y in "aeo"]
    tokens = ["<s>", "</s>", "▁", *letters, *words][:384]
    engine = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    engine.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    engine.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    engine.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<s>", "</s>")])
    engine.save(str(path / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


def requests(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, each, i) for i, each in enumerate(arguments)]


PAIRS = [("The sky is", " blue"), ("The sky is ", "grey"), ("", "Hello"), ("a" * 90, "bcdefghijkl" * 3), ("x", "y")]


def test_loglikelihood(pair: tuple[Any, Any]) -> None:
    """Spaces that move into the continuation, an empty context, and one that is cut from the left."""
    ours, theirs = (lm.loglikelihood(requests("loglikelihood", *PAIRS), disable_tqdm=True) for lm in pair)
    np.testing.assert_allclose([score for score, _ in ours], [score for score, _ in theirs], rtol=1e-5)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]


def test_log_probabilities_need_the_memory_of_a_row() -> None:
    rng = np.random.default_rng(0)
    logits, tokens = rng.normal(0, 9, (64, 30000)).astype(np.float32), rng.integers(0, 30000, 64)
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    expected = wide[np.arange(64), tokens] - np.log(np.exp(wide).sum(axis=-1))
    tracemalloc.start()
    made = _log_probabilities(logits, tokens.tolist())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.array_equal(made, expected) and peak < logits.nbytes / 8


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


def test_what_a_prompt_loses_is_logged(pair: tuple[Any, Any], caplog: pytest.LogCaptureFixture) -> None:
    ours, _ = pair
    count = len(ours.tok_encode("b" * 120))
    ours.generate_until(requests("generate_until", ("b" * 120, {"until": ["q"], "max_gen_toks": 9})))
    ours.loglikelihood(requests("loglikelihood", ("b" * 120, "c"), ("b", "c")))
    rows = [(96 - 9, count), (96 + 1, count + len(ours.tok_encode("c", add_special_tokens=False)))]
    lost = [f"max_length leaves room for the last {room} of {tokens} tokens: the others are left out" for room, tokens in rows]
    assert caplog.messages == lost


def test_a_control_token_among_the_until_strings_ends_a_text(pair: tuple[Any, Any]) -> None:
    asked = [("hello", {"until": until, "max_gen_toks": 60}) for until in (["<bos>"], [])]
    ours, theirs = (lm.generate_until(requests("generate_until", *asked), disable_tqdm=True) for lm in pair)
    assert ours == theirs and ours[1].startswith(ours[0]) and len(ours[0]) < len(ours[1])


def test_a_text_whose_first_token_begins_with_a_space(tmp_path: Path) -> None:
    lms = backends(tmp_path, write_words_with_spaces)
    asked = [(f"{letter} word", {"until": ["!"], "max_gen_toks": 5}) for letter in "abcdefghijklmnop"]
    ours, theirs = (lm.generate_until(requests("generate_until", *asked), disable_tqdm=True) for lm in lms)
    model = lms[0].model
    params = ds.SamplingParams(do_sample=False, max_new_tokens=1)
    first = [ds.generate(model, [model.tokenizer.encode(prompt)], params)[0].text for prompt, _ in asked]
    assert ours == theirs and any(text.startswith(" ") for text in first)


def test_a_context_of_spaces_alone_is_refused_as_there(pair: tuple[Any, Any]) -> None:
    """Without a beginning token nothing is left before the first token of the continuation, which takes the spaces."""
    asked = requests("loglikelihood", ("  ", "Hello"))
    with pytest.raises(ValueError, match="lm_eval: context must be"):
        pair[0].loglikelihood(asked)
    with pytest.raises(AssertionError):
        pair[1].loglikelihood(asked)


@pytest.mark.parametrize("beginning", ["The answer is", "The answer is: ", "x"])
def test_an_answer_that_a_task_begins_goes_on(pair: tuple[Any, Any], beginning: str) -> None:
    chat = [{"role": "user", "content": "Say x."}, {"role": "assistant", "content": beginning}]
    for messages, whole in ((chat, False), (chat[:1], True)):
        ours, theirs = (lm.apply_chat_template(messages, add_generation_prompt=whole) for lm in pair)
        assert ours == theirs
    assert ours.endswith("[assistant]")
    gone = DecodestepLM(ds.load(pair[0].model.path, dtype="float32", chat_template="{{ messages[0].content }}"))
    with pytest.raises(ValueError, match="lm_eval: chat_history must be"):
        gone.apply_chat_template(chat, add_generation_prompt=False)


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


def test_the_command_line_of_the_docs(tiny_file: Any, tmp_path: Path) -> None:
    """Without a device the harness passes its own default, "cuda:0"."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "ab", "answer": "c"}))
    (tmp_path / "task.yaml").write_text(
        f"""
task: here
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path / "rows.jsonl"}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: 0
doc_to_choice: ["c", "d"]
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
    )
    program = [sys.executable, "-m", "decodestep.integrations.lm_eval", "run", "--model", "decodestep"]
    command = [*program, "--model_args", f"pretrained={tiny_file()}", "--tasks", "here", "--include_path", str(tmp_path)]
    assert "|here" in processes.run(command, check=True).stdout
    with pytest.raises(ValueError, match="lm_eval: device must be None or 'cpu'; got 'cuda'"):
        DecodestepLM(str(tiny_file()), device="cuda")


def test_the_example_runs(tiny_file: Any) -> None:
    example = ROOT / "examples/lm_eval_model.py"
    lines = processes.run([sys.executable, str(example), "--model", str(tiny_file())], check=True).stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["The sky is blue", "The sky is a spoon"] and len(lines) == 3
