# A machine needs only Python >= 3.10 and make: the first target that runs makes .venv.

PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/.ready
PYTEST := $(BIN)/python -m pytest

# Tests of what depends on no server run once (`tests/unit`, `tests/testing`, the mark `once`); all others run on each kind
# of server. Many tests wait for a process, so three at a time are quicker than two on two cores. Tests with a JVM run
# once, in two processes: each has a Spark session. `make check test` runs the quick tests once.
PARALLEL := -n 3 --dist worksteal -m 'not spark and not quick and not browser'
ON_EACH  := -n 3 --dist worksteal -m 'not spark and not once and not browser'
# Tests with environments of their own.
ELSEWHERE := --ignore=tests/release --ignore=tests/django --ignore=tests/celery


.PHONY: help demo lint quick test test-7.0 test-valkey test-servers test-pythons test-fake test-aio test-cluster test-celery test-celery-suites test-cluster-aio test-dashboard test-spark test-spark-versions check setup bench bench-spark bench-worker bench-instructions compare compare-celery dist chaos chaos-celery chaos-worker cancellations coverage coverage-of-spec docs test-policies test-scheduled test-sentinel test-worker test-django test-django-5.2

help:
	@echo 'Daily'
	@echo 'make demo              rqttl at work, from sending to a report of Spark, on real data'
	@echo 'make test              all tests, on Redis 7.0 (or later), Valkey 9 and the fake broker, and with Spark'
	@echo 'make check             linters, types, layers and the quick tests'
	@echo 'make setup             only the environment'
	@echo 'make test-sentinel     failovers behind Sentinel; make test has them, too'
	@echo 'make test-cluster-aio  contract tests of the asyncio interface on a Redis Cluster'
	@echo 'make test-dashboard    all tests of the dashboard in a browser; make test has ten of them'
	@echo 'make bench             measurements against raw redis-py, as a table'
	@echo 'make coverage          the part of rqttl that the tests of the core and of the command line run'
	@echo 'make coverage-of-spec  rows of the behaviour specification, with the tests that show them'
	@echo 'make dist              the packages of this commit, compared, checked and tried, also beside the version before'
	@echo 'make docs              the site with all documents, in build/site'
	@echo 'Campaigns'
	@echo 'make test-servers      contract and script tests on Redis 6.2 and 8; SERVERS=8 for one'
	@echo 'make test-pythons      unit and contract tests on each Python from 3.10 to 3.14; PYTHONS=3.13 for one'
	@echo 'make test-celery       the tests with Celery, newest and 5.5; CELERYS=5.5 for one'
	@echo 'make test-celery-suites  the integration tests of Celery and kombu, beside the transport of kombu; half an hour'
	@echo 'make compare-celery    outcomes and rates of the transport of Celery beside that of kombu; TASKS=20000 for more'
	@echo 'make test-django       tasks of Django 5.2, 6.0 and the newest release; DJANGOS=6.0 for one'
	@echo 'make test-spark-versions  the tests with Spark on 4.0, 4.1, 4.2 and the newest release; SPARKS=4.1 for one'
	@echo 'make bench-spark       the same for the Spark data source'
	@echo 'make bench-worker      the same for workers'
	@echo 'make compare           rqttl against other queues on Redis, which it installs for itself; PEERS=rq WORKLOADS=single'
	@echo 'make bench-instructions BASE=v1  instructions of a message, compared with the revision v1'
	@echo 'make chaos MINUTES=10  a search for lost, late or wrong messages under harm; ON=sentinel, ON=cluster'
	@echo 'make chaos-worker KILLS=200  kills of children, workers and Redis under load, with a table of the results'
	@echo 'make chaos-celery KILLS=100  kills of workers of Celery and of Redis under 200 tasks a second'
	@echo 'make cancellations     100,000 cancelled calls of the asyncio interface on each loop; CANCELS=1000 for fewer'
	@echo 'make test-policies     races and kills in the middle of changes of policies, more and longer than in make test'
	@echo 'make test-scheduled    200 kills of reapers and of Redis while scheduled messages arrive; KILLS=1000 for more'
	@echo 'make test-worker       stops, starved processes and outages of workers, more and longer than in make test'

# This is quick without changes: only pyproject.toml names the packages.
$(READY): pyproject.toml .ci/setup
	@PYTHON='$(PYTHON)' bash .ci/setup environment
	@touch $@

setup: $(READY)
	@bash .ci/setup server
	@bash .ci/setup java
	@bash .ci/setup program luacheck lua-check
	@bash .ci/setup program openssl openssl
	@bash .ci/setup program promtool prometheus
	@bash .ci/setup browser

