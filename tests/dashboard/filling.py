"""A visitor who fills in forms: the first one is answered by a page with the dry run, which has the second one."""

import html
import re
from typing import Any
from urllib.parse import parse_qsl


class Asked:
    """The answer to a form: its status, its lines, and its title, which says what went wrong."""

    def __init__(self, client: Any, path: str, fields: dict[str, str]) -> None:
        self._client, self._path, self._fields = client, path, fields
        answer = client.post(path, data=fields, follow_redirects=False)
        self.status, self.text = answer.status_code, html.unescape(answer.text)
        self.said = [html.unescape(line) for line in re.findall(r"<li>(.*?)</li>", answer.text)]
        self.title = html.unescape("".join(re.findall(r"<h1>(.*?)</h1>", answer.text)))
        hidden = re.findall(r'<input type="hidden" name="(.*?)" value="(.*?)">', answer.text, re.DOTALL)
        self._hidden = {html.unescape(name): html.unescape(value) for name, value in hidden}

    def confirm(self, **typed: str) -> "Asked":
        """Send the second form."""
        return Asked(self._client, self._path, self._hidden | typed)


def ask(client: Any, form: str, **more: Any) -> Asked:
    """Send the first form: `/queue/purge?name=orders`."""
    path, _, fields = form.partition("?")
    return Asked(client, path, dict(parse_qsl(fields, keep_blank_values=True)) | more)
