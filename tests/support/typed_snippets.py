"""The Python of the README, the docs and the examples, as files for a type checker, which this runs as a program.

Blocks marked `python` of a page are one program, those of the cookbook one each. A block marked `py` is a fragment of a program
that is not there: names that it does not define are passed over.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
while not (ROOT / "pyproject.toml").exists():
    ROOT = ROOT.parent
BLOCKS = re.compile(r"^```(python|py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FRAGMENT = "# pyright: reportUndefinedVariable=false, reportUnusedExpression=false\n"
# Programs of others that are not installed here; what is, has its types.
SETTINGS = {"typeCheckingMode": "basic", "reportMissingImports": False, "reportMissingModuleSource": False}


def programs() -> dict[str, str]:
    """The text of each program, by the name of its file."""
    found = {f"examples_{path.name}": path.read_text() for path in ROOT.glob("examples/*.py")}
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")):
        name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
        blocks = BLOCKS.findall(page.read_text())
        whole = [block for kind, block in blocks if kind == "python"]
        for i, program in enumerate(whole if page.name == "cookbook.md" else ["\n".join(whole)]):
            found[f"{name}_{i}.py"] = program
        for i, block in enumerate(block for kind, block in blocks if kind == "py"):
            found[f"{name}_fragment_{i}.py"] = FRAGMENT + block
    return {name: program for name, program in found.items() if program}


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """Writes the programs to a new folder and runs pyright there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, program in programs().items():
        (folder / name).write_text(program)
    (folder / "pyrightconfig.json").write_text(json.dumps({**SETTINGS, "include": ["."], "extraPaths": [str(ROOT / "src")]}))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    ended = check(ROOT / "build/snippets")
    print(ended.stdout, ended.stderr)
    sys.exit(ended.returncode)
