"""Wheels, which are strangers' archives."""

from __future__ import annotations

import contextlib
import io
import stat
import zipfile
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st
from wheel_index import make_wheel

from inferd.protocol import InvalidRequest, LimitExceeded
from inferd_runtime.server.packages import wheels
from inferd_runtime.server.packages.wheels import NativeWheel, wheel_files


def test_code_and_what_importlib_reads_is_kept_and_nothing_else(tmp_path: Path) -> None:
    files = {
        "p/__init__.py": "x = 1", "p/data.json": "{}", "p/__init__.pyi": "", "p/old.pyc": b"", "p.pth": "import os",
        "p-1.0.data/purelib/q.py": "", "p-1.0.data/scripts/run": "", "p-1.0.data/headers/p.h": "",
    }  # fmt: skip
    path = make_wheel(tmp_path, "p", files)
    assert sorted(wheel_files(path.read_bytes(), path.name)) == [
        "p-1.0.dist-info/METADATA", "p/__init__.py", "p/data.json", "q.py",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [
        "../evil.py",
        "/evil.py",
        "p/../../evil.py",
        "p\\..\\evil.py",
        "C:/evil.py",
        "p/./x.py",
        "p//x.py",
        "p/\x07.py",
        "x" * 300,
    ],
)
def test_a_file_that_leads_out_of_its_folder_is_refused(tmp_path: Path, path: str) -> None:
    wheel = make_wheel(tmp_path, "p", {path: "x = 1"})
    with pytest.raises(InvalidRequest):
        wheel_files(wheel.read_bytes(), wheel.name)


@pytest.mark.parametrize(
    "path",
    [
        "os.py",
        "json/__init__.py",
        "inferd/files.py",
        "p-1.0.data/purelib/sys.py",
        "annotationlib.py",
        "compression/zstd.py",
    ],
)
def test_a_module_of_the_sandbox_is_not_hidden(tmp_path: Path, path: str) -> None:
    wheel = make_wheel(tmp_path, "p", {path: "x = 1"})
    with pytest.raises(InvalidRequest, match="would hide"):
        wheel_files(wheel.read_bytes(), wheel.name)


@pytest.mark.parametrize("path", ["cgi.py", "telnetlib.py", "distutils/core.py"])
def test_a_module_that_the_sandbox_has_no_more_is_taken_whatever_the_servers_python_has(
    tmp_path: Path, path: str
) -> None:
    """Packages bring such modules back; those that are new in the sandbox's Python were not refused on an older one."""
    wheel = make_wheel(tmp_path, "legacy", {path: "x = 1"})
    assert path in wheel_files(wheel.read_bytes(), wheel.name)


@pytest.mark.parametrize("path", ["p/fast.cpython-314-x86_64-linux-gnu.so", "p/fast.pyd", "p.libs/x.dll"])
def test_compiled_code_is_refused_whatever_the_wheel_is_called(tmp_path: Path, path: str) -> None:
    wheel = make_wheel(tmp_path, "p", {"p/__init__.py": "", path: b"\x7fELF"})
    with pytest.raises(NativeWheel, match="compiled code"):
        wheel_files(wheel.read_bytes(), wheel.name)
    assert path not in wheel_files(wheel.read_bytes(), wheel.name, without_native=True)


def test_a_link_is_refused() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer:
        info = zipfile.ZipInfo("p/link.py")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        writer.writestr(info, "/etc/passwd")
    with pytest.raises(InvalidRequest, match="link"):
        wheel_files(archive.getvalue(), "p.whl")


@pytest.mark.parametrize("name", [b"\0", b"."])
def test_a_file_without_a_name_is_refused(tmp_path: Path, name: bytes) -> None:
    """One named "." ended the search for packages without an answer."""
    wheel = make_wheel(tmp_path, "p", {"a": ""})
    with pytest.raises(InvalidRequest, match="odd name"):
        wheel_files(wheel.read_bytes().replace(b"a", name), wheel.name)


def test_a_decompression_bomb_is_refused() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
        writer.writestr("p/bomb.txt", b"\0" * (wheels.MAX_BYTES + 1))
    assert len(archive.getvalue()) < 100_000
    with pytest.raises(LimitExceeded, match=r"in p\.whl alone"):
        wheel_files(archive.getvalue(), "p.whl")


def test_packages_that_are_too_large_together_are_told_by_the_largest() -> None:
    with pytest.raises(LimitExceeded, match=f"{wheels.MAX_BYTES - 1} of them in large; "):
        wheels.check_total({"large/a.py": b" " * (wheels.MAX_BYTES - 1), "small/a.py": b"  "})


@given(
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]),
    st.binary(max_size=200),
    st.integers(0, 400),
    st.binary(min_size=1, max_size=8),
)
@example(zipfile.ZIP_DEFLATED, b"x" * 99, 43, b"\xff\xff\xff")
@example(zipfile.ZIP_LZMA, b"x" * 99, 43, b"\xff\xff\xff\xff\xff\xff\xff\xff")
def test_a_damaged_archive_is_refused_by_name(method: int, noise: bytes, at: int, change: bytes) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", method) as writer:
        writer.writestr("p/__init__.py", noise)
    whole = bytearray(archive.getvalue())
    whole[at : at + len(change)] = change
    for damaged in (bytes(whole), noise):
        with contextlib.suppress(InvalidRequest, LimitExceeded):
            wheel_files(damaged, "p.whl")
