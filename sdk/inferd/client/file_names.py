"""Files of a client: where one goes that somebody else has named, and what is sent."""

from __future__ import annotations

import os
import re
import stat
from itertools import count
from pathlib import Path
from typing import BinaryIO

from inferd.protocol import InvalidRequest

MAX_NAME_BYTES = 200
UNSAFE = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"|?*\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]')
"""Control characters, what file systems of others refuse, and what turns the direction of writing."""
DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


def safe_name(name: str) -> str:
    """Return a name for a file of that name: without folders, without a leading dot, and not too long."""
    last = UNSAFE.sub("_", re.split(r"[/\\]", name)[-1]).strip(". ")
    if not last or DEVICE.match(last):
        last = f"file-{last}".rstrip("-")
    stem, dot, suffix = last.rpartition(".")
    kept = (stem or suffix).encode()[: MAX_NAME_BYTES - len(suffix.encode()[:20]) - 1].decode(errors="ignore")
    return kept + (dot + suffix.encode()[:20].decode(errors="ignore") if stem else "")


def new_file(folder: Path, name: str) -> BinaryIO:
    """Open a new file in a folder: under a safe form of the name, with a number behind it where that is taken.

    Neither a file nor a link that is there is touched. Raises InvalidRequest if the folder cannot be written to.
    """
    wanted = Path(safe_name(name))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in count():
            path = folder / (f"{wanted.stem}-{number}{wanted.suffix}" if number else wanted)
            try:
                return path.open("xb")
            except FileExistsError:
                continue
    except OSError as error:
        raise InvalidRequest(f"{folder} cannot be written to: {error.strerror}") from None
    raise AssertionError("count() does not end")


def open_to_send(path: Path) -> tuple[BinaryIO, int]:
    """Return a file that is open to be read, and its bytes. Raises InvalidRequest for what is no file that can be."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        file.close()
        raise InvalidRequest(f"{path} is no regular file, whose size is known")
    return file, found.st_size
