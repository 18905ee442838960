# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes manifests are valid and agree with each other, and the entry point computes the right command."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from deploy import entrypoint
from deploy.render import RenderError, containers, render

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
OVERLAYS = {name: DEPLOY / "kubernetes" / "overlays" / name for name in ("one", "three")}
REPLICAS = {"one": 1, "three": 3}
VERSION_OLDEST = "1.27"
"""The first Kubernetes in which gRPC probes are stable."""

Tree = dict[str, Any]


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    """Name of an overlay."""
    return str(request.param)


@pytest.fixture
def objects(overlay: str) -> list[Tree]:
    """Objects of an overlay."""
    return render(OVERLAYS[overlay])


def of_kind(objects: list[Tree], kind: str) -> list[Tree]:
    """Return the objects of one kind."""
    return [each for each in objects if each["kind"] == kind]


def the_set(objects: list[Tree]) -> Tree:
    """Return the spec of the one StatefulSet."""
    (found,) = of_kind(objects, "StatefulSet")
    return found["spec"]


def the_server(objects: list[Tree]) -> Tree:
    """Return the one container."""
    (stateful_set,) = of_kind(objects, "StatefulSet")
    (server,) = containers(stateful_set)
    return server


@pytest.mark.parametrize("version", [VERSION_OLDEST, kubernetes_validate.latest_version()])
def test_every_object_fits_the_schema(objects: list[Tree], version: str) -> None:
    """Every object is valid in the oldest Kubernetes supported and in the newest known, unknown fields refused."""
    assert {each["kind"] for each in objects} == {
        "ConfigMap",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
        "StatefulSet",
    }
    for each in objects:
        kubernetes_validate.validate(each, version, strict=True)


