"""The chart for Kubernetes, rendered by Helm itself and held against the schemas of Kubernetes."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from dataclasses import dataclass
from typing import Any

import pytest

from service.jobs.queues import QUEUES, queue_of
from service.tables.jobs import JOB_KINDS
from tests.support.services import require
from tests.worker.deployed import API_SECRETS, COMMON_SECRETS, PASSWORD, check_command, is_setting
from tests.worker.running import ROOT
from worker.embedded import STOP_SECONDS

pytestmark = pytest.mark.slow  # starts a process that loads Helm

CHART = ROOT / "deploy" / "helm" / "quantmill"
PYTHON = ROOT / ".venv-helm" / "bin" / "python"
KUBERNETES = "1.31"

SECRETS = {
    "values": {"QUANTMILL_DATABASE_PASSWORD": PASSWORD, "QUANTMILL_BROKER_PASSWORD": PASSWORD},
    "apiValues": {"QUANTMILL_API_KEY": "a", "QUANTMILL_KEY_PEPPER": "b"},
}
EVERYTHING = {
    "secrets": SECRETS,
    "storage": {"url": "s3://bucket/prefix"},
    "imagePullSecrets": [{"name": "registry"}],
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/quantmill"}},
    "api": {"ingress": {"enabled": True, "className": "nginx", "tlsSecret": "tls"}},
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "networkPolicy": {"apiFrom": [{"namespaceSelector": {}}], "workerTo": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    "workers": [
        {"name": "cpu", "queues": ["cpu"], "slots": 4, "autoscaling": {"enabled": True}},
        {"name": "all", "queues": ["cpu", "inspect"], "replicas": 0, "podDisruptionBudget": {"enabled": False}},
        {
            "name": "gpu",
            "queues": ["gpu"],
            "gpus": 1,
            "runtimeClassName": "x",
            "settings": {"QUANTMILL_THREADS": "4"},
        },
    ],
}
VALUES: dict[str, dict[str, Any]] = {
    "default": {"secrets": SECRETS},
    "everything": EVERYTHING,
    "existing": {"secrets": {"existing": "one", "existingApi": "two"}, "storage": {"volume": {"existingClaim": "nfs"}}},
    "little": {
        "secrets": SECRETS,
        "broker": {"url": ""},
        "metrics": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "migration": {"enabled": False},
    },
    "no pepper": {},
    "no such queue": {"secrets": SECRETS, "workers": [{"name": "x", "queues": ["tpu"]}]},
    "number": {"secrets": SECRETS, "settings": {"QUANTMILL_MAX_UPLOAD_BYTES": 17179869184}},
    "no such value": {"secrets": SECRETS, "replicas": 3},
    "password in url": {"secrets": SECRETS, "broker": {"url": "memcached://x"}},
}


@dataclass(frozen=True)
class Rendered:
    """Manifests by kind and name, the notes, and faults."""

    documents: dict[tuple[str, str], dict]
    notes: str
    faults: list[str]

    def of(self, kind: str) -> dict[str, dict]:
        return {name: document for (one, name), document in self.documents.items() if one == kind}

    @property
    def pods(self) -> dict[str, dict]:
        """The pods' templates, by the names of what they are of."""
        return {
            name: document["spec"]["template"]
            for (kind, name), document in self.documents.items()
            if kind in ("Deployment", "Job")
        }


@pytest.fixture(scope="module")
def rendered() -> dict[str, Rendered]:
    trouble = f"no Helm in {PYTHON.parents[1].name}: the chart is not rendered; make helm installs it"
    require(None if (PYTHON.parents[1] / ".installed").exists() else trouble)
    asked = json.dumps({"chart": str(CHART), "kubernetes": KUBERNETES, "values": VALUES})
    script = ROOT / "tests" / "support" / "render_chart.py"
    done = subprocess.run([PYTHON, script], input=asked, capture_output=True, text=True, check=True)
    return {
        name: Rendered(
            {(one["kind"], one["metadata"]["name"]): one for one in each["documents"]}, each["notes"], each["faults"]
        )
        for name, each in json.loads(done.stdout).items()
    }


