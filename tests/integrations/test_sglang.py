"""SGLang: our logit processor and sampler on its own classes: requests, batches that are filtered and merged, its sampler.

What is not as in a server: without a server's arguments SGLang's configuration is a stand-in, there are no GPU and no groups of
workers, and torchvision, which SGLang imports, may lack its operators.
"""

from __future__ import annotations

from array import array
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from decodestep import SamplingParams
from support import host_engine_rows

try:
    import torchvision  # noqa: F401
except ModuleNotFoundError:
    pass  # nor is SGLang there
except RuntimeError:  # a build for GPUs describes operators that it cannot load beside torch for CPUs
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

pytest.importorskip("sglang")

from sglang.srt.layers import sampler as theirs
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.sampling import sampling_batch_info
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams as TheirParams

from decodestep.integrations import sglang as ours

V = 200
logits_of, alone = partial(host_engine_rows.logits_of, V), partial(host_engine_rows.alone, V)
OURS = [
    (SamplingParams(temperature=1.3, top_p=0.9, seed=3, dry_multiplier=0.8), {"dry_multiplier": 0.8}),
    (SamplingParams(seed=4, top_k=40, xtc_probability=0.5), {"xtc_probability": 0.5}),
    (SamplingParams(seed=5, min_p=0.02, top_n_sigma=1.5), {"top_n_sigma": 1.5}),
    (SamplingParams(do_sample=False, no_repeat_ngram_size=2), {"no_repeat_ngram_size": 2}),
]


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    deterministic = SimpleNamespace(enable_deterministic_inference=False, rl_on_policy_target=None)
    features = SimpleNamespace(enable_custom_logit_processor=True, enable_watermark=False, sampling_mask_max_tokens=0)
    made = SimpleNamespace(
        deterministic=deterministic, features=features, kernel=SimpleNamespace(sampling_backend="pytorch"), overlap=True
    )
    schedule = SimpleNamespace(disable_overlap_schedule=True)
    made.schedule = schedule
    for module in (theirs, sampling_batch_info):
        monkeypatch.setattr(module, "get_exec", lambda: made)
    parallel = SimpleNamespace(tp_group=SimpleNamespace(device_group=None), tp_rank=0)
    monkeypatch.setattr(theirs, "get_parallel", lambda: parallel)
    monkeypatch.setattr(theirs, "is_dp_attention_enabled", lambda: False)
    monkeypatch.setattr(theirs, "get_server_args", lambda: made)
    monkeypatch.setattr(ours, "get_schedule", lambda: schedule)
    return made


def request(number: int, params: SamplingParams, given: Any, prompt: list[int]) -> Req:
    own = {"temperature": 0.0 if params.greedy else params.temperature, "top_p": params.top_p, "min_p": params.min_p}
    sampling = TheirParams(**own, top_k=params.top_k or -1, sampling_seed=params.seed, custom_params=given)
    processor = ours.Processor.to_str() if given is not None else None
    return Req(f"id {number}", "", array("q", prompt), sampling, custom_logit_processor=processor)


class Batch:
    """What a SamplingBatchInfo asks of a batch, to which it keeps a weak reference."""

    alive: ClassVar[list[Batch]] = []

    def __init__(self, reqs: list[Req]) -> None:
        self.reqs, self.device = reqs, "cpu"
        self.alive.append(self)


def build_info(*requests: Req) -> SamplingBatchInfo:
    return SamplingBatchInfo.from_schedule_batch(Batch(list(requests)), V)


def step(info: SamplingBatchInfo, requests: list[Req], sampler: Any) -> None:
    logits = np.stack([logits_of(list(r.origin_input_ids), list(r.output_ids)) for r in requests])
    positions = torch.tensor([len(r.origin_input_ids) + len(r.output_ids) - 1 for r in requests])
    arguments = (False, [0] * len(requests), [None] * len(requests), positions)
    tokens = sampler(LogitsProcessorOutput(torch.from_numpy(logits)), info, *arguments)
    for request, token in zip(requests, tokens.tolist(), strict=True):
        request.output_ids.append(token)


