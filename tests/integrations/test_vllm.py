"""vLLM: our processor among its own, through both interfaces, on its own classes. Nothing here needs a GPU or a model.

What is not as in a server: without a GPU vLLM has neither pinned memory nor Triton's kernels, so the buffers of its request
states are plain ones that the tests fill themselves.
"""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Any

import numpy as np
import pytest

from decodestep import SamplingParams
from support import host_engine_rows

pytest.importorskip("vllm")

import torch
import vllm
from vllm.exceptions import VLLMValidationError
from vllm.utils import torch_utils
from vllm.v1.sample import logits_processor as batched
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.sample import logits_processor as staged
from vllm.v1.worker.gpu.states import RequestState

from decodestep.integrations.vllm import Processor

torch_utils.PIN_MEMORY = False
V = 300
logits_of, alone = partial(host_engine_rows.logits_of, V), partial(host_engine_rows.alone, V)
OURS = [
    (SamplingParams(temperature=1.3, top_p=0.9, seed=3, dry_multiplier=0.8), {"dry_multiplier": 0.8}),
    (SamplingParams(seed=4, top_k=40, xtc_probability=0.5), {"xtc_probability": 0.5}),
    (SamplingParams(seed=5, min_p=0.02, top_n_sigma=1.5, presence_penalty=1), '{"top_n_sigma": 1.5, "presence_penalty": 1}'),
    (SamplingParams(seed=6, top_h=0.4), {"top_h": 0.4}),
    (SamplingParams(temperature=0.0, no_repeat_ngram_size=2), {"no_repeat_ngram_size": 2}),
]


def request_of(params: SamplingParams, given: Any) -> Any:
    own = {name: getattr(params, name) for name in ("temperature", "top_p", "top_k", "min_p", "seed")}
    return vllm.SamplingParams(**own, extra_args={"decodestep": given})


class Text:
    """A request, ours or another's, and what it has generated."""

    def __init__(self, number: int) -> None:
        self.kind, self.prompt, self.output = number % (len(OURS) + 1), [number, number + 1, number], list[int]()
        params = request_of(*OURS[self.kind]) if self.ours else vllm.SamplingParams(temperature=0.7, seed=1)
        self.params = params

    @property
    def ours(self) -> bool:
        return self.kind < len(OURS)

    def take(self, row: torch.Tensor) -> None:
        """Appends the row's token, which for ours is the only one left."""
        if self.ours:
            (token,) = torch.nonzero(row > -torch.inf).flatten().tolist()
        else:
            assert np.array_equal(row.numpy(), logits_of(self.prompt, self.output))
            token = int(row.argmax())
        self.output.append(token)

    def check(self) -> None:
        if self.ours and self.output:
            assert self.output == alone(OURS[self.kind][0], self.prompt, len(self.output))


def config(seed: int = 0) -> Any:
    return type("Config", (), {"model_config": type("ModelConfig", (), {"seed": seed})})


def load_processor() -> Any:
    """As vLLM loads it, among its own processors."""
    made = config()
    made.scheduler_config, made.speculative_config = type("Scheduler", (), {"max_num_seqs": 16}), None
    names = ["decodestep.integrations.vllm:Processor"]
    every = batched.build_logitsprocs(made, torch.device("cpu"), False, False, names).all
    (processor,) = [each for each in every if type(each) is Processor]
    return processor