def test_schema_check_finds_a_misspelt_field(objects: list[Tree]) -> None:
    """The check is not a rubber stamp: one misspelt field is found."""
    (stateful_set,) = of_kind(objects, "StatefulSet")
    stateful_set["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(stateful_set, VERSION_OLDEST, strict=True)


def test_renderer_agrees_with_kubectl(overlay: str, objects: list[Tree]) -> None:
    """If kubectl is installed, it renders the same objects. Otherwise the objects are at least complete."""
    assert len(objects) == len({(each["kind"], each["metadata"]["name"]) for each in objects})
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        print("NOT RUN: kubectl is not on the PATH")
        return
    command = [kubectl, "kustomize", str(OVERLAYS[overlay])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    def ordered(trees: list[Tree]) -> list[Tree]:
        return sorted(trees, key=lambda each: (each["kind"], each["metadata"]["name"]))

    assert ordered(list(yaml.safe_load_all(done.stdout))) == ordered(objects)


def test_number_of_voters_is_number_of_replicas(overlay: str, objects: list[Tree]) -> None:
    """At the first start every replica is a voter, and the servers get that number from their environment."""
    (config,) = of_kind(objects, "ConfigMap")
    assert the_set(objects)["replicas"] == REPLICAS[overlay]
    assert config["data"]["LOGRAFT_VOTER_COUNT"] == str(REPLICAS[overlay])
    assert {"configMapRef": {"name": config["metadata"]["name"]}} in the_server(objects)["envFrom"]


def test_selectors_match_the_pods(objects: list[Tree]) -> None:
    """Services, disruption budget, network policy, spreading and the set itself select exactly the set's pods."""
    spec = the_set(objects)
    labels = spec["template"]["metadata"]["labels"]
    pod = spec["template"]["spec"]
    (budget,), (policy,) = of_kind(objects, "PodDisruptionBudget"), of_kind(objects, "NetworkPolicy")
    terms = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    selectors = [
        spec["selector"]["matchLabels"],
        budget["spec"]["selector"]["matchLabels"],
        policy["spec"]["podSelector"]["matchLabels"],
        *(service["spec"]["selector"] for service in of_kind(objects, "Service")),
        *(term["podAffinityTerm"]["labelSelector"]["matchLabels"] for term in terms),
        *(each["labelSelector"]["matchLabels"] for each in pod["topologySpreadConstraints"]),
    ]
    assert selectors == [labels] * len(selectors)
    assert budget["spec"]["maxUnavailable"] == 1


def test_ports_agree(objects: list[Tree]) -> None:
    """Services, probes and the network policy use the ports that the container has and the entry point listens on."""
    server = the_server(objects)
    ports = {each["name"]: each["containerPort"] for each in server["ports"]}
    assert ports == {
        "broker": entrypoint.DEFAULT_BROKER_PORT,
        "quorum": entrypoint.DEFAULT_QUORUM_PORT,
    }
    for service in of_kind(objects, "Service"):
        for each in service["spec"]["ports"]:
            assert each["targetPort"] == each["name"]
            assert each["port"] == ports[each["name"]]
    (policy,) = of_kind(objects, "NetworkPolicy")
    assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} <= ports.keys()


def test_peers_find_each_other_before_they_are_ready(objects: list[Tree]) -> None:
    """The headless Service publishes unready pods, the pods start together, and the entry point knows its name."""
    spec = the_set(objects)
    (headless,) = [each for each in of_kind(objects, "Service") if each["spec"].get("clusterIP") == "None"]
    (config,) = of_kind(objects, "ConfigMap")
    assert headless["spec"]["publishNotReadyAddresses"] is True
    assert spec["podManagementPolicy"] == "Parallel"
    name = headless["metadata"]["name"]
    assert [spec["serviceName"], config["data"]["LOGRAFT_HEADLESS_SERVICE"]] == [name, name]


def test_quorum_port_is_open_to_the_servers_alone(objects: list[Tree]) -> None:
    """Only the pods themselves may reach the quorum port, and a client Service does not name it."""
    labels = the_set(objects)["template"]["metadata"]["labels"]
    (policy,) = of_kind(objects, "NetworkPolicy")
    openings = [rule for rule in policy["spec"]["ingress"] if any(port["port"] == "quorum" for port in rule["ports"])]
    assert [rule["from"] for rule in openings] == [[{"podSelector": {"matchLabels": labels}}]]
    clients = [each for each in of_kind(objects, "Service") if each["spec"].get("clusterIP") != "None"]
    assert [[port["name"] for port in each["spec"]["ports"]] for each in clients] == [["broker"]]


def test_probes_are_over_grpc(objects: list[Tree]) -> None:
    """The probes ask the health service of the public port: for the process, or for readiness to serve."""
    server = the_server(objects)
    for probe, service in (("startup", "liveness"), ("liveness", "liveness"), ("readiness", "")):
        assert server[f"{probe}Probe"]["grpc"] == {"port": entrypoint.DEFAULT_BROKER_PORT, "service": service}
    startup = server["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1_200


def test_pods_have_no_rights_they_do_not_need(objects: list[Tree]) -> None:
    """The container runs as an unprivileged user on a read-only file system, without a token or injected settings."""
    pod, server = the_set(objects)["template"]["spec"], the_server(objects)
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "LOGRAFT_PORT of the Service would be read as a setting"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert server["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert f"USER {pod['securityContext']['runAsUser']}:" in (DEPLOY / "Containerfile").read_text()


def test_resources_are_set(objects: list[Tree]) -> None:
    """Memory has a limit equal to its request; CPU has a request and no limit, because throttling costs elections."""
    resources = the_server(objects)["resources"]
    assert resources["limits"] == {"memory": resources["requests"]["memory"]}
    assert "cpu" in resources["requests"]


def test_data_is_on_a_claim_where_the_server_looks(objects: list[Tree]) -> None:
    """The volume claim is mounted at the data directory of the entry point and kept when pods go."""
    spec = the_set(objects)
    mounts = {each["name"]: each["mountPath"] for each in the_server(objects)["volumeMounts"]}
    (claim,) = spec["volumeClaimTemplates"]
    assert mounts[claim["metadata"]["name"]] == entrypoint.DEFAULT_DATA_DIRECTORY
    assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}


def test_image_has_the_version_of_this_tree(objects: list[Tree]) -> None:
    """The image tag is the version of the distribution, never a moving one, and names no registry."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert the_server(objects)["image"] == f"lograft-server:{version}"


def test_container_file_copies_what_is_there() -> None:
    """Everything that the container file copies exists, its build context holds just that, and no base image moves freely."""
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    copies = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line]
    sources = {source for copy in copies for source in copy}
    assert [source for source in sources if not (ROOT / source).exists()] == []
    ignore = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in ignore if line.startswith("!")} == sources
    bases = re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE)
    assert bases
    assert set(bases) == {"python:3.11-slim"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kustomization.yaml", "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamePrefix: x-\n"),
        ("kustomization.yaml", "apiVersion: v1\nkind: ConfigMap\n"),
        ("patch.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n"),
        ("patch.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: [1]\n"),
        ("patch.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nbinaryData: {a: b}\n"),
    ],
    ids=["unknown key", "not a kustomization", "patch of nothing", "patch with a list", "patch with a new map"],
)
def test_renderer_refuses_what_it_does_not_know(tmp_path: Path, name: str, text: str) -> None:
    """Whatever the renderer would render otherwise than kustomize is an error."""
    kustomization = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [a.yaml]\n"
    (tmp_path / "kustomization.yaml").write_text(kustomization + "patches: [{path: patch.yaml}]\n")
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: b}\n")
    (tmp_path / "patch.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: c}\n")
    assert render(tmp_path)[0]["data"] == {"a": "c"}
    (tmp_path / name).write_text(text)
    with pytest.raises(RenderError):
        render(tmp_path)


POD = {"POD_NAME": "lograft-0", "POD_NAMESPACE": "logs", "LOGRAFT_CLUSTER_ID": "c", "LOGRAFT_VOTER_COUNT": "3"}


def test_entry_point_computes_the_command_of_a_voter() -> None:
    """A pod below the voter count runs in combined mode, under its own DNS name, with all voters in order."""
    domain = "lograft-headless.logs.svc.cluster.local"
    voters = ",".join(f"{ordinal + 1}@lograft-{ordinal}.{domain}:9641" for ordinal in range(3))
    assert entrypoint.command_line({**POD, "POD_NAME": "lograft-2"}) == [
        *("brokerd", "run", "--combined", "--first-start"),
        *("--data-dir", "/var/lib/lograft", "--node-id", "3", "--cluster-id", "c"),
        *("--listen", "0.0.0.0:9640", "--advertise", f"lograft-2.{domain}:9640"),
        *("--quorum-listen", "0.0.0.0:9641", "--quorum-advertise", f"lograft-2.{domain}:9641"),
        *("--voters", voters),
    ]


def test_entry_point_makes_pods_beyond_the_voters_plain_brokers() -> None:
    """Scaling up adds brokers: a pod with a higher ordinal gets the voters' addresses and no quorum listener."""
    command = entrypoint.command_line({**POD, "POD_NAME": "lograft-3", "LOGRAFT_HOSTS": "a,b,c,d"})
    assert command == [
        *("brokerd", "run", "--data-dir", "/var/lib/lograft", "--node-id", "4", "--cluster-id", "c"),
        *("--listen", "0.0.0.0:9640", "--advertise", "d:9640", "--replication-port", "9641"),
        *("--quorum", "a:9641,b:9641,c:9641"),
    ]


def test_entry_point_takes_flags_from_the_environment() -> None:
    """A variable named as a flag replaces the computed value, so that everything can be set by hand."""
    chosen = {
        "LOGRAFT_DATA_DIR": "/data",
        "LOGRAFT_NODE_ID": "7",
        "LOGRAFT_LISTEN": "127.0.0.2:1",
        "LOGRAFT_ADVERTISE": "a:2",
        "LOGRAFT_QUORUM_LISTEN": "127.0.0.2:3",
        "LOGRAFT_QUORUM_ADVERTISE": "a:4",
        "LOGRAFT_VOTERS": "7@a:4",
    }
    switches = {"LOGRAFT_FIRST_START": "false", "LOGRAFT_INSECURE_PLAINTEXT": "true"}
    command = entrypoint.command_line({**POD, **chosen, **switches})
    assert command[:4] == ["brokerd", "run", "--combined", "--insecure-plaintext"]
    values = dict(zip(command[4::2], command[5::2], strict=True))
    assert values.pop("--cluster-id") == "c"
    assert list(values.values()) == list(chosen.values())
    follower = {**POD, "POD_NAME": "lograft-3", "LOGRAFT_HOSTS": "a,b,c,d", "LOGRAFT_REPLICATION_PORT": "6"}
    command = entrypoint.command_line({**follower, "LOGRAFT_QUORUM": "a:5"})
    assert command[-4:] == ["--replication-port", "6", "--quorum", "a:5"]


def test_several_data_directories_become_as_many_options() -> None:
    """The variable joins them with ':', as the server's own does."""
    command = entrypoint.command_line({**POD, "POD_NAME": "lograft-2", "LOGRAFT_DATA_DIR": "/data:/more"})
    places = [place for place, word in enumerate(command) if word == "--data-dir"]
    assert [command[place + 1] for place in places] == ["/data", "/more"]


def test_entry_point_reads_the_environment_of_the_manifests(objects: list[Tree]) -> None:
    """The ConfigMap and the pod's fields give a command, and each variable in the ConfigMap is a documented one."""
    (config,) = of_kind(objects, "ConfigMap")
    fields = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in the_server(objects)["env"]}
    assert fields == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    environment = {"POD_NAME": "lograft-0", "POD_NAMESPACE": "logs", **config["data"]}
    assert "--insecure-plaintext" in entrypoint.command_line(environment)
    assert [name for name in config["data"] if name not in str(entrypoint.__doc__)] == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"POD_NAME": ""}, "POD_NAME"),
        ({"POD_NAME": "lograft"}, "POD_NAME"),
        ({"POD_NAMESPACE": ""}, "POD_NAMESPACE"),
        ({"LOGRAFT_CLUSTER_ID": ""}, "LOGRAFT_CLUSTER_ID"),
        ({"LOGRAFT_VOTER_COUNT": ""}, "LOGRAFT_VOTER_COUNT"),
        ({"LOGRAFT_VOTER_COUNT": "two"}, "LOGRAFT_VOTER_COUNT"),
        ({"LOGRAFT_VOTER_COUNT": "2"}, "LOGRAFT_VOTER_COUNT is 2: it must be odd"),
        ({"LOGRAFT_VOTER_COUNT": "11"}, "from 1 to 9"),
        ({"LOGRAFT_HOSTS": "a,b"}, "LOGRAFT_HOSTS names 2 hosts"),
        ({"LOGRAFT_BROKER_PORT": "65536"}, "LOGRAFT_BROKER_PORT"),
        ({"LOGRAFT_QUORUM_PORT": "-1"}, "LOGRAFT_QUORUM_PORT"),
        ({"LOGRAFT_FIRST_START": "yes"}, "LOGRAFT_FIRST_START"),
    ],
)
def test_entry_point_names_the_wrong_variable(change: dict[str, str], named: str) -> None:
    """A missing or wrong variable is refused with a text that names it."""
    with pytest.raises(entrypoint.WrongEnvironmentError, match=named):
        entrypoint.command_line({**POD, **change})


def test_entry_point_exits_with_one_line_on_a_wrong_environment() -> None:
    """Run as a program with nothing set, it exits with status 2 and one line, not a traceback."""
    command = [sys.executable, str(DEPLOY / "entrypoint.py")]
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == entrypoint.USAGE_STATUS
    assert done.stderr.count("\n") == 1
    assert "POD_NAME" in done.stderr


def test_entry_point_runs_a_command_given() -> None:
    """With arguments the image runs these instead of a server."""
    command = [sys.executable, str(DEPLOY / "entrypoint.py"), "printf", "%s", "given"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "given"
