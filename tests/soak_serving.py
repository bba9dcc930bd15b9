"""Many clients of a server of its own: seeded answers equal those alone, nothing hangs, memory and pages return to the start.

    python tests/soak_serving.py [--seconds 600] [--clients 200] [--model PATH]

Clients ask two models through all endpoints with few different seeds and prompts, read slowly, vanish in the middle, send what
is malformed, and constrain their texts. At the end the server is killed and started again, and must serve at once. Exits with 1
and says what was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
import urllib.request
from typing import Any

import decodestep as ds
from decodestep.serving.endpoints import find_endpoints
from support.processes import resident

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 12}, "b": {"type": "integer"}},
          "required": ["a", "b"], "additionalProperties": False}  # fmt: skip
PATHS = [path for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")
         if any(endpoint.path == path for endpoint in find_endpoints())]  # fmt: skip
MALFORMED = (b"{", b"[]", b'{"prompt": 3}', b'{"prompt": "a", "colour": 1}', b'{"prompt": "a", "regex": "("}', b"\xff\xfe", b"")


def request(number: int) -> tuple[str, dict[str, Any]]:
    """The path and the body of one of some requests, as a function of its number."""
    rng = random.Random(number)
    text = "Once upon a time, " * rng.choice((1, 4, 40)) + f"number {number % 7}"
    body: dict[str, Any] = {"model": f"m{number // 8 % 2}", "seed": number, "temperature": rng.choice((0, 0.8, 1.5))}
    body |= {"top_p": rng.choice((0.9, 1.0)), "max_tokens": rng.randint(1, 40)}
    if number % 5 == 0:
        body["json_schema"] = SCHEMA
    if number % 4 == 0:
        body["repetition_penalty"] = 1.2
    path = PATHS[number % len(PATHS)]
    if path == "/v1/completions":
        return path, {**body, "prompt": text}
    talk = [{"role": "user", "content": text}]
    if path == "/v1/responses":
        return path, {**body, "input": talk, "max_output_tokens": body.pop("max_tokens")}
    return path, {**body, "messages": talk}


def alone(model: ds.Model, number: int) -> str:
    """The text of the answer to a request."""
    body = request(number)[1]
    body["max_tokens"] = body.pop("max_output_tokens", body.get("max_tokens"))
    asked = {name: value for name, value in body.items() if name not in ("prompt", "messages", "input")}
    prompt = body.get("prompt") or body.get("messages") or body["input"]
    return ds.generate(model, [prompt], ds.SamplingParams.from_openai(asked))[0].text


def text_of(event: dict[str, Any]) -> str:
    """What an event of a stream adds to the text, in the form of whichever API."""
    if event.get("type") == "content_block_delta":
        return str(event["delta"].get("text", ""))
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    [choice] = event.get("choices") or [{}]
    return str(choice.get("text") or choice.get("delta", {}).get("content") or "")


class Soak:
    def __init__(self, port: int, expected: list[str]) -> None:
        self.port, self.expected = port, expected
        self.problems: list[str] = []
        self.counts = dict.fromkeys(("answers", "refused", "vanished", "slow", "malformed", "counted"), 0)

    async def client(self, seed: int, end: float) -> None:
        rng = random.Random(seed)
        while time.monotonic() < end and not self.problems:
            kind = rng.random()
            try:
                asked = self.malformed(rng) if kind < 0.1 else self.count(rng) if kind < 0.15 else self.ask(rng, kind)
                await asyncio.wait_for(asked, 300)
            except (OSError, asyncio.IncompleteReadError) as error:
                self.problems.append(f"connection: {error!r}")
            except asyncio.TimeoutError:
                self.problems.append("a request took more than 300 s")
            await asyncio.sleep(rng.random() * 0.2)

    async def send(self, path: str, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = (f"POST {path} HTTP/1.1", "host: x", "connection: close", "content-type: application/json")
        writer.write("\r\n".join([*head, f"content-length: {len(data)}", "", ""]).encode() + data)
        return reader, writer, int((await reader.readline()).split()[1])

    async def malformed(self, rng: random.Random) -> None:
        _, writer, status = await self.send(rng.choice(PATHS), rng.choice(MALFORMED))
        writer.close()
        self.counts["malformed"] += 1
        if status not in (400, 429):  # 429 where the queue is full, which is seen first
            self.problems.append(f"a malformed request got {status}")

    async def count(self, rng: random.Random) -> None:
        """Tokens are counted as they are answered, by whichever endpoint counts them."""
        talk = [{"role": "user", "content": f"How many? {rng.random()}"}]
        counts = []
        for path, name in (("/tokenize", "count"), ("/v1/messages/count_tokens", "input_tokens")):
            reader, writer, status = await self.send(path, json.dumps({"model": "m1", "messages": talk}).encode())
            body = (await reader.read()).partition(b"\r\n\r\n")[2]
            writer.close()
            counts.append(json.loads(body)[name] if status == 200 else status)
        self.counts["counted"] += 1
        if len(set(counts)) > 1:
            self.problems.append(f"a conversation was counted as {counts}")

    async def ask(self, rng: random.Random, kind: float, number: int | None = None) -> None:
        """number: of the request; None for any."""
        number = rng.randrange(len(self.expected)) if number is None else number
        path, body = request(number)
        reader, writer, status = await self.send(path, json.dumps({**body, "stream": True}).encode())
        if status == 429:
            self.counts["refused"] += 1
            writer.close()
            await asyncio.sleep(1)
            return
        if status != 200:
            self.problems.append(f"request {number} ({path}) got {status}")
            return
        text, left = "", rng.randint(1, 8) if kind < 0.25 else 10**9
        async for line in reader:
            if line.startswith(b"data: {"):
                text += text_of(json.loads(line[6:]))
                left -= 1
                if kind > 0.9:
                    await asyncio.sleep(0.05)
            if left == 0:
                break
        writer.close()
        self.counts["vanished" if left == 0 else "slow" if kind > 0.9 else "answers"] += 1
        whole = self.expected[number]
        if text != whole and not (left == 0 and whole.startswith(text)):
            self.problems.append(f"request {number} ({path}) gave {text!r}, alone {whole!r}")


def start(path: str) -> tuple[subprocess.Popen[str], int]:
    models = [word for i in range(2) for word in ("-m", f"m{i}={path}")]
    command = [sys.executable, "-m", "decodestep", "serve", *models, "--port", "0", "--max-waiting", "120"]
    with open("/dev/null", "w") as log:
        process = subprocess.Popen([*command], stderr=subprocess.PIPE, text=True, stdout=log)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"listening on http://127.0.0.1:(\d+)", line):
            subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
            return process, int(found[1])
    raise RuntimeError("the server did not start")


def gauge(port: int, name: str) -> float:
    """Of all models together."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as found:
        return sum(map(float, re.findall(rf"^{name}{{.*}} (\S+)$", found.read().decode(), re.MULTILINE)))


