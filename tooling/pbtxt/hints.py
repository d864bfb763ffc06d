"""How to mend what the parser complains about: the usual slips of hand-written configs. Layer: pbtxt."""

from __future__ import annotations

from tooling.errors import suggest
from tooling.pbtxt.schema import Descriptor, Field, enum_name, fields_of

_CHARACTERS = (
    (b"\xef\xbb\xbf", "a byte order mark: save the file as UTF-8 without it"),
    (b"\xc2\xa0", "a non-breaking space: replace it with a plain one"),
    ("“”„‟«»".encode(), 'typographic quotes: use plain ones, `"`'),
    ("‘’".encode(), "typographic quotes: use plain ones, `'`"),
    ("–—−".encode(), "a typographic dash: use a plain one, `-`"),
)
_PREFIXES = (
    ('Expected ":", found "=".', "write `name: value`"),
    ('Expected ",", found', "separate the elements of a list by commas"),
    ("Expected identifier, got: /", "comments start with `#`"),
    ("Expected identifier, got: {", "this is no JSON: a config is written as `name: value` without outer braces"),
    ('Expected identifier, got: "', "names of fields are written without quotes"),
    ("Expected identifier, got: ;", "one separator after a value is enough"),
    ("Expected identifier, got: ,", "one separator after a value is enough"),
    ("Unexpected end of string.", "close the string with the quote it starts with"),
    ("String literals cannot cross", "close the string on its line; strings side by side are joined"),
    ("Invalid escape sequence", "write a backslash as `\\\\`"),
    ("Need space between number", "write the digits alone: no unit, no `_`"),
    ("Numbers starting with leading zero", "drop the leading zero"),
    ("Expect a decimal number", "drop the leading zero; floats are decimal"),
    ("Invalid value for boolean", "write `true` or `false`"),
    ("Extension", "Triton's configuration has no extensions: `[` may only follow a field's name"),
)


def syntax_hint(message: str, source: bytes, offset: int) -> str | None:
    """How to mend a fault, from its message and the text around it; None when there is no obvious way."""
    if message.startswith("Interpreting non ascii"):
        return _character_hint(source[offset : offset + 3])
    before = source[:offset].rstrip()
    if message.endswith(("got: ]", 'found "]".')) and before.endswith(b","):
        return "remove the comma before `]`"
    if message == "Expected identifier, got: ":
        return "a closing `}` is missing"
    if message in ("Expected identifier, got: }", "Expected identifier, got: >"):
        return f"one `{message[-1]}` too many"
    _, _, got = message.partition(", got: ")
    if message.startswith("Expected string, got: ") and got.replace("_", "").isalnum():
        return f'put the value in quotes: `"{got}"`'
    if message.startswith(("Expected integer", "Expected double")) and got[:1] in ("'", '"'):
        return f"remove the quotes: `{got[1:-1]}`"
    return next((hint for prefix, hint in _PREFIXES if message.startswith(prefix)), None)


def unknown_field_hint(name: str, descriptor: Descriptor, root: Descriptor) -> str | None:
    """Which message has a field of this name, or what it is called here."""
    homes = sorted(path for path, owner in _message_paths(root).items() if name in fields_of(owner))
    if homes:
        return f"`{name}` belongs into {' or '.join(f'`{home}`' for home in homes[:3])}"
    return suggest(name, fields_of(descriptor))


def enum_hint(name: str, field: Field) -> str | None:
    """The enum value that was meant: `FP32` and `type_fp32` are `TYPE_FP32`."""
    meant, known = enum_name(field, name), field.enum_numbers
    if meant:
        return f"did you mean `{meant}`?"
    return suggest(name, known) or f"one of {', '.join(known)}"


def _character_hint(text: bytes) -> str:
    for characters, hint in _CHARACTERS:
        if text in characters or text[:2] == characters:
            return hint
    return "only comments and quoted strings may hold other characters than ASCII"


def _message_paths(root: Descriptor) -> dict[str, Descriptor]:
    """Every message type reachable from `root` by the shortest dotted path of field names."""
    paths: dict[str, Descriptor] = {}
    found = {root}
    queue = [("", root)]
    for prefix, owner in queue:
        for field in fields_of(owner).values():
            if field.message is not None and field.message not in found:
                found.add(field.message)
                paths[prefix + field.name] = field.message
                queue.append((f"{prefix}{field.name}.", field.message))
    return paths
