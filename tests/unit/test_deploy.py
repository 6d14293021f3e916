"""What deploy/ holds fits the code, the schemas of Kubernetes, and itself."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from gateway.cli.main import parser
from gateway.settings import NoSecrets, parse

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
YAML_FILES = sorted([*(ROOT / "deploy").rglob("*.yml"), *(ROOT / "deploy").rglob("*.yaml")])
COMPOSE = yaml.safe_load((ROOT / "deploy/docker-compose.yml").read_text())
VERSION = "1.30"  # the oldest that is not out of support by much


class Anything:
    """Secrets of any name."""

    def env(self, name):
        return "x" * 32

    def file(self, path):
        return "x" * 32


RESOURCES = [
    document
    for path in sorted(KUBERNETES.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]


def of_kind(kind):
    return next(resource for resource in RESOURCES if resource["kind"] == kind)


def commands(text):
    """Every poolgate command of a CI file, as its arguments."""
    for line in re.findall(r"poolgate ((?:gate|probe) .*?)(?: >.*)?$", text, re.MULTILINE):
        yield shlex.split(line)


@pytest.mark.parametrize("file", YAML_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_yaml_is_yaml(file):
    documents = list(yaml.safe_load_all(file.read_text()))
    assert documents
    assert all(isinstance(document, dict) for document in documents)


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda each: each["kind"])
def test_kubernetes_takes_it(resource):
    if resource["kind"] == "Kustomization":
        listed = {KUBERNETES / name for name in resource["resources"]}
        # The gate is created for each rollout, not applied.
        apart = {KUBERNETES / "kustomization.yaml", KUBERNETES / "gate-job.yaml"}
        assert listed == set(KUBERNETES.glob("*.yaml")) - apart
        return
    named = {**resource, "metadata": {"name": "generated", **resource["metadata"]}}
    kubernetes_validate.validate(named, VERSION, strict=True)


def test_probes_ask_the_admin_plane_and_the_ports_are_the_configurations():
    [container] = of_kind("Deployment")["spec"]["template"]["spec"]["containers"]
    settings = parse(yaml.safe_load(of_kind("ConfigMap")["data"]["poolgate.yaml"]), Anything())
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": settings.listen.port, "admin": settings.admin.port}
    names = ("startup", "liveness", "readiness")
    asked = [container[f"{name}Probe"]["httpGet"] for name in names]
    assert [probe["path"] for probe in asked] == ["/healthz", "/healthz", "/readyz"]
    assert {probe["port"] for probe in asked} == {"admin"}


def test_the_admin_plane_has_no_service():
    assert [port["targetPort"] for port in of_kind("Service")["spec"]["ports"]] == ["http"]


def test_a_pod_is_given_longer_than_its_drain():
    spec = of_kind("Deployment")["spec"]["template"]["spec"]
    [container] = spec["containers"]
    settings = parse(yaml.safe_load(of_kind("ConfigMap")["data"]["poolgate.yaml"]), Anything())
    [_, before] = container["lifecycle"]["preStop"]["exec"]["command"]
    assert spec["terminationGracePeriodSeconds"] > int(before) + settings.drain


def test_selectors_find_the_pods():
    labels = of_kind("Deployment")["spec"]["template"]["metadata"]["labels"].items()
    for kind in ("Service", "PodDisruptionBudget"):
        selector = of_kind(kind)["spec"]["selector"]
        assert selector.get("matchLabels", selector).items() <= labels


@pytest.mark.parametrize(
    "pod",
    [
        of_kind("Deployment")["spec"]["template"]["spec"],
        of_kind("Job")["spec"]["template"]["spec"],
    ],
    ids=["gateway", "gate"],
)
def test_pods_are_not_root_and_hold_no_token(pod):
    assert pod["securityContext"]["runAsNonRoot"] is True
    user = re.search(r"useradd .*--uid (\d+)", (ROOT / "Dockerfile").read_text())
    assert user is not None
    assert pod["securityContext"]["runAsUser"] == int(user[1])
    assert pod["automountServiceAccountToken"] is False
    [container] = pod["containers"]
    parser().parse_args(container["args"])
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_gate_job_is_not_tried_again():
    job = of_kind("Job")["spec"]
    assert job["backoffLimit"] == 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_a_pipelines_commands_are_the_commands(name):
    text = (ROOT / "deploy/ci" / name).read_text()
    yaml.safe_load(text)
    found = list(commands(text))
    assert {command[0] for command in found} == {"gate", "probe"}
    for command in found:
        parser().parse_args(command)


def test_compose_serves_its_configuration_from_the_networks_it_says():
    gateway = COMPOSE["services"]["poolgate"]
    [mounted] = gateway["volumes"]
    written = yaml.safe_load((ROOT / "deploy" / mounted.split(":")[0]).read_text())
    settings = parse(written, Anything())
    assert settings.workers > 1
    hosts = {settings.backends[0].url: "engine", str(settings.limits.store): "store"}
    for url, service in hosts.items():
        assert f"//{service}:" in url
        [shared] = COMPOSE["services"][service]["networks"]
        assert shared in gateway["networks"]
        assert COMPOSE["networks"][shared]["internal"]
    assert gateway["ports"] == ["127.0.0.1:8080:8080", "127.0.0.1:9090:9090"]
    for name in ("engine", "poolgate"):
        parser().parse_args(COMPOSE["services"][name]["command"])
    assert int(gateway["stop_grace_period"].removesuffix("s")) > settings.drain


def test_systemds_commands_are_the_commands():
    unit = (ROOT / "deploy/systemd/poolgate.service").read_text()
    found = re.findall(r"^Exec\w+=/opt/poolgate/bin/poolgate (.+)$", unit, re.MULTILINE)
    assert len(found) == 2
    for command in found:
        parser().parse_args(command.split())
    stop = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert stop is not None
    drain = parse({"backends": [{"name": "a", "url": "http://h"}]}, NoSecrets()).drain
    assert int(stop[1]) > drain