demo: $(READY)
	@bash .ci/setup java
	@$(BIN)/rqttl demo --picture build/dead-letters.png

test: CELERYS := newest
test: quick test-7.0 test-valkey test-fake test-aio test-cluster test-django-5.2 test-celery test-spark

test-7.0: setup
	RQTTL_TEST_REDIS=7.0 $(PYTEST) $(PARALLEL) tests $(ELSEWHERE)

test-valkey: setup
	RQTTL_TEST_REDIS=valkey $(PYTEST) $(ON_EACH) tests --ignore=tests/unit --ignore=tests/testing $(ELSEWHERE)

SERVERS ?= 6.2 8
test-servers: setup
	@for server in $(SERVERS); do echo "Redis $$server"; \
		RQTTL_TEST_REDIS=$$server $(PYTEST) $(ON_EACH) tests/contract tests/lua || exit 1; done

# Each version of Celery has an environment below `build`; `make test` takes the newest.
CELERYS ?= newest 5.5
test-celery: $(READY)
	@bash .ci/setup server
	@for version in $(CELERYS); do bash .ci/setup celery $$version && echo "Celery $$version" \
		&& RQTTL_TEST_REDIS=7.0 build/celery-$$version/bin/python -m pytest -n 2 --dist worksteal -q tests/celery || exit 1; done

# The integration tests of kombu and Celery themselves, on both transports.
test-celery-suites: $(READY)
	@bash .ci/setup server
	@bash .ci/setup celery newest
	@build/celery-newest/bin/python -m tests.celery.suites

# Beside the Redis transport of kombu, in one run: what tests of workers say of each, and rates. TASKS=20000 for more.
compare-celery: $(READY)
	@bash .ci/setup server
	@bash .ci/setup celery newest
	@build/celery-newest/bin/python -m tests.bench.celery $(TASKS)

# Kills of workers of Celery and, a fifth as many, of Redis under 200 tasks a second. Prints its figures; the suite has
# the same test with 3 kills.
chaos-celery: $(READY)
	@bash .ci/setup server
	@bash .ci/setup celery newest
	RQTTL_TEST_REDIS=7.0 RQTTL_TEST_KILLS=$(or $(KILLS),100) build/celery-newest/bin/python -m pytest -s -q \
		tests/celery/test_workers.py -k kills_of_workers

# Each Python has an environment below `build`.
PYTHONS ?= 3.10 3.11 3.12 3.13 3.14
test-pythons: setup
	@missing=; for version in $(PYTHONS); do \
		bash .ci/setup python $$version || { missing="$$missing $$version"; continue; }; echo "Python $$version"; \
		RQTTL_TEST_REDIS=7.0 build/python-$$version/bin/python -m pytest $(PARALLEL) -m 'not spark' tests/unit tests/contract \
		|| exit 1; done; [ -z "$$missing" ] || echo "not installed, not tested: Python$$missing"

# The promise of `rqttl.testing`: the contract tests also pass on the fake broker.
test-fake: $(READY)
	RQTTL_TEST_REDIS=fake $(PYTEST) $(PARALLEL) tests/contract

# The asyncio interface keeps the same promises.
test-aio: setup
	RQTTL_TEST_REDIS=aio $(PYTEST) $(PARALLEL) tests/contract

# So does a Redis Cluster of three nodes.
test-cluster: setup
	RQTTL_TEST_REDIS=cluster $(PYTEST) $(PARALLEL) tests/contract tests/doctor/test_roles.py

test-cluster-aio: setup
	RQTTL_TEST_REDIS=cluster-aio $(PYTEST) $(PARALLEL) tests/contract

test-dashboard: setup
	RQTTL_TEST_REDIS=7.0 $(PYTEST) -n 2 --dist worksteal tests/dashboard/browser

test-spark: setup
	RQTTL_TEST_REDIS=7.0 $(PYTEST) -n 2 --dist worksteal -m spark tests/spark tests/examples

# Django's tasks, in environments below `build`. 5.2 with django-tasks runs on each Python; DJANGOS=6.0 for one of them.
DJANGOS ?= 5.2 6.0 newest
test-django: setup
	@missing=; for version in $(DJANGOS); do PYTHON='$(PYTHON)' bash .ci/setup django $$version \
		|| { [ $$? -eq 3 ] || exit 1; missing="$$missing $$version"; continue; }; echo "Django $$version"; \
		RQTTL_TEST_REDIS=7.0 build/django-$$version/bin/python -m pytest -q tests/django || exit 1; done; \
		[ -z "$$missing" ] || echo "not tested, it needs Python 3.12, 3.13 or 3.14: Django$$missing"

test-django-5.2:
	@$(MAKE) --no-print-directory test-django DJANGOS=5.2

