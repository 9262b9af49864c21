"""SQLite, that looks whether a connection is usable, as the databases with servers do."""

import sqlite3

from django.db.backends.sqlite3 import base


class DatabaseWrapper(base.DatabaseWrapper):
    def is_usable(self) -> bool:
        try:
            self.connection.execute("SELECT 1")
        except sqlite3.Error:
            return False
        return True
