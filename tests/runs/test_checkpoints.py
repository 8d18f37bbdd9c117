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
def test_a_saved_checkpoint_is_read_back(tmp_path, arrays):
    assert load_checkpoint(tmp_path / "none", HERE) is None
    for expected in (SAVED, SAVED._replace(arrays=arrays)):
        save_checkpoint(tmp_path / "c", HERE, expected)
        got = load_checkpoint(tmp_path / "c", HERE)
        assert got.numbers == expected.numbers
        assert got.arrays.keys() == expected.arrays.keys()
        for name, array in expected.arrays.items():
            np.testing.assert_array_equal(got.arrays[name], array, strict=True)
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


def test_every_damage_is_refused(tmp_path):
    """Each truncation, each flipped bit, and bytes after the end."""
    path = saved(tmp_path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place])
        assert "move the file to start from the beginning" in refused(path)
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        refused(path)
    path.write_bytes(whole + b"\0")
    assert "damaged" in refused(path)


@given(st.binary(max_size=200), st.booleans())
@examples(200, suppress_health_check=list(HealthCheck))
def test_random_bytes_are_refused(tmp_path, data, pretends):
    (tmp_path / "c").write_bytes((b"FLDBcp01" if pretends else b"") + data)
    refused(tmp_path / "c")


def test_a_checkpoint_of_another_run_or_version_is_refused_with_the_difference(tmp_path):
    path = saved(tmp_path)
    assert "'b=2' there, 'b=3' here" in refused(path, "a=1\nb=3\n")
    assert "another run" in refused(path, "a=1\n")
    path.write_bytes(path.read_bytes().replace(b"FLDBcp01", b"FLDBcp17"))
    assert "version 17 of checkpoints, and this program version 1:" in refused(path)


def test_a_folder_in_its_place_is_refused(tmp_path):
    (tmp_path / "checkpoint.bin").mkdir()
    with pytest.raises(OutputError, match="cannot read the checkpoint"):
        load_checkpoint(tmp_path / "checkpoint.bin", HERE)


@pytest.mark.parametrize("fails", ["open", "fsync"])
def test_a_failing_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch, fails):
    path = saved(tmp_path)
    whole = path.read_bytes()
    for number in (errno.ENOSPC, errno.EROFS, errno.EIO):

        def failing(*_arguments):
            raise OSError(number, os.strerror(number))  # noqa: B023

        with monkeypatch.context() as patch:
            patch.setattr(os, fails, failing)
            with pytest.raises(OutputError, match=os.strerror(number)):
                save_checkpoint(path, HERE, SAVED._replace(numbers={"iteration": 8}))
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


def test_a_folder_is_locked_by_one_user_where_the_file_system_has_locks(tmp_path, monkeypatch):
    first = lock_folder(tmp_path)
    with pytest.raises(BlockingIOError):
        lock_folder(tmp_path)
    first()
    lock_folder(tmp_path)()

    def unsupported(*_arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", unsupported)
    lock_folder(tmp_path)()
