"""GGUF files: the header against the gguf package, and every way in which a file can be broken."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import decodestep as ds
from decodestep import cli
from decodestep.files.gguf_file import GgufFile
from decodestep.models import ModelError
from decodestep.models.checkpoint import Checkpoint
from decodestep.models.convert import convert
from support import processes


def test_reads_what_the_gguf_package_reads(tiny_file):
    path = tiny_file(kind="Q8_0")
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    for name, field in theirs.fields.items():
        if not name.startswith("GGUF."):
            mine = ours.metadata[name]
            assert (mine.tolist() if isinstance(mine, np.ndarray) else mine) == field.contents(), name
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.type == tensor.tensor_type
        assert mine.shape == tuple(tensor.shape[::-1].tolist())
        np.testing.assert_array_equal(mine.read(), np.frombuffer(tensor.data.tobytes(), np.uint8))


def test_several_threads_read_a_file_at_once(tiny_file):
    tensors = list(GgufFile(tiny_file(kind="F32")).tensors.values()) * 20
    expected = [tensor.read().tobytes() for tensor in tensors]
    with ThreadPoolExecutor(4) as pool:
        assert [found.tobytes() for found in pool.map(lambda tensor: tensor.read(), tensors)] == expected


def test_no_such_file_and_no_file(tmp_path):
    with pytest.raises(ModelError, match="No such file"):
        GgufFile(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="cannot be opened"):
        GgufFile(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ModelError, match="empty"):
        GgufFile(tmp_path / "empty.gguf")
    with pytest.raises(ModelError, match="cannot be opened: File name too long"):
        ds.load("x" * 300)


@pytest.mark.parametrize("content", [b"GGUF", b"PK\x03\x04" + bytes(100), b"GGUF" + bytes(60), b"GGUF\x09\0\0\0" + bytes(60)])
def test_files_of_other_formats_are_refused(tmp_path, content):
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError):
        GgufFile(path)


@pytest.mark.parametrize("kind", ["adapter", "mmproj", "imatrix"])
def test_files_made_for_a_model_are_refused_by_what_they_are(tmp_path, kind):
    """An adapter has its model's architecture, a file of mmproj "clip", one of importances none."""
    writer = gguf.GGUFWriter(tmp_path / "made.gguf", "llama")
    writer.add_type(kind)
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=f"general.type is '{kind}': the file is no model, but made for one"):
        ds.load(tmp_path / "made.gguf")


def test_every_truncation_is_noticed(tiny_file):
    path = tiny_file()
    data = path.read_bytes()
    for size in [*range(0, 6000, 37), *range(6000, len(data), 4999), len(data) - 40]:
        path.write_bytes(data[:size])
        with pytest.raises(ModelError):
            GgufFile(path)


@pytest.mark.parametrize(
    ("name", "move"),
    [
        ("blk.1.attn_q.weight", -64),
        ("blk.1.attn_q.weight", 4),
        ("blk.1.attn_q.weight", 64),
        ("token_embd.weight", 32),  # the first
    ],
)
def test_tensors_lie_beside_each_other(tiny_file, name, move):
    path = tiny_file()
    tensor = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)
    at = tensor.field.offset + sum(int(part.nbytes) for part in tensor.field.parts[:-1])
    data = bytearray(path.read_bytes())
    data[at : at + 8] = length(int.from_bytes(data[at : at + 8], "little") + move)
    path.write_bytes(data)
    with pytest.raises(ModelError, match=rf"tensor '{name}' is at byte \d+, by general.alignment 32 not at \d+"):
        GgufFile(path)


def places_of(path):
    """Where the tensors are, or why the file is refused."""
    try:
        return [tensor.place[1] for tensor in GgufFile(path).tensors.values()]
    except ModelError as error:
        return str(error)


@pytest.mark.parametrize("alignment", [1, 8, 64])
def test_tensors_that_lie_by_another_alignment_are_refused(tiny_file, alignment):
    """Their sizes are multiples of 64, so that every offset is right, from a first byte that is not."""
    refused = []
    for more in range(0, 64, 3):  # where the metadata end at a multiple of both, the first byte is the same
        path = tiny_file(**{"general.alignment": 32, "general.description": "x" * more})
        places, data = places_of(path), path.read_bytes()
        at = data.index(b"general.alignment") + len(b"general.alignment") + 4
        path.write_bytes(data[:at] + alignment.to_bytes(4, "little") + data[at + 4 :])
        found = places_of(path)
        refused += [] if found == places else [found]
    message = "truncated" if alignment > 32 else f"bytes after the last tensor, by general.alignment {alignment}"
    assert len(refused) > 5 and all(message in found for found in refused)


