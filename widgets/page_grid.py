"""From a snapshot of pages to a grid of colour codes: the arithmetic under the page map, free of any screen."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

FREE = 0
USED = 1
CACHED = 2
"""States of a page as snapshots give them."""

CODE_FREE = 0
CODE_CACHED = 1
CODE_DIM = 2  # in use, by a request without a hue
CODE_SHARED = 3  # in use by several requests
CODE_HUE = 4  # the first of the requests' hues
HUES = 12
CODE_BLANK = CODE_HUE + HUES  # no page here
CODES = 32
"""A cell's code is its upper pixel's times `CODES` plus its lower pixel's."""


def page_codes(
    state: NDArray[np.uint8],
    owner: NDArray[np.int32],
    refs: NDArray[np.integer],
    owner_codes: NDArray[np.uint8],
    highlighted: int = -1,
) -> NDArray[np.uint8]:
    """The code of each page. `owner_codes` has one code an owner, and last the one for pages whose owner isn't known.

    A shared page keeps its owner's code if that owner is `highlighted`.
    """
    used = owner_codes[owner]
    used[(refs > 1) & (owner != highlighted) if highlighted >= 0 else refs > 1] = CODE_SHARED
    return np.where(state == USED, used, np.where(state == CACHED, CODE_CACHED, CODE_FREE)).astype(np.uint8, copy=False)


def pixel_codes(codes: NDArray[np.uint8], pages_per_pixel: int, first: int = -1) -> NDArray[np.uint8]:
    """The code of each pixel of `pages_per_pixel` consecutive pages.

    A pixel is in use if one of its pages is, else cached if one is, else free: a small request must not vanish in a
    large pool. In use, it takes the code most of its pages in use have, or code `first` if one page has that.
    """
    if pages_per_pixel == 1:
        return codes
    pixels = -(-len(codes) // pages_per_pixel)
    index = np.arange(len(codes)) // pages_per_pixel * CODES + codes
    counts = np.bincount(index, minlength=pixels * CODES).reshape(pixels, CODES)
    in_use = counts[:, CODE_DIM:CODE_BLANK]
    result = np.where(counts[:, CODE_CACHED] > 0, CODE_CACHED, CODE_FREE)
    result = np.where(in_use.any(axis=1), CODE_DIM + in_use.argmax(axis=1), result)
    if first >= 0:
        result = np.where(counts[:, first] > 0, first, result)
    return result.astype(np.uint8)


def cell_codes(pixels: NDArray[np.uint8], columns: int, stack: int) -> NDArray[np.uint16]:
    """The codes of the cells, rows by `columns`: `stack` (2 or 1) rows of pixels to a row of cells."""
    rows = max(1, -(-len(pixels) // (columns * stack)))
    grid = np.full((rows * stack, columns), CODE_BLANK, np.uint16)
    grid.reshape(-1)[: len(pixels)] = pixels
    cells: NDArray[np.uint16] = grid[::stack] * CODES
    cells += grid[1::2] if stack == 2 else CODE_BLANK
    return cells


def runs(row: NDArray[np.uint16]) -> Iterator[tuple[int, int]]:
    """The (code, length) of each run of equal cells in a row."""
    edges = np.flatnonzero(row[1:] != row[:-1]) + 1
    starts = np.concatenate(([0], edges))
    lengths = np.diff(starts, append=len(row))
    return zip(row[starts].tolist(), lengths.tolist(), strict=True)
