"""Writes the wheels of a folder anew, as small as deflate allows, and refuses one that is larger than a wheel may be.

    python tests/support/compressed_wheel.py FOLDER

zopfli finds what zlib gives up looking for: 4 to 5 % of a wheel. The same files give the same bytes.
"""

from __future__ import annotations

import argparse
import os
import struct
import zipfile
from pathlib import Path

from zopfli import zlib

MOST_BYTES = 4_000_000
ITERATIONS = 15  # beyond them a wheel becomes no smaller


def deflated(data: bytes) -> bytes:
    return zlib.compress(data, numiterations=ITERATIONS)[2:-4]  # without the header and the checksum of a zlib stream


def compress(path: Path) -> None:
    """Compresses the files of a zip archive anew."""
    small = path.with_suffix(".small")
    with zipfile.ZipFile(path) as wheel, small.open("wb") as out:
        directory, count = b"", 0
        for info in wheel.infolist():
            data = wheel.read(info)
            stored = deflated(data)
            info.compress_type = zipfile.ZIP_DEFLATED
            if len(stored) >= len(data):
                info.compress_type, stored = zipfile.ZIP_STORED, data
            info.compress_size, info.flag_bits, info.extra = len(stored), 0, b""
            name = info.filename.encode("ascii")
            year, month, day, hour, minute, second = info.date_time
            # What the header of a file and its entry in the directory have in common.
            common = struct.pack(
                "<5H3L2H",
                20,  # the version that can read it
                0,
                info.compress_type,
                hour << 11 | minute << 5 | second // 2,
                (year - 1980) << 9 | month << 5 | day,
                info.CRC,
                len(stored),
                len(data),
                len(name),
                0,
            )
            by_unix = 3 << 8 | 20
            directory += struct.pack("<4sH", b"PK\1\2", by_unix) + common
            directory += struct.pack("<3H2L", 0, 0, 0, info.external_attr, out.tell()) + name
            out.write(b"PK\3\4" + common + name + stored)
            count += 1
        start = out.tell()
        out.write(directory)
        out.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(directory), start, 0))
    with zipfile.ZipFile(small) as wheel:
        assert wheel.testzip() is None
    os.replace(small, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    for path in sorted(parser.parse_args().folder.glob("*.whl")):
        before = path.stat().st_size
        compress(path)
        size = path.stat().st_size
        print(f"{path.name}: {size:,} bytes, before {before:,}")
        if size > MOST_BYTES:
            raise SystemExit(
                f"{path.name}: must have at most {MOST_BYTES:,} bytes; has {size:,} (docs/core.md says where they are)"
            )


if __name__ == "__main__":
    main()
