"""Uses the wheel for ARM on an emulated processor: its answer must be that of this machine.

    python tests/support/emulated_wheel.py --sysroot FOLDER FOLDER_OF_WHEELS

The sysroot has a Python for 64-bit ARM with the libraries that it needs, such as the packages of a distribution, unpacked:
usr/bin/python3.13 of Debian 13. qemu-aarch64 is on the path. What the wheel needs is installed for ARM, by this machine's pip.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path

from installed_wheel import printed, timed

JOB = ["-m", "decodestep", "generate", "Why is the sky blue?", "--max-tokens", "16", "--temperature", "0.7", "--seed", "1"]
# Those of the wheel itself, and of its requirements.
PLATFORMS = [*(f"manylinux_2_{minor}_aarch64" for minor in range(40, 16, -1)), "manylinux2014_aarch64"]


def only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{folder}: must have one {pattern}; has {[path.name for path in found]}")
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sysroot", type=Path, required=True)
    parser.add_argument("wheels", type=Path, help="a folder with one wheel for aarch64")
    options = parser.parse_args()
    sysroot = options.sysroot.resolve()
    wheel = only(options.wheels.resolve(), "*_aarch64.whl")
    interpreter = only(sysroot, "usr/bin/python3.[0-9][0-9]")
    with tempfile.TemporaryDirectory() as folder:
        # A script, because templates are rendered by a process of its own, and this system starts no programs of ARM.
        python = Path(folder) / "python"
        python.write_text(f'#!/bin/sh\nexec {shlex.join(["qemu-aarch64", "-L", str(sysroot), str(interpreter)])} "$@"\n')
        python.chmod(0o755)
        with timed("installed"):
            platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
            install = ["install", "--quiet", "--only-binary", ":all:", *platforms, "--implementation", "cp"]
            version = interpreter.name.removeprefix("python")
            printed([sys.executable, "-m", "pip", "--disable-pip-version-check", *install, "--python-version", version,
                     "--target", f"{folder}/packages", f"{wheel}[generate]"])  # fmt: skip
        emulated = os.environ | {"PYTHONPATH": f"{folder}/packages", "DECODESTEP_PYTHON": str(python)}
        with timed("env"):
            print(printed([str(python), "-m", "decodestep", "env"], env=emulated))
        with timed("answer"):
            answer = printed([str(python), *JOB], env=emulated)
        expected = printed([sys.executable, *JOB])
        if answer != expected:
            raise SystemExit(f"{wheel.name}: must answer as this machine does: {expected!r}; got {answer!r}")
        print(answer)


if __name__ == "__main__":
    main()
