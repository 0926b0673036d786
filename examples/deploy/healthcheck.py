"""Ask the server of this machine how it is; the exit code is the answer. Standard library only.

inferd-healthcheck live    it answers: /livez, which needs no token
inferd-healthcheck ready   it takes runs: /readyz, with the first token of INFERD_TOKENS_FILE

It reads the variables that the server reads. The certificate is not checked: the question does not leave the machine.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
from pathlib import Path

PATHS = {"live": "/livez", "ready": "/readyz"}
SECONDS = 4.0


def first_token() -> str:
    """Return the first token of the tokens file."""
    lines = Path(os.environ["INFERD_TOKENS_FILE"]).read_text().splitlines()
    return next(line.split()[0] for line in lines if line.strip() and not line.startswith("#"))


def ask(what: str) -> int:
    """Return the status of the server's answer."""
    port = int(os.environ.get("INFERD_PORT", "7070"))
    connection: http.client.HTTPConnection
    if os.environ.get("INFERD_TLS_CERT"):
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=SECONDS, context=context)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    headers = {"Authorization": f"Bearer {first_token()}"} if what == "ready" else {}
    connection.request("GET", PATHS[what], headers=headers)
    return connection.getresponse().status


def main(arguments: list[str]) -> str | None:
    """Return None if all is well, else what is wrong."""
    try:
        status = ask(arguments[0] if arguments else "live")
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {error}"
    return None if status == 200 else f"status {status}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
