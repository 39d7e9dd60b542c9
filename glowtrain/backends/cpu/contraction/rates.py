"""What things cost: the numbers of the cost model (:mod:`.cost`) and of what is priced (:mod:`.choose`).

They come from three sources. Some are what manufacturers say of present out-of-order cores. Some lie a little beside
that, because no loop reaches it (*sustained*). And some stand for what the model does not follow (*fitted*): they were
fitted together, to the times and plans that ``python benchmarks/contraction.py --plans`` shows (for words of small
integers ``python benchmarks/integer.py --plans``), so none of them is a measurement by itself. Results that are kept
are those of one core of a Zen 3 with AVX2. Cycles are of one core; a *product* is one multiply-add of vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from glowtrain.backends.llvm.text import index_type
from glowtrain.backends.llvm.values import LlvmType
from glowtrain.backends.target import Target

SCALAR_REGISTERS = 16
"""Registers for floats that a processor has, where its target says that no vectors are wanted."""


@dataclass(frozen=True)
class Machine:
    """A processor as choosing sees it: lanes of the element type, vector registers, whether a multiply-add is one
    instruction, cache sizes in bytes, the type of indices, and the target itself for whoever writes instructions.
    """

    width: int
    registers: int
    fused: bool
    l1: int
    l2: int
    index_type: LlvmType
    target: Target

    @staticmethod
    def of(target: Target, dtype: str) -> Machine:
        """A target that computes in ``dtype``."""
        scalar = target.vector_bits == 0
        registers = max(SCALAR_REGISTERS, target.vector_registers) if scalar else target.vector_registers
        fused = target.fuses(dtype) and bool(target.fused)
        own = target.width(dtype), registers, fused, target.l1, target.l2, index_type(target)
        return Machine(*own, target)

    @property
    def compact(self) -> bool:
        """Whether code is to be small rather than fast."""
        return self.target.compact


# -- the core

MULTIPLY_ADDS = 2
"""Products that begin in a cycle."""
LOADS = 1.8
"""Vector loads in a cycle; sustained, of 2."""
INSTRUCTIONS = 6
"""Instructions that begin in a cycle."""
CHAIN = 4.3
"""Cycles from one product to the next of the same sum: a latency of 4; sustained."""
CHAIN_OF_ADDITIONS = 1.3
"""The same where an instruction of its own adds products to the sum, with a latency of 1; sustained."""
IN_FLIGHT = 8
"""Independent sums that hide the latency of products: two a cycle, four cycles long."""
LOAD_BESIDE = 0.03
"""Cycles that a load costs even where something else takes longer; fitted."""
WIDENING = 0.5
"""Instructions for each product that make a vector of small integers as wide as the sums, for each operand; fitted."""
CONVERSION = 2
"""Instructions that make a vector of floats of bytes."""
REVERSAL = 2
"""Loads that a vector is worth that lies backwards in memory; fitted."""
ELEMENT = 2
"""Loads that a lane is worth that is loaded and inserted by itself."""
GUARD = 1.5
"""Cycles that a product takes longer that is tested by itself, beside one for each load; fitted."""
UNEVEN = 1.015
"""Factor for tiles over two loops, or with points that have different products; fitted."""

# -- tiles

TILE = 15
"""Cycles to call a kernel and to begin its sums; fitted."""
RESULTS = 2.5
"""Cycles to finish a vector of sums and store it; once more for each lane where lanes are strided in C; fitted."""
PARTIAL_RESULTS = 4
"""Cycles to add a vector of sums to what C holds and store it; fitted."""
DOT, DOT_COPY = 12, 4
"""Cycles to add up the lanes of a sum that runs along them, and further ones for each of its partial sums; fitted."""
WRITTEN_STEPS, WRITTEN_PRODUCTS = 16, 72
"""Steps and products, at most, of reduction loops with few trips that are written out instead of run as loops."""
SPARE_REGISTERS = 3
"""Registers that neither sums nor values which several of these steps share may take."""

# -- registers that hold matrices: measured on a Sapphire Rapids

MATRIX_CHAIN = 52
"""Cycles from one product of matrices to the next of the same sums; a product takes one for each row."""
MATRIX_ROW, MATRIX_ROW_OF_L2 = 0.55, 1.3
"""Cycles to read a row of a matrix that lies in one line of the first-level cache, of the second-level cache."""
MATRIX_ROW_STORED = 1.0
"""Cycles to write a row of sums, which are read again from memory."""
MATRIX_ROW_FINISHED = 6
"""Cycles of the loop that finishes rows, for each vector of results."""
MATRIX_BESIDE = 0.4
"""Part of the shorter one of multiplying and reading that is not hidden behind the longer one."""
MATRIX_CONFIGURATION = 160
"""Cycles to say the shapes of all registers and to release them."""

# -- caches

LINE = 64
"""Bytes of a cache line."""
PAGE = 4096
"""Bytes of a page. Prefetchers stop at its end, and it is as long as a way of the first-level cache."""
NEXT_LINES = 28
"""Bytes in a cycle that the second-level cache delivers of lines that follow each other; sustained, of 32."""
OTHER_LINES = 14
"""The same of lines that do not; fitted."""
FIRST_RUN = 36
"""Cycles for each run of neighbouring elements, in rows far from each other, that another core has or none; fitted."""
SCATTERED = 1.03
"""Factor for tiles of a point of all images, all of which come from all cores; where two plans cost about the same."""
THIRD_LEVEL = 6
"""Bytes in a cycle that the third-level cache delivers; fitted."""
WRITTEN = 2
"""Factor of that rate for lines of results; fitted."""
PAGE_OF_RESULTS = 6
"""Cycles for each page that a tile of results goes to where they do not fit the second-level cache; fitted."""
BESIDE = 0.05
"""Part of the shorter one of computing and loading that is not hidden behind the longer one; fitted."""
UNALIGNED = 0.4
"""Further lines that a run of elements touches if it is not a whole number of lines; fitted."""
OTHER_PAGES, MANY_STEPS = 1.5, 64
"""Cycles for vectors that lie on another page at each step, where steps are more than a first-level TLB has entries;
fitted."""
FOLLOWED, NOT_FOLLOWED, NEW_PAGE = 24, 6, 50
"""Pages from which prefetchers bring what comes next while a kernel goes from one to the other; cycles that a line
takes longer that comes from memory where there are more; and cycles for a page that they come to. Measured, with
operands of 4 MiB to 64 MiB."""
PREFETCH_STEPS = 24
"""Steps before which a kernel prefetches a line of B that lies in panels. Measured: from 16 to 64 all make little
difference, and for panels from the second level as for those from the third, convolutions take 3 to 5% less."""
ALIASING_PAGES, ALIASING_SETS = 1.04, 1.1
"""Factors for rows at least a page apart, and a whole number of pages apart, that are read as windows; fitted."""
BLOCKED_RESULTS = 2.0
"""Times at most that a line of results of words is written: blocks of rows keep it in the cache till it is whole."""
PREFETCHED_SHARE, PREFETCHED_STEPS = 0.75, 16
"""The share of the second level from which on the lines of a tensor are prefetched before a tile's sums are taken;
steps that these sums have at least."""

# -- shares of a cache that data may fill and still be there when they are used again; fitted

BOTH_IN_L1 = 0.85
"""Of the first level, by what a call reads of A and B."""
B_IN_L1, A_IN_L1 = 0.55, 0.4
"""Of the first level, by what a call reads of one of them, to be there for the next call."""
ONE_IN_L2 = 0.6
"""Of the second level, by what a call reads of one of them; or by all of B while it is copied."""
PANEL_IN_L1 = 0.8
"""Of the first level, by a panel of B that is read after it was copied."""
ROWS_IN_L2, ROWS_BESIDE_FLOATS = 0.5, 0.75
"""Of the second level, by a block of rows of A; where each block makes floats of bytes once more. Measured."""
ROWS_IN_FEW_SETS = 64
"""Rows of results in a block that lie whole pages apart. Measured."""
PACKED_AT_ONCE = 1 << 24
"""Bytes of B that are packed at once: below, packing A once more for further blocks takes longer than it saves."""
BLOCK_SLACK = 1.1
"""How much larger than its share of the second level a block of rows may be, so that no small one is left over."""
PART_OF_B_IN_L1, PART_IN_L1 = 0.5, 0.8
"""Of the first level, by what a part of a sum reads of B, and of both."""

# -- packing

COPY, TRANSPOSITION, SCATTER = 0.35, 0.7, 2.5
"""Cycles for an element of a copy in vectors, of one by way of square blocks in registers, and of one by elements, with
:data:`COPY_LANES` lanes; other numbers of lanes are in proportion. Fitted."""
COPY_LANES = 8
"""Lanes of f32 in a vector of the processor that the rates of copies were fitted on."""
PACKED_PAIR, GATHERED_PAIR, MOVED_PAIR = 0.1, 0.6, 1.2
"""Cycles for an element of bf16 that is packed in words from rows, from columns, and that is copied by itself."""
COPY_CALL = 100
"""Cycles for a copy whatever its size; fitted."""
COPY_LEFT_L1, COPY_LEFT_L2, COPY_PREFETCHED = 0.25, 0.9, 0.05
"""Further cycles for each four bytes of a copy that has left that cache when it is read, or the first one when it is
prefetched; fitted."""

# -- which candidates are priced: limits to the time that choosing takes, and to the code that is written

MOST_VECTORS = 12
"""Vectors of a row of a tile."""
ROW_OF_BLOCKS, WIDE_ROW_OF_BLOCKS = 256, 512
"""Bytes of a row of a tile whose sums are taken in blocks; and where that leaves one tile, or neighbouring tiles share
lines of B. Measured, with AVX-512 and AVX2, for B in the second and the third level."""
LARGEST_SIZES = 3
"""Sizes of a tile along one loop: the largest ones that make a difference."""
MOST_POINTS = 4
"""Points along the shorter of two loops of a tile whose lanes run along a sum."""
REFINED = 6
"""Candidates, the best ones by computing alone, that are priced with caches, packing and parts of the sum."""
ABOUT_THE_SAME, ABOUT_AS_MANY = 1.02, 0.88
"""Factor up to which plans cost about the same; and the share of the products in a step of one tile that another has at
least which is to be as fast: with fewer of them more of B goes through the caches; measured."""
MUCH_LESS_CODE = 0.75
"""The share of a plan's code that another one has at most for which it is left."""
MOST_BORDERS, MOST_BORDERS_COMPACT = 5, 1
"""Kernels that the borders of padding may take; in code that is to be small."""
LEAST_PART, LARGEST_PART = 48, 0.7
"""Steps that a part of a sum has at least; the share of all steps that it has at most."""
