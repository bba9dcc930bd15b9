"""What a program does around `generate`: several threads with one model, and children that it forks while it generates."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import decodestep as ds
from support import processes

pytestmark = pytest.mark.slow

PARAMS = [ds.SamplingParams(seed=seed, max_new_tokens=12, temperature=0.5 + seed / 4) for seed in range(6)]
CHATS = [[{"role": "user", "content": f"Say {seed} and <|im_end|>"}] for seed in range(6)]


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_threads_share_a_model_and_its_chat_template(tiny_file, dtype):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    model = ds.load(tiny_file(**{"tokenizer.chat_template": template}), dtype=dtype)

    def answer(seed):
        return ds.generate(model, [CHATS[seed]], PARAMS[seed])[0]

    alone = [answer(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(3):
            assert list(pool.map(answer, range(6))) == alone


FORKS = """
import os, sys, threading
import decodestep as ds
model = ds.load(sys.argv[1])
def answer(seed):
    params = ds.SamplingParams(seed=seed, max_new_tokens=8)
    return ds.generate(model, [[{"role": "user", "content": "ab"}]], params)[0].token_ids
alone = [answer(seed) for seed in range(4)]
stop, seen = threading.Event(), []
def go_on():
    while not stop.is_set():
        seen.append(answer(0) == alone[0])
thread = threading.Thread(target=go_on)
thread.start()
while not seen:  # it generates
    pass
codes = []
for seed in range(1, 4):
    child = os.fork()
    if child == 0:
        ok = answer(seed) == alone[seed] and answer(0) == alone[0]
        ds.chat.template_process._end_all()
        os._exit(0 if ok else 1)
    codes.append(os.waitpid(child, 0)[1])
stop.set()
thread.join()
assert codes == [0, 0, 0] and all(seen), (codes, seen)
assert [answer(seed) for seed in range(4)] == alone
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_children_that_are_forked_while_a_thread_generates(tiny_file):
    path = tiny_file(**{"tokenizer.chat_template": "{{ messages[0].content }}"})
    processes.run([sys.executable, "-W", "ignore", "-c", FORKS, str(path)], check=True)
