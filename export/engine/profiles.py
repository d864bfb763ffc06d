"""Optimization profiles from a largest batch and length edges, or from shapes given by hand. Layer: export.engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tooling.errors import Problem, UsageError, suggest
from tooling.signature.spec import ModelSignature, Profile, TensorSpec

Shapes = Mapping[str, tuple[int, ...]]
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """What the traffic sends: batches 1 to `max_batch`, mostly `opt_batch`; sequences up to the last of `edges`.

    One edge is a profile for every length, best at `opt_length`. Several are one profile per bucket, best at its edge,
    where padded requests lie. All are counts: rows, and tokens with the special ones.
    """

    max_batch: int
    edges: tuple[int, ...]
    opt_batch: int
    opt_length: int | None = None


def profiles_of(signature: ModelSignature, traffic: ShapeRange) -> tuple[Profile, ...]:
    """One profile per length edge; every input gets the same batches and lengths.

    The smallest batch is 1, since Triton sends whatever has arrived. A tensor without free axes needs no profile; a
    network that has none gets an empty tuple. Raises UsageError for ranges that contradict themselves and for free axes
    that are neither batch nor sequence.
    """
    free = _free_inputs(signature)
    problems = [*_wrong_ranges(traffic), *_unknown_axes(signature, free)]
    if problems:
        raise UsageError(problems=problems)
    if not free:
        return ()
    if all(len(tensor.dims) == 1 for tensor in free):  # no sequence axis: lengths do not matter
        return (_profile(signature.inputs, traffic, 1, 1, 1),)
    lows = (1, *(edge + 1 for edge in traffic.edges[:-1]))
    bests = traffic.edges if len(traffic.edges) > 1 else (traffic.opt_length or traffic.edges[0],)
    return tuple(
        _profile(signature.inputs, traffic, low, best, high)
        for low, best, high in zip(lows, bests, traffic.edges, strict=True)
    )


def profile_from_shapes(signature: ModelSignature, smallest: Shapes, best: Shapes, largest: Shapes) -> Profile:
    """A profile from shapes given by hand, for networks whose free axes mean something else.

    Raises UsageError naming every input without shapes, every unknown one, and every triple that does not rise or does
    not fit the input.
    """
    known = {tensor.name: tensor for tensor in signature.inputs}
    given = {"min": smallest, "opt": best, "max": largest}
    problems = [
        Problem("no such input", got=f"`{name}` in the {which} shapes", hint=suggest(name, known))
        for which, shapes in given.items()
        for name in shapes
        if name not in known
    ]
    for tensor in _free_inputs(signature):
        triple = [shapes.get(tensor.name) for shapes in given.values()]
        if any(shape is None for shape in triple):
            problems.append(_without_shapes(signature.path, [tensor.name]))
        else:
            problems += _misfits(tensor, [shape for shape in triple if shape is not None])
    if problems:
        raise UsageError(problems=problems)
    fixed = {tensor.name: tensor.dims for tensor in signature.inputs}
    return Profile({**fixed, **smallest}, {**fixed, **best}, {**fixed, **largest})


def parse_shapes(text: str) -> Shapes:
    """`input_ids:1x128,attention_mask:1x128`, as trtexec writes shapes. Raises UsageError for any other form."""
    found: dict[str, tuple[int, ...]] = {}
    for part in text.split(","):
        name, colon, sizes = part.strip().rpartition(":")
        numbers = sizes.split("x")
        usable = all(number.isdecimal() and len(number) < 11 and 0 < int(number) <= _MOST for number in numbers)
        if not colon or not name or not usable or name in found:
            got = f"{name} twice" if name in found else f"`{part}`"
            expected = "NAME:1x128, several with commas, each input once"
            raise UsageError("not a shape", where="--engine", got=got, expected=expected)
        found[name] = tuple(map(int, numbers))
    return found


def _free_inputs(signature: ModelSignature) -> list[TensorSpec]:
    return [tensor for tensor in signature.inputs if -1 in tensor.dims]


def _profile(inputs: Sequence[TensorSpec], traffic: ShapeRange, low: int, best: int, high: int) -> Profile:
    def shapes(batch: int, length: int) -> dict[str, tuple[int, ...]]:
        fill = (batch, length)
        return {
            tensor.name: tuple(fill[axis] if size == -1 else size for axis, size in enumerate(tensor.dims))
            for tensor in inputs
        }

    return Profile(shapes(1, low), shapes(traffic.opt_batch, best), shapes(traffic.max_batch, high))


def _wrong_ranges(traffic: ShapeRange) -> Iterator[Problem]:
    if traffic.max_batch < 1:
        yield Problem("no batch fits", "--max-batch-size", f"a largest batch of {traffic.max_batch}", "1 or more")
    elif max(traffic.max_batch, *traffic.edges, 1) > _MOST:
        got = f"{max(traffic.max_batch, *traffic.edges)}"
        yield Problem("no engine takes so much", "--max-batch-size, --max-tokens", got, f"at most {_MOST}")
    elif not 1 <= traffic.opt_batch <= traffic.max_batch:
        expected = f"1 to the largest batch, {traffic.max_batch}"
        yield Problem("the usual batch is outside the profile", "--engine opt", str(traffic.opt_batch), expected)
    rising = all(a < b for a, b in zip(traffic.edges, traffic.edges[1:], strict=False))
    if not traffic.edges or traffic.edges[0] < 1 or not rising:
        got = ", ".join(map(str, traffic.edges)) or "none"
        yield Problem("no usable length edges", "--buckets", got, "rising lengths from 1, such as 64,128,256")
    elif traffic.opt_length is not None and len(traffic.edges) > 1:
        yield Problem(
            "a usual length has no meaning with several buckets: each is built for its edge",
            got=f"a usual length of {traffic.opt_length} with edges {', '.join(map(str, traffic.edges))}",
            hint="leave one of the two out",
        )
    elif traffic.opt_length is not None and not 1 <= traffic.opt_length <= traffic.edges[-1]:
        expected = f"1 to the largest length, {traffic.edges[-1]}"
        yield Problem("the usual length is outside the profile", "--engine opt", str(traffic.opt_length), expected)


def _unknown_axes(signature: ModelSignature, free: Sequence[TensorSpec]) -> Iterator[Problem]:
    """Batch is axis 0 and sequence is axis 1 of a matrix; of any other free axis only a person knows the sizes."""
    odd = [tensor.name for tensor in free if tensor.dims[0] != -1 or -1 in tensor.dims[2:]]
    odd += [t.name for t in free if len(t.dims) > 2 and t.dims[1] == -1 and t.name not in odd]
    if odd:
        yield _without_shapes(signature.path, odd)


def _without_shapes(path: object, names: Sequence[str]) -> Problem:
    plural = "s" if len(names) > 1 else ""
    return Problem(
        f"dynamic input{plural} {', '.join(names)} need{'' if plural else 's'} min/opt/max shapes",
        where=str(path),
        expected="the smallest, usual and largest shape of every input with a free axis",
        hint="give --engine min_shapes=NAME:1x128, opt_shapes=… and max_shapes=…, several inputs with commas",
    )


def _misfits(tensor: TensorSpec, triple: Sequence[tuple[int, ...]]) -> Iterator[Problem]:
    shown = " ≤ ".join("x".join(map(str, shape)) for shape in triple)
    if any(len(shape) != len(tensor.dims) for shape in triple):
        got, expected = shown, f"{len(tensor.dims)} sizes, as in {list(tensor.dims)}"
        yield Problem(f"shapes of another rank than input {tensor.name}", got=got, expected=expected)
        return
    for axis, (size, *values) in enumerate(zip(tensor.dims, *triple, strict=True)):
        if sorted(values) != values:
            yield Problem(f"shapes of {tensor.name} do not rise on axis {axis}", got=shown, expected="min ≤ opt ≤ max")
        elif size != -1 and set(values) != {size}:
            yield Problem(f"axis {axis} of {tensor.name} is fixed", got=shown, expected=str(size))
