"""A YAML file with the line and column of each of its keys. Layer: project."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tooling.config.yaml_file import read_yaml

Loc = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """`LINE:COLUMN` of every key and list entry, by its path."""

    marks: Mapping[Loc, str]

    def known(self, loc: Iterable[Any]) -> Loc:
        """The path without the parts that stand in no file, such as the name of a type that was tried."""
        found: Loc = ()
        for part in loc:
            if (*found, part) in self.marks:
                found = (*found, part)
        return found

    def mark(self, loc: Loc) -> str:
        return self.marks[loc]


def read_placed(path: Path) -> tuple[dict[str, Any], Places]:
    """The mapping in a file, and where its keys stand. Raises UsageError for what is no YAML mapping."""
    data = read_yaml(path)
    root = yaml.compose(path.read_bytes(), Loader=yaml.SafeLoader)
    return data, Places({(): "1:1", **dict(_marks(root, ()))})


def _marks(node: Any, loc: Loc) -> Iterator[tuple[Loc, str]]:
    if isinstance(node, yaml.MappingNode):
        children = [(key.value, key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(index, value, value) for index, value in enumerate(node.value)]
    else:
        return
    for part, place, value in children:
        yield (*loc, part), f"{place.start_mark.line + 1}:{place.start_mark.column + 1}"
        yield from _marks(value, (*loc, part))
