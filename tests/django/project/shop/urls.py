"""A site with one view, which sends tasks."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path

from shop.tasks import aadd, add


async def send(_: HttpRequest) -> Any:
    """Send two tasks."""
    one, other = await add.aenqueue(1, 2), await aadd.aenqueue(3, 4)
    return HttpResponse(f"{one.id} {other.id}")


urlpatterns = [path("send", send)]
