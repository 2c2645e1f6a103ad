"""Wrapping the functions of a method."""

from typing import Any

from dml_jax.methods.contract import Hooks, Method, Refresh, map_functions


def named(name: str) -> Any:
    return lambda *_: name


def test_every_function_of_parameters_is_wrapped() -> None:
    """Also those of hooks, without naming them; what is not there, `init`, paths and values
    stay."""
    of_params = {name: named(name) for name in ("after", "fill", "refine")}
    hooks = Hooks(
        **of_params,
        refresh=Refresh(3, named("features"), named("update")),
        history=("queue",),
        views=2,
    )
    core = [named(name) for name in ("init", "encode", "loss", "embed")]
    method = Method(
        *core, groups=("a", "b"), group=named("group"), distance="euclidean", hooks=hooks
    )
    found = map_functions(lambda function: lambda *inputs: f"wrapped {function(*inputs)}", method)
    assert (found.init, found.group, found.groups, found.distance) == (
        core[0],
        method.group,
        ("a", "b"),
        "euclidean",
    )
    assert [function({}) for function in found[1:4]] == [
        "wrapped encode",
        "wrapped loss",
        "wrapped embed",
    ]  # type: ignore[operator]
    assert {name: getattr(found.hooks, name)({}) for name in of_params} == {
        n: f"wrapped {n}" for n in of_params
    }
    assert found.hooks.refresh.epochs == 3
    assert (found.hooks.refresh.features({}, {}, 0), found.hooks.refresh.update()) == (  # type: ignore[arg-type]
        "wrapped features",
        "wrapped update",
    )
    assert found.hooks.teach is None
    assert (found.hooks.views, found.hooks.history, found.hooks.teacher) == (2, ("queue",), "")
