"""make bench-report: runs the benchmarks once and writes the results of this machine to docs/results, with plots.

    python benchmarks/report.py [--through "COMMAND"] [--only PART,PART] [--out DIR]

Every piece runs in its own process. Pieces that measure time are started through COMMAND, if given, such as a wrapper that
waits for an idle machine; COMMAND is then also responsible for their time limit. Nothing is omitted silently: a peer that is
not installed, and a piece that fails or takes too long, is listed. The table between the two markers is replaced in the README
and in the site's first page. --only runs the pieces whose names contain one of these words, and reuses the rows of the others.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from decodestep import _native
from decodestep.cli.endings import Parser
from decodestep.models.fetch import default_model
from measuring.harness import COLUMNS
from measuring.report_page import readme_table, report
from peers import requantised

ROOT = Path(__file__).parent.parent
LONGEST_SECONDS = 240  # of a piece
PACKAGES = ("decodestep", "numpy", "torch", "transformers", "llama-cpp-python", "onnxruntime-genai", "onnxruntime")

Rows = list[dict[str, Any]]


class Piece(NamedTuple):
    name: str  # "decoding Q4_0": the words before the last are its group on the page
    command: list[str]

    @property
    def stem(self) -> str:
        """The stem of its files' names."""
        return self.name.replace(" ", "-").replace("=", "")


def pieces(threads: int, folder: Path) -> tuple[list[Piece], list[str]]:
    """The pieces to run, and the reasons for those that cannot be run."""
    source = default_model()
    files = {"Q4_1": source}
    left_out = ["generate: transformers, whose OpenMP threads wait in loops beside those of llama.cpp"]
    for kind in ("Q4_0", "Q4_K_M", "Q8_0"):
        try:
            files[kind] = requantised.write(source, folder / f"SmolLM2-135M-{kind}.gguf", kind)
        except ImportError:
            left_out.append(f"the model as {kind}: llama-cpp-python, whose quantiser writes it, is not installed")
    found = []
    for kind, file in files.items():
        about = ["bench_generate.py", "--file", str(file), "--threads", str(threads)]
        found.append(Piece(f"generate {kind}", [*about, "--rounds", "5", "--cases", "decode", "prefill", "--contexts", "100",
                                                "--prompts", "400"]))  # fmt: skip
        found.append(Piece(f"accuracy {kind}", [*about, "--cases", "accuracy", "--positions", "1000"]))
    found.append(Piece("generate batch", ["bench_generate.py", "--threads", str(threads), "--cases", "batch", "--rounds", "7"]))
    for batch in (1, 8):
        cases = ["greedy", "temperature", "top-k", "top-p", "full", "penalties", *(["mixed"] if batch > 2 else [])]
        command = ["bench_decode_step.py", "--batch", str(batch), "--caches", "warm", "--cases", *cases, "--budget", "0.8"]
        found.append(Piece(f"decode_step B={batch}", command))
    found.append(Piece("top_k_top_p_sample", ["bench_top_k_top_p_sample.py", "--batch", "16", "--rounds", "5"]))
    found.append(Piece("linear", ["bench_linear.py", "--rounds", "7"]))
    found.append(Piece("mla_prolog", ["bench_mla_prolog.py", "--tokens", "1", "16", "--compile", "0", "--rounds", "5"]))
    found.append(Piece("mla_attention", ["bench_mla_attention.py", "--contexts", "1000", "4000", "--rounds", "7"]))
    found.append(Piece("tensor_scatter", ["bench_tensor_scatter.py"]))
    return found, left_out


def run(piece: Piece, through: list[str], folder: Path) -> None:
    """Runs a piece; leaves its rows and its output in the folder."""
    table = folder / f"{piece.stem}.csv"
    table.unlink(missing_ok=True)
    script, *arguments = piece.command
    timed = [] if piece.name.startswith("accuracy") else through
    command = [*timed, sys.executable, str(ROOT / "benchmarks" / script), *arguments, "--csv", str(table)]
    print(f"{piece.name}: {shlex.join(command)}", flush=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=None if timed else LONGEST_SECONDS, check=False)
        said, failed = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        said, failed = (error.stdout or b"").decode() if isinstance(error.stdout, bytes) else str(error.stdout or ""), -1
    if failed:
        last = [line.strip() for line in said.splitlines() if line.strip()]
        said += f"\nleft out: it ended with {failed}, after: {last[-1] if last else 'no word'}\n"
    table.with_suffix(".txt").write_text(said, encoding="utf-8")


def lacking(piece: Piece, said: str) -> list[str]:
    """What a piece left out, according to its output."""
    lines = [line.strip() for line in said.splitlines() if re.search(r"left out:|is not installed|has no|: without ", line)]
    found = sorted({f"{piece.name}: {line.removeprefix('left out: ')}" for line in lines})
    return found if said else [f"{piece.name}: not run"]


