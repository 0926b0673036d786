"""The files of examples/deploy: linters accept them, they name settings that exist, what keeps a server safe is in them."""

from __future__ import annotations

import http.server
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import trustme
import yaml

from inferd.protocol import InvalidRequest
from inferd_runtime.cli.cluster import cluster_parser
from inferd_runtime.cluster.ray_serve.environment import RAY_ENVIRONMENT
from inferd_runtime.settings.settings import FIELDS, Settings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "examples" / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
COMPOSE = sorted(DEPLOY.glob("compose*.yaml"))
CLUSTER = DEPLOY / "kubernetes" / "cluster.yaml"
UNIT, DOCKERFILE, PODS = (
    DEPLOY / "systemd" / "inferd.service",
    DEPLOY / "Dockerfile",
    DEPLOY / "kubernetes" / "inferd.yaml",
)
VARIABLES = {field.variable: field for field in FIELDS.values()}
FLAGS = {field.flag for field in FIELDS.values()}
BESIDE_SETTINGS = {"INFERD_CACHE_DIR"}
"""Read where caches are, before there are settings."""
UID = 10001


def relative(path: Path) -> str:
    return path.relative_to(DEPLOY).as_posix()


def tool(name: str) -> str:
    """Return a linter's path beside this Python, or on the path."""
    found = shutil.which(str(Path(sys.executable).parent / name)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def accepted(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def documents() -> dict[str, Any]:
    """Return the Kubernetes objects by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(PODS.read_text())}


def pod() -> Any:
    return documents()["StatefulSet"]["spec"]["template"]["spec"]


def server() -> Any:
    return pod()["containers"][0]


def values() -> Iterator[tuple[str, str]]:
    """Yield every value that a file of examples/deploy gives to a variable of ours."""
    for path in (UNIT, DOCKERFILE):
        yield from re.findall(r"\b(INFERD_[A-Z_]+)=(\S+)", re.sub(r"^#.*", "", path.read_text(), flags=re.MULTILINE))
    for path in COMPOSE:
        for service in yaml.safe_load(path.read_text())["services"].values():
            yield from service.get("environment", {}).items()
    yield from ((one["name"], one["value"]) for one in server()["env"])


def commands() -> Iterator[list[str]]:
    """Yield what stands behind ``inferd`` in every command that starts a server."""
    unit = re.search(r"^ExecStart=\S+/inferd (.*)$", UNIT.read_text(), re.MULTILINE)
    assert unit is not None
    yield shlex.split(unit[1])
    yield server()["args"]
    yield from (one["command"] for path in COMPOSE for one in services(path) if "command" in one)


def services(path: Path) -> list[Any]:
    return list(yaml.safe_load(path.read_text())["services"].values())


def seconds(pattern: str, text: str) -> int:
    found = re.search(pattern, text, re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("path", [path for path in FILES if path.name != "healthcheck.py"], ids=relative)
def test_every_variable_is_a_setting(path: Path) -> None:
    assert set(re.findall(r"\bINFERD_[A-Z_]+\b", path.read_text())) <= VARIABLES.keys() | BESIDE_SETTINGS


def test_every_value_is_one_that_the_setting_takes() -> None:
    given = [(name, value) for name, value in values() if name in VARIABLES]
    assert len(given) > 20
    for name, value in given:
        VARIABLES[name].convert(name, value)


def test_every_flag_is_a_setting() -> None:
    found = list(commands())
    assert len(found) >= 3
    for command in found:
        assert command[0] == "serve"
        assert {word for word in command if word.startswith("--")} <= FLAGS


def test_a_flag_or_a_value_that_is_gone_would_be_noticed() -> None:
    with pytest.raises(InvalidRequest):
        VARIABLES["INFERD_REQUIRE_ISOLATION"].convert("there", "perhaps")
    assert "--require-isolation" in FLAGS
    assert "--isolation" not in FLAGS


def test_the_guide_names_settings_that_exist() -> None:
    page = (ROOT / "docs" / "guides" / "deploying.md").read_text()
    assert set(re.findall(r"\bINFERD_[A-Z_]+\b", page)) <= VARIABLES.keys() | BESIDE_SETTINGS
    ours = {flag for line in re.findall(r"`inferd [^`]*`", page) for flag in re.findall(r"--[a-z-]+", line)}
    assert ours <= FLAGS


def cluster_commands() -> Iterator[list[str]]:
    """Yield what stands behind ``inferd cluster`` in the files and in the guides."""
    for path in (*FILES, *(ROOT / "docs").rglob("*.md")):
        for line in path.read_text().splitlines():
            for command in re.findall(r"(?:^|\s)inferd cluster ((?:up|scale|status|down)\b[^`|#\n]*)", line):
                yield shlex.split(command)


def test_every_command_of_a_cluster_is_one_that_the_command_line_takes() -> None:
    found = list(cluster_commands())
    assert {command[0] for command in found} >= {"up", "status"}
    assert any("--ray-address" in command for command in found)
    for command in found:
        cluster_parser().parse_args(command)


def ray_cluster() -> Any:
    return next(one for one in yaml.safe_load_all(CLUSTER.read_text()) if one["kind"] == "RayCluster")


def test_pods_of_a_cluster_are_pods_and_have_no_privileges(tmp_path: Path) -> None:
    """Each template alone, by Kubernetes' schema: KubeRay's own is not at hand."""
    spec = ray_cluster()["spec"]
    templates = [spec["headGroupSpec"]["template"], *(one["template"] for one in spec["workerGroupSpecs"])]
    for template in templates:
        pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "x", **template["metadata"]}}
        (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod))
        accepted(tool("kubernetes-validate"), "--strict", "--quiet", str(tmp_path / "pod.yaml"))
        assert template["spec"]["securityContext"]["runAsUser"] == UID
        for container in (*template["spec"]["initContainers"], *template["spec"]["containers"]):
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
        given = {one["name"]: one["value"] for one in template["spec"]["containers"][0]["env"]}
        assert {name: value for name, value in given.items() if name.startswith("RAY_")} == RAY_ENVIRONMENT
        for name in given.keys() - RAY_ENVIRONMENT.keys():
            VARIABLES[name].convert(name, given[name])
        assert template["spec"]["terminationGracePeriodSeconds"] > 2 * float(given["INFERD_DRAIN_SECONDS"])


def test_the_operator_probes_nothing_that_is_not_there() -> None:
    """KubeRay gives probes to a container without them: some run wget, and ask a dashboard. Ray's agent says all without both."""
    spec = ray_cluster()["spec"]
    assert spec["rayVersion"] >= "2.53", "its agent has had /api/healthz since"
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        container = group["template"]["spec"]["containers"][0]
        for probe in ("livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"] == {"path": "/api/healthz", "port": 52365}


def test_the_cluster_of_the_operator_is_made_of_its_fields() -> None:
    """Those of KubeRay's types, ray.io/v1, that are in use here; its schema takes no others."""
    whole = {"rayVersion": {"type": "string"}, "headGroupSpec": group(), "workerGroupSpecs": {"type": "array", "items": group(
        groupName={"type": "string"}, replicas=COUNT, minReplicas=COUNT, maxReplicas=COUNT)}}  # fmt: skip
    found = ray_cluster()
    assert found["apiVersion"] == "ray.io/v1"
    jsonschema.validate(found["spec"], closed(whole))
    for workers in found["spec"]["workerGroupSpecs"]:
        assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]


COUNT = {"type": "integer", "minimum": 0}


def group(**more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "additionalProperties": {"type": "string"}}
    return closed({"rayStartParams": parameters, "template": {"type": "object"}, **more})


def closed(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def test_other_objects_of_a_cluster_pass_the_schemas(tmp_path: Path) -> None:
    for one in yaml.safe_load_all(CLUSTER.read_text()):
        if one["kind"] != "RayCluster":
            (tmp_path / "one.yaml").write_text(yaml.safe_dump(one))
            accepted(tool("kubernetes-validate"), "--strict", "--quiet", str(tmp_path / "one.yaml"))


def test_hadolint() -> None:
    accepted(tool("hadolint"), str(DOCKERFILE))


def test_yamllint() -> None:
    accepted(tool("yamllint"), "--strict", "-c", str(DEPLOY / ".yamllint.yaml"), str(DEPLOY))


def test_kubernetes_schemas() -> None:
    accepted(tool("kubernetes-validate"), "--strict", "--quiet", str(PODS))


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """With a program that is there instead of ours: systemd looks for it."""
    copy = tmp_path / "inferd.service"
    copy.write_text(UNIT.read_text().replace("/opt/inferd/bin/inferd", shutil.which("true") or ""))
    accepted(tool("systemd-analyze"), "verify", str(copy))


def test_the_image_holds_what_is_copied_and_runs_as_nobody_special() -> None:
    text = DOCKERFILE.read_text()
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists()
            assert source in kept
    for stage in re.split(r"^FROM ", text, flags=re.MULTILINE)[-2:]:
        assert re.search(rf"^USER {UID}$", stage, re.MULTILINE)
        assert re.search(r"^VOLUME ", stage, re.MULTILINE)
    assert '"live"]' in text.split("HEALTHCHECK", 1)[1].splitlines()[1]


def test_the_image_is_built_from_all_that_the_wheel_holds() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {Path(path).parts[0] for path in (*wheel["packages"], *wheel["force-include"])}
    for stage in re.split(r"^FROM ", DOCKERFILE.read_text(), flags=re.MULTILINE):
        if "pip install" in stage:
            assert needed <= set(re.findall(r"^COPY (\w+) \1$", stage, re.MULTILINE))


def test_the_unit_leaves_what_the_layers_are_made_of() -> None:
    lines = [line for line in UNIT.read_text().splitlines() if not line.startswith("#")]
    given = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("Environment="))
    assert not given.keys() & {"RestrictNamespaces", "MemoryDenyWriteExecute", "PrivateUsers", "User=root"}
    assert given["SystemCallFilter"].startswith("~")
    assert not {"@mount", "@sandbox", "@privileged", "unshare"} & set(given["SystemCallFilter"][1:].split())
    assert "Environment=INFERD_REQUIRE_ISOLATION=true" in lines
    assert given["OOMPolicy"] == "continue"


def test_there_is_time_to_drain() -> None:
    assert seconds(r"^TimeoutStopSec=(\d+)$", UNIT.read_text()) > Settings().drain_seconds
    assert pod()["terminationGracePeriodSeconds"] > Settings().drain_seconds
    assert seconds(r"stop_grace_period: (\d+)s$", COMPOSE[-1].read_text()) > Settings().drain_seconds
    drains = [float(value) for name, value in values() if name == "INFERD_DRAIN_SECONDS"]
    assert set(drains) == {Settings().drain_seconds}


def test_pods_have_no_privileges_and_read_secrets_from_private_copies() -> None:
    given = pod()
    assert given["securityContext"]["runAsUser"] == UID
    assert given["securityContext"]["runAsNonRoot"] is True
    for container in (*given["initContainers"], *given["containers"]):
        own = container["securityContext"]
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
    mounts = {one["name"]: one["mountPath"] for one in server()["volumeMounts"]}
    assert mounts["private"] == "/etc/inferd"
    assert "secret" not in mounts
    assert given["volumes"][1]["emptyDir"]["medium"] == "Memory"


def test_probes_ask_what_needs_no_token_but_for_readiness() -> None:
    for probe in ("livenessProbe", "startupProbe"):
        assert server()[probe]["httpGet"] == {"path": "/livez", "port": "https", "scheme": "HTTPS"}
    assert server()["readinessProbe"]["exec"]["command"][-1] == "ready"
    assert documents()["StatefulSet"]["spec"]["replicas"] == 1


class AServer(http.server.BaseHTTPRequestHandler):
    """Answers /livez, and /readyz to one token."""

    def do_GET(self) -> None:
        ready = self.path == "/readyz" and self.headers["Authorization"] == "Bearer token-of-ann"
        self.send_response(200 if ready or self.path == "/livez" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    ("what", "tokens", "code"),
    [("live", "", 0), ("ready", "# of ann\ntoken-of-ann ann\n", 0), ("ready", "another-token bob\n", 1)],
)
def test_the_health_check_asks_the_server(tmp_path: Path, tls: bool, what: str, tokens: str, code: int) -> None:
    (tmp_path / "tokens").write_text(tokens)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), AServer) as server:
        environment = {"INFERD_PORT": str(server.server_port), "INFERD_TOKENS_FILE": str(tmp_path / "tokens")}
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            trustme.CA().issue_cert("localhost").configure_cert(context)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            environment["INFERD_TLS_CERT"] = "there"
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        assert check(environment, what).returncode == code
        server.shutdown()


def test_the_health_check_says_that_nobody_answers() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), AServer) as gone:
        port = gone.server_port
    done = check({"INFERD_PORT": str(port)}, "live")
    assert done.returncode == 1
    assert done.stderr.startswith("no answer")


def check(environment: dict[str, str], what: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(DEPLOY / "healthcheck.py"), what]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
