"""The kernels of `pools.py`, in Triton, which torch for CUDA brings along.

A plane is one channel of one sample [height, width]; its windows are `side` × `side`. Planes follow
one another, so that neither samples nor clients are known here.
"""

import triton
import triton.language as tl


@triton.jit
def largest(x, y, at, total, height, width, rows, columns, side: tl.constexpr, block: tl.constexpr):
    """Write the largest value of every window, and where in its window it is."""
    window = tl.program_id(0) * block + tl.arange(0, block)
    real = window < total
    plane, inside = window // (rows * columns), window % (rows * columns)
    corner = plane * height * width + inside // columns * side * width + inside % columns * side
    best = tl.load(x + corner, mask=real)
    place = tl.zeros([block], tl.int8)
    for k in tl.static_range(1, side * side):
        value = tl.load(x + corner + k // side * width + k % side, mask=real)
        # As torch: the first of equal ones, and a NaN before all others.
        better = (value > best) | (value != value)
        best = tl.where(better, value, best)
        place = tl.where(better, k, place).to(tl.int8)
    tl.store(y + window, best, mask=real)
    tl.store(at + window, place, mask=real)


@triton.jit
def spread(y, at, x, total, height, width, rows, columns, side: tl.constexpr, block: tl.constexpr):
    """Write every window's value where its largest was, and zeros elsewhere."""
    entry = tl.program_id(0) * block + tl.arange(0, block)
    real = entry < total
    plane, inside = entry // (height * width), entry % (height * width)
    row, column = inside // width, inside % width
    covered = real & (row // side < rows) & (column // side < columns)
    window = plane * rows * columns + row // side * columns + column // side
    value = tl.load(y + window, mask=covered, other=0)
    place = tl.load(at + window, mask=covered, other=-1)
    chosen = place == row % side * side + column % side
    tl.store(x + entry, tl.where(chosen, value, 0), mask=real)
