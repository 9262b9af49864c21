"""Commands of `manage.py`, which Django looks for in `commands`."""
