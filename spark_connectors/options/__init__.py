"""Options of the data source: their table, values, patterns and secrets."""
