"""`python -m rqttl` is `rqttl`, for machines where the folder of scripts is not on the PATH."""

from rqttl.cli import main

main()