def test_batches_that_are_filtered_and_merged_do_not_change_a_text() -> None:
    """In SGLang's own sampler, whose temperature, filters and draw come after."""
    made = [request(i, params, ours.custom_params(**given), [i, 7, i]) for i, (params, given) in enumerate(OURS * 2)]
    other = request(99, SamplingParams(seed=1), None, [3])
    sampler = theirs.Sampler()
    batch = [*made[:3], other]
    info = build_info(*batch)
    step(info, batch, sampler)
    step(info, batch, sampler)
    info.merge_batch(build_info(*made[3:]))
    batch += made[3:]
    step(info, batch, sampler)
    keep = [7, 1, 3, 4, 0]
    info.filter_batch(sorted(keep), torch.tensor(sorted(keep)))
    batch = [batch[i] for i in sorted(keep)]
    for _ in range(4):
        step(info, batch, sampler)
    for i, each in enumerate(made):
        params = OURS[i % len(OURS)][0]
        assert list(each.output_ids) == alone(params, list(each.origin_input_ids), len(each.output_ids))
    assert max(len(each.output_ids) for each in made) == 7


def test_a_request_that_cannot_be_served_ends_alone_with_the_reason(config: SimpleNamespace) -> None:
    fine = request(0, OURS[0][0], ours.custom_params(**OURS[0][1]), [1])
    bad = request(1, SamplingParams(seed=1), {"decodestep": {"dry_multiplier": -1}}, [1])
    unknown = request(2, SamplingParams(seed=1), {"decodestep": {"temperature": 1}}, [1])
    deep = request(3, SamplingParams(seed=1), {"decodestep": "[" * 10**5}, [1])
    batch = [bad, fine, unknown, deep]
    step(build_info(*batch), batch, theirs.Sampler())
    assert list(fine.output_ids) == alone(OURS[0][0], [1], 1) and fine.to_finish is None
    assert isinstance(bad.to_finish, FINISH_ABORT) and "dry_multiplier must" in bad.to_finish.message
    assert "temperature" in unknown.to_finish.message and "JSON" in deep.to_finish.message
    config.schedule.disable_overlap_schedule = False
    step(build_info(fine), [fine], theirs.Sampler())
    assert "--disable-overlap-schedule" in fine.to_finish.message


@pytest.mark.parametrize("params", [None, {}, {"other": 1}, {"decodestep": {}}])
def test_rows_without_params_or_a_request_are_left_as_they_are(params: Any) -> None:
    """As SGLang's own processors leave them."""
    made = request(0, OURS[0][0], ours.custom_params(**OURS[0][1]), [1])
    logits = torch.from_numpy(np.stack([logits_of([1], [])] * 2))
    result = ours.Processor()(logits.clone(), [params, made.sampling_params.custom_params])
    assert torch.equal(result[0], logits[0])
    assert torch.nonzero(result[1] > -torch.inf).flatten().tolist() == alone(OURS[0][0], [1], 1)
    for nothing in (None, []):
        assert torch.equal(ours.Processor()(logits.clone(), nothing), logits)


def test_a_clients_own_value_in_the_place_of_the_row_changes_nothing() -> None:
    made = request(0, OURS[0][0], {**ours.custom_params(**OURS[0][1]), "__decodestep__": 1}, [1])
    for _ in range(3):
        step(build_info(made), [made], theirs.Sampler())
    assert list(made.output_ids) == alone(OURS[0][0], [1], 3)


def test_rows_of_drafts_are_refused() -> None:
    made = request(0, OURS[0][0], ours.custom_params(**OURS[0][1]), [1])
    theirs.apply_custom_logit_processor(torch.zeros(2, V), build_info(made), num_tokens_in_batch=2)
    assert "speculation" in made.to_finish.message


