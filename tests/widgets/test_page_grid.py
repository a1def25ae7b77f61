"""From pages to cells."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from widgets import page_grid, page_map
from widgets.page_grid import CODE_BLANK, CODE_CACHED, CODE_DIM, CODE_FREE, CODE_HUE, CODE_SHARED

codes = hnp.arrays(np.uint8, st.integers(1, 300), elements=st.integers(0, CODE_BLANK - 1))


def test_both_modules_name_the_states_alike() -> None:
    assert (page_map.FREE, page_map.USED, page_map.CACHED) == (page_grid.FREE, page_grid.USED, page_grid.CACHED)
    assert len(page_map._GLYPHS) == CODE_BLANK + 1


def test_a_page_has_its_state_and_its_owners_hue() -> None:
    state = np.array([0, 1, 1, 1, 2], np.uint8)
    owner = np.array([0, 0, 1, -1, 1], np.int32)
    refs = np.array([0, 1, 2, 1, 0], np.uint16)
    hues = np.array([CODE_HUE, CODE_HUE + 1, CODE_DIM], np.uint8)
    found = page_grid.page_codes(state, owner, refs, hues)
    assert found.tolist() == [CODE_FREE, CODE_HUE, CODE_SHARED, CODE_DIM, CODE_CACHED]
    assert page_grid.page_codes(state, owner, refs, hues, highlighted=1)[2] == CODE_HUE + 1


@given(codes, st.integers(1, 40))
def test_a_pixel_never_hides_a_page_in_use(pages: np.ndarray, per_pixel: int) -> None:
    pixels = page_grid.pixel_codes(pages, per_pixel)
    assert len(pixels) == -(-len(pages) // per_pixel)
    for index, code in enumerate(pixels):
        share = pages[index * per_pixel : (index + 1) * per_pixel]
        assert code in share
        assert (code >= CODE_DIM) == (share >= CODE_DIM).any()
        assert code != CODE_FREE or (share == CODE_FREE).all()


def test_a_pixel_shows_the_highlighted_request_before_the_largest() -> None:
    pages = np.array([CODE_DIM] * 9 + [CODE_HUE], np.uint8)
    assert page_grid.pixel_codes(pages, 10).tolist() == [CODE_DIM]
    assert page_grid.pixel_codes(pages, 10, first=CODE_HUE).tolist() == [CODE_HUE]


@given(codes, st.integers(1, 50), st.sampled_from([1, 2]))
def test_cells_hold_every_pixel_in_reading_order(pixels: np.ndarray, columns: int, stack: int) -> None:
    cells = page_grid.cell_codes(pixels, columns, stack)
    upper, lower = np.divmod(cells, page_grid.CODES)
    rows = np.stack([upper, lower], axis=1).reshape(-1, columns) if stack == 2 else upper
    flat = rows.reshape(-1)
    assert flat[: len(pixels)].tolist() == pixels.tolist()
    assert (flat[len(pixels) :] == CODE_BLANK).all()


@given(hnp.arrays(np.uint16, st.integers(1, 80), elements=st.integers(0, 3)))
def test_runs_spell_the_row(row: np.ndarray) -> None:
    found = list(page_grid.runs(row))
    assert [code for code, length in found for _ in range(length)] == row.tolist()
    assert all(a[0] != b[0] for a, b in pairwise(found))
