"""The container files: they parse, and they say what the service needs them to say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from service.jobs.queues import QUEUES, queue_of
from service.queues.schemas import QueueOut
from service.settings import Settings
from service.tables.jobs import JOB_KINDS
from tests.worker.running import ROOT

OURS = ("api", "reconciler", "worker", "inspector")
RUNNERS = ("worker", "inspector")


@pytest.fixture(scope="module")
def services() -> dict:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


@pytest.fixture(scope="module")
def stages() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    current: list[str] = []
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
    for line in text.splitlines():
        if match := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            current = found[match[2]] = [line]
        elif line and not line.startswith("#"):
            current.append(line)
    return found


def test_every_service_is_there_and_healthy_before_it_is_used(services):
    assert set(services) == {"postgres", "redis", "migrate", *OURS}
    for name in OURS:
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
        assert services[name]["depends_on"]["redis"] == {"condition": "service_healthy"}
    assert services["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    assert all(services[name]["healthcheck"]["test"] for name in ("postgres", "redis"))
    command = services["redis"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert services["worker"]["stop_grace_period"] == "30s", "time to put jobs back"


def test_the_store_is_shared_and_scratch_is_not(services):
    assert all("store:/data/store" in services[name]["volumes"] for name in OURS)
    scratch = services["worker"]["environment"]["QUANTMILL_SCRATCH_DIR"]
    assert not scratch.startswith(("/data/store", "/data/cache"))
    for name in RUNNERS:
        assert {"cache:/data/cache", "checkpoints:/data/checkpoints"} <= set(services[name]["volumes"])
        assert services[name]["environment"]["QUANTMILL_CHECKPOINT_DIR"] == "/data/checkpoints"


def test_every_variable_is_a_setting_and_secrets_are_where_they_are_needed_and_have_no_default(services):
    """The API checks keys; the reconciler signs what it sends to webhooks, whose secrets the pepper opens."""
    wanted = {"api": {"QUANTMILL_API_KEY", "QUANTMILL_KEY_PEPPER"}, "reconciler": {"QUANTMILL_KEY_PEPPER"}}
    for name, service in services.items():
        ours = {variable for variable in service.get("environment", {}) if variable.startswith("QUANTMILL_")}
        assert {variable.removeprefix("QUANTMILL_").lower() for variable in ours} <= set(Settings.model_fields)
        assert wanted["api"] & ours == wanted.get(name, set()), name
    text = (ROOT / "docker-compose.yml").read_text()
    for name in ("POSTGRES_PASSWORD", *wanted["api"]):
        references = re.findall(r"\$\{" + name + r"([^}]*)\}", text)
        assert references
        assert all(reference.startswith(":?") for reference in references)


def test_built_targets_exist_and_start_existing_commands_for_every_queue(services, stages):
    built = [service for service in services.values() if "build" in service]
    assert {service["build"]["target"] for service in built} <= set(stages)
    assert {service["command"][0] for service in built if "command" in service} == {"migrate", "reconcile", "worker"}
    assert 'CMD ["worker"]' in stages["worker"]
    commands = [services[name]["command"] for name in RUNNERS]
    consumed = {queue for words in commands for queue in words[words.index("--queues") + 1].split(",")}
    assert consumed == {queue_of(kind) for kind in JOB_KINDS}
    assert consumed <= set(QUEUES)


def test_the_manifest_starts_every_process_with_settings_that_there_are():
    documents = list(yaml.safe_load_all((ROOT / "examples/kubernetes/quantmill.yaml").read_text()))
    kept = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    settings = kept["ConfigMap", "quantmill"]["data"]
    assert {name.removeprefix("QUANTMILL_").lower() for name in settings} <= set(Settings.model_fields)
    pods = {name: one["spec"]["template"] for (kind, name), one in kept.items() if kind in ("Deployment", "Job")}
    found = {}
    for name, pod in pods.items():
        (container,) = pod["spec"]["containers"]
        found[name] = container
        secrets = {source["secretRef"]["name"] for source in container["envFrom"] if "secretRef" in source}
        assert ("quantmill-api" in secrets) == (name in ("quantmill-api", "quantmill-reconciler")), "keys and pepper"
        image = "worker" if container.get("args", [""])[0] == "worker" else "api"
        assert container["image"].endswith(f"quantmill-{image}")
        if deployment := kept.get(("Deployment", name)):
            assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
            volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    commands = [container["args"] for container in found.values() if "args" in container]
    consumed = {words[words.index("--queues") + 1] for words in commands if "--queues" in words}
    assert consumed == {queue_of(kind) for kind in JOB_KINDS}
    assert {words[0] for words in commands} == {"migrate", "reconcile", "worker"}
    scaled = list(yaml.safe_load_all((ROOT / "examples/kubernetes/autoscaling.yaml").read_text()))[1]["spec"]
    assert scaled["scaleTargetRef"]["name"] in pods
    assert scaled["triggers"][0]["metadata"]["url"].startswith("http://quantmill-api:8000/")
    assert kept["Service", "quantmill-api"]["spec"]["ports"] == [{"port": 8000}]


def test_an_autoscaler_asks_for_figures_that_the_service_tells():
    key, scaled = yaml.safe_load_all((ROOT / "examples/kubernetes/autoscaling.yaml").read_text())
    triggers = {trigger["name"]: trigger for trigger in scaled["spec"]["triggers"]}
    for trigger in triggers.values():
        queue, field = re.fullmatch(r'items\.#\(name=="(\w+)"\)\.(\w+)', trigger["metadata"]["valueLocation"]).groups()
        assert queue in QUEUES
        assert QueueOut.model_fields[field].annotation in (int, float), "never null"
        assert trigger["metadata"]["authMode"] == "bearer"
        assert trigger["authenticationRef"]["name"] == key["metadata"]["name"]
    formula = scaled["spec"]["advanced"]["scalingModifiers"]["formula"]
    assert set(re.findall(r"[a-z]+", formula)) == set(triggers)


def test_images_run_as_a_plain_user_and_report_their_health(stages):
    for name in ("api", "worker"):
        assert any(line.startswith("HEALTHCHECK") for line in stages[name])
        (entry,) = [number for number, line in enumerate(stages[name]) if line.startswith("ENTRYPOINT")]
        assert stages[name].index("USER 10001") < entry


def test_only_the_worker_image_has_the_engine(stages):
    def pinned(stage: str) -> set[str]:
        names = [Path(word).name for word in " ".join(stages[stage]).split() if word.endswith(".lock")]
        lines = [line for name in names for line in (ROOT / name).read_text().splitlines()]
        return {line.partition("==")[0] for line in lines if "==" in line and line[0] not in " #"}

    engine = {"torch", "onnxruntime", "onnx"}
    assert not engine & pinned("build-api")
    assert engine < pinned("build-worker")


def test_the_build_context_holds_what_is_copied():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY") and "--from" not in line]
    assert {name for names in copies for name in names} == allowed