def read(table: Path) -> Rows:
    if not table.exists():
        return []
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = COLUMNS[2:-2]  # between the names of case and call, and the threads and the instruction set
    return [{**row, **{name: float(row[name]) if row[name] else None for name in numbers}} for row in rows]


def machine() -> dict[str, str]:
    """A description of this machine."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    named = re.search(r"^model name\s*: (.+)$", info, re.M)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{named[1] if named else platform.machine()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB",
        "instruction set": _native.isa(),
        "system": platform.platform(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "packages": ", ".join([f"Python {platform.python_version()}", *filter(None, map(version, PACKAGES))]),
        **llama_cpp_build(),
    }


def llama_cpp_build() -> dict[str, str]:
    """The instruction sets that llama.cpp was compiled for, which its speed depends on."""
    try:
        from llama_cpp import llama_print_system_info
    except ImportError:
        return {}
    return {"llama.cpp": ", ".join(re.findall(r"(\w+) = 1", llama_print_system_info().decode()))}


def version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        try:  # importable without an installation's notes
            return f"{package} {__import__(package.removesuffix('-python').replace('-', '_')).__version__}"
        except (ImportError, AttributeError):
            return ""


def collected(found: list[Piece], folder: Path) -> tuple[dict[str, Rows], list[tuple[str, str]], list[str]]:
    """From the folder: the rows of every piece that has some, what it said of a kind's accuracy, and what is lacking."""
    results: dict[str, Rows] = {}
    accuracy: list[tuple[str, str]] = []
    lacks: list[str] = []
    for piece in found:
        table = folder / f"{piece.stem}.csv"
        rows, said = read(table), table.with_suffix(".txt").read_text() if table.with_suffix(".txt").exists() else ""
        lacks += lacking(piece, said)
        if rows:
            results[piece.name] = rows
        kind = piece.name.split()[-1]
        accuracy += [(kind, line.strip()) for line in said.splitlines() if "  KL " in line or " likeliest " in line]
    return results, accuracy, lacks


def draw_all(results: dict[str, Rows], out: Path, stem: str) -> list[str]:
    """Writes a picture of each piece; the reason where there are none."""
    from measuring.plot import draw

    try:
        for name, rows in results.items():
            draw(rows, str(out / f"{stem}-{Piece(name, []).stem}.svg"))
    except ImportError:
        return ["pictures: matplotlib is not installed"]
    return []


def list_report(index: Path, stem: str, facts: dict[str, str]) -> None:
    """Lists the report with its date, in the place of the machine's earlier one if there is one."""
    text = index.read_text(encoding="utf-8") if index.exists() else "# Results\n\nReports of `make bench-report`.\n"
    listed = f"- [{facts['processor']}]({stem}.md), {facts['date']}"
    lines = [listed if f"({stem}.md)" in line else line for line in text.rstrip().splitlines()]
    if listed not in lines:
        lines += [listed] if lines[-1].startswith("- ") else ["", listed]
    index.write_text("\n".join([*lines, ""]), encoding="utf-8")


def replace_table(page: Path, table: str) -> None:
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition("<!-- bench-report -->\n")
    after = rest.partition("<!-- /bench-report -->")[2]
    page.write_text(f"{before}{begin}{table}<!-- /bench-report -->{after}", encoding="utf-8")


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--through", default="", metavar="COMMAND")
    parser.add_argument("--only", default="", metavar="PART,PART")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", default=str(ROOT / "docs" / "results"), metavar="DIR")
    chosen = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / "decodestep-report"
    folder.mkdir(exist_ok=True)
    found, left_out = pieces(chosen.threads, folder)
    wanted = [word for word in chosen.only.split(",") if word]
    for piece in found:
        if not wanted or any(word in piece.name for word in wanted):
            run(piece, shlex.split(chosen.through), folder)
    results, accuracy, lacks = collected(found, folder)
    facts = machine()
    stem = re.sub(r"[^a-z0-9]+", "-", facts["processor"].rsplit(",", 1)[0].lower()).strip("-")
    out = Path(chosen.out)
    out.mkdir(parents=True, exist_ok=True)
    left_out += lacks + draw_all(results, out, stem)
    (out / f"{stem}.md").write_text(report(facts, chosen.threads, results, accuracy, left_out, stem), encoding="utf-8")
    list_report(out / "index.md", stem, facts)
    if out == ROOT / "docs" / "results":
        for page, link in (("README.md", "docs/results"), ("docs/index.md", "results")):
            replace_table(ROOT / page, readme_table(facts, chosen.threads, results, f"{link}/{stem}.md"))
    print(out / f"{stem}.md")


if __name__ == "__main__":
    main()