@pytest.mark.parametrize("name", ["default", "everything", "existing", "little"])
def test_helm_and_kubernetes_have_nothing_against_it(rendered: dict[str, Rendered], name: str) -> None:
    assert rendered[name].faults == []
    assert {"prod-quantmill-api", "prod-quantmill-reconciler"} <= set(rendered[name].of("Deployment"))
    assert "deployment/prod-quantmill-api" in rendered[name].notes


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("no pepper", "QUANTMILL_KEY_PEPPER"),
        ("no such queue", "'cpu', 'gpu', 'inspect'"),
        ("number", "want string"),  # a template would write it as 1.7179869184e+10
        ("no such value", "'replicas' not allowed"),
        ("password in url", "/broker/url"),
    ],
)
def test_values_that_make_no_sense_are_refused(rendered: dict[str, Rendered], name: str, word: str) -> None:
    assert any(word in fault for fault in rendered[name].faults), rendered[name].faults


@pytest.mark.parametrize("name", ["default", "everything", "existing", "little"])
def test_every_pod_is_held(rendered: dict[str, Rendered], name: str) -> None:
    for template in rendered[name].pods.values():
        pod = template["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all("sizeLimit" in volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume)
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        assert {"/data", "/tmp"} <= {mount["mountPath"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize("name", ["default", "everything", "existing", "little"])
def test_every_process_starts_with_settings_and_options_that_there_are(
    rendered: dict[str, Rendered], name: str
) -> None:
    every = rendered[name]
    variables = set(every.of("ConfigMap")["prod-quantmill"]["data"])
    for secret in every.of("Secret").values():
        variables |= set(secret["data"])
    for template in every.pods.values():
        (container,) = template["spec"]["containers"]
        check_command(container["args"])
        variables |= {one["name"] for one in container.get("env", [])}
        image = container["image"].partition("/quantmill-")[2].partition(":")[0]
        gpus = "nvidia.com/gpu" in container["resources"].get("limits", {})
        assert image == ("api" if container["args"][0] != "worker" else "worker-gpu" if gpus else "worker")
    assert [variable for variable in sorted(variables) if not is_setting(variable)] == []


def test_every_kind_of_job_has_a_worker_that_stops_in_time(rendered: dict[str, Rendered]) -> None:
    pods = {name: pod for name, pod in rendered["default"].pods.items() if "-worker-" in name}
    commands = [pod["spec"]["containers"][0]["args"] for pod in pods.values()]
    consumed = {queue for words in commands for queue in words[words.index("--queues") + 1].split(",")}
    assert consumed == {queue_of(kind) for kind in JOB_KINDS}
    assert consumed <= set(QUEUES)
    assert all(pod["spec"]["terminationGracePeriodSeconds"] > STOP_SECONDS for pod in pods.values())
    assert all("livenessProbe" not in pod["spec"]["containers"][0] for pod in pods.values())


@pytest.mark.parametrize(
    ("name", "own", "of_api"),
    [("default", "prod-quantmill", "prod-quantmill-api"), ("existing", "one", "two")],
)
def test_keys_are_for_api_servers_and_reconcilers_alone(
    rendered: dict[str, Rendered], name: str, own: str, of_api: str
) -> None:
    for process, template in rendered[name].pods.items():
        if process.endswith("-migrate"):
            continue
        sources = template["spec"]["containers"][0]["envFrom"]
        secrets = [source["secretRef"]["name"] for source in sources if "secretRef" in source]
        is_worker = "-worker-" in process
        assert secrets == ([own] if is_worker else [own, of_api])


def test_secrets_come_through_whole(rendered: dict[str, Rendered]) -> None:
    secrets = rendered["default"].of("Secret")
    told = {
        name: {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
        for name, secret in secrets.items()
    }
    assert told["prod-quantmill"] == dict.fromkeys(COMMON_SECRETS, PASSWORD)
    assert set(told["prod-quantmill-api"]) == API_SECRETS
    assert rendered["existing"].of("Secret") == {}


def test_the_migration_comes_first_and_needs_nothing_that_comes_later(rendered: dict[str, Rendered]) -> None:
    for name, secret in (("default", "prod-quantmill-migrate"), ("existing", "one")):
        every = rendered[name]
        job = every.of("Job")["prod-quantmill-migrate"]
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        named = {one["valueFrom"]["secretKeyRef"]["name"] for one in container["env"] if "valueFrom" in one}
        assert named == {secret}
        assert "envFrom" not in container
        assert "serviceAccountName" not in pod
        assert all("emptyDir" in volume for volume in pod["volumes"])
        notes = [(kind, one["metadata"].get("annotations", {})) for (kind, _), one in every.documents.items()]
        weights = {kind: int(own["helm.sh/hook-weight"]) for kind, own in notes if "helm.sh/hook" in own}
        assert set(weights) == ({"Job", "Secret"} if name == "default" else {"Job"})
        assert max(weights, key=weights.__getitem__) == "Job"


def test_files_are_on_a_shared_volume_or_in_a_bucket(rendered: dict[str, Rendered]) -> None:
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in rendered["default"].pods.values()
        for volume in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == set(rendered["default"].of("PersistentVolumeClaim"))
    everything = rendered["everything"]
    assert everything.of("ConfigMap")["prod-quantmill"]["data"]["QUANTMILL_STORAGE_URL"] == "s3://bucket/prefix"
    volumes = [volume for pod in everything.pods.values() for volume in pod["spec"]["volumes"]]
    assert not any("persistentVolumeClaim" in volume for volume in volumes)


@pytest.mark.parametrize("name", ["default", "everything"])
def test_selectors_find_their_pods_and_those_alone(rendered: dict[str, Rendered], name: str) -> None:
    every = rendered[name]
    labels = {process: pod["metadata"]["labels"] for process, pod in every.pods.items()}

    def chosen(selector: dict[str, str]) -> set[str]:
        return {process for process, own in labels.items() if selector.items() <= own.items()}

    for process, deployment in every.of("Deployment").items():
        assert chosen(deployment["spec"]["selector"]["matchLabels"]) == {process}
    for process, budget in every.of("PodDisruptionBudget").items():
        assert chosen(budget["spec"]["selector"]["matchLabels"]) == {process}
    assert chosen(every.of("Service")["prod-quantmill-api"]["spec"]["selector"]) == {"prod-quantmill-api"}
    policies = every.of("NetworkPolicy")
    assert chosen(policies["prod-quantmill"]["spec"]["podSelector"]["matchLabels"]) == set(labels)
    (clause,) = policies["prod-quantmill-workers"]["spec"]["podSelector"]["matchExpressions"]
    held = {process for process, own in labels.items() if own[clause["key"]] not in clause["values"]}
    assert held == {process for process in labels if "-worker-" in process}


def test_workers_are_scaled_by_depth_and_age_of_their_queue(rendered: dict[str, Rendered]) -> None:
    ((name, scaled),) = rendered["everything"].of("ScaledObject").items()
    deployment = rendered["everything"].of("Deployment")[name]
    assert scaled["spec"]["scaleTargetRef"]["name"] == name
    assert "replicas" not in deployment["spec"], "the autoscaler's to say"
    queries = {trigger["name"]: trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]}
    assert queries == {
        "depth": 'sum(max by (queue) (quantmill_queue_wanted_slots{queue=~"cpu"}))',
        "age": 'max(quantmill_queue_oldest_age_seconds{queue=~"cpu"})',
    }
    thresholds = {trigger["name"]: trigger["metadata"]["threshold"] for trigger in scaled["spec"]["triggers"]}
    assert thresholds == {"depth": "4", "age": "60"}


def test_the_chart_has_the_version_of_the_project() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    told = re.findall(r"^(?:version|appVersion): (\S+)$", (CHART / "Chart.yaml").read_text(), re.MULTILINE)
    assert version is not None
    assert told == [version[1]] * 2
