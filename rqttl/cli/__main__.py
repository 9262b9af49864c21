"""`python -m rqttl.cli`: the same as `rqttl`."""

from rqttl.cli import main

main()