# The tests with a JVM on each line of Spark 4, and on the newest release: each has an environment below `build`.
# SPARKS=4.1 for one of them.
SPARKS ?= 4.0 4.1 4.2 newest
test-spark-versions: setup
	@for version in $(SPARKS); do bash .ci/setup spark $$version && echo "Spark $$version" \
		&& RQTTL_TEST_REDIS=7.0 build/spark-$$version/bin/python -m pytest -n 2 --dist worksteal -W default -q -m spark tests/spark \
		|| exit 1; done

# The tests of `tests/unit` that are not slow. Some of them start a server.
quick: $(READY)
	@bash .ci/setup server
	@bash .ci/setup program luacheck lua-check
	$(PYTEST) -n 2 --dist worksteal -m quick -q tests/unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint quick

bench: setup
	@$(BIN)/python -m tests.bench.core

bench-spark: setup
	@$(BIN)/python -m tests.bench.spark

bench-worker: setup
	@$(BIN)/python -m tests.bench.worker

bench-instructions: setup
	@$(if $(BASE),,$(error BASE: expected a revision, as in make bench-instructions BASE=main))$(BIN)/python -m tests.bench.instructions $(BASE)

dist: $(READY)
	@bash .ci/setup server
	@bash .ci/dist

# The site in build/site: warnings are errors, and so are links that lead nowhere. It needs no network.
docs: $(READY)
	$(BIN)/python -m sphinx -q -W --keep-going -E -j 2 -c docs/site . build/site

# Each variable is also an option of `python -m tests.bench.compare`: PEERS, WORKLOADS, MESSAGES, ROUNDS, PAGE=1.
compare: $(READY)
	@bash .ci/setup server
	@$(BIN)/python -m tests.bench.compare $(if $(PEERS),--peers $(PEERS)) $(if $(WORKLOADS),--workloads $(WORKLOADS)) \
		$(if $(MESSAGES),--messages $(MESSAGES)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(PAGE),--page)

# Each variable is also an option of `python -m tests.chaos.run`: MINUTES, SEED, NEMESES=kills,refusals, SERVER=6.2,
# ON=sentinel or cluster.
chaos: $(READY)
	@bash .ci/setup server
	@$(BIN)/python -m tests.chaos.run $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) \
		$(if $(NEMESES),--nemeses $(NEMESES)) $(if $(SERVER),--server $(SERVER)) $(if $(ON),--on $(ON))

# Each variable is also an option of `python -m tests.worker.kills`: KILLS, SEED, SERVER=6.2, VICTIMS=child,worker,redis.
chaos-worker: $(READY)
	@bash .ci/setup server
	@$(BIN)/python -m tests.worker.kills $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(VICTIMS),--victims $(VICTIMS)) $(if $(SERVER),--server $(SERVER))

# The suite has the same test with 300 cancellations. RQTTL_TEST_REDIS=valkey is another server.
cancellations: setup
	RQTTL_TEST_CANCELS=$(or $(CANCELS),100000) $(PYTEST) tests/aio/test_cancelling.py -k random

# Prints its figures. The suite has the same tests with a race of 6 s, 20 kills and 4 restarts.
test-policies: setup
	RQTTL_TEST_RACE_SECONDS=20 RQTTL_TEST_KILLS=200 RQTTL_TEST_RESTARTS=40 $(PYTEST) -s tests/process/test_policy_race.py \
		tests/process/test_policy_kills.py

# Prints its figures. The suite has the same test with 5 kills of each.
test-scheduled: setup
	RQTTL_TEST_KILLS=$(or $(KILLS),200) $(PYTEST) -s tests/process/test_scheduled_kills.py

# One primary, two replicas and three Sentinels for each worker of pytest.
test-sentinel: setup
	RQTTL_TEST_REDIS=7.0 $(PYTEST) -n 2 tests/sentinel

# The suite has the same tests with 3 stops, 1 run of each starved process, and 2 short outages of each kind.
test-worker: setup
	RQTTL_TEST_STOPS=50 RQTTL_TEST_STARVED=10 RQTTL_TEST_OUTAGES=20 RQTTL_TEST_OUTAGE_SECONDS=30 \
		$(PYTEST) tests/worker/test_campaigns.py

# Without code that only child processes run, and without Spark. The scripts of Redis are not counted.
coverage: setup
	RQTTL_TEST_REDIS=7.0 $(PYTEST) $(PARALLEL) -q --cov=rqttl --cov-branch --cov-report=term:skip-covered \
		tests/unit tests/lua tests/contract tests/cli

coverage-of-spec: $(READY)
	@$(BIN)/python -m tests.spec_coverage
