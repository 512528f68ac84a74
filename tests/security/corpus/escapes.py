"""External data that lies somewhere else, in every spelling, and entries that a careless reader would obey."""

from __future__ import annotations

from pathlib import Path

from tests.security.corpus.case import READY, Case, Content, folder, pipe, socket, symlink
from tests.security.corpus.models import FLOAT, SECRET
from tests.security.corpus.wire import field, model, node, number, tensor

OUTSIDE = "external-data"
LOCATIONS = [
    "../secret", "a/../../secret", "sub/./../../secret", "..", ".", "/", "", "//etc/passwd", "/etc/passwd",
    "/proc/self/environ", "..\\secret", "\\\\server\\share\\secret", "C:/secret", "file:///etc/passwd", "secret\0.data",
    "*/_ORT_MEM_ADDR_/*", "%2e%2e/secret", "\u2024\u2024/secret", "..\u2215secret", "~/secret", "$HOME/secret",
    "../in/../secret", " ../secret", "x" * 5000, "../" * 100 + "etc/passwd", "a\nb", "\x1b[2J", "\u202edata.w",
]  # fmt: skip


def external(*entries: tuple[str, str]) -> bytes:
    data = b"".join(field(13, field(1, key) + field(2, text)) for key, text in entries)
    content = tensor("w", (4, 4), FLOAT, data, number(14, 1))
    return model(field(5, content), node("MatMul", "x w", "y"))


def case(name: str, entries: list[tuple[str, str]], code: str = OUTSIDE, **files: Content) -> Case:
    beside = {"w.data": bytes(64), **{key.replace("_", "."): content for key, content in files.items()}}
    return Case(f"external-{name}", "model", {"model.onnx": external(*entries), **beside}, code)


def secret_outside(path: Path) -> None:
    """Beside the folder of the upload, where the locations above point."""
    (path.parent.parent / "secret").write_bytes(SECRET * 4)
    path.write_bytes(b"")


def linked_folder(path: Path) -> None:
    (path.parent.parent / "away").mkdir()
    (path.parent.parent / "away" / "w").write_bytes(SECRET * 4)
    path.symlink_to("../away")


PLAIN = ("location", "w.data")
ALL = [
    *(case(f"at-{ascii(name)[:40]}-{len(name)}", [("location", name)], note=secret_outside) for name in LOCATIONS),
    case("plain", [PLAIN], READY),
    case("by-a-symlink", [("location", "link")], link=symlink("/etc/passwd")),
    case("by-a-symlink-within", [("location", "link")], link=symlink("w.data")),
    case("by-a-dangling-symlink", [("location", "link")], link=symlink("nowhere")),
    case("by-a-linked-folder", [("location", "sub/w")], sub=linked_folder),
    case("in-a-pipe", [("location", "pipe")], pipe=pipe),
    case("in-a-folder", [("location", "folder")], folder=folder),
    case("in-a-socket", [("location", "socket")], socket=socket),
    case("twice", [PLAIN, ("location", "../secret")], note=secret_outside),
    case("by-a-base-path", [PLAIN, ("basepath", "/etc")]),
    case("with-a-class", [PLAIN, ("__class__", "os.system")]),
    case("without-a-location", [("offset", "0")]),
    case("at-a-negative-offset", [PLAIN, ("offset", "-64")]),
    case("at-an-offset-of-2^63", [PLAIN, ("offset", str(1 << 63))]),
    case("of-a-length-beyond", [PLAIN, ("length", str(1 << 40))]),
    case("of-a-length-of-zero", [PLAIN, ("length", "0")]),
    case("too-short", [("location", "short")], short=bytes(63)),
    case("with-a-false-checksum", [PLAIN, ("checksum", "0" * 40)]),
]
