"""The checkpoint file: atomic writes, and refusal of invalid files."""

import errno
import os

import numpy as np
import pytest
from conftest import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from fldb_flower.errors import FldbError, OutputError
from fldb_flower.runs.directory import Checkpoint, load_checkpoint, save_checkpoint
from fldb_flower.system.files import lock_folder, replace_file

HERE = "a=1\nb=2\n"
SAVED = Checkpoint(
    {"iteration": 7, "names": ["ä", ""]},
    {"x": np.arange(6.0).reshape(2, 3), "words": np.array([2**63], np.uint64), "none": np.empty(0)},
)


def saved(folder):
    path = folder / "checkpoint.bin"
    save_checkpoint(path, HERE, SAVED)
    return path


def refused(path, identity=HERE):
    """Return the one-line error of a refused checkpoint; the folder is unchanged."""
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    with pytest.raises(FldbError) as caught:
        load_checkpoint(path, identity)
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == before
    (line,) = str(caught.value).splitlines()
    assert str(path) in line
    return line


def test_a_saved_checkpoint_is_read_back(tmp_path):
    got = load_checkpoint(saved(tmp_path), HERE)
    assert got.numbers == SAVED.numbers
    assert got.arrays.keys() == SAVED.arrays.keys()
    for name, array in SAVED.arrays.items():
        np.testing.assert_array_equal(got.arrays[name], array, strict=True)
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint.bin"]


@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda name: name != "meta"),
        arrays_of.arrays(
            st.sampled_from([np.float64, np.int64, np.uint64, np.uint8, np.bool_]),
            arrays_of.array_shapes(min_dims=0, min_side=0),
        ),
        max_size=4,
    )
)
@examples(75, suppress_health_check=list(HealthCheck))
def test_any_arrays_are_read_back(tmp_path, arrays):
    save_checkpoint(tmp_path / "c", "", Checkpoint({}, arrays))
    got = load_checkpoint(tmp_path / "c", "").arrays
    assert got.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(got[name], array, strict=True)


def test_no_checkpoint_is_none(tmp_path):
    assert load_checkpoint(tmp_path / "checkpoint.bin", HERE) is None


def test_every_truncation_is_refused(tmp_path):
    path = saved(tmp_path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert "away to start again" in refused(path)


def test_every_flipped_bit_is_refused(tmp_path):
    path = saved(tmp_path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        refused(path)


@given(st.binary(max_size=200), st.booleans())
@examples(200, suppress_health_check=list(HealthCheck))
def test_random_bytes_are_refused(tmp_path, data, pretends):
    (tmp_path / "c").write_bytes((b"FLDBcp01" if pretends else b"") + data)
    refused(tmp_path / "c")


def test_bytes_after_the_end_are_refused(tmp_path):
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes() + b"\0")
    assert "damaged" in refused(path)


def test_an_error_names_the_first_setting_of_another_run(tmp_path):
    path = saved(tmp_path)
    assert "'b=2' there, 'b=3' here" in refused(path, "a=1\nb=3\n")
    assert "another run" in refused(path, "a=1\n")


def test_a_folder_in_its_place_is_refused(tmp_path):
    (tmp_path / "checkpoint.bin").mkdir()
    with pytest.raises(OutputError, match="cannot read the checkpoint"):
        load_checkpoint(tmp_path / "checkpoint.bin", HERE)


@pytest.mark.parametrize("fails", ["write", "fsync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_failing_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch, fails, number):
    path = saved(tmp_path)
    whole = path.read_bytes()

    def failing(*_arguments):
        raise OSError(number, os.strerror(number))

    if fails == "fsync":
        monkeypatch.setattr(os, "fsync", failing)
    else:
        monkeypatch.setattr(os, "open", failing)
    with pytest.raises(OutputError, match=os.strerror(number)):
        save_checkpoint(path, HERE, SAVED._replace(numbers={"iteration": 8}))
    monkeypatch.undo()
    assert path.read_bytes() == whole
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint.bin"]


def test_a_partial_file_of_a_crash_is_ignored_and_replaced(tmp_path):
    path = saved(tmp_path)
    (tmp_path / f"checkpoint.bin.{'0a' * 8}.part").write_bytes(b"FLDB")
    assert load_checkpoint(path, HERE).numbers == SAVED.numbers
    save_checkpoint(path, HERE, SAVED._replace(numbers={}))
    assert load_checkpoint(path, HERE).numbers == {}
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint.bin"]


def test_a_file_is_replaced_in_one_step(tmp_path, monkeypatch):
    """At every moment a reader sees either the old or the new content."""
    path = tmp_path / "file"
    replace_file(path, b"old")
    seen = []
    fsync = os.fsync

    def looking(descriptor):
        seen.append(path.read_bytes())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", looking)
    replace_file(path, b"new")
    assert seen == [b"old", b"new"]  # the file is synced before the folder


def test_a_folder_is_locked_by_one_user(tmp_path):
    first = lock_folder(tmp_path)
    with pytest.raises(BlockingIOError):
        lock_folder(tmp_path)
    first()
    lock_folder(tmp_path)()


def test_a_file_system_without_locks_can_be_used(tmp_path, monkeypatch):
    def unsupported(*_arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", unsupported)
    lock_folder(tmp_path)()


def test_a_checkpoint_of_another_version_is_refused_with_both_versions(tmp_path):
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"FLDBcp01", b"FLDBcp17"))
    assert "version 17 of checkpoints, and this program version 1:" in refused(path)
