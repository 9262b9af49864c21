"""`rqttl acl`: rules for users of Redis with few rights."""

from __future__ import annotations

import click

from rqttl.checks import check_namespace
from rqttl.cli.common import output, params
from rqttl.cli.common.settings import Settings, namespace_option
from rqttl.protocol.keys import Keyspace
from rqttl.protocol.roles import ROLES, rules


@click.group(epilog="\b\nExample: rqttl acl generate --role producer")
def acl() -> None:
    """Give users of Redis few rights."""


@acl.command(
    short_help="Print the rules of a user.",
    epilog="\b\nExample: rqttl acl generate --role producer --role consumer --user shop",
)
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    type=click.Choice([*ROLES]),
    help="What the user may do. May be repeated.",
)
@click.option(
    "--redis", type=click.Choice(["6.2", "7.0"]), default="7.0", show_default=True, help="From this version on."
)
@click.option(
    "--user", type=params.Read("user", check_namespace), metavar="USER", help="Name of the user.  [default: the role]"
)
@params.json_flag
@namespace_option
@params.debug_flag
@click.pass_obj
def generate(
    settings: Settings, roles: tuple[str, ...], redis: str, user: str | None, as_json: bool, namespace: str | None
) -> None:
    """Print the ACL rules of a user, as a command for Redis.

    A user may have several roles. The rules fit this version of rqttl: give
    them again after an update. They are the same for one server and for a
    cluster, where each node needs them. The command does not ask Redis.
    """
    user = user or "-".join(dict.fromkeys(roles))
    keyspace = Keyspace(check_namespace(settings.namespace if namespace is None else namespace))
    rights, wider = rules(roles, keyspace, redis=redis)
    line = f"ACL SETUSER {user} reset on >password resetchannels {' '.join(rights)}"
    document = {"user": user, "roles": roles, "rules": rights, "wider": wider, "command": line}
    output.answer_either(document, line, as_json=as_json)
    output.note("put a password in the place of `password`, and run ACL SAVE if the server has an ACL file")
    if wider:
        output.note(f"Redis 6.2 cannot grant keys for reading alone: this user may also write {', '.join(wider)}")