def test_custom_params_are_checked_before_they_are_sent() -> None:
    assert ours.custom_params(top_n_sigma=1) == {"decodestep": {"top_n_sigma": 1}}
    for wrong in ({"dry_multiplier": -1}, {"seed": 1}, {"stop": "x"}, {"top_p": 0.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ours.custom_params(**wrong)


def test_a_request_without_a_seed_has_the_seed_of_its_id() -> None:
    def tokens(name: int) -> list[int]:
        made = request(name, SamplingParams(), ours.custom_params(), [1])
        for _ in range(4):
            step(build_info(made), [made], theirs.Sampler())
        return list(made.output_ids)

    assert tokens(1) == tokens(1) != tokens(2)


def backend() -> Any:
    ours.register()
    made = theirs.create_sampler("decodestep")
    assert type(made) is ours.Sampler
    return made


def test_the_backend_draws_as_sampler_does_in_any_batch(config: SimpleNamespace) -> None:
    config.deterministic.enable_deterministic_inference = True
    params = [
        SamplingParams(seed=3, temperature=1.4),
        SamplingParams(seed=4, top_k=30),
        SamplingParams(seed=5, top_p=0.8),
        SamplingParams(seed=6, min_p=0.05, temperature=0.7),
        SamplingParams(do_sample=False),
    ]
    made = [request(i, each, None, [i]) for i, each in enumerate(params)]
    for batch in (made, made[1:4], [made[2], made[0]], made[4:]):
        info = build_info(*batch)
        for _ in range(3):
            step(info, batch, backend())
    for each, request_ in zip(params, made, strict=True):
        assert list(request_.output_ids) == alone(each, list(request_.origin_input_ids), len(request_.output_ids))


def test_the_backend_keeps_what_sglangs_own_keeps(config: SimpleNamespace) -> None:
    """The tokens that each of them can draw, of distributions in which all of them would be drawn."""
    torch.manual_seed(0)
    logits = torch.randn(V)[:12] * 0.8
    for k, p, m in ((5, 1.0, 0.0), (-1, 0.6, 0.0), (6, 0.7, 0.0), (-1, 1.0, 0.4), (8, 0.8, 0.3)):
        sampling = TheirParams(temperature=0.9, top_k=k, top_p=p, min_p=m)
        batch = [Req(str(i), "", array("q", [1]), sampling) for i in range(600)]
        info = build_info(*batch)
        drawn = [
            set(sampler(LogitsProcessorOutput(logits.repeat(600, 1)), info, False, [0], [None], torch.arange(600)).tolist())
            for sampler in (theirs.Sampler(), backend())
        ]
        assert drawn[0] == drawn[1]
        assert len(drawn[0]) < 12


def test_the_backend_reports_the_log_probabilities_of_sglang() -> None:
    made = [request(i, SamplingParams(seed=i, temperature=1.5, top_k=9), None, [i]) for i in range(3)]
    outputs = []
    for sampler in (theirs.Sampler(), backend()):
        logits = torch.from_numpy(np.stack([logits_of([i], []) for i in range(3)]))
        output = LogitsProcessorOutput(logits)
        tokens = sampler(output, build_info(*made), True, [2, 0, 0], [None] * 3, torch.zeros(3, dtype=torch.int64))
        wanted = torch.log_softmax(torch.from_numpy(np.stack([logits_of([i], []) for i in range(3)])) / 1.5, -1)
        assert torch.allclose(output.next_token_logprobs, wanted[torch.arange(3), tokens.long()], atol=1e-5)
        outputs.append(output.next_token_top_logprobs_idx)
    assert str(outputs[0][0]) == str(outputs[1][0])


def test_the_backend_refuses_what_it_does_not_do(config: SimpleNamespace) -> None:
    sampler, made = backend(), request(0, SamplingParams(seed=1), None, [1])
    info = build_info(made)
    info.sampling_mask_batch_indices = torch.tensor([0])
    with pytest.raises(ValueError, match="return_sampling_mask"):
        sampler(LogitsProcessorOutput(torch.zeros(1, V)), info, False, [0], [None], torch.tensor([0]))
    config.deterministic.rl_on_policy_target = "fsdp"
    with pytest.raises(ValueError, match="rl_on_policy_target"):
        ours.Sampler()
