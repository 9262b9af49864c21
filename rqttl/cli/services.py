"""`rqttl reaper`, `rqttl metrics`, `rqttl server`: what runs until it is stopped; and `rqttl demo`, which shows it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from rqttl import text
from rqttl.cli.common import errors, output, params, running
from rqttl.cli.common.settings import Settings, connecting, named_server
from rqttl.units import as_timedelta, duration

if TYPE_CHECKING:
    from rqttl.reaper import Reaper
    from rqttl.worker.health import Route


@contextmanager
def _serving(place: str, flag: str, routes: Mapping[str, Route]) -> Iterator[None]:
    """A context in which these paths are served at `HOST:PORT`, the value of a flag."""
    from rqttl.worker.health import HealthServer
    from rqttl.worker.settings import address

    host, port = address(place, flag)
    try:
        server = HealthServer(host, port, routes)
    except OSError as error:
        raise click.BadParameter(f"cannot listen on {place}: {error}", param_hint=f"'--{flag}'") from error
    output.note(f"serving {', '.join(routes)} on {server.place}; Ctrl-C ends it")
    with closing(server):
        yield


@click.command(
    short_help="Expire, reclaim and return messages on time.", epilog="\b\nExample: rqttl reaper --log-format json"
)
@click.option(
    "--scan-period",
    type=params.Read("duration", lambda value: None if value == "-1" else as_timedelta(duration(value, "period"))),
    default="5m",
    show_default=True,
    metavar="TIME",
    help="Time between two looks at every queue, in case a hint was lost; -1 = no reaper.",
)
@click.option("--once", is_flag=True, help="Do all due work, print the counts, and end.")
@click.option("--health", metavar="HOST:PORT", help="Serve /livez, /readyz and /metrics here.")
@running.logged
@params.json_flag
@connecting
def reaper(scan_period: timedelta | None, once: bool, health: str | None, as_json: bool, settings: Settings) -> None:
    """Expire messages, reclaim lost leases and return delayed messages on time.

    A reaper also lets scheduled messages arrive, enforces limits, and deletes
    queues whose lifetime is over.
    Any number of reapers may run at once. SIGTERM or Ctrl-C ends a reaper.
    """
    if as_json and not once:
        raise click.UsageError("--json: it prints the counts of --once; a reaper that runs on prints none")
    if scan_period is None:
        output.note("the reaper is disabled: --scan-period is -1")
        return
    from rqttl.reaper import Reaper
    from rqttl.runtime.stop_signals import StopSignals

    with settings.using() as broker:
        worker = Reaper(broker, scan_period=scan_period)
        served = nullcontext() if health is None else _serving(health, "health", _routes(worker))
        with StopSignals(worker.stop, ends_process=True), served:
            totals = worker.run_once() if once else worker.run()
    if not once:
        return
    if as_json:
        output.answer_json({name: getattr(totals, name) for name in totals.__dataclass_fields__})
    else:
        counts = [f"{duty} {text.format_count(n)}" for duty, n in totals.by_duty().items()]
        if totals.retired:
            counts.append(f"deleted {text.plural(totals.retired, 'queue')} whose lifetime was over")
        output.answer(", ".join(counts) or "nothing was due")
    if totals.failed:
        raise errors.Refused(f"{text.plural(totals.failed, 'queue')} could not be swept; the log above says why")


def _routes(reaper: Reaper) -> dict[str, Route]:
    """The health and the metrics of a reaper, by path."""
    from rqttl.worker.health import judgement, metrics_answer

    return {
        "/livez": lambda _: judgement(reaper.report.trouble()),
        "/readyz": lambda _: judgement(reaper.report.obstacle(), reaper.away()),
        "/metrics": lambda headers: metrics_answer(headers, reaper.report.families),
    }


@click.command(
    short_help="Serve the metrics of queues to Prometheus.",
    epilog="\b\nExample: rqttl metrics --listen 127.0.0.1:9471 --queues 'orders.*'",
)
@click.option("--listen", default="127.0.0.1:9471", show_default=True, metavar="HOST:PORT", help="Serve /metrics here.")
@click.option("--queues", multiple=True, metavar="PATTERN", help="Only queues of this name or pattern.  [default: all]")
@params.limit_option(1000, "Number of queues at most, the busiest first.")
@click.option("--once", is_flag=True, help="Print the metrics, and end.")
@running.logged
@params.json_flag
@connecting
def metrics(listen: str, queues: tuple[str, ...], limit: int, once: bool, as_json: bool, settings: Settings) -> None:
    """Serve the metrics of queues to Prometheus, at the path /metrics.

    The command only reads, at each scrape anew, and sweeps nothing. Without
    Redis it goes on, and rqttl_up is 0. If more queues than --limit match, it
    serves those with the most messages since their creation. SIGTERM or
    Ctrl-C ends it. The text format needs the extra `metrics`; --json prints
    the samples as JSON and needs --once.
    """
    if as_json and not once:
        raise click.UsageError("--json is for --once")
    from rqttl.metrics import collector
    from rqttl.runtime.stop_signals import StopSignals
    from rqttl.worker.health import metrics_answer

    with settings.using() as broker:
        source = collector(broker, queues=queues, limit=limit)
        if as_json:
            samples = [sample for family in source.read() for sample in family.samples]
            output.answer_json([{"metric": one.name, "labels": one.labels, "value": one.value} for one in samples])
        elif once:
            from rqttl.metrics.collecting import as_text

            output.answer(as_text(source.read).rstrip("\n"))
        else:
            stop = threading.Event()
            routes = {"/metrics": lambda headers: metrics_answer(headers, source.collect)}
            with StopSignals(stop.set, ends_process=True), _serving(listen, "listen", routes):
                stop.wait()


@click.command(epilog="\b\nExample: rqttl server --folder ./data")
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    metavar="PATH",
    help="Folder of its data.  [default: the folder of the URL, else the one that all commands share]",
)
@params.json_flag
@click.option("--url", metavar="URL", help="Folder of its data, as a URL: embedded:///folder.")
@params.debug_flag
@click.pass_obj
def server(settings: Settings, folder: str | None, as_json: bool, url: str | None) -> int:
    """Run the embedded Redis in the foreground.

    The command prints its URL, and ends with Ctrl-C or SIGTERM. Commands
    without --url start and stop the server by themselves; `rqttl server` keeps
    it running between them. The server goes on while other processes use it.
    """
    from rqttl.embedded.folder import SCHEME, folder_of
    from rqttl.embedded.server import serve

    url = url or settings.url
    if folder and url:
        raise click.UsageError("give --folder or --url, not both")

    def print_url(at: str) -> None:
        output.answer_either({"url": at}, at, as_json=as_json)
        output.note("ready; Ctrl-C ends it")

    if not folder:
        if url is not None and not url.startswith(SCHEME):
            raise click.UsageError("--url: this runs the embedded Redis; expected embedded:///folder")
        url = url or os.environ.get("RQTTL_URL") or SCHEME
        if url.startswith(SCHEME):
            folder = folder_of(url)
        else:
            output.note("$RQTTL_URL names another Redis: commands will use that one, unless --url says otherwise")
    return serve(folder, on_ready=print_url)


@click.command(epilog="\b\nExample: rqttl demo --limit 5000")
@params.limit_option(50_000, "Number of departures to play.")
@click.option(
    "--spark/--no-spark",
    default=True,
    show_default=True,
    help="Let Spark count the dead letters by carrier and hour at the end, if it is installed.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="File for a picture of these counts, a PNG.",
)
@params.json_flag
@click.option("--url", metavar="URL", help="Redis to use. The queues of the demo have a namespace of their own.")
@params.debug_flag
@click.pass_obj
def demo(settings: Settings, limit: int, spark: bool, picture: str | None, as_json: bool, url: str | None) -> int:
    """Show queues, consumers and a reaper at work, on real data.

    Departures of New York's airports become boarding calls that expire. Consumers handle some of them, a reaper moves
    the expired ones, and a table accounts for all. At the end Spark counts the dead letters by carrier and hour.
    """
    from rqttl.demo import run  # slow to load

    return run(limit, named_server(url or settings.url), as_json=as_json, spark=spark, picture=picture)