def test_the_last_tensor_may_be_padded(tmp_path, caplog):
    """Or not: writers do either. What follows it is nobody's."""
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("odd", np.zeros(3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = path.read_bytes()
    for missing in (0, 20):
        path.write_bytes(data[: len(data) - missing])
        assert GgufFile(path).tensors["odd"].nbytes == 12
    assert not caplog.messages
    path.write_bytes(data + b"\0")
    assert bytes(GgufFile(path).tensors["odd"].read()) == bytes(12)
    assert caplog.messages == [f"{path}: 1 bytes after the last tensor are ignored"]


TEMPLATE = "{% for m in messages %}<bos>{{ m.role }}: {{ m.content }}<eos>{% endfor %}"


def use(path):
    """Loads a file and uses all of it: what can go wrong with a broken one is a ModelError."""
    model = ds.load(path)
    messages = [{"role": "user", "content": "ab <bos>"}]
    assert isinstance(model.chat_prompt(messages), str)
    assert all(0 <= i < model.config.vocab_size for i in model.chat_ids(messages))
    ids = model.tokenizer.encode("ab é 12") or [0]
    assert isinstance(model.tokenizer.decode(ids), str)
    if model.config.context >= 4:
        completion = ds.generate(model, [ids[:2]], ds.SamplingParams(max_new_tokens=2, seed=1))[0]
        assert completion.finish_reason in ("stop", "length", "no_candidate")  # the last: weights that are not numbers


SENTENCEPIECE = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁ab"]
SENTENCEPIECE += [f"w{i}" for i in range(297 - len(SENTENCEPIECE))] + ["<bos>", "<eos>", "<pad>"]
KINDS = {
    "letters": {},
    "merges": {
        "merges": ["a b"],
        "tokens": [*map(chr, range(33, 127)), "ab", *(f"<{i}>" for i in range(202)), *SENTENCEPIECE[-3:]],
        "pre": "llama-bpe",
    },
    "sentencepiece": {
        "model": "llama",
        "tokens": SENTENCEPIECE,
        "token_type": [2, *[6] * 256, *[1] * 40, 3, 3, 3],
        "scores": [-float(i) for i in range(300)],
    },
}


BROKEN = {
    "a size": ({"llama.embedding_length": "wide"}, "metadata llama.embedding_length must be an integer"),
    "a rotation": ({"llama.rope.freq_base": 0.5}, "metadata llama.rope.freq_base must be a number"),
    "a tokenizer": ({"tokenizer.ggml.merges": ["a"]}, "the tokenizer's merge"),
    "a template": ({"tokenizer.chat_template": 5}, "the chat template 'default' must be a string"),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_in_a_file_is_said_with_its_name(tiny_file, changes, message):
    path = tiny_file(**changes)
    with pytest.raises(ModelError, match=f"^{re.escape(str(path))}: {message}"):
        ds.load(path)


@pytest.mark.parametrize("call", [["env", "--model", "IN"], ["quantize", "IN", "OUT", "--type", "f16"]], ids="-".join)
def test_commands_say_it_too(tiny_file, tmp_path, capsys, call):
    changes, message = BROKEN["a size"]
    places = {"IN": str(tiny_file(**changes)), "OUT": str(tmp_path / "out.gguf")}
    assert cli.main([places.get(word, word) for word in call]) == 1
    assert f"{places['IN']}: {message}" in capsys.readouterr().err


@pytest.fixture(params=KINDS)
def whole(request, tiny_file):
    """A file with all that a file may have."""
    tokenizer = {f"tokenizer.ggml.{key}": value for key, value in KINDS[request.param].items()}
    more = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0, "tokenizer.ggml.add_bos_token": True}
    return tiny_file(**tokenizer, **more, **{"tokenizer.chat_template": TEMPLATE})


def test_the_file_that_is_broken_below_works(whole):
    use(whole)


@pytest.mark.slow
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_corruption_does_worse_than_an_error(whole, data):
    header = min(tensor.offset for tensor in GgufFile(whole).tensors.values())
    broken = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, header + 99))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):  # bytes that are missing, or there twice
        first, last = (data.draw(st.integers(0, header)) for _ in range(2))
        broken[first:first] = broken[last : last + 8 * data.draw(st.integers(0, 9))]
    path = whole.with_name("broken.gguf")
    path.write_bytes(broken)
    with contextlib.suppress(ModelError):
        use(path)


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 10**12])
def test_counts_are_not_believed(tiny_file, number):
    path = tiny_file()
    data = bytearray(path.read_bytes())
    for at in (8, 16):  # the counts of tensors and of metadata
        path.write_bytes(data[:at] + number.to_bytes(8, "little") + data[at + 8 :])
        with pytest.raises(ModelError, match="truncated or corrupt"):
            GgufFile(path)


