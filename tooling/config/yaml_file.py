"""YAML files that people write: read safely, a repeated key refused, faults placed on their line. Layer: config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tooling.errors import UsageError, kind_of


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML (or JSON) file; an empty file is an empty mapping. Raises UsageError for anything else."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses what plain YAML lets pass: the same key twice, where the first value would be lost."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.constructor.ConstructorError(None, None, "a key is no plain name", key.start_mark)
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"`{key.value}` stands twice", key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

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
