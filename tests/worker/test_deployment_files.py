"""Dockerfile, docker-compose.yml and the units of systemd: they parse, and say what the service needs them to say."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from service.jobs.queues import QUEUES, queue_of
from service.settings import Settings
from service.tables.jobs import JOB_KINDS
from tests.support.services import require
from tests.worker.deployed import API_SECRETS, COMMON_SECRETS, check_command, is_setting
from tests.worker.running import ROOT
from worker.embedded import STOP_SECONDS

OURS = ("api", "reconciler", "worker", "inspector", "worker-gpu")
RUNNERS = ("worker", "inspector", "worker-gpu")
IMAGES = ("api", "worker", "worker-gpu")
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
LOOPBACK = "${QUANTMILL_BIND:-127.0.0.1}:"


@pytest.fixture(scope="module")
def composed() -> dict:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@pytest.fixture(scope="module")
def services(composed: dict) -> dict:
    return composed["services"]


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


def interpolated(text: str) -> list[tuple[str, str]]:
    """Variables that Compose puts in, each with what follows its name."""
    return re.findall(r"(?<!\$)\$\{(\w+)([^}]*)\}", text)


def test_every_service_is_there_and_healthy_before_it_is_used(services: dict) -> None:
    profiles = {name: profile for name, service in services.items() for profile in service.get("profiles", [])}
    assert profiles == {
        "worker-gpu": "gpu",
        **dict.fromkeys(("s3", "s3-bucket"), "s3"),
        **dict.fromkeys(("prometheus", "grafana", "jaeger"), "observability"),
    }
    assert set(services) - set(profiles) == {"postgres", "redis", "migrate", *OURS} - {"worker-gpu"}
    for name in OURS:
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
        assert services[name]["depends_on"]["redis"] == {"condition": "service_healthy"}
    assert services["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    assert all(services[name]["healthcheck"]["test"] for name in ("postgres", "redis"))
    assert "--maxmemory-policy noeviction" in services["redis"]["command"][-1]
    for name in RUNNERS:
        assert int(services[name]["stop_grace_period"].removesuffix("s")) > STOP_SECONDS, "time to put jobs back"


def test_every_container_is_held(services: dict) -> None:
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "cap_add" not in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "/tmp" in service["tmpfs"] or name == "redis", name
        if "build" not in service:  # the images of the Dockerfile have a user of their own
            assert service["user"].partition(":")[0] not in ("", "0", "root"), name


def test_nothing_is_published_beyond_loopback_unless_someone_says_so(services: dict) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert len(published) == 4
    assert all(port.startswith(LOOPBACK) for port in published)


def test_the_store_is_shared_and_scratch_is_not(services: dict) -> None:
    assert all({"/data", "store:/data/store"} <= set(services[name]["volumes"]) for name in OURS)
    for name in RUNNERS:
        scratch = services[name]["environment"]["QUANTMILL_SCRATCH_DIR"]
        assert not scratch.startswith(("/data/store", "/data/cache"))
        assert {"cache:/data/cache", "checkpoints:/data/checkpoints"} <= set(services[name]["volumes"])
        assert services[name]["environment"]["QUANTMILL_CHECKPOINT_DIR"] == "/data/checkpoints"


def test_volumes_and_mounted_files_are_there(composed: dict) -> None:
    sources = {
        volume.partition(":")[0]
        for service in composed["services"].values()
        for volume in service.get("volumes", [])
        if ":" in volume
    }
    assert {source for source in sources if not source.startswith("./")} == set(composed["volumes"])
    ours = {source for source in sources if source.startswith("./")} - {"./deploy/grafana/quantmill.json"}
    assert [source for source in sorted(ours) if not (ROOT / source).exists()] == []


def test_every_variable_is_a_setting_and_secrets_are_where_they_are_needed_and_have_no_default(services: dict) -> None:
    """The API checks keys; the reconciler signs what it sends to webhooks, whose secrets the pepper opens."""
    wanted = {"api": API_SECRETS, "reconciler": {"QUANTMILL_KEY_PEPPER"}}
    for name in ("migrate", *OURS):
        variables = set(services[name]["environment"])
        assert [variable for variable in sorted(variables) if not is_setting(variable)] == []
        assert variables >= COMMON_SECRETS
        assert API_SECRETS & variables == wanted.get(name, set()), name
    text = (ROOT / "docker-compose.yml").read_text()
    for name in ("POSTGRES_PASSWORD", "REDIS_PASSWORD", *API_SECRETS):
        rests = [rest for variable, rest in interpolated(text) if variable == name]
        assert rests
        assert all(rest.startswith(":?") for rest in rests)
    for name in ("GRAFANA_PASSWORD", "AWS_SECRET_ACCESS_KEY"):
        assert {rest for variable, rest in interpolated(text) if variable == name} == {":-"}, "of a profile"
    assert not re.search(r"://[^\s/]*PASSWORD", text), "no password is pasted into a URL"


def test_the_example_of_an_env_file_has_every_variable_and_no_secret(services: dict) -> None:
    told = dict(re.findall(r"^#?(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    used = {variable for variable, _ in interpolated((ROOT / "docker-compose.yml").read_text())}
    passed_on = {name for name, value in services["api"]["environment"].items() if value is None}
    assert set(told) == used | passed_on
    secret = {name for name in told if name.endswith(("PASSWORD", "_KEY", "PEPPER", "KEY_ID"))}
    assert {told[name] for name in secret} == {""}


def test_built_targets_exist_and_start_existing_commands_for_every_queue(services: dict, stages: dict) -> None:
    built = {name: service for name, service in services.items() if "build" in service}
    assert {service["build"]["target"] for service in built.values()} == set(IMAGES)
    assert set(IMAGES) < set(stages)
    for name, service in built.items():
        assert service["image"].endswith(f"-quantmill-{service['build']['target']}}}"), name
        if "command" in service:
            check_command(service["command"])
    for image in IMAGES:
        (words,) = [line.removeprefix("CMD ") for line in stages[image] if line.startswith("CMD")]
        check_command(yaml.safe_load(words))
    commands = [services[name]["command"] for name in RUNNERS]
    consumed = {queue for words in commands for queue in words[words.index("--queues") + 1].split(",")}
    assert consumed == {queue_of(kind) for kind in JOB_KINDS} | {"gpu"}
    assert consumed <= set(QUEUES)


def test_prometheus_scrapes_every_process_at_its_port(services: dict) -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "compose.yml").read_text())
    (found,) = config["scrape_configs"][0]["dns_sd_configs"]
    assert set(found["names"]) == set(OURS)
    assert {services[name]["environment"]["QUANTMILL_METRICS_PORT"] for name in OURS} == {str(found["port"])}


def test_images_run_as_a_plain_user_and_report_their_health(stages: dict) -> None:
    for name in IMAGES:
        assert any(line.startswith("HEALTHCHECK") for line in stages[name])
        (entry,) = [number for number, line in enumerate(stages[name]) if line.startswith("ENTRYPOINT")]
        assert stages[name].index("USER 10001:10001") < entry


def test_only_worker_images_have_the_engine_and_only_one_has_cuda(stages: dict) -> None:
    def pinned(stage: str) -> set[str]:
        names = [Path(word).name for word in " ".join(stages[stage]).split() if word.endswith(".lock")]
        lines = [line for name in names for line in (ROOT / name).read_text().splitlines()]
        return {line.partition("==")[0] for line in lines if "==" in line and line[0] not in " #"}

    engine, cuda = {"torch", "onnxruntime", "onnx"}, {"nvidia-cudnn-cu13", "triton"}
    assert not engine & pinned("build-api")
    assert engine < pinned("build-worker")
    assert not cuda & pinned("build-worker")
    assert engine | cuda < pinned("build-worker-gpu")


def test_the_build_context_holds_what_is_copied() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY") and "--from" not in line]
    assert {name for names in copies for name in names} == allowed


def unit(path: Path) -> dict[str, list[str]]:
    """The settings of a unit, each with its values in their order."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_units_start_every_process_with_settings_and_options_that_there_are() -> None:
    started = set()
    for path in UNITS:
        own = unit(path)
        (line,) = own["ExecStart"]
        words = line.replace("%i", "cpu" if "worker" in path.name else "8000").split()
        assert words[0] == "/opt/quantmill/bin/quantmill"
        check_command(words[1:])
        started.add(words[1])
        variables = {word.partition("=")[0] for value in own["Environment"] for word in value.split()}
        assert [variable for variable in variables if not is_setting(variable)] == []
        credentials = {value.partition(":")[0].removeprefix("quantmill_") for value in own["LoadCredential"]}
        keys = {name.removeprefix("QUANTMILL_").lower() for name in API_SECRETS}
        expected = {"api": keys, "reconcile": {"key_pepper"}}.get(words[1], set())
        assert credentials - {"quantmill"} == expected, path.name
        assert expected <= set(Settings.model_fields)
    assert started == {"migrate", "api", "reconcile", "worker"}
    (stop,) = unit(ROOT / "deploy" / "systemd" / "quantmill-worker@.service")["TimeoutStopSec"]
    assert int(stop) > STOP_SECONDS


