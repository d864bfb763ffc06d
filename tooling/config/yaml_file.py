"""YAML files that people write: read safely, a repeated key refused, faults placed on their line. Layer: config."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from tooling.errors import UsageError, kind_of

_MOST_BITS: Final = 1024
"""Of a whole number; Python makes no text of one with more than 4,300 digits."""


@cache
def loader(*, fast: bool = True) -> Any:
    """A safe loader of PyYAML's, of C where there is one and `fast` is asked for, that refuses endless numbers."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader) if fast else yaml.SafeLoader):  # type: ignore[misc]
        def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
            try:
                value = super().construct_yaml_int(node)
            except ValueError:
                value = None
            if value is None or value.bit_length() > _MOST_BITS:
                length = len(node.value)
                what = f"a number of {length} characters" if length > 40 else f"`{node.value}` is no number"
                raise yaml.constructor.ConstructorError(None, None, what, node.start_mark)
            return int(value)

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    return Loader


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML (or JSON) file; an empty file is an empty mapping. Raises UsageError for anything else."""
    import yaml

    class Loader(loader(fast=False)):  # type: ignore[misc]
        """Refuses what plain YAML lets pass: the same key twice, where the first value would be lost."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.constructor.ConstructorError(None, None, "a key is no plain name", key.start_mark)
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"`{key.value}` stands twice", key.start_mark)
                seen.add(key.value)
            return dict(super().construct_mapping(node, deep))

    try:
        content = yaml.load(path.read_bytes(), Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        got = getattr(error, "problem", None) or " ".join(str(error).split())
        raise UsageError("not a YAML file", where=where, got=got) from error
    except (RecursionError, ValueError) as error:
        raise UsageError("not a YAML file", where=path, got=str(error)) from error
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError("not a mapping", where=path, got=kind_of(content), expected="`name: value` lines")
    return content
