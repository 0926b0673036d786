"""The pages of the dialects: their tables are those that the routes read with."""

from __future__ import annotations

from pathlib import Path

import pytest
from dialect_reference import FOLDER, TABLES, with_tables

PAGES = [path for path in sorted(FOLDER.glob("*.md")) if "<!-- end -->" in path.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_tables_of_a_page_are_up_to_date(page: Path) -> None:
    assert page.read_text() == with_tables(page.read_text()), "python scripts/dialect_reference.py"


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_page_has_the_table(name: str) -> None:
    assert any(f"<!-- fields {name} -->" in page.read_text() for page in PAGES)
