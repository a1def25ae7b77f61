"""A record as a file: it comes back as it was, and what is no record is refused with a sentence."""

import io
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine_host.doctor.record import Record, RecordError, StalledClient, dump, load, parse, save
from engine_host.doctor.rules import diagnose
from tests.console.stub_figures import TELEMETRY
from tests.doctor.recorded import TRACES, trace, with_knobs


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    record = replace(trace("preempting"), telemetry=TELEMETRY, stalled=[StalledClient("r1", 5.5)], shared_prefix=7)
    save(record, tmp_path / "record.npz")
    again = load(tmp_path / "record.npz")
    for field in fields(Record):
        before, after = getattr(record, field.name), getattr(again, field.name)
        assert np.array_equal(before, after) if isinstance(before, np.ndarray) else before == after, field.name
    assert diagnose(again) == diagnose(record)
    assert [path.name for path in tmp_path.iterdir()] == ["record.npz"]


def test_the_address_of_a_store_stays_here(tmp_path: Path) -> None:
    record = trace("healthy")
    gateway = record.profile.gateway.model_copy(update={"store": "redis://:secret@store/0"})
    secret = replace(record, profile=record.profile.model_copy(update={"gateway": gateway}))
    again = parse(dump(secret))
    assert again.profile.gateway.store is None
    assert again.profile == record.profile


def test_what_can_not_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        save(trace("healthy"), tmp_path / "no-such-folder" / "record.npz")


def with_facts(change: dict[str, object]) -> bytes:
    with np.load(TRACES / "healthy.npz") as arrays:
        facts = msgspec.json.decode(arrays["facts"].tobytes()) | change
        encoded = np.frombuffer(msgspec.json.encode(facts), np.uint8)
        out = io.BytesIO()
        np.savez(out, steps=arrays["steps"], shares=arrays["shares"], facts=encoded)
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is no record of the doctor's"),
        (b"PK\3\4 and then nothing", "is no record of the doctor's"),
        (b"some text", "is no record of the doctor's"),
        (with_facts({"version": 99}), "is a record of version 99"),
        (with_facts({"snapshot": 5}), "is a record that can't be read: Expected `object`"),
        (with_facts({"profile": {}}), "is a record that can't be read: "),
    ],
)
def test_what_is_no_record_is_refused_with_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(RecordError, match=sentence) as caught:
        load(tmp_path / "file")
    assert str(tmp_path / "file") in str(caught.value)


def test_a_file_that_runs_code_when_read_is_not(tmp_path: Path) -> None:
    np.savez(tmp_path / "file.npz", steps=np.array([print], object), shares=np.empty(0), facts=np.empty(0))
    with pytest.raises(RecordError, match="is no record"):
        load(tmp_path / "file.npz")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"nowhere can't be read: No such file"):
        load(tmp_path / "nowhere")


def test_knobs_of_a_record_stay_typed() -> None:
    assert with_knobs(trace("healthy"), scheduler__token_budget=99).profile.scheduler.token_budget == 99
