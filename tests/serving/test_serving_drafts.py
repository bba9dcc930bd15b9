"""Drafts in requests: OpenAI's predictions and their usage, streams, counters; the answers are those without."""

from __future__ import annotations

import json

import pytest

import decodestep as ds
from decodestep.generation.drafts import drafting
from support.servers import HELLO, LocalServer, load

LETTERS = list(range(97, 123))  # tokens, which are what a text of them is read as
ASKED = {"model": "", "messages": HELLO, "max_tokens": 30, "temperature": 0, "logprobs": True}
PARAMS = ds.SamplingParams(max_new_tokens=30, do_sample=False, allowed_token_ids=LETTERS)
OPTIONS = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture
def eager(monkeypatch):
    """Rows draft all that is proposed, however long passes take."""
    monkeypatch.setattr(drafting, "choose_lengths", lambda outlooks, rows, seconds: [each.tokens for each in outlooks])


def predicted(text, **more):
    return {"prediction": {"type": "content", "content": text}, **lettered(**more)}


def lettered(**more):
    return {"extra_body": {"allowed_token_ids": LETTERS, **more}}


def drafts_of(usage):
    details = usage.completion_tokens_details
    return details and (details.accepted_prediction_tokens, details.rejected_prediction_tokens)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("in_parts", [False, True])
def test_a_prediction_changes_the_usage_alone(server, in_parts):
    model, create = server.model, server.client().chat.completions.create
    [plain] = ds.generate(model, [HELLO], PARAMS, draft=None)
    text = [{"type": "text", "text": part} for part in (plain.text[:9], plain.text[9:])] if in_parts else plain.text
    whole = create(**ASKED, **predicted(text))
    without = create(**ASKED, **lettered(draft=False))
    assert whole.choices == without.choices and whole.choices[0].message.content == plain.text
    accepted, rejected = drafts_of(whole.usage)
    assert accepted > 0 <= rejected and accepted + rejected <= server.engine.drafted
    assert whole.usage.completion_tokens == len(plain.token_ids) > accepted
    *chunks, last = create(**ASKED, **OPTIONS, **predicted(text))
    *others, _ = create(**ASKED, **OPTIONS, **lettered(draft=False))
    assert [chunk.choices for chunk in chunks] == [chunk.choices for chunk in others]  # a piece for each token
    assert last.usage.completion_tokens == whole.usage.completion_tokens and drafts_of(last.usage)[0] > 0


@pytest.mark.usefixtures("eager")
def test_drafts_are_counted_for_all_requests_and_told_to_those_with_a_prediction(server):
    create = server.client().chat.completions.create
    plain = create(**ASKED, **lettered(draft=False))
    assert drafts_of(plain.usage) == (None, None) and server.engine.drafted == 0
    off = create(**ASKED, **predicted(plain.choices[0].message.content, draft=False))
    assert drafts_of(off.usage) == (0, 0) and server.engine.drafted == 0
    repeats = create(**{**ASKED, "max_tokens": 200}, **lettered())  # the model soon repeats itself
    assert drafts_of(repeats.usage) == (None, None) and server.engine.accepted > 0
    create(**ASKED, **predicted("something else"))
    found = server.metrics()
    assert found["decodestep_drafted_tokens_total"] == server.engine.drafted > server.engine.accepted
    assert found["decodestep_accepted_tokens_total"] == server.engine.accepted


@pytest.mark.usefixtures("eager")
def test_only_what_a_prediction_gave_is_told_of_it(server):
    """Not what the row drafts from its own text."""
    usage = server.client().chat.completions.create(**{**ASKED, "max_tokens": 200}, **predicted("zqj")).usage
    assert sum(drafts_of(usage)) <= 3 < server.engine.drafted


@pytest.mark.usefixtures("eager")
def test_a_stream_that_tells_its_usage_in_every_chunk_tells_its_drafts_too(server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"prediction": predicted("hello")["prediction"], "allowed_token_ids": LETTERS}
    body = {**ASKED, **asked, "max_tokens": 60, "n": 2, "stream": True, "stream_options": options}
    events = server.send("/v1/chat/completions", json.dumps(body).encode())[1].split(b"\n\n")[:-2]
    counts = [json.loads(event[6:])["usage"]["completion_tokens_details"] for event in events]
    for name in ("accepted_prediction_tokens", "rejected_prediction_tokens"):
        values = [count[name] for count in counts]
        assert min(values) >= 0 and values[-1] == max(values)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("draft", ["auto", "lookup", None])
def test_a_server_drafts_as_it_is_told(tiny_file, draft):
    with LocalServer(load(tiny_file(kind="Q8_0", context=400)), draft=draft) as server:
        found = server.client().chat.completions.create(**{**ASKED, "max_tokens": 200}, **predicted("hello"))
        assert (sum(drafts_of(found.usage)) > 0) == (server.engine.drafted > 0) == (draft is not None)
