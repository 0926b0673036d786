"""What `import inferd` gives, and what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import inferd
from inferd import protocol

SDK = Path(inferd.__file__).parents[1]

GUEST = """
import sys

class OnlyStandardLibrary:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top != "inferd" and top not in sys.stdlib_module_names:
            raise ImportError(f"not in the standard library: {name}")
        return None

sys.path[:] = [entry for entry in sys.path if "site-packages" not in entry] + [SDK]
sys.meta_path.insert(0, OnlyStandardLibrary())

import asyncio
import inferd
from inferd import Context, Sampler
from inferd.program.interface import coerce_arguments, describe_source
from inferd.testing import FakeRuntime

async def main(text: str) -> str:
    return await Context().user(text).generate(Sampler.argmax()).collect_text()

with FakeRuntime(["fine"]):
    print(asyncio.run(main(**coerce_arguments(main, {"text": "hi"}))))

foreign = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - {"inferd", "__main__"}
print(sorted(foreign))
outside = ("socket_client", "inferd.transport.websocket", "inferd.client", "httpx", "websockets", "msgpack", "anyio")
print([name for name in outside if name in sys.modules])
try:
    inferd.connect()
except ImportError as error:
    print(error)
"""


def test_every_public_name_exists_and_is_listed_in_order() -> None:
    assert sorted(inferd.__all__) == inferd.__all__
    for name in inferd.__all__:
        assert getattr(inferd, name) is not None
    wanted = {
        "Context", "Generator", "Step", "Sampler", "Model", "Tokenizer", "JsonSchema", "Regex", "AnyJson", "Choice",
        "Speculator", "session", "connect", "Grammar", "Matcher", "TokenMask", "Lark", "Gbnf", "Tagged", "Tag", "AllOf", "Exact",
        "StepConstraint", "Partial",
    }  # fmt: skip
    assert wanted <= set(inferd.__all__)


def test_the_protocol_is_imported_without_the_rest() -> None:
    """Every process of the runtime needs it: the rest took half as long again as all that a worker imports."""
    loaded = "import inferd.protocol, sys; print([n for n in ('inferd.context', 'inferd.chat', 'asyncio') if n in sys.modules])"
    there = "import inferd; print(inferd.Context.__name__, inferd.http.__name__, inferd.chat.__name__, hasattr(inferd, 'nix'))"
    run = subprocess.run([sys.executable, "-c", f"{loaded}; {there}"], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\nContext inferd.http inferd.chat False\n"
    assert {*inferd.__all__, "Client"} <= {*dir(inferd)}


def test_every_operation_is_known_where_the_protocol_is() -> None:
    said = "import inferd.protocol as p; print(*sorted({*p.OPERATIONS, *p.GATEWAY_OPERATIONS}))"
    run = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert run.stdout.split() == sorted({*protocol.OPERATIONS, *protocol.GATEWAY_OPERATIONS})


def test_the_whole_error_tree_is_public() -> None:
    tree = {cls.__name__ for cls in protocol.ERRORS.values()} | {"InferdError"}
    assert tree <= set(inferd.__all__)


def test_public_docstrings_exist() -> None:
    for name in inferd.__all__:
        value = getattr(inferd, name)
        assert value.__doc__, name
        for attribute, member in vars(value).items() if isinstance(value, type) else ():
            if not attribute.startswith("_") and callable(getattr(member, "__func__", member)):
                assert getattr(value, attribute).__doc__, f"{name}.{attribute}"


def test_programs_need_the_standard_library_only() -> None:
    script = f"SDK = {str(SDK)!r}\n" + GUEST
    done = subprocess.run(
        [sys.executable, "-S", "-I", "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text, foreign, imported, refusal = done.stdout.splitlines()
    assert text == "fine"
    assert (foreign, imported) == ("[]", "[]")
    assert refusal.startswith("not in the standard library")  # only connect() wants more