def test_batches_whose_rows_come_go_move_and_swap_do_not_change_a_text() -> None:
    rng, processor, builder = random.Random(1), load_processor(), batched.BatchUpdateBuilder()
    batch, seen = [], []
    for _ in range(80):
        for index in sorted(rng.sample(range(len(batch)), rng.randint(0, len(batch) // 2))):
            builder.removed_append(index)
        for _ in range(rng.randint(0, 2)):
            seen.append(text := Text(len(seen)))
            index = builder.pop_removed() if builder.has_removed() else len(batch)
            builder.added.append((index, text.params, text.prompt, text.output))
            batch[index : index + 1] = [text]
        holes = list(builder.removed)
        while holes:  # vLLM closes gaps with the last rows
            last = len(batch) - 1
            if last in holes:
                holes.remove(last)
            else:
                holes.remove(gap := builder.pop_removed())
                builder.moved.append((last, gap, batched.MoveDirectionality.UNIDIRECTIONAL))
                batch[gap] = batch[last]
            del batch[last]
        if len(batch) > 1 and rng.random() < 0.5:
            a, b = rng.sample(range(len(batch)), 2)
            builder.moved.append((a, b, batched.MoveDirectionality.SWAP))
            batch[a], batch[b] = batch[b], batch[a]
        processor.update_state(builder.get_and_reset(len(batch)))
        if batch:
            logits = torch.from_numpy(np.stack([logits_of(text.prompt, text.output) for text in batch]))
            for text, row in zip(batch, processor.apply(logits), strict=True):
                text.take(row)
    assert len(seen) > 30 and max(len(text.output) for text in seen) > 8
    for text in seen:
        text.check()


class Runner:
    """vLLM's request states, filled as its model runner does, and our processor as it builds it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(buffer_utils, "is_uva_available", lambda: False)
        monkeypatch.setattr(buffer_utils, "NonUvaBuffer", _Buffer)
        self.states = RequestState(6, 64, 64, 3, V, torch.device("cpu"))
        names = ["decodestep.integrations.vllm:Processor"]
        (self.processor,) = staged.build_custom_logits_processors(config(), self.states, False, names)
        self.slots: dict[int, Text] = {}

    def add(self, text: Text) -> bool:
        tokens = [*text.prompt, *text.output]
        slot = self.states.free_indices.pop()
        self.states.prompt_len.np[slot], self.states.prefill_len.np[slot] = len(text.prompt), len(tokens)
        self.states.all_token_ids.gpu[slot, : len(tokens)] = torch.tensor(tokens)
        self.slots[slot] = text
        return self.processor.add_request(slot, text.params)

    def remove(self, slot: int) -> None:
        self.states.all_token_ids.gpu[slot] = -1
        self.states.free_indices.append(slot)
        del self.slots[slot]

    def step(self, order: list[int], drafts: dict[int, list[int]]) -> list[torch.Tensor]:
        """The processed rows of each slot, one after its tokens and one after each of its drafts."""
        layout, logits = [], []
        for slot in order:
            text = self.slots[slot]
            tokens = [*text.prompt, *text.output]
            for local in range(len(drafts.get(slot, [])) + 1):
                seen = [*tokens, *drafts.get(slot, [])[:local]]
                layout.append((slot, local, len(seen) - 1, seen[-1]))
                logits.append(logits_of(text.prompt, seen[len(text.prompt) :]))
        mapping, local, pos, ids = (torch.tensor(column, dtype=torch.int32) for column in zip(*layout, strict=True))
        slots = np.array(order)
        context = staged.LogitsContext(mapping, torch.from_numpy(slots), slots, local, ids, pos, np.array([64] * len(order)))
        self.processor.apply_staged_writes()
        rows = self.processor.apply(torch.from_numpy(np.stack(logits)), context)
        return list(torch.split(rows, [len(drafts.get(slot, [])) + 1 for slot in order]))

    def commit(self, slot: int) -> None:
        text = self.slots[slot]
        tokens = [*text.prompt, *text.output]
        self.states.all_token_ids.gpu[slot, : len(tokens)] = torch.tensor(tokens)


class _Buffer:
    def __init__(self, size: Any, dtype: torch.dtype) -> None:
        self.cpu = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy()

    def uva(self, n: int | None = None) -> torch.Tensor:
        return self.cpu[:n]


def test_slots_that_are_used_again_and_rows_in_any_order_do_not_change_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, runner, seen, waiting = random.Random(2), Runner(monkeypatch), [], []
    for _ in range(60):
        for slot in [slot for slot in runner.slots if rng.random() < 0.15]:
            text = runner.slots[slot]
            runner.remove(slot)
            if rng.random() < 0.5:
                waiting.append(text)  # preempted: it comes back, with what it has generated
        while runner.states.free_indices and rng.random() < 0.6:
            if waiting:
                text = waiting.pop()
            else:
                seen.append(text := Text(len(seen)))
            assert runner.add(text) is text.ours
        order = rng.sample(list(runner.slots), rng.randint(0, len(runner.slots)))
        if order:
            for slot, (row,) in zip(order, runner.step(order, {}), strict=True):
                runner.slots[slot].take(row)
                runner.commit(slot)
    assert len(seen) > 15 and max(len(text.output) for text in seen) > 8
    for text in seen:
        text.check()


def test_drafts_right_and_wrong_do_not_change_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, runner = random.Random(3), Runner(monkeypatch)
    for number in range(len(OURS)):
        runner.add(Text(number))
    for _ in range(10):
        drafts = {}
        for slot, text in runner.slots.items():
            wanted = alone(OURS[text.kind][0], text.prompt, len(text.output) + 3)[len(text.output) :]
            right = rng.randint(0, 3)
            drafts[slot] = [token if i < right else (token + 1) % V for i, token in enumerate(wanted)][: rng.randint(0, 3)]
        order = list(runner.slots)
        for slot, rows in zip(order, runner.step(order, drafts), strict=True):
            for row, draft in zip(rows, [*drafts[slot], -1], strict=True):
                runner.slots[slot].take(row)
                if runner.slots[slot].output[-1] != draft:
                    break
            runner.commit(slot)
    for text in runner.slots.values():
        text.check()


def test_a_part_of_a_prompt_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(monkeypatch)
    runner.add(Text(0))
    (slot,) = runner.slots
    logits, one = torch.from_numpy(logits_of([0], []))[None], torch.ones(1, dtype=torch.int32)
    context = staged.LogitsContext(slot * one, slot * one, np.array([slot]), 0 * one, one, one, np.array([2]))
    assert torch.equal(runner.processor.apply(logits.clone(), context), logits)


@pytest.mark.parametrize(
    ("given", "own", "named"),
    [
        ({"dry_multiplier": -1}, {}, "dry_multiplier"),
        ({"top_n_sigma": "2"}, {}, "top_n_sigma"),
        ({"temperature": 0.5}, {}, "temperature"),
        ({"seed": 1}, {}, "seed"),
        ({"stop": "x"}, {}, "stop"),
        ({"logit_bias": {1: 2}}, {}, "logit_bias"),
        ({"num_beams": 2}, {}, "num_beams"),
        ("{", {}, "JSON"),
        ("[" * 10**5, {}, "JSON"),
        ({"samplers": [{}]}, {}, "samplers"),
        ("[1]", {}, "mapping"),
        (7, {}, "mapping"),
        ({}, {"repetition_penalty": 1.1}, "repetition_penalty"),
        ({}, {"frequency_penalty": 0.1}, "frequency_penalty"),
        ({}, {"presence_penalty": 0.1}, "presence_penalty"),
        ({}, {"watermarking": True}, "watermarking"),
    ],
)
def test_a_request_that_cannot_be_served_is_not_admitted(given: Any, own: dict[str, Any], named: str) -> None:
    params = vllm.SamplingParams(**own, extra_args={"decodestep": given})
    names = ("decodestep.integrations.vllm:Processor",)
    for admit in (
        staged.build_custom_logits_processors_params_validator(names),
        lambda params: batched.validate_logits_processors_parameters(names, params),
    ):
        with pytest.raises(VLLMValidationError, match=named):
            admit(params)
        admit(vllm.SamplingParams(**own, extra_args={"another": given}))
        admit(vllm.SamplingParams(extra_args={"decodestep": json.dumps({"dry_multiplier": 1})}))


def test_a_row_without_tokens_and_what_was_never_in_the_vocabulary(caplog: pytest.LogCaptureFixture) -> None:
    processor = load_processor()
    rows = [({"dry_multiplier": 1, "dry_sequence_breakers": [1, 10**6]}, [1]), ({}, None), ({}, [V])]
    params = [vllm.SamplingParams(seed=1, extra_args={"decodestep": given}) for given, _ in rows]
    added = [(i, params[i], prompt, []) for i, (_, prompt) in enumerate(rows)]
    processor.update_state(batched.BatchUpdate(batch_size=3, removed=[], added=added, moved=[]))
    logits = torch.full((3, V), -torch.inf)
    logits[0, 5] = logits[1, 6] = logits[2, 7] = logits[2, 8] = 2.0
    out = processor.apply(logits.clone())
    assert out[0, 5] == out[1, 6] == 0.0 and torch.equal(out[2], logits[2])  # a prompt of another vocabulary: vLLM draws
    logits[0] = -torch.inf
    assert torch.isneginf(processor.apply(logits.clone())[0]).all()


def test_requests_without_a_seed_have_new_ones_that_every_worker_finds() -> None:
    def texts(seed: int) -> list[int]:
        processor = Processor(config(seed), torch.device("cpu"), False)
        added = [(i, vllm.SamplingParams(extra_args={"decodestep": {}}), [1], []) for i in range(12)]
        processor.update_state(batched.BatchUpdate(batch_size=12, removed=[], added=added, moved=[]))
        return processor.apply(torch.zeros(12, V)).argmax(1).tolist()

    assert texts(0) == texts(0) != texts(1)
    assert len(set(texts(0))) > 6


def test_vllms_sampler_takes_the_token_that_was_drawn() -> None:
    """Its own sampler, whose temperature, filters and draw come after: rows of ours beside a greedy one and a seeded one."""
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.sampler import Sampler as TheirSampler

    processor, texts = load_processor(), [Text(number) for number in range(len(OURS) + 1)]
    added = [(i, text.params, text.prompt, text.output) for i, text in enumerate(texts)]
    processor.update_state(batched.BatchUpdate(batch_size=len(texts), removed=[], added=added, moved=[]))
    column = {name: torch.tensor([float(getattr(t.params, name)) for t in texts]) for name in ("temperature", "top_p")}
    metadata = SamplingMetadata(
        **column,
        all_greedy=False,
        all_random=False,
        top_k=torch.tensor([text.params.top_k or V for text in texts]),
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.zeros(0),
        presence_penalties=torch.zeros(0),
        repetition_penalties=torch.ones(0),
        output_token_ids=[text.output for text in texts],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=batched.LogitsProcessors([processor]),
    )
    for _ in range(4):
        logits = torch.from_numpy(np.stack([logits_of(text.prompt, text.output) for text in texts]))
        tokens = TheirSampler()(logits, metadata).sampled_token_ids.flatten().tolist()
        for text, token in zip(texts, tokens, strict=True):
            text.output.append(token)
    for text in texts:
        text.check()
