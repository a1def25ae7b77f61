"""A file is there whole or not at all."""

from pathlib import Path

import pytest

from profiles.files import beside


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file that is there already."""
    path = tmp_path / "kept.txt"
    path.write_text("old")
    return path


def test_the_old_file_stays_until_the_new_one_is_whole(old: Path) -> None:
    with beside(old) as new:
        new.write_text("half")
        assert old.read_text() == "old"
        new.write_text("whole")
    assert old.read_text() == "whole"
    assert list(old.parent.iterdir()) == [old]


def test_after_an_error_all_is_as_before(old: Path) -> None:
    def fails() -> None:
        with beside(old) as new:
            new.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fails()
    assert old.read_text() == "old"
    assert list(old.parent.iterdir()) == [old]


def test_what_is_for_the_owner_alone_is_so_before_anything_is_in_it(old: Path) -> None:
    old.chmod(0o644)
    with beside(old, 0o600) as new:
        assert new.stat().st_mode & 0o777 == 0o600
    assert old.stat().st_mode & 0o777 == 0o600
