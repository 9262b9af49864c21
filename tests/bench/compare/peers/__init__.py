"""Programs that run in the environments of the peers: `PYTHON with_x.py produce|consume SOCKET MODE COUNT`."""
