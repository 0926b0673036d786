"""docs/reference/settings.md, from the settings' fields: ``python scripts/settings_reference.py > FILE``."""

from __future__ import annotations

from collections.abc import Iterable

from inferd_runtime.settings.setting import SettingField
from inferd_runtime.settings.settings import ENGINE_FIELDS, OTHER_FIELDS

HEAD = """# Settings

Written by `python scripts/settings_reference.py > docs/reference/settings.md`; a test holds it up to date.

A flag wins over the environment, that over the configuration file, that over the default. The file is TOML, with the key below
at its top level: the file that `--config` or `INFERD_CONFIG` names, else `inferd/config.toml` under `$XDG_CONFIG_HOME`
(`~/.config`). Several models, adapters or draft models are the flag several times, a list in the file (of texts, or of tables
with `name` and the options), and separated by `;` in the environment. Not every command has every flag; `--help` lists its own.
"""


def reference() -> str:
    """Return the page's text."""
    parts = [HEAD, "## The engine\n", *_table(ENGINE_FIELDS.values())]
    parts += ["\n## Server, programs and clients\n", *_table(OTHER_FIELDS.values())]
    return "\n".join(parts) + "\n"


def _table(fields: Iterable[SettingField]) -> Iterable[str]:
    yield "| key | flag | variable | default | what it sets |\n|---|---|---|---|---|"
    for field in fields:
        help_text = field.help.replace("|", "\\|")
        default = f"`{field.default_text}`" if field.default_text else ""
        yield f"| `{field.name}` | `{field.flag}` | `{field.variable}` | {default} | {help_text} |"


if __name__ == "__main__":
    print(reference(), end="")
