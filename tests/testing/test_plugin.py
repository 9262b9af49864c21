"""The pytest plugin, as a project that uses rqttl meets it."""

import pytest

from tests.repository import ROOT

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

#: Runs pytest with the plugin, whether or not rqttl is installed here with its entry points; and as strict as we are.
OPTIONS = ("-p", "no:rqttl", "-p", "rqttl.pytest_plugin", "-p", "no:randomly", "-p", "no:cacheprovider", "-W", "error")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return pytester


def test_each_test_has_a_fake_broker_of_its_own(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import pytest, rqttl

        @pytest.mark.parametrize("n", [1, 2])
        def test_alone(rqttl_broker, n):
            assert isinstance(rqttl_broker, rqttl.Broker)
            assert rqttl_broker.queues() == []
            queue = rqttl_broker.declare_queue("q", message_ttl="5s")
            queue.enqueue(b"x")
            rqttl_broker.clock.advance("5s")
            assert rqttl_broker.run_reaper().expired == 1
    """)

    project.runpytest_subprocess(*OPTIONS).assert_outcomes(passed=2)


def test_each_test_has_a_server_of_its_own_that_is_gone_afterwards(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import pathlib, pytest, redis, rqttl
        from rqttl.store.driver import driver_of

        seen = []

        @pytest.mark.parametrize("n", [1, 2])
        def test_alone(rqttl_server, n):
            with rqttl.connect(rqttl_server) as broker:
                assert broker.queues() == []
                broker.declare_queue("q").enqueue(b"x")
                with redis.Redis.from_url(rqttl_server) as client:
                    assert client.info("server")["redis_version"]
            seen.append(rqttl_server)

        def test_gone():
            assert len(set(seen)) == 2
            for url in seen:
                with pytest.raises(redis.ConnectionError):
                    redis.Redis.from_url(url).ping()
                assert not pathlib.Path(url.removeprefix("unix://")).parent.exists()
    """)

    project.runpytest_subprocess(*OPTIONS).assert_outcomes(passed=3)


def test_a_missing_package_and_a_missing_server_are_named_in_one_line_each(project: pytest.Pytester) -> None:
    project.makeconftest("""
        import sys, pytest, rqttl.embedded.server
        sys.modules['fakeredis'] = None

        @pytest.fixture(autouse=True)
        def nothing_installed(monkeypatch):
            def missing(*_):
                raise rqttl.EmbeddedUnavailable("no redis-server found: install one")
            monkeypatch.setattr(rqttl.embedded.server, "acquire", missing)
    """)
    project.makepyfile("""
        def test_fake(rqttl_broker): ...

        def test_real(rqttl_server): ...

        def test_without(): ...
    """)

    result = project.runpytest_subprocess(*OPTIONS)

    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(
        ["*fakeredis*; install what it needs: `pip install '.[[]testing]'` in a checkout of rqttl"]
    )
    result.stdout.fnmatch_lines(["no redis-server found: install one"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*pytest_plugin.py:*")


def test_a_failed_assertion_of_the_kit_shows_the_line_of_the_test(project: pytest.Pytester) -> None:
    project.makepyfile("""
        from rqttl.testing import assert_depth

        def test_depth(rqttl_broker):
            orders = rqttl_broker.declare_queue("orders")
            assert_depth(orders, 1)
    """)

    result = project.runpytest_subprocess(*OPTIONS)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [">       assert_depth(orders, 1)", "E       AssertionError: queue 'orders': expected 1*"]
    )
    result.stdout.no_fnmatch_line("*looks.py:*")