def test_the_env_file_of_units_has_settings_and_no_secret() -> None:
    text = (ROOT / "deploy" / "systemd" / "quantmill.env.example").read_text()
    names = re.findall(r"^#?([A-Z]\w+)=", text, re.MULTILINE)
    assert names
    assert [name for name in names if not is_setting(name)] == []
    assert not (COMMON_SECRETS | API_SECRETS) & set(names)


def test_units_are_held_and_a_worker_may_hold_its_runners_itself() -> None:
    held = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "PrivateTmp": "yes", "User": "quantmill"}
    for path in UNITS:
        own = unit(path)
        assert {name: own[name] for name in held} == {name: [value] for name, value in held.items()}
        assert own["CapabilityBoundingSet"] == [""]
        is_worker = "worker" in path.name
        # A filter of systemd's would refuse calls with which the worker builds the sandbox of its runners.
        assert ({"SystemCallFilter", "RestrictNamespaces"} <= own.keys()) is not is_worker
        assert is_worker is not bool({"SystemCallFilter", "RestrictNamespaces"} & own.keys())


@pytest.mark.slow
def test_systemd_has_nothing_against_the_units(tmp_path: Path) -> None:
    require(None if shutil.which("systemd-analyze") else "no systemd-analyze: units are not verified")
    program = tmp_path / "quantmill"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    paths = []
    for path in UNITS:
        paths.append(tmp_path / path.name.replace("@.", "@8000."))
        paths[-1].write_text(path.read_text().replace("/opt/quantmill/bin/quantmill", str(program)))
    done = subprocess.run(["systemd-analyze", "verify", *paths], capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if "quantmill-" in line] == []
    assert done.returncode == 0
