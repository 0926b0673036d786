"""The program registry and the checks of what is uploaded."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from inferd.protocol import InvalidRequest, LimitExceeded, NotFound, ProgramError, ProgramSyntaxError
from inferd_runtime.sandbox.messages import Bundle, Limits
from inferd_runtime.server.programs.bundles import (
    MAX_DATA_BYTES,
    MAX_SOURCE_BYTES,
    Program,
    content_id,
    make_program,
    read_sources,
    with_limits,
)
from inferd_runtime.server.programs.registry import Registry, Uploaded
from inferd_runtime.server.tenancy.quotas import Quotas

MAIN = "async def main(text: str, count: int = 1) -> str:\n    return text * count\n"
BLOCK = '# /// script\n# [tool.inferd]\n# name = "named"\n# version = "1.2"\n# [tool.inferd.limits]\n# memory_mb = 64\n# ///\n'


def bundle(source: str = MAIN, name: str = "p") -> Bundle:
    return Bundle(name, {f"{name}.py": source}, f"{name}.py")


def upload(registry: Registry, bundle: Bundle, tenant: str, name: str = "", version: str = "") -> Uploaded:
    return registry.keep(make_program(bundle, name, version), tenant, Quotas())


def find(registry: Registry, reference: str, tenant: str) -> Program:
    stored = registry.find(registry.resolve(reference, tenant))
    return make_program(msgspec.json.decode(stored.bundle, type=Bundle), stored.name, stored.version)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    opened = Registry(tmp_path / "data" / "programs.sqlite3")
    yield opened
    opened.close()


def test_the_same_bytes_twice_are_one_program(registry: Registry) -> None:
    first = upload(registry, bundle(), "ann")
    second = upload(registry, bundle(), "ann")
    assert (first.created, second.created) == (True, False)
    assert first.program == second.program
    assert first.program.version == "0.0.1"
    assert len(registry.entries("ann")) == 1


def test_new_source_without_a_version_gets_the_next_one(registry: Registry) -> None:
    versions = [upload(registry, bundle(MAIN + "#" * n), "ann").program.version for n in range(3)]
    assert versions == ["0.0.1", "0.0.2", "0.0.3"]
    assert find(registry, "p", "ann").version == "0.0.3"
    assert find(registry, "p@0.0.1", "ann").bundle.files["p.py"] == MAIN


def test_other_source_under_a_stated_version_is_refused(registry: Registry) -> None:
    upload(registry, bundle(BLOCK + MAIN), "ann")
    assert upload(registry, bundle(BLOCK + MAIN), "ann").created is False
    with pytest.raises(InvalidRequest, match=r"named@1\.2 exists with other source"):
        upload(registry, bundle(BLOCK + MAIN + "#"), "ann")
    assert upload(registry, bundle(BLOCK.replace("1.2", "1.3") + MAIN + "#"), "ann").created


def test_one_source_may_have_several_names_and_versions(registry: Registry) -> None:
    one = upload(registry, bundle(), "ann", name="one", version="7")
    two = upload(registry, bundle(), "ann", name="two", version="8")
    assert one.program.id == two.program.id
    assert (one.created, two.created) == (True, True)
    assert find(registry, "one", "ann").name == "one"
    assert find(registry, "two@8", "ann").name == "two"


def test_programs_are_found_by_hash_and_its_prefix(registry: Registry) -> None:
    program = upload(registry, bundle(), "ann").program
    assert find(registry, program.id, "ann") == program
    assert find(registry, program.id[:16], "ann") == program


@pytest.mark.parametrize("reference", ["nix", "p@9", "sha256:" + "0" * 64])
def test_unknown_programs_are_not_found(registry: Registry, reference: str) -> None:
    upload(registry, bundle(), "ann")
    with pytest.raises(NotFound, match="has been uploaded"):
        find(registry, reference, "ann")


@pytest.mark.parametrize("reference", ["two_parts@9", "two-parts", "Two_Parts"])
def test_a_program_that_is_there_under_nearly_this_name_is_named(registry: Registry, reference: str) -> None:
    upload(registry, bundle(), "ann", name="two_parts")
    with pytest.raises(NotFound, match=r"has been uploaded; there is two_parts@0\.0\.1$"):
        find(registry, reference, "ann")
    with pytest.raises(NotFound, match=r"has been uploaded$"):
        find(registry, reference, "bob")


@pytest.mark.parametrize("reference", ["sha256:12", "sha256:" + "*" * 20])
def test_a_hash_that_is_none_is_refused(registry: Registry, reference: str) -> None:
    with pytest.raises(InvalidRequest, match="hexadecimal"):
        find(registry, reference, "ann")


def test_tenants_do_not_see_each_other(registry: Registry) -> None:
    program = upload(registry, bundle(), "ann").program
    for reference in ("p", program.id):
        with pytest.raises(NotFound):
            find(registry, reference, "bob")
    assert registry.entries("bob") == []
    assert upload(registry, bundle(MAIN + "#"), "bob").program.version == "0.0.1"


def test_programs_are_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "programs.sqlite3"
    first = Registry(path)
    uploaded = upload(first, bundle(BLOCK + MAIN), "ann").program
    first.close()
    second = Registry(path)
    assert find(second, "named", "ann") == uploaded
    second.close()


def test_programs_are_this_users_alone_whatever_the_folder_and_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        registry = Registry(tmp_path / "programs.sqlite3")
        upload(registry, bundle(BLOCK + MAIN), "ann")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    registry.close()


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "programs.sqlite3"
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(InvalidRequest, match="format 99"):
        Registry(path)


def test_a_syntax_error_shows_the_line_and_a_caret(registry: Registry) -> None:
    with pytest.raises(ProgramSyntaxError) as caught:
        upload(registry, bundle("async def main():\n    x = (1 +\n"), "ann")
    assert caught.value.detail["line"] == 2
    assert caught.value.detail["file"] == "p.py"
    assert "x = (1 +" in caught.value.message
    assert "^" in caught.value.message
    assert registry.entries("ann") == []


@pytest.mark.parametrize("source", ["x" * 10 + "\0", "(" * 5000, "-" * 200_000 + "1", "x" + "[a" * 5000])
def test_source_that_breaks_the_parser_is_a_syntax_error(registry: Registry, source: str) -> None:
    with pytest.raises(ProgramSyntaxError):
        upload(registry, bundle(source), "ann")


def test_a_program_needs_a_main(registry: Registry) -> None:
    with pytest.raises(ProgramError, match="main"):
        upload(registry, bundle("def other(): pass"), "ann")


def test_too_much_source_is_refused() -> None:
    with pytest.raises(LimitExceeded) as caught:
        make_program(bundle("#" * (MAX_SOURCE_BYTES + 1)))
    assert caught.value.detail["limit"] == "source_bytes"


@pytest.mark.parametrize(
    "path", ["../x.py", "/x.py", "a/../b.py", "a\\b.py", "a//b.py", "data.bin", ".", "x.py\0.py", ""]
)
def test_files_that_no_program_may_have_are_refused(path: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be a file"):
        make_program(Bundle("p", {"main.py": MAIN, path: ""}))


@pytest.mark.parametrize("entry", ["other.py", "", "../main.py"])
def test_the_entry_must_be_there(entry: str) -> None:
    with pytest.raises(InvalidRequest, match="entry"):
        make_program(Bundle("p", {"main.py": MAIN}, entry))


def test_a_folder_is_read_with_its_project_file(tmp_path: Path) -> None:
    folder = tmp_path / "prog"
    (folder / "part").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / ".venv").mkdir()
    (folder / "main.py").write_text(MAIN)
    (folder / "part" / "more.py").write_text("x = 1\n")
    (folder / "tests" / "test_it.py").write_text("")
    (folder / ".venv" / "a.py").write_text("")
    (folder / "notes.txt").write_text("")
    (folder / "pyproject.toml").write_text('[project]\nversion = "3"\n[tool.inferd.limits]\ncpu_s = 2.5\n')
    program = make_program(read_sources(folder))
    assert sorted(program.bundle.files) == ["main.py", "part/more.py", "pyproject.toml"]
    assert program.bundle.data == {"notes.txt": b""}
    assert (program.name, program.version, program.limits) == ("prog", "3", {"cpu_s": 2.5})


def test_the_main_file_of_a_project_is_not_run_without_its_project(tmp_path: Path) -> None:
    """It ran alone: without its dependencies, limits and other files."""
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "more.py").write_text("")
    (tmp_path / "pyproject.toml").write_text("[project]\n")  # of whatever the file lies in
    assert sorted(read_sources(tmp_path / "main.py").files) == ["main.py"]
    (tmp_path / "pyproject.toml").write_text("[tool.inferd.limits]\ncpu_s = 2.5\n")
    assert sorted(read_sources(tmp_path / "main.py").files) == ["main.py", "more.py", "pyproject.toml"]
    assert sorted(read_sources(tmp_path / "more.py").files) == ["more.py"]


def test_a_folder_names_a_program_that_says_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "greeter"
    folder.mkdir()
    (folder / "main.py").write_text(MAIN)
    assert make_program(read_sources(folder)).name == "greeter"
    (folder / "main.py").write_text(BLOCK + MAIN)
    assert make_program(read_sources(folder)).name == "named"
    (folder / "pyproject.toml").write_text("")
    with pytest.raises(InvalidRequest, match="keep one of them"):
        make_program(read_sources(folder))


def test_a_file_is_read_under_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "extract.py"
    path.write_text(MAIN)
    program = make_program(read_sources(path))
    assert (program.name, program.bundle.entry) == ("extract", "extract.py")


@pytest.mark.parametrize("name", ["nix.py", "text.txt", "empty"])
def test_what_is_no_program_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidRequest):
        read_sources(tmp_path / name)


def test_what_cannot_be_a_dependency_is_refused_by_name() -> None:
    block = '# /// script\n# dependencies = ["inferd>=1", "rich @ https://example.com/rich.whl"]\n# ///\n'
    with pytest.raises(InvalidRequest, match="'rich' names a URL"):
        make_program(bundle(block + MAIN))
    assert make_program(bundle(block.replace(" @ https://example.com/rich.whl", ">=13") + MAIN)).name == "p"
    with pytest.raises(InvalidRequest, match="the sandbox's Python"):
        make_program(bundle('# /// script\n# requires-python = "<3.12"\n# ///\n' + MAIN))


@pytest.mark.parametrize("path", ["../x.bin", "/x.bin", "a\\b.bin", "x.py", "pyproject.toml", "", ".", "main.py/x.bin"])
def test_other_files_that_no_program_may_have_are_refused(path: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be a file"):
        make_program(Bundle("p", {"main.py": MAIN}, data={path: b""}))


def test_other_files_count_for_the_hash_and_have_a_limit() -> None:
    with_data = Bundle("p", {"main.py": MAIN}, data={"x.bin": b"\xff"})
    assert content_id(make_program(with_data).bundle) != content_id(Bundle("p", {"main.py": MAIN}))
    with pytest.raises(LimitExceeded):
        make_program(Bundle("p", {"main.py": MAIN}, data={"x.bin": bytes(MAX_DATA_BYTES + 1)}))


def test_the_hash_is_of_content_only() -> None:
    same = {content_id(bundle(MAIN, "p")), content_id(Bundle("other", {"p.py": MAIN}, "p.py"))}
    assert len(same) == 1
    files = {"main.py": MAIN, "a.py": "", "b.py": ""}
    assert content_id(Bundle("p", files)) == content_id(Bundle("p", dict(reversed(files.items()))))
    assert content_id(Bundle("p", files)) != content_id(Bundle("p", files, "a.py"))
    assert content_id(Bundle("p", {**files, "a.py": "b.py"})) != content_id(Bundle("p", files))


def test_limits_change_by_name_and_are_checked() -> None:
    program: Program = make_program(bundle(BLOCK + MAIN))
    assert program.limits_over(Limits()).memory_mb == 64
    assert with_limits(Limits(), {"wall_s": 2}).wall_s == 2
    for wrong in ({"nix": 1}, {"memory_mb": "x"}, {"memory_mb": 1.5}, {"wall_s": 0}, {"cpu_s": -1}):
        with pytest.raises(InvalidRequest, match="limit"):
            with_limits(Limits(), wrong)
