"""The pages for looking: the overview, queues and their messages, and who works."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.responses import Response

    from rqttl.dashboard.visit import Visit


def overview(visit: Visit) -> Response:
    """`/`: what needs attention, totals, and the busiest queues."""
    return visit.page("overview.html", title="Overview", command="rqttl stats", live=True)