# Loads a file, cuts it off to nothing, and goes on.
TRUNCATE = """
import os, sys
import decodestep as ds
path, dtype = sys.argv[1:]
model = ds.load(path, dtype=dtype)
expected = model.logits(range(9)).tobytes()
os.truncate(path, 0)
assert model.logits(range(9)).tobytes() == expected
"""


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_loaded_model_does_not_need_its_file(tiny_file, kind, dtype):
    run = processes.run([sys.executable, "-c", TRUNCATE, str(tiny_file(kind=kind)), dtype])
    assert run.returncode == 0, (run.returncode, run.stderr)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("blk.0.attn_norm.weight", "truncated while it was read, at byte"),
        ("blk.0.attn_v.weight", "tensor blk.0.attn_v.weight cannot be read: the file has become shorter"),
    ],
)
def test_a_file_that_becomes_shorter_while_it_is_read_is_noticed(tiny_file, name, error):
    path = tiny_file()
    file = GgufFile(path)
    with path.open("r+b") as opened:
        opened.truncate(file.tensors[name].offset + 100)
    with pytest.raises(ModelError, match=error):
        convert(Checkpoint(file))


# Run in a process of its own: each file of a folder is refused, and what that takes.
REFUSE = """
import json, re, sys, time
from pathlib import Path
import decodestep as ds
from decodestep.models import convert
from decodestep.files import gguf_file
from decodestep.tokenizers import tokenizer
for path in sorted(Path(sys.argv[1]).iterdir()):
    seconds = time.process_time()
    try:
        ds.load(path)
        error = "no error"
    except ds.ModelError as failure:
        error = str(failure)
    # The peak of this program, of this file or one before it; that of getrusage is also the parent's before the program began.
    kilobytes = re.search("VmHWM:\\s*([0-9]+)", Path("/proc/self/status").read_text())[1]
    print(json.dumps([path.stem, error, time.process_time() - seconds, int(kilobytes) / 1024]))
"""
STRING, ARRAY, UINT8 = 8, 9, 0


def length(number):
    return number.to_bytes(8, "little")


def write_file(*pairs, tensors=0):
    """A file of nothing but metadata, (key, type, value's bytes) each."""
    header = b"GGUF" + (3).to_bytes(4, "little") + length(tensors) + length(len(pairs))
    return header + b"".join(length(len(key)) + key + type_.to_bytes(4, "little") + value for key, type_, value in pairs)


def array_of(type_, count, items):
    return b"a", ARRAY, type_.to_bytes(4, "little") + length(count) + items


LARGE = {  # 32 to 64 MB each
    "bytes": (lambda: write_file(array_of(UINT8, 1 << 26, bytes(1 << 26))), "architecture None"),
    "empty strings": (lambda: write_file(array_of(STRING, 1 << 23, bytes(1 << 26))), "more than 4194304 items"),
    "short strings": (lambda: write_file(array_of(STRING, 4_000_000, (length(2) + b"ab") * 4_000_000)), "architecture None"),
    "empty arrays": (lambda: write_file(array_of(ARRAY, 5_000_000, bytes(60_000_000))), "more than 4194304 items"),
    "pairs": (lambda: write_file(*((b"%08d" % i, UINT8, b"0") for i in range(1_000_000))), "architecture None"),
    "tensors": (lambda: write_file(tensors=2_000_000) + bytes(48_000_000), "2000000 tensors"),
    "axes": (
        lambda: write_file(tensors=1) + length(1) + b"a" + (4_000_000).to_bytes(4, "little") + b"\xff" * 32_000_012,
        "axes",
    ),
    "a long string": (lambda: write_file((b"a", STRING, length(1 << 26) + bytes(1 << 26))), "architecture None"),
    "a long key": (lambda: write_file((b"k" * (1 << 26), UINT8, b"0")), "architecture None"),
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is counted as on Linux")
def test_what_a_file_asks_for_has_a_bound(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    for name, (content, _) in LARGE.items():
        (folder / f"{name}.gguf").write_bytes(content())
    out = processes.run([sys.executable, "-c", REFUSE, str(folder)], check=True).stdout
    results = {name: found for name, *found in map(json.loads, out.splitlines())}
    assert set(results) == set(LARGE)
    for name, (error, seconds, megabytes) in results.items():
        print(f"{name:<16}{seconds:6.2f} s{megabytes:7.0f} MB  {error[-80:]}")
        assert LARGE[name][1] in error, name
        assert seconds < 20, name
        assert megabytes < 1024, name
