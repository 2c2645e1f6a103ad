"""Sums whose number of terms depends on the data, differentiable in both modes and repeatedly.

The number of iterations of a loop is known only while it runs; JAX differentiates such a loop
forwards but not backwards, because it would have to store every iteration. A sum has nothing to
store: its derivative, forwards or backwards, is the sum of the derivatives of its terms. This
module tells JAX so, by a primitive whose rules return the primitive.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir


def dynamic_sum(term: Callable[..., Array], count: Array, *arguments: Array) -> Array:
    """The sum of term(i, *arguments) over i = 0, …, count - 1, with the shape of one term.

    `term` is pure and uses no other traced arrays than its arguments; `count` is an integer.
    """
    (total,) = _bind(lambda *given: [term(*given)], count, arguments)
    return total


class _Sum(Primitive):
    def is_high(self, *_: Any, **__: Any) -> bool:
        """JAX 0.12 would ask for a rule that lowers the terms, which tracing `_loop` does."""
        return False


_sum = _Sum("dynamic_sum")
_sum.multiple_results = True


def _bind(terms: Callable[..., Sequence[Array]], count: Any, arguments: Sequence[Any]) -> Any:
    return _sum.bind(count, *arguments, terms=jax.make_jaxpr(terms)(np.int32(0), *arguments))


def _loop(count: Any, *arguments: Any, terms: Any) -> Any:
    def add(i: Any, sums: list[Array]) -> list[Array]:
        found = jaxpr_as_fun(terms)(jnp.int32(i), *arguments)
        return [total + value for total, value in zip(sums, found, strict=True)]

    zeros = [jnp.zeros(aval.shape, aval.dtype) for aval in terms.out_avals]
    return jax.lax.fori_loop(0, count, add, zeros)


_sum.def_impl(_loop)
_sum.def_abstract_eval(lambda *_, terms: terms.out_avals)
mlir.register_lowering(_sum, mlir.lower_fun(_loop, multiple_results=True))


def _of_some(terms: Any, i: Any, known: Sequence[Any], places: Sequence[int]) -> Any:
    """The terms as a function of the arguments at `places`, given all the others."""

    def call(*some: Any) -> Any:
        given = dict(zip(places, some, strict=True))
        return jaxpr_as_fun(terms)(i, *(given.get(k, x) for k, x in enumerate(known)))

    return call


def _jvp(primals: Any, tangents: Any, *, terms: Any) -> Any:
    count, *arguments = primals
    moved = [k for k, tangent in enumerate(tangents[1:]) if type(tangent) is not ad.Zero]
    size = len(arguments)

    def derivatives(i: Any, *given: Any) -> Any:
        at = tuple(given[k] for k in moved)
        return jax.jvp(_of_some(terms, i, given[:size], moved), at, given[size:])[1]

    given = [*arguments, *(tangents[1 + k] for k in moved)]
    return _sum.bind(*primals, terms=terms), _bind(derivatives, count, given)


def _transpose(cotangents: Any, count: Any, *arguments: Any, terms: Any) -> Any:
    linear = [k for k, argument in enumerate(arguments) if ad.is_undefined_primal(argument)]
    known = [k for k in range(len(arguments)) if k not in linear]
    shapes = [
        jax.ShapeDtypeStruct(arguments[k].aval.shape, arguments[k].aval.dtype) for k in linear
    ]

    def transposed(i: Any, *given: Any) -> Any:
        others = dict(zip(known, given, strict=False))
        function = _of_some(terms, i, [others.get(k) for k in range(len(arguments))], linear)
        return jax.linear_transpose(function, *shapes)(list(given[len(known) :]))

    slopes = map(ad.instantiate_zeros, cotangents)
    found = iter(_bind(transposed, count, [*(arguments[k] for k in known), *slopes]))
    return [None, *(next(found) if k in linear else None for k in range(len(arguments)))]


def _batch(given: Any, axes: Any, *, terms: Any) -> Any:
    count, most = given[0], jnp.max(given[0])

    def batched(i: Any, counts: Any, *arguments: Any) -> Any:
        def one(count: Any, *arguments: Any) -> Any:
            found = jaxpr_as_fun(terms)(i, *arguments)
            return found if axes[0] is None else [jnp.where(i < count, x, 0) for x in found]

        return jax.vmap(one, in_axes=tuple(axes))(counts, *arguments)

    found = _bind(batched, most, [count, *given[1:]])
    return found, [0] * len(found)


ad.primitive_jvps[_sum] = _jvp
ad.primitive_transposes[_sum] = _transpose
batching.primitive_batchers[_sum] = _batch
