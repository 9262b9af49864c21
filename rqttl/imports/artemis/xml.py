"""The elements of a broker.xml, each with its place in the file, and their values. Hostile files are refused here."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rqttl.errors import InvalidImport
from rqttl.text import format_value, install

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

#: Namespaces of broker.xml. A file may also do without one.
_NAMESPACES = ("urn:activemq", "urn:activemq:core", "")
_MAX_LONG = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Node:
    """An element of the file. `place` is its path from the root, `foreign` means another namespace than Artemis's.

    `name` has no namespace and `text` no blanks around it. `attributes` lacks those of other namespaces.
    """

    name: str
    place: str
    text: str
    attributes: Mapping[str, str]
    children: tuple[Node, ...]
    foreign: bool

    def attribute(self, name: str) -> str:
        """An attribute that must be there. Raises `InvalidImport`."""
        value = self.attributes.get(name, "").strip()
        if not value:
            raise InvalidImport(self.place, f"expected the attribute {name!r} with a value, got none")
        return value


def parse(text: str | bytes) -> Node:
    """Read XML text. Raises `InvalidImport` for text that is no XML, too deep, or has a DTD."""
    if not isinstance(text, (str, bytes)):
        raise InvalidImport("broker.xml", f"expected the text of an XML file, got {format_value(text)}")
    try:
        from defusedxml import DefusedXmlException
        from defusedxml.ElementTree import ParseError, fromstring
    except ImportError:
        raise InvalidImport("broker.xml", f"XML needs the package defusedxml: {install('import')}") from None
    try:
        root: Element = fromstring(text, forbid_dtd=True)
        return _node(root, f"/{_split(root)[1]}")
    except DefusedXmlException as error:
        rule = "expected XML without a document type definition and without entities"
        raise InvalidImport("broker.xml", f"{rule}, got {type(error).__name__}") from None
    except ParseError as error:
        line, column = error.position
        reason = str(error).partition(":")[0]
        raise InvalidImport(f"line {line}, column {column + 1}", f"expected well-formed XML: {reason}") from None
    except RecursionError:
        raise InvalidImport("broker.xml", "expected fewer levels of elements") from None
    except (ValueError, LookupError) as error:  # an encoding that Python or expat lacks, or half a surrogate pair
        raise InvalidImport("broker.xml", f"expected XML in a known encoding: {error}") from None


def _split(element: Element) -> tuple[str, str]:
    """The namespace and the name of an element."""
    namespace, _, name = str(element.tag).rpartition("}")
    return namespace.removeprefix("{"), name


def _node(element: Element, place: str) -> Node:
    namespace, name = _split(element)
    own = {key: value for key, value in element.attrib.items() if not key.startswith("{")}
    texts = [element.text, *(child.tail for child in element)]
    text = " ".join(part.strip() for part in texts if part and part.strip())
    children = tuple(_node(child, path) for child, path in _children(element, place))
    return Node(name, place, text, own, children, namespace not in _NAMESPACES)


def _children(element: Element, place: str) -> Iterator[tuple[Element, str]]:
    """The children with their paths. A number tells apart children of one name."""
    names = [_split(child)[1] for child in element]
    totals, counts = Counter(names), Counter[str]()
    for child, name in zip(element, names, strict=True):
        counts[name] += 1
        yield child, f"{place}/{name}" + (f"[{counts[name]}]" if totals[name] > 1 else "")


def _whole(text: str) -> int:
    number = int(text)
    if abs(number) > _MAX_LONG:
        raise ValueError
    return number


def _decimal(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _size(text: str) -> int:
    match = re.fullmatch(r"([+-]?\d{1,19})\s*([kmg]?)i?b?", text, re.ASCII | re.IGNORECASE)
    if not match:
        raise ValueError
    return _whole(match[1]) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[match[2].lower()]


#: What a value is, by the words behind `by` in the table.
_KINDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "plain": ("a text", str),
    "whole": ("a whole number", _whole),
    "decimal": ("a number", _decimal),
    "flag": ("true or false", lambda text: {"true": True, "false": False}[text.lower()]),
    "size": ("a number of bytes such as 1048576 or 10MB", _size),
    "full-policy": (
        "one of PAGE, DROP, BLOCK, FAIL",
        lambda text: {word: word for word in ("PAGE", "DROP", "BLOCK", "FAIL")}[text.upper()],
    ),
}


def read_value(kind: str, text: str, place: str) -> Any:
    """A text as a value of a kind, one of `_KINDS`. Raises `InvalidImport`."""
    expected, convert = _KINDS[kind]
    try:
        return convert(text)
    except (ValueError, KeyError):
        hint = "; write the value of the property" if "${" in text else ""
        raise InvalidImport(place, f"expected {expected}, got {format_value(text)}{hint}") from None
