"""``quantmill gc`` and ``quantmill scrub``."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from tests.worker.reconcile.rounds import make_old
from tests.worker.workbench import Workbench
from worker.cli import app


def command(*words: str) -> tuple[int, object]:
    done = CliRunner().invoke(app, [*words, "--json"])
    return done.exit_code, json.loads(done.stdout)


def test_gc_counts_first_and_collects_then(bench: Workbench) -> None:
    garbage = bench.put(b"garbage")
    make_old(bench.store.path(garbage))
    folder = ("--data-dir", str(bench.settings.data_dir))
    for words, collected in (("--dry-run",), False), ((), True):
        code, lines = command("gc", *words, *folder)
        (files,) = [line for line in lines["items"] if line["name"] == "files"]
        assert (code, files["items"], files["size_bytes"], files["collected"]) == (0, 1, len(b"garbage"), collected)
        assert bench.store.path(garbage).exists() is not collected
    assert "stored files, to the trash" in CliRunner().invoke(app, ["gc", *folder]).stdout


def test_nothing_is_collected_while_the_store_is_pinned(bench: Workbench, collector) -> None:
    make_old(bench.store.path(bench.put(b"garbage")))
    with bench.store.pinned():
        assert collector("files").collect(10).items == 0
    assert collector("files").collect(10).items == 1


def test_scrub_tells_what_is_damaged_and_who_names_it(bench: Workbench) -> None:
    dataset = bench.add_dataset(b"data")
    bench.add_model()
    folder = ("--data-dir", str(bench.settings.data_dir))
    assert command("scrub", *folder) == (0, {"files": 2, "size_bytes": 8, "damaged": []})
    (path,) = [path for path in bench.store.blobs.rglob("*") if path.is_file() and path.read_bytes() == b"data"]
    path.chmod(0o600)
    path.write_bytes(b"DATA")
    code, told = command("scrub", "--all", *folder)
    named = {"kind": "dataset", "id": dataset, "name": f"data {dataset}"}
    assert (code, told["damaged"]) == (1, [{"sha256": path.name, "damage": "digest", "named_by": [named]}])
