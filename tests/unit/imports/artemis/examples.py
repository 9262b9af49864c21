"""Files of Artemis for tests, and short ways to what they become."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rqttl.deployments import Deployment, read_document
from rqttl.imports.artemis import read_broker
from rqttl.imports.report import Imported, ImportedDeployment
from rqttl.options import QueueOptions
from rqttl.policies import PolicySet

FOLDER = Path(__file__).with_name("files")
FILES = sorted(path.name for path in FOLDER.iterdir())


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def core(*sections: str) -> str:
    inner = f'<core xmlns="urn:activemq:core">{"".join(sections)}</core>'
    return f'<configuration xmlns="urn:activemq">{inner}</configuration>'


def settings(*each: tuple[str, str]) -> str:
    """The section of address settings, from pairs of match and children."""
    elements = [f'<address-setting match="{match}">{children}</address-setting>' for match, children in each]
    return f"<address-settings>{''.join(elements)}</address-settings>"


def addresses(**queues: str) -> str:
    """The section of addresses, each with one anycast queue."""
    each = [
        f'<address name="{address}"><anycast><queue name="{queue}"/></anycast></address>'
        for address, queue in queues.items()
    ]
    return f"<addresses>{''.join(each)}</addresses>"


def only(imported: Imported) -> ImportedDeployment:
    [deployment] = imported.deployments.values()
    return deployment


def deployment_of(imported: Imported) -> Deployment:
    found = only(imported)
    return read_document({"rqttl": 1, "queues": found.queues, "policies": found.policies})


def definitions(*sections: str) -> dict[str, Any]:
    """The definitions by pattern, without the limit of attempts that is Artemis's default."""
    found = {str(p["pattern"]): dict(p["definition"]) for p in only(read_broker(core(*sections))).policies.values()}  # type: ignore[call-overload]  # a mapping
    if found.get("#", {}).get("max-deliveries") == 10:
        del found["#"]["max-deliveries"]
    return {pattern: definition for pattern, definition in found.items() if definition}


def definition(children: str, match: str = "a") -> dict[str, Any]:
    return dict(definitions(settings((match, children))).get(match, {}))


def in_force(text: str, queue: str) -> Mapping[str, object]:
    """The options in force of a queue after the import, without those at their defaults."""
    found = deployment_of(read_broker(text))
    declared = found.queues.get(queue, QueueOptions(queue, {}))
    return PolicySet(1, tuple(found.policies.values())).resolve(declared).options.non_default
