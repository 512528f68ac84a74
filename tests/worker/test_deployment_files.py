"""The container files: they parse, and they say what the service needs them to say."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from service.jobs.queues import QUEUES, queue_of
from service.settings import Settings
from service.tables.jobs import JOB_KINDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compose() -> dict:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@pytest.fixture(scope="module")
def stages() -> dict[str, list[str]]:
    """Instructions of the Dockerfile by stage name."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
    for line in text.splitlines():
        if match := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            current = found[match[2]] = [line]
        elif line and not line.startswith("#"):
            current.append(line)
    return found


def test_every_service_is_there_and_healthy_before_it_is_used(compose):
    services = compose["services"]
    assert set(services) == {"postgres", "redis", "migrate", "api", "reconciler", "worker", "inspector"}
    for name in ("api", "reconciler", "worker", "inspector"):
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
        assert services[name]["depends_on"]["redis"] == {"condition": "service_healthy"}
    assert services["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    for name in ("postgres", "redis"):
        assert services[name]["healthcheck"]["test"]


def test_redis_never_evicts(compose):
    command = compose["services"]["redis"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"


def test_the_store_is_shared_and_scratch_is_not(compose):
    for name in ("api", "reconciler", "worker", "inspector"):
        assert "store:/data/store" in compose["services"][name]["volumes"]
    scratch = compose["services"]["worker"]["environment"]["QUANTMILL_SCRATCH_DIR"]
    assert not scratch.startswith(("/data/store", "/data/cache"))
    for name in ("worker", "inspector"):
        assert "cache:/data/cache" in compose["services"][name]["volumes"]
        assert "checkpoints:/data/checkpoints" in compose["services"][name]["volumes"]
        assert compose["services"][name]["environment"]["QUANTMILL_CHECKPOINT_DIR"] == "/data/checkpoints"
    assert {"cache", "checkpoints"} <= set(compose["volumes"])


def test_every_variable_is_a_setting(compose):
    for service in compose["services"].values():
        for name in service.get("environment", {}):
            if name.startswith("QUANTMILL_"):
                assert name.removeprefix("QUANTMILL_").lower() in Settings.model_fields


def test_no_secret_has_a_default(compose):
    text = (ROOT / "docker-compose.yml").read_text()
    for name in ("POSTGRES_PASSWORD", "QUANTMILL_API_KEY", "QUANTMILL_KEY_PEPPER"):
        references = re.findall(r"\$\{" + name + r"([^}]*)\}", text)
        assert references
        assert all(reference.startswith(":?") for reference in references)


def test_secrets_are_where_they_are_needed(compose):
    """The API checks keys; the reconciler signs what it sends to webhooks, whose secrets the pepper opens."""
    wanted = {"api": {"QUANTMILL_API_KEY", "QUANTMILL_KEY_PEPPER"}, "reconciler": {"QUANTMILL_KEY_PEPPER"}}
    for name, service in compose["services"].items():
        secrets = {"QUANTMILL_API_KEY", "QUANTMILL_KEY_PEPPER"} & set(service.get("environment", {}))
        assert secrets == wanted.get(name, set()), name


def test_stopping_a_worker_leaves_time_to_put_jobs_back(compose):
    assert compose["services"]["worker"]["stop_grace_period"] == "30s"


def test_built_targets_exist_and_start_existing_commands(compose, stages):
    for service in compose["services"].values():
        if "build" in service:
            assert service["build"]["target"] in stages
    commands = {
        service["command"][0] for service in compose["services"].values() if "build" in service and "command" in service
    }
    assert commands == {"migrate", "reconcile", "worker"}
    assert 'CMD ["worker"]' in stages["worker"]


def test_every_queue_that_the_service_fills_has_a_worker(compose):
    consumed = set()
    for name in ("worker", "inspector"):
        command = compose["services"][name]["command"]
        assert command[0] == "worker"
        consumed |= set(command[command.index("--queues") + 1].split(","))
    assert consumed == {queue_of(kind) for kind in JOB_KINDS}
    assert consumed <= set(QUEUES)


def test_images_run_as_a_plain_user_and_report_their_health(stages):
    for name in ("api", "worker"):
        assert "USER 10001" in stages[name]
        assert any(line.startswith("HEALTHCHECK") for line in stages[name])
        entry = [number for number, line in enumerate(stages[name]) if line.startswith("ENTRYPOINT")]
        assert stages[name].index("USER 10001") < entry[0]


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
    copied = set()
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY") and "--from" not in line:
            copied.update(line.split()[1:-1])
    assert copied == allowed


def test_the_ci_script_is_sound_bash():
    subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=True)
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
