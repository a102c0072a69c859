"""Compilation with numba. No other module imports numba, which has no types of its own.

Kernels are compiled for a single signature when their module is imported, or read from the cache of `loading`. They
release the GIL by default, start no thread, and check no bounds. Integer division by zero is undefined.

numba converts a mixture of int64 and uint64 to float64, so kernels convert explicitly.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

#: Arguments that a kernel reads; it accepts writable arrays too.
BYTES: Final = types.Array(types.uint8, 1, "C", readonly=True)
FLAGS: Final = types.Array(types.boolean, 1, "C", readonly=True)
INTEGERS: Final = types.Array(types.int64, 1, "C", readonly=True)
FLOATS: Final = types.Array(types.float64, 1, "C", readonly=True)
WORDS: Final = types.Array(types.uint64, 1, "C", readonly=True)
INT32S: Final = types.Array(types.int32, 1, "C", readonly=True)
INTEGER_ROWS: Final = types.Array(types.int64, 2, "C", readonly=True)

#: Arguments that a kernel writes.
BYTES_OUT: Final = types.Array(types.uint8, 1, "C")
FLAGS_OUT: Final = types.Array(types.boolean, 1, "C")
INTEGERS_OUT: Final = types.Array(types.int64, 1, "C")
INT32S_OUT: Final = types.Array(types.int32, 1, "C")
FLOATS_OUT: Final = types.Array(types.float64, 1, "C")
WORDS_OUT: Final = types.Array(types.uint64, 1, "C")
INTEGER_ROWS_OUT: Final = types.Array(types.int64, 2, "C")
INT32_ROWS_OUT: Final = types.Array(types.int32, 2, "C")
FLAG_ROWS_OUT: Final = types.Array(types.boolean, 2, "C")

INTEGER: Final = types.int64
FLAG: Final = types.boolean
WORD: Final = types.uint64
NOTHING: Final = types.void
TWO_INTEGERS: Final[Any] = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]


def compiled(result: Any, *arguments: Any, releases_gil: bool = True) -> Callable[[F], F]:
    """Compiles a kernel for the given types, at once.

    Args:
        releases_gil: False for a kernel of microseconds: a thread beside busy ones waits milliseconds for the GIL.
    """

    def compile_kernel(function: F) -> F:
        kernel: Any = njit(result(*arguments), cache=True, nogil=releases_gil, error_model="numpy")(function)
        return cast("F", kernel)

    return compile_kernel


def inlined(function: F) -> F:
    """A part of kernels, compiled together with each of them."""
    part: Any = njit(nogil=True, error_model="numpy", inline="always")(function)
    return cast("F", part)


def outlined(function: F) -> F:
    """A part of kernels that is compiled once. LLVM decides about inlining. For large parts without arrays.

    `inlined` repeats a part in the intermediate code of numba wherever it is called, so nested parts multiply.
    """
    part: Any = njit(nogil=True, error_model="numpy")(function)
    return cast("F", part)


def _folding_multiplier(context: Any, first: Any, second: Any) -> Any:
    """Machine code of `fold_product`: numba has no integers of 128 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, double_word = ir.IntType(64), ir.IntType(128)
        product = builder.mul(*(builder.zext(factor, double_word) for factor in arguments))
        high = builder.lshr(product, ir.Constant(double_word, 64))
        return builder.xor(builder.trunc(product, word), builder.trunc(high, word))

    return types.uint64(types.uint64, types.uint64), generate


#: The halves of the product of two words (128 bits), combined by exclusive or.
fold_product: Final[Any] = intrinsic(_folding_multiplier)


def _prefetcher(context: Any, address: Any) -> Any:
    """Machine code of `prefetch`, an intrinsic function of LLVM."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        builder.call(function, [builder.inttoptr(arguments[0], pointer), *map(number, (0, 3, 1))])  # read, keep, data
        return context.get_dummy_value()

    return types.void(types.int64), generate


#: Starts to load the cache line of an address, and does not wait: the next step for all rows of a block needs it.
prefetch: Final[Any] = intrinsic(_prefetcher)


def _word_loader_at(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=1)

    return types.uint64(types.int64), generate


def _element_loader(kind: Any) -> Any:
    def load(context: Any, begin: Any, row: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            begin = builder.inttoptr(arguments[0], ir.IntType(kind.bitwidth).as_pointer())
            return builder.load(builder.gep(begin, [arguments[1]]), align=1)

        return kind(types.int64, types.int64), generate

    return load


def _word_storer_at(context: Any, address: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store(arguments[1], pointer, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


def _byte_storer_at(context: Any, address: Any, byte: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        builder.store(builder.trunc(arguments[1], ir.IntType(8)), pointer)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


#: Access to memory by address. An array costs numba atomic counts of references in each function that it is passed to.
load_word_at: Final[Any] = intrinsic(_word_loader_at)
store_word_at: Final[Any] = intrinsic(_word_storer_at)
store_byte_at: Final[Any] = intrinsic(_byte_storer_at)

#: Row `row` of a column from an address on: LLVM makes vectors of a loop over rows, which it does not of addresses.
load_word_of: Final[Any] = intrinsic(_element_loader(types.uint64))
load_byte_of: Final[Any] = intrinsic(_element_loader(types.uint8))
