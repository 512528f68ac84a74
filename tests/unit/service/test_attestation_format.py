"""Envelopes, statements and keys by their specifications, and what is told of files that are not what was signed."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from hypothesis import given
from hypothesis import strategies as st

from service.attestations.dsse import MOST_BYTES, SigningKey, enveloped, keys_of_pem, pae, parse_envelope
from service.attestations.schemas import AttestationUnreadableError, PublicKeyError
from service.attestations.statement import BuildRecord, InputFile, ProducedFile, made_statement, parse_statement
from service.attestations.verification import TrustedKey, model_metadata, verify
from service.contracts.config import QuantizationConfig
from tests.support.attestations import flipped, opened
from tests.support.each import each
from tests.support.tiny import make_model

KEY, OTHER = SigningKey(bytes(range(32))), SigningKey(bytes(range(1, 33)))
TRUSTED = [TrustedKey(KEY.public, "a test")]
DONE_AT = datetime(2026, 3, 1, 12, 0, 0, 250000, UTC)
# The example of the DSSE specification, protocol.md: an envelope by ECDSA over P-256, and its key.
EXAMPLE_TYPE, EXAMPLE_PAYLOAD = "http://example.com/HelloWorld", b"hello world"
EXAMPLE_SIGNATURE = "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="
EXAMPLE_X = 46950820868899156662930047687818585632848591499744589407958293238635476079160
EXAMPLE_Y = 5640078356564379163099075877009565129882514886557779369047442380624545832820


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def deed(*made: ProducedFile, **changes: Any) -> BuildRecord:
    config = QuantizationConfig().model_dump(mode="json")
    manifest = {"engine_version": "0.1.0", "model_sha256": "a" * 64, "config": config, "seed": 0, "threads": 1}
    values = {
        "job_id": "job_1", "attempt": 1, "device": "auto", "started_at": DONE_AT, "finished_at": DONE_AT,
        "made": made, "given": [InputFile("model", "urn:quantmill:model:mdl_1", "net@1/m.onnx", "b" * 64)],
        "manifest": {**manifest, "versions": {"onnx": "1.0"}, **changes},
    }  # fmt: skip
    return BuildRecord(**values)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "q.onnx"
    make_model(path)
    return path


def attested(*files: Path, key: SigningKey = KEY, **changes: Any) -> bytes:
    made = [ProducedFile(file.name, sha256(file.read_bytes())) for file in files]
    return enveloped(made_statement(deed(*made, **changes)), key).line().encode()


def faults(file: Path, line: bytes, trusted: list[TrustedKey] | None = None) -> list[str]:
    found = verify(file, parse_envelope(line), TRUSTED if trusted is None else trusted)
    return [fault.code for fault in found.faults]


def test_what_is_signed_is_what_dsse_says() -> None:
    message = pae(EXAMPLE_TYPE, EXAMPLE_PAYLOAD)
    assert message == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    raw = base64.b64decode(EXAMPLE_SIGNATURE)
    signature = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    key = ec.EllipticCurvePublicNumbers(EXAMPLE_X, EXAMPLE_Y, ec.SECP256R1()).public_key()
    key.verify(signature, message, ec.ECDSA(SHA256()))
    assert pae("ä", b"") == b"DSSEv1 2 \xc3\xa4 0 "


def test_keys_are_those_of_rfc_8032() -> None:
    """Section 7.1, test 2."""
    seed = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    public = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    signed = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    key = SigningKey(seed)
    assert key.public.raw == public
    assert key.sign(b"\x72") == signed
    assert key.public.verifies(signed, b"\x72")
    assert not key.public.verifies(flipped(signed, 0), b"\x72")
    assert SigningKey.of_text(key.text) == key
    assert key.text not in repr(key)
    loaded = load_pem_public_key(key.public.pem.encode())
    assert isinstance(loaded, Ed25519PublicKey)
    assert loaded.public_bytes_raw() == public
    assert key.public.id == sha256(public)[:16]


def test_pem_files_hold_one_key_or_several_and_nothing_else() -> None:
    both = f"a comment\n{KEY.public.pem}\n{OTHER.public.pem}"
    assert keys_of_pem(both, "it") == [KEY.public, OTHER.public]
    foreign = rsa.generate_private_key(65537, 2048).public_key()
    pem = foreign.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    for text in ("", "nothing", pem, KEY.public.pem.replace("MC", "MD"), KEY.public.pem[:-30], "x" * 70_000):
        with pytest.raises(PublicKeyError):
            keys_of_pem(text, "it")


def test_a_model_as_it_was_attested_is_verified_and_the_same_rows_give_the_same_bytes(model: Path) -> None:
    line = attested(model)
    assert line == attested(model)
    statement = opened(line, KEY.public.pem)
    assert statement["subject"] == [{"name": "q.onnx", "digest": {"sha256": sha256(model.read_bytes())}}]
    assert statement["predicate"]["runDetails"]["metadata"]["finishedOn"] == "2026-03-01T12:00:00.250000Z"
    assert json.loads(line)["payloadType"] == "application/vnd.in-toto+json"
    found = verify(model, parse_envelope(line), TRUSTED)
    assert (found.faults, found.signed_by) == ((), TRUSTED[0])
    assert found.statement is not None
    assert found.statement.predicate.run.invocation.job_id == "job_1"


def test_whatever_was_changed_is_told(model: Path) -> None:
    line = attested(model)
    document = json.loads(line)
    payload, signature = base64.b64decode(document["payload"]), document["signatures"][0]
    sig = base64.b64decode(signature["sig"])

    def changed(**values: Any) -> bytes:
        return json.dumps({**document, **values}).encode()

    for at in range(0, len(payload), 97):
        broken = base64.b64encode(flipped(payload, at)).decode()
        assert faults(model, changed(payload=broken)) == ["signature-invalid"], at
    for at in range(0, len(sig), 7):
        broken = base64.b64encode(flipped(sig, at)).decode()
        assert faults(model, changed(signatures=[{**signature, "sig": broken}])) == ["signature-invalid"], at
    assert faults(model, changed(payloadType="application/json")) == ["signature-invalid"]
    assert faults(model, changed(signatures=[{**signature, "keyid": "other"}])) == []
    other = attested(model, key=OTHER)
    assert faults(model, other) == ["key-unknown"]
    assert faults(model, line, []) == ["signature-not-checked"]
    both = {**document, "signatures": [*json.loads(other)["signatures"], signature]}
    assert faults(model, json.dumps(both).encode()) == [], "one that is trusted is enough"
    for retired_at, told in ((DONE_AT.replace(hour=13), []), (DONE_AT.replace(hour=11), ["key-retired"])):
        trusted = [TrustedKey(OTHER.public, "a test"), TrustedKey(KEY.public, "a test", retired_at)]
        assert faults(model, line, trusted) == told
    whole = model.read_bytes()
    for data in (*(flipped(whole, at) for at in range(0, len(whole), 197)), b""):
        model.write_bytes(data)
        assert faults(model, line) == ["file-changed"]


def test_external_data_is_covered(tmp_path: Path) -> None:
    model, weights = tmp_path / "q.onnx", tmp_path / "q.onnx.data"
    make_model(model, external=weights.name)
    line = attested(model, weights)
    found = verify(model, parse_envelope(line), TRUSTED)
    assert (found.faults, found.external) == ((), (weights,))
    assert faults(model, attested(model)) == ["external-data-changed"]
    whole = weights.read_bytes()
    weights.write_bytes(flipped(whole, len(whole) // 2))
    assert faults(model, line) == ["external-data-changed"]
    weights.unlink()
    assert faults(model, line) == ["external-data-missing"]


def test_what_the_model_says_of_itself_is_held_against_the_statement(model: Path) -> None:
    proto = onnx.load(model)
    said = {"quantmill.source_sha256": "a" * 64, "quantmill.engine_version": "0.1.0", "other": "word"}
    onnx.helper.set_model_props(proto, said)
    onnx.save(proto, model)
    assert model_metadata(model) == said
    assert faults(model, attested(model)) == []
    for changes in ({"model_sha256": "c" * 64}, {"engine_version": "0.2.0"}):
        assert faults(model, attested(model, **changes)) == ["manifest-differs"]


@each(
    "data",
    [
        b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000,
        b'{"payload": 1, "payloadType": "x", "signatures": []}',
        b'{"payload": "", "payloadType": "x", "signatures": []}',
        json.dumps({"payload": "", "payloadType": "x", "signatures": [{"sig": ""}] * 17}).encode(),
        json.dumps({"payload": "", "payloadType": "x", "signatures": [{"sig": "A" * 1025}]}).encode(),
        b" " * (MOST_BYTES + 1),
    ],
)  # fmt: skip
def test_what_is_no_envelope_is_refused(data: bytes) -> None:
    with pytest.raises(AttestationUnreadableError):
        parse_envelope(data)


@each("text", ["%%%", "AA", "AAAA\n", "AB==", "AAAA="])
def test_only_base64_is_base64(model: Path, text: str) -> None:
    """AB== would decode to what AA== does."""
    document = {**json.loads(attested(model)), "payload": text}
    with pytest.raises(AttestationUnreadableError):
        verify(model, parse_envelope(json.dumps(document).encode()), TRUSTED)


@given(st.binary(max_size=200))
def test_a_signed_payload_of_any_kind_ends_in_words(tmp_path_factory: Any, payload: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.bin"
    file.write_bytes(payload)
    with pytest.raises(AttestationUnreadableError):
        verify(file, enveloped(payload, KEY), TRUSTED)
    assert isinstance(model_metadata(file), dict)


def test_a_statement_of_something_else_is_refused(model: Path) -> None:
    good = made_statement(deed(ProducedFile("q.onnx", "a" * 64)))
    parse_statement(good)
    for old, new in (
        (b"https://in-toto.io/Statement/v1", b"https://in-toto.io/Statement/v2"),
        (b"https://slsa.dev/provenance/v1", b"https://slsa.dev/provenance/v0.2"),
        (b"urn:quantmill:build:quantize:v1", b"urn:example:build"),
        (b"a" * 64, b"A" * 64),
    ):
        assert old in good
        with pytest.raises(AttestationUnreadableError):
            parse_statement(good.replace(old, new))
    document = json.loads(good)
    document["predicate"]["later"] = document["later"] = "fields of later versions are passed over"
    parse_statement(json.dumps(document).encode())


def test_another_payload_type_is_no_statement(model: Path) -> None:
    payload = made_statement(deed(ProducedFile("q.onnx", sha256(model.read_bytes()))))
    signature = base64.b64encode(KEY.sign(pae("text/plain", payload))).decode()
    document = {"payload": base64.b64encode(payload).decode(), "payloadType": "text/plain"}
    assert faults(model, json.dumps({**document, "signatures": [{"sig": signature}]}).encode()) == ["payload-type"]