def resident_at_rest(pid: int) -> float:
    """The resident MiB of an idle server that has allocated the cache's next pages and returned what requests have freed."""
    sizes = [0.0, resident(pid) / 2**20]
    while abs(sizes[-1] - sizes[-2]) > 1 and len(sizes) < 20:
        time.sleep(3)
        sizes.append(resident(pid) / 2**20)
    return sizes[-1]


async def each_once(soak: Soak) -> None:
    await asyncio.gather(*(soak.ask(random.Random(number), 0.5, number) for number in range(len(soak.expected))))


async def load(soak: Soak, clients: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    await asyncio.gather(*(soak.client(number, end) for number in range(clients)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--model", default=None)
    options = parser.parse_args()
    model = ds.load(options.model) if options.model else ds.load()
    expected = [alone(model, number) for number in range(64)]
    process, port = start(str(model.path))
    soak = Soak(port, expected)
    sizes = []
    try:
        asyncio.run(each_once(soak))
        for part in range(4):  # the first, which has met every kind of request, is what the others' memory is compared with
            asyncio.run(load(soak, options.clients, options.seconds / 4))
            deadline = time.monotonic() + 60
            while gauge(port, "decodestep_cache_pages_held") and time.monotonic() < deadline:
                time.sleep(0.1)
            held, rows = gauge(port, "decodestep_cache_pages_held"), gauge(port, "decodestep_running")
            sizes.append(resident_at_rest(process.pid))
            print(f"part {part}: {soak.counts}, {held:.0f} pages held, {rows:.0f} rows, {sizes[-1]:.0f} MiB", flush=True)
            if held or rows:
                soak.problems.append(f"{held} pages and {rows} rows were left over")
        if gauge(port, "decodestep_failed_passes"):
            soak.problems.append("a pass failed")
        if sizes[-1] > 1.05 * sizes[0] + 20:
            soak.problems.append(f"memory grew: {sizes}")
    finally:
        process.kill()
        process.wait()
    began = time.monotonic()
    process, port = start(str(model.path))
    try:
        again = Soak(port, expected)
        asyncio.run(again.ask(random.Random(1), 0.5))
        print(f"killed, started and answered in {time.monotonic() - began:.1f} s")
        process.terminate()
        if process.wait(30):
            soak.problems.append(f"SIGTERM ended it with {process.returncode}")
    finally:
        process.kill()
    print(*(soak.problems + again.problems)[:5] or ["no problem"], sep="\n")
    return 1 if soak.problems + again.problems else 0


if __name__ == "__main__":
    sys.exit(main())
